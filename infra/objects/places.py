"""Buckets by the place that an offload context states: the configured store, or another one."""

import socket
from collections.abc import Callable, Iterator
from functools import cache
from urllib.parse import urlsplit

from infra.objects.store import S3ObjectStore
from logstore.errors import StoreUnavailable
from logstore.offload.places import TieredPlace
from logstore.ports.objects import ObjectInfo

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_KNOCK_S = 1.0


class Places:
    """`Buckets`; clients are made once for each endpoint and region."""

    def __init__(
        self, home: S3ObjectStore, connect: Callable[[str, str], S3ObjectStore], *, own_stack: bool = False
    ) -> None:
        """Resolve places.

        Args:
            home: A bucket of the configured store.
            connect: Makes a store, whatever its bucket, of endpoint and region with the configured credentials.
            own_stack: Whether the configured store is one that this home starts itself, on ports that may change.
        """
        self._home = home
        self._own_stack = own_stack
        connected = cache(connect)
        self._at_home = cache(home.for_bucket)
        self._elsewhere = cache(lambda bucket, endpoint, region: connected(endpoint, region).for_bucket(bucket))
        self._stand_in = cache(lambda place: _StandIn(home, place))

    def __call__(self, place: TieredPlace) -> S3ObjectStore:
        """The bucket, the same one for each way to write its place; a store that is not there says so when asked."""
        if self._moved(place.endpoint):
            return self._stand_in(place)
        endpoint, region = place.endpoint or self._home.endpoint, place.region or self._home.region
        if (_address(endpoint), region) == (_address(self._home.endpoint), self._home.region):
            return self._at_home(place.bucket)
        return self._elsewhere(place.bucket, endpoint.rstrip("/"), region)

    def _moved(self, endpoint: str) -> bool:
        """Whether nobody listens any more where an embedded stack listened, and this home has one of its own."""
        if not self._own_stack or not endpoint or _address(endpoint) == _address(self._home.endpoint):
            return False
        host, port = _address(endpoint)[1:3]
        return host in _LOOPBACK and not _listens(host, port)


class _StandIn(S3ObjectStore):
    """The home's own stack, for a context of an earlier build that names the port of an earlier start.

    What it shows is the copy, for keys are unique; what it does not show may stand where the context says.
    """

    def __init__(self, home: S3ObjectStore, place: TieredPlace) -> None:
        super().__init__(home.client, place.bucket, patience=home.patience)
        self._place = place

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        """As of any store, except that nothing found is no answer.

        Raises:
            StoreUnavailable: Nothing found.
        """
        found = False
        for item in super().list(prefix, start_after=start_after):
            found = True
            yield item
        if not found:
            where = f"{self._place.endpoint}, where nobody listens"
            raise StoreUnavailable(f"{prefix}: its context names {where}, and {self.endpoint} does not show it")


def _address(endpoint: str) -> tuple[str, str, int, str]:
    parts = urlsplit(endpoint.rstrip("/"))
    return parts.scheme, parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80), parts.path


def _listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=_KNOCK_S).close()
    except ConnectionRefusedError:
        return False
    except OSError:
        return True  # perhaps: it is asked, and says so itself
    return True
