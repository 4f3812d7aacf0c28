"""Lease on a Pulsar cluster: of all Sextons that know the cluster, one changes it at a time.

The lease is a znode of the cluster that is never deleted. Each holder, and each attempt of a holder, raises the version
of the znode. Each change of the cluster checks this version in the same ZooKeeper transaction. A process that was
overtaken, even while its request was on its way, changes nothing. Times are by the clock of ZooKeeper's server.

Source: Martin Kleppmann's fencing tokens; ZooKeeper's `multi` with a check of a version.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from infra.coordination.zookeeper_session import ZooKeeperSession
from logstore.errors import PreconditionFailed, StoreUnavailable
from logstore.failpoints import effect

LEASE_PATH: Final = "/sexton/lease"
"""Below the chroot of the cluster."""

LEASE_S: Final = 900.0
"""Time after which another holder may take the lease."""

_RENEWAL_S: Final = 300.0  # age at which a holder renews its lease before it goes on

_CLOCK_PATH: Final = "/sexton/clock-"


class LeaseLost(StoreUnavailable):
    """Another process has taken the lease of the cluster. A new attempt asks for it again."""


@dataclass(frozen=True, slots=True)
class TakenLease:
    """Proof that a holder has the lease. It is valid as long as the znode has this version."""

    holder: str
    version: int
    taken_s: float  # by this process's monotonic clock, read before the request


@dataclass(frozen=True, slots=True)
class _Lease:
    holder: str  # "": free
    attempt: str
    version: int
    taken_ms: int


class ClusterLease:
    """Lease of the cluster of one session. `holder` names a catalog and a job, the same in all its attempts."""

    def __init__(self, session: ZooKeeperSession, holder: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._session, self._holder, self._clock = session, holder, clock
        self._attempt = uuid4().hex

    def take(self) -> TakenLease:
        """Take the lease if it is free, expired, or the holder's own. Earlier proofs are invalid then.

        Raises:
            PreconditionFailed: Another holder has the lease.
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
        if self._clock() - lease.taken_s < _RENEWAL_S:
            return lease
        return self._session.run_idempotent(
            "renewing the lease of the cluster", lambda client: self._renew(client, lease)
        )

    def release(self) -> None:
        """Free the lease, if it is the holder's. Idempotent."""
        with effect("pulsar.release_lease"):
            self._session.run_idempotent("releasing the lease of the cluster", self._free)

    def _take(self, client: KazooClient) -> TakenLease:
        taken_s = self._clock()
        while True:
            current = _read_lease(client)
            if current is None:
                _create_free_lease(client)
                continue
            if current.attempt == self._attempt:  # of a request whose answer was lost
                return TakenLease(self._holder, current.version, taken_s)
            if current.holder not in {"", self._holder}:
                _require_expired(client, current)
            try:
                stat = client.set(LEASE_PATH, self._encode(), version=current.version)
            except BadVersionError:
                continue
            return TakenLease(self._holder, stat.version, taken_s)

    def _renew(self, client: KazooClient, lease: TakenLease) -> TakenLease:
        """Raise the version. A higher version with the own attempt is one whose answer was lost."""
        taken_s, current = self._clock(), _read_lease(client)
        if current is None or current.attempt != self._attempt:
            raise LeaseLost(f"cluster: expected the lease of {self._holder}, found another one")
        if current.version > lease.version:
            return TakenLease(self._holder, current.version, taken_s)
        try:
            stat = client.set(LEASE_PATH, self._encode(), version=lease.version)
        except BadVersionError:
            raise LeaseLost(f"cluster: expected the lease of {self._holder}, found another one") from None
        return TakenLease(self._holder, stat.version, taken_s)

    def _free(self, client: KazooClient) -> None:
        current = _read_lease(client)
        if current is None or current.holder != self._holder:
            return
        try:
            client.set(LEASE_PATH, b"", version=current.version)
        except BadVersionError:  # another attempt has taken it, and releases it
            return

    def _encode(self) -> bytes:
        return json.dumps({"holder": self._holder, "attempt": self._attempt}).encode()


def _read_lease(client: KazooClient) -> _Lease | None:
    try:
        data, stat = client.get(LEASE_PATH)
    except NoNodeError:
        return None
    fields = json.loads(data or b"{}")
    return _Lease(fields.get("holder", ""), fields.get("attempt", ""), stat.version, stat.mtime)


def _create_free_lease(client: KazooClient) -> None:
    try:
        client.create(LEASE_PATH, b"", makepath=True)
    except NodeExistsError:
        return


def _require_expired(client: KazooClient, lease: _Lease) -> None:
    """Raise `PreconditionFailed` unless the lease is older than `LEASE_S`. Only a new znode tells the server's time."""
    path, stat = client.create(_CLOCK_PATH, b"", ephemeral=True, sequence=True, include_data=True)
    client.delete(path)
    age_s = (stat.ctime - lease.taken_ms) / 1_000
    if age_s < LEASE_S:
        expected = f"expected no other job that changes it, found {lease.holder}"
        advice = f"Wait until it has ended, or {LEASE_S:,.0f} s if it died"
        raise PreconditionFailed(f"cluster: {expected}, which took its lease {age_s:,.0f} s ago. {advice}")
