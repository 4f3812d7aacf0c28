"""Workers as processes, on one ZooKeeper and one catalog, and what can be told of them from outside."""

import multiprocessing
import os
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient
from sqlalchemy import select

from logstore.catalog import Database
from logstore.catalog.ownership.fences import Fences
from logstore.catalog.tables import bundle_fence
from logstore.errors import CatalogBusy
from tests.infra.coordination.zookeeper import ZooKeeper
from tests.logstore.eventually import assert_eventually
from tests.ownership import fence_story, story_auditor
from tests.ownership.journal import JournalFileReader
from tests.ownership.owner_process import OwnerProcessPlan, run_owner_process


def _forkserver_context() -> ForkServerContext:
    """Children of a process that has imported everything, and has no threads."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pytest", "tests.ownership.owner_process"])
    return context


class OwnerWorkerProcess:
    """One process."""

    def __init__(self, plan: OwnerProcessPlan) -> None:
        """Start it."""
        self.plan = plan
        self._journal = JournalFileReader(plan.journal)
        # its entry point is a module's function: what started pytest is imported in the child, and does nothing there
        self._process: BaseProcess = _forkserver_context().Process(target=run_owner_process, args=(plan,), daemon=True)
        self._process.start()

    @property
    def id(self) -> str:
        """Worker id."""
        return self.plan.worker_id

    @property
    def process(self) -> str:
        """As its attempts begin."""
        return f"{self.id}.{self._process.pid}"

    @property
    def alive(self) -> bool:
        """Whether the process lives."""
        return self._process.is_alive()

    def said(self, kind: str | None = None) -> Sequence[dict[str, Any]]:
        """Of that kind or all, in order."""
        return self._journal.entries(kind)

    def since(self, kind: str, since: float) -> Sequence[dict[str, Any]]:
        """Of that kind, from a moment on."""
        return [entry for entry in self.said(kind) if entry["at"] >= since]

    def signal(self, number: signal.Signals) -> None:
        """Pause it, wake it, end it."""
        assert self._process.pid
        os.kill(self._process.pid, number)

    def exit_code(self, *, within_s: float) -> int | None:
        """Once it ended."""
        self._process.join(within_s)
        return self._process.exitcode

    def kill(self) -> None:
        """At once, paused or not."""
        self._process.kill()
        self._process.join()


class WorkerProcesses:
    """Processes that share the bundles of a catalog."""

    def __init__(self, folder: Path, database_url: str, zookeeper: ZooKeeper, path: str, timeout_s: float) -> None:
        """Nobody yet; `path` exists in that ZooKeeper, `timeout_s` is of a session."""
        self.folder, self.zookeeper, self.timeout_s, self.path = folder, zookeeper, timeout_s, path
        self.database_url = database_url
        self.database = Database(database_url)
        self.fences = Fences(self.database)
        self.workers: dict[str, OwnerWorkerProcess] = {}
        self._started_workers: list[OwnerWorkerProcess] = []

    def plan(self, worker_id: str, *, address: str = "", **options: Any) -> OwnerProcessPlan:
        """How a worker is to be; `address` is ZooKeeper's as it is to see it."""
        return OwnerProcessPlan(
            worker_id=worker_id,
            journal=self.folder / f"{worker_id}-{len(self._started_workers)}.jsonl",
            database_url=self.database_url,
            hosts=f"{address or self.zookeeper.address}{self.path}",
            timeout_s=self.timeout_s,
            **options,
        )

    def hire(self, worker_id: str, **options: Any) -> OwnerWorkerProcess:
        """Start a worker; an earlier one of this id is no longer counted on."""
        worker = self.start(self.plan(worker_id, **options))
        self.workers[worker_id] = worker
        return worker

    def start(self, plan: OwnerProcessPlan) -> OwnerWorkerProcess:
        """Start a process that is not counted on."""
        worker = OwnerWorkerProcess(replace(plan))
        self._started_workers.append(worker)
        return worker

    def trio(self) -> Mapping[int, str]:
        """Start three workers; who has which bundle once they rest."""
        for worker_id in ("a", "b", "c"):
            self.hire(worker_id)
        return self.rest()

    def dismiss(self) -> None:
        """Kill all."""
        for worker in self._started_workers:
            worker.kill()
        self.database.close()

    def raises(self, bundle: int) -> Sequence[fence_story.StoryRow]:
        """How often the bundle was acquired, and by whom, in order."""
        return [row for row in fence_story.read_story(self.database) if row.bundle == bundle and row.attempt is None]

    def holders(self) -> Mapping[int, str]:
        """Who holds each bundle, by what the workers say: acquired last, and not unloaded or lost since."""
        fences = self.counters()
        worker_by_bundle: dict[int, str] = {}
        for worker in self.workers.values():
            for bundle, fence in _held_fences(worker.said()).items():
                if fences.get(bundle) == fence:
                    worker_by_bundle[bundle] = worker.id
        return worker_by_bundle

    def settled(self) -> bool:
        """Whether each bundle has an owner, who writes under the last fence."""
        return len(self.holders()) == self.fences.count_bundles()

    def rest(self, *, within_s: float = 60.0) -> Mapping[int, str]:
        """Wait until each bundle has an owner and nothing moves any more; who has which."""
        assert_eventually(self._is_at_rest, within_s=within_s)
        return self.holders()

    def _is_at_rest(self) -> bool:
        """Whether each has looked at all bundles three times, and nothing has changed."""
        before, looked_from = self.holders(), time.monotonic()
        if set(before.values()) != self.workers.keys():
            return False
        assert_eventually(lambda: all(len(worker.since("looked", looked_from)) > 2 for worker in self.workers.values()))
        return self.settled() and self.holders() == before

    def converged_s(self, since: float) -> float:
        """From when the last worker was connected again until each bundle that had become free was acquired."""
        acquired = self._first_acquisition_by_bundle(since).values()
        return max(0.0, max(acquired, default=0.0) - max(map(_first_connected_at, self._connection_events(since))))

    def _connection_events(self, since: float) -> list[Sequence[dict[str, Any]]]:
        return [worker.since(kind, since) for worker in self.workers.values() for kind in ("opened", "linked")]

    def wait_until_reacquired(self, since: float) -> None:
        """Wait until each bundle was acquired anew from a moment on, and is owned."""
        assert_eventually(
            lambda: len(self._first_acquisition_by_bundle(since)) == self.fences.count_bundles(), within_s=60
        )
        assert_eventually(self.settled, within_s=60)

    def sessions(self) -> Mapping[str, int]:
        """Each worker's last session."""
        return {worker_id: int(worker.said("opened")[-1]["session"]) for worker_id, worker in self.workers.items()}

    def counters(self) -> dict[int, int]:
        """How often each bundle was acquired."""
        return {int(lease.bundle): lease.fence for lease in self.fences.list_newest_leases()}

    def _first_acquisition_by_bundle(self, since: float) -> dict[int, float]:
        first_by_bundle: dict[int, float] = {}
        for worker in self.workers.values():
            for entry in worker.since("acquired", since):
                acquired_at = float(entry["at"])
                first_by_bundle |= {
                    bundle: min(first_by_bundle.get(bundle, acquired_at), acquired_at)
                    for bundle in map(int, entry["fences"])
                }
        return first_by_bundle

    def expire(self, *workers: OwnerWorkerProcess) -> None:
        """End their sessions on the server's side, at once."""

        def end(worker: OwnerWorkerProcess) -> None:
            last_session = worker.said("session")[-1]
            with self.zookeeper.client(session=(last_session["id"], bytes.fromhex(last_session["password"]))):
                pass  # whoever closes the connection closes the session

        with ThreadPoolExecutor(len(workers)) as pool:
            list(pool.map(end, workers))

    def freeze(self, worker: OwnerWorkerProcess) -> None:
        """Pause it where it holds no lock: with SQLite's only one all others would wait for as long as it sleeps."""

        def frozen() -> bool:
            worker.signal(signal.SIGSTOP)
            if self._is_catalog_unlocked():
                return True
            worker.signal(signal.SIGCONT)
            return False

        assert_eventually(frozen)

    def _is_catalog_unlocked(self) -> bool:
        database = Database(self.database_url, patience_s=0.2)
        try:
            database.write(lambda connection: connection.execute(select(bundle_fence).with_for_update()).all())
        except CatalogBusy:
            return False
        finally:
            database.close()
        return True

    def look(self) -> AbstractContextManager[KazooClient]:
        """A client under the crew's path."""
        return self.zookeeper.client(f"{self.zookeeper.address}{self.path}")

    def create_zookeeper_path(self) -> None:
        """As whoever sets an ensemble up."""
        with self.zookeeper.client() as client:
            client.ensure_path(self.path)

    def attempts(self) -> list[dict[str, Any]]:
        """All that was tried by anybody."""
        return [entry for worker in self._started_workers for entry in worker.said("wrote")]

    def audit(self) -> None:
        """Have it proved that only present owners wrote; and that there was something to prove."""
        for worker in self._started_workers:
            worker.kill()
        story_rows = fence_story.read_story(self.database)
        assert not (violations := story_auditor.find_story_violations(story_rows, self.attempts())), "\n".join(
            violations[:20]
        )
        assert any(row.attempt for row in story_rows), "nobody wrote anything"

    def kept(self, before: Mapping[int, str]) -> int:
        """How many bundles have the owner that they had."""
        after = self.holders()
        return sum(1 for bundle, owner in before.items() if after.get(bundle) == owner)

    def refused(self, worker: OwnerWorkerProcess, since: float) -> int:
        """Attempts of a worker that were refused from a moment on."""
        return sum(1 for entry in worker.since("wrote", since) if entry["outcome"] == "refused")

    def accepted(self, workers: Iterable[OwnerWorkerProcess], since: float) -> set[int]:
        """Bundles that were written from a moment on, by these."""
        wrote = [entry for worker in workers for entry in worker.since("wrote", since)]
        return {entry["bundle"] for entry in wrote if entry["outcome"] == "accepted"}


def _held_fences(events: Sequence[dict[str, Any]]) -> dict[int, int]:
    """Bundles and fences, by what one worker said until now; none while its connection is away."""
    fence_by_bundle: dict[int, int] = {}
    connected = True
    for entry in events:
        if entry["what"] == "acquired":
            fence_by_bundle |= {int(bundle): fence for bundle, fence in entry["fences"].items()}
        elif entry["what"] == "unloaded":
            for bundle in entry["bundles"]:
                fence_by_bundle.pop(bundle, None)
        elif entry["what"] == "linked":
            connected = entry["link"] == "CONNECTED"
        elif entry["what"] in {"session", "ended"}:
            fence_by_bundle, connected = {}, True
    return fence_by_bundle if connected else {}


def _first_connected_at(events: Sequence[dict[str, Any]]) -> float:
    """When it was connected first, in whatever session; 0 if it was not."""
    moments = [float(entry["at"]) for entry in events if entry.get("link", "CONNECTED") == "CONNECTED"]
    return min(moments, default=0.0)
