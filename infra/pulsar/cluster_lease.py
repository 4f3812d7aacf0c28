"""Lease on a Pulsar cluster: of all Sextons that know the cluster, one changes it at a time.

The lease is a znode of the cluster. Its value names the holder. Each attempt of a holder has a mark, which is an
ephemeral child of the lease with a name that no other attempt has. Who takes the lease deletes all other marks. Each
change of the cluster checks in the same ZooKeeper transaction that the mark of its attempt exists. A process that was
overtaken, even while its request was on its way, changes nothing. Times are by the clock of ZooKeeper's server.

A version of the lease would prove less: it begins again at 0 if somebody deletes the znode.

Source: Martin Kleppmann's fencing tokens; ZooKeeper's `multi` with a check.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError, RolledBackError

from infra.coordination.zookeeper_session import ZooKeeperSession
from logstore.errors import PreconditionFailed, StoreUnavailable
from logstore.failpoints import effect

LEASE_PATH: Final = "/sexton/lease"
"""Below the chroot of the cluster."""

LEASE_S: Final = 900.0
"""Time after which another holder may take the lease."""

ANY_VERSION: Final = -1
"""Version with which a transaction checks only that a znode exists."""

_RENEWAL_S: Final = 300.0  # age at which a holder renews its lease before it goes on

_MAX_SHOWN_BYTES: Final = 100

_CLOCK_PATH: Final = "/sexton/clock-"


class LeaseLost(StoreUnavailable):
    """Another process has taken the lease of the cluster. A new attempt asks for it again."""


@dataclass(frozen=True, slots=True)
class TakenLease:
    """Proof that a holder has the lease. It is valid as long as the znode `mark` exists."""

    holder: str
    mark: str
    taken_s: float  # by this process's monotonic clock, read before the request


@dataclass(frozen=True, slots=True)
class _Lease:
    holder: str  # "": free
    version: int
    taken_ms: int
    marks: frozenset[str]  # paths


class ClusterLease:
    """Lease of the cluster of one session. `holder` names a catalog and a job, the same in all its attempts.

    The lease of the holder `overtakes` is taken too. With `continues`, no other lease than the holder's own is taken.
    """

    def __init__(
        self,
        session: ZooKeeperSession,
        holder: str,
        *,
        overtakes: str = "",
        continues: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session, self._holder, self._continues, self._clock = session, holder, continues, clock
        self._takes_from = {"", holder, overtakes}
        self._mark = f"{LEASE_PATH}/{uuid4().hex}"

    def take(self) -> TakenLease:
        """Take the lease if it is free, expired, or the holder's own. Earlier proofs are invalid then.

        Raises:
            PreconditionFailed: Another holder has the lease, or had it since the holder has begun.
            StoreUnavailable: ZooKeeper did not answer. The lease may be taken.
        """
        with effect("pulsar.take_lease"):
            return self._session.run_idempotent("taking the lease of the cluster", self._take)

    def renew_if_old(self, lease: TakenLease) -> TakenLease:
        """Return a proof that is young enough for the next request.

        Raises:
            LeaseLost: Another process has taken the lease.
            StoreUnavailable: ZooKeeper did not answer.
        """
        return lease if self._clock() - lease.taken_s < _RENEWAL_S else self.renew()

    def renew(self) -> TakenLease:
        """Return a new proof. For errors see `renew_if_old`."""
        return self._session.run_idempotent("renewing the lease of the cluster", self._renew)

    def release(self) -> None:
        """Free the lease, if it is the holder's. Idempotent."""
        with effect("pulsar.release_lease"):
            self._session.run_idempotent("releasing the lease of the cluster", self._free)

    def _take(self, client: KazooClient) -> TakenLease:
        while True:
            taken_s, current = self._clock(), _read_lease(client)
            if current is None:
                self._require_no_continuation("")
                _create_free_lease(client)
                continue
            if self._mark in current.marks:  # of a request whose answer was lost
                return TakenLease(self._holder, self._mark, taken_s)
            if current.holder not in self._takes_from:
                _require_expired(client, current)
            if current.holder != self._holder:
                self._require_no_continuation(current.holder)
            if _replace_lease(client, current, self._encode(), new_mark=self._mark):
                return TakenLease(self._holder, self._mark, taken_s)

    def _require_no_continuation(self, found: str) -> None:
        """Raise `PreconditionFailed` if the holder had the lease until now."""
        if self._continues:
            expected = f"expected the lease of {self._holder} since it began"
            raise PreconditionFailed(f"cluster: {expected}, found {found or 'a free one'}. Apply again")

    def _renew(self, client: KazooClient) -> TakenLease:
        taken_s, transaction = self._clock(), client.transaction()
        transaction.check(self._mark, ANY_VERSION)
        transaction.set_data(LEASE_PATH, self._encode())
        failure = find_failed_operation(transaction.commit())
        if failure is None:
            return TakenLease(self._holder, self._mark, taken_s)
        _, error = failure
        if not isinstance(error, NoNodeError):
            raise error
        raise make_lease_lost(self._holder)

    def _free(self, client: KazooClient) -> None:
        while (current := _read_lease(client)) is not None and current.holder == self._holder:
            if _replace_lease(client, current, b""):
                return

    def _encode(self) -> bytes:
        return json.dumps({"holder": self._holder}).encode()


