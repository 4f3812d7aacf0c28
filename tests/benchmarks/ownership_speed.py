"""How much moves and how long it takes: `python -m tests.benchmarks.ownership_speed [bundles] [workers]`.

Workers are threads of one process, on a real ZooKeeper and a catalog in SQLite. Each session ends on the server's side,
all at once, as after a pause of the whole machine.
"""

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from infra.coordination.bundle_owner import BundleOwner
from infra.coordination.zookeeper_session import EnsembleOptions, SessionState, ZooKeeperSession
from logstore.catalog import Database, migrate_catalog
from logstore.catalog.ownership.fences import Fences
from logstore.ownership import BundleId, Lease
from tests.infra.coordination.zookeeper import ZooKeeper

_TIMEOUT_S = 6.0  # of a session


class _Idle:
    """A listener without work."""

    def on_acquired(self, lease: Lease) -> None:
        """See `BundleListener`."""

    def on_unloaded(self, bundle: BundleId) -> None:
        """See `BundleListener`."""


class _Crew:
    """Workers, and who owns what."""

    def __init__(self, server: ZooKeeper, fences: Fences, workers: int) -> None:
        self.sessions: dict[str, ZooKeeperSession] = {}
        self._server, self._fences = server, fences
        ensemble = EnsembleOptions(hosts=server.address, timeout_s=_TIMEOUT_S)

        def connect(name: str) -> Callable[[Callable[[SessionState], None]], ZooKeeperSession]:
            def opened(tell: Callable[[SessionState], None]) -> ZooKeeperSession:
                self.sessions[name] = ZooKeeperSession(ensemble, tell)
                return self.sessions[name]

            return opened

        self.owners = {
            name: BundleOwner(name, connect(name), fences, _Idle()) for name in (f"w{n}" for n in range(workers))
        }

    def held(self) -> dict[BundleId, str]:
        return {lease.bundle: name for name, owner in self.owners.items() for lease in owner.leases()}

    def seconds_until_settled(self, since: float) -> float:
        """All bundles are owned, under the last fence of each."""
        while True:
            if len(self.held()) == self._fences.count_bundles():
                last = {(one.bundle, one.fence) for one in self._fences.list_newest_leases()}
                leases = {(one.bundle, one.fence) for owner in self.owners.values() for one in owner.leases()}
                if leases == last:
                    return time.perf_counter() - since
            if time.perf_counter() - since > 120:
                raise RuntimeError(f"not settled in two minutes: {len(self.held())} owned")
            time.sleep(0.02)

    def at_once(self, work: Callable[[str], object]) -> float:
        """Do it for each worker at the same time; when that began."""
        began = time.perf_counter()
        with ThreadPoolExecutor(len(self.owners)) as pool:
            list(pool.map(work, self.owners))
        return began


def measure(server: ZooKeeper, home: Path, bundles: int, workers: int) -> dict[str, Any]:
    """Start all, end all sessions, stop one: seconds until each bundle has an owner, and the share that kept it."""
    database = Database(f"sqlite:///{home / 'catalog.db'}")
    migrate_catalog(database, bundles=bundles)
    crew = _Crew(server, Fences(database), workers)
    started = crew.seconds_until_settled(crew.at_once(lambda name: crew.owners[name].start()))
    time.sleep(5)  # until the shares are even
    before = crew.held()
    expired = crew.seconds_until_settled(crew.at_once(lambda name: server.expire(crew.sessions[name])))
    after = crew.held()
    kept = sum(1 for bundle, name in before.items() if after[bundle] == name)
    last, owner = crew.owners.popitem()
    began = time.perf_counter()
    owner.stop()
    left = crew.seconds_until_settled(began)
    now = crew.held()
    others = [bundle for bundle, name in after.items() if name != last]
    stayed = sum(1 for bundle in others if now[bundle] == after[bundle])
    crew.at_once(lambda name: crew.owners[name].stop())
    database.close()
    return {
        "bundles": bundles,
        "workers": workers,
        "session_timeout_s": _TIMEOUT_S,
        "settled_after_start_s": round(started, 2),
        "all_sessions_expired": {"settled_s": round(expired, 2), "kept_their_owner": round(kept / bundles, 3)},
        "one_left": {"settled_s": round(left, 2), "of_others_kept": round(stayed / max(1, len(others)), 3)},
    }


def main() -> None:
    """Print one JSON document."""
    bundles, workers = map(int, sys.argv[1:] or (1_000, 5))
    home = Path(tempfile.mkdtemp(prefix="sx-"))
    server = ZooKeeper(home)
    try:
        print(json.dumps(measure(server, home, bundles, workers), indent=1))  # noqa: T201
    finally:
        server.kill()
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
