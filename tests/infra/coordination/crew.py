"""Workers of one ensemble and one catalog, as threads of the test."""

import threading
from collections.abc import Callable

from infra.coordination.bundle_holdings import OwnershipObserver, TakeoverTimes
from infra.coordination.bundle_owner import BundleOwner, BundleOwnerOptions, ExpiredPolicy
from infra.coordination.zookeeper_session import EnsembleOptions, SessionState, ZooKeeperSession
from logstore.catalog.ownership.fences import Fences
from logstore.ownership import BundleId, Lease
from tests.logstore.eventually import assert_eventually

BUNDLES = 24


class Watcher:
    """A listener that remembers, and fails if it is made to."""

    def __init__(self) -> None:
        self.acquired_: list[Lease] = []
        self.unloaded_: list[BundleId] = []
        self.loading: Callable[[Lease], None] = lambda _: None

    def on_acquired(self, lease: Lease) -> None:
        self.loading(lease)
        self.acquired_.append(lease)

    def on_unloaded(self, bundle: BundleId) -> None:
        self.unloaded_.append(bundle)


class Looks(OwnershipObserver):
    """Counts a worker's looks at all bundles."""

    count = 0

    def on_reconciled(self, pending_bundles: int) -> None:
        self.count += 1


class Crew:
    """Workers of one ensemble and one catalog."""

    def __init__(self, ensemble: EnsembleOptions, fences: Fences) -> None:
        self.ensemble, self.fences = ensemble, fences
        self.owners: dict[str, BundleOwner] = {}
        self.sessions: dict[str, ZooKeeperSession] = {}
        self.watchers: dict[str, Watcher] = {}
        self.looks: dict[str, Looks] = {}
        self.door = threading.Event()  # to ZooKeeper; while it is shut nobody gets a session
        self.door.set()

    def hire(
        self,
        name: str,
        *,
        expired: ExpiredPolicy = ExpiredPolicy.RECONNECT,
        attempts: int = 10,
        rest_s: float = 1.5,
        fences: Fences | None = None,
        loading: Callable[[Lease], None] = lambda _: None,
    ) -> BundleOwner:
        """Start a worker; `fences` is how it sees them, `loading` what it does with a bundle that it acquired."""

        def connect(tell: Callable[[SessionState], None]) -> ZooKeeperSession:
            assert self.door.wait(60)
            self.sessions[name] = ZooKeeperSession(self.ensemble, tell)
            return self.sessions[name]

        takeover = TakeoverTimes(takeover_grace_s=0.3, rest_s=rest_s, fence_check_interval_s=0.5)
        policy = BundleOwnerOptions(
            expired=expired, reconnect_attempts=attempts, check_interval_s=0.1, takeover=takeover
        )
        watcher = self.watchers[name] = Watcher()
        watcher.loading = loading
        self.looks[name] = looks = Looks()
        owner = BundleOwner(name, connect, fences or self.fences, watcher, options=policy, events=looks)
        self.owners[name] = owner
        owner.start()
        return owner

    def dismiss(self) -> None:
        """Stop all."""
        self.door.set()
        for owner in self.owners.values():
            owner.stop()

    def held(self, *names: str) -> dict[int, str]:
        """Which worker has a lease of each bundle; fails where two have."""
        found: dict[int, str] = {}
        for name in names or self.owners:
            for lease in self.owners[name].leases():
                assert lease.bundle not in found
                found[lease.bundle] = name
        return found

    def settled(self, *names: str) -> bool:
        """Whether these own all bundles, and the last fence of each is its owner's."""
        leases = [lease for name in names or self.owners for lease in self.owners[name].leases()]
        last = {one.bundle: (one.fence, one.worker_id) for one in self.fences.list_newest_leases()}
        return len(leases) == BUNDLES and {one.bundle: (one.fence, one.worker_id) for one in leases} == last

    def await_looks(self, name: str, more: int) -> None:
        """Wait until a worker has looked at all bundles so often from now on: every tenth of a second, or sooner."""
        enough = self.looks[name].count + more
        assert_eventually(lambda: self.looks[name].count >= enough)

    def rests(self) -> bool:
        """Whether nothing moves while each looks at all bundles."""
        before = self.held()
        for name in self.owners:
            self.await_looks(name, 4)
        return self.settled() and self.held() == before