def make_lease_lost(holder: str) -> LeaseLost:
    return LeaseLost(f"cluster: expected the lease of {holder}, found another one, or none")


def find_failed_operation(results: Sequence[Any]) -> tuple[int, Exception] | None:
    """Return the operation of a transaction that failed, by its number, and its error. `None`: all were executed."""
    failures = ((number, result) for number, result in enumerate(results) if isinstance(result, Exception))
    return next((failure for failure in failures if not isinstance(failure[1], RolledBackError)), None)


def _read_lease(client: KazooClient) -> _Lease | None:
    try:
        data, stat = client.get(LEASE_PATH)
        marks = frozenset(f"{LEASE_PATH}/{name}" for name in client.get_children(LEASE_PATH))
    except NoNodeError:
        return None
    return _Lease(_parse_holder(data), stat.version, stat.mtime, marks)


def _parse_holder(value: bytes) -> str:
    try:
        return str(json.loads(value)["holder"]) if value else ""
    except (ValueError, LookupError, TypeError) as error:
        raise PreconditionFailed(
            f'{LEASE_PATH}: expected {{"holder": NAME}}, found {value[:_MAX_SHOWN_BYTES]!r}. If no job changes the '
            "cluster, set an empty value"
        ) from error


def _create_free_lease(client: KazooClient) -> None:
    try:
        client.create(LEASE_PATH, b"", makepath=True)
    except NodeExistsError:
        return


def _replace_lease(client: KazooClient, current: _Lease, value: bytes, *, new_mark: str = "") -> bool:
    """Set the value, and delete all marks. Return `False`, and change nothing, if the lease is not `current` now."""
    transaction = client.transaction()
    transaction.set_data(LEASE_PATH, value, version=current.version)
    for mark in current.marks:
        transaction.delete(mark)
    if new_mark:
        transaction.create(new_mark, b"", ephemeral=True)
    failure = find_failed_operation(transaction.commit())
    if failure is None:
        return True
    _, error = failure
    if not isinstance(error, BadVersionError | NoNodeError):  # another take, or a mark whose session has ended
        raise error
    return False


def _require_expired(client: KazooClient, lease: _Lease) -> None:
    """Raise `PreconditionFailed` unless the lease is older than `LEASE_S`. Only a new znode tells the server's time."""
    path, stat = client.create(_CLOCK_PATH, b"", ephemeral=True, sequence=True, include_data=True)
    client.delete(path)
    age_s = (stat.ctime - lease.taken_ms) / 1_000
    if age_s < LEASE_S:
        expected = f"expected no other job that changes it, found {lease.holder}"
        advice = f"Wait until it has ended, or {LEASE_S:,.0f} s if it died"
        raise PreconditionFailed(f"cluster: {expected}, which took its lease {age_s:,.0f} s ago. {advice}")
