"""One soak from start to end: faults while all are at work, rest, last jobs, and the judgement."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from tests.soak.audit.evidence import EntryPosition, Evidence
from tests.soak.audit.promise_checks import Violation, count_sets, find_violations
from tests.soak.evidence_collector import Auditor
from tests.soak.fault_plan import FaultPlan, ScheduledFault, plan
from tests.soak.recovery import (
    EntriesByTopic,
    append_entries_without_flush,
    bring_replica_up_to_date,
    flush_and_ship,
    read_topics,
    rebuild_with_kills,
)
from tests.soak.soak_processes import REBUILT_DATABASE, REPLICA_ROLE, Ground
from tests.soak.soak_report import InjectedFault, SoakReport
from tests.soak.soak_setup import LASTING_TOPICS, JournalsReader, OperationJournal, write_phase
from tests.soak.temporal_at_rest import (
    count_runs_by_type,
    list_failed_workflows,
    list_running_jobs,
    redrive_all_dead_letters,
    resume_batches,
    run_last_jobs,
    set_up_schedules,
)
from workers.settings import Settings

REST_WITHIN_S: Final = 900.0
"""After the last fault: longer than the longest back-off of an activity, with room for a busy machine."""

_SAMPLE_INTERVAL_S: Final = 3.0
_CHECK_INTERVAL_S: Final = 20.0
SaySentence = Callable[[str], None]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakRequest:
    """What soak is wanted."""

    seed: int
    seconds: float = 600.0
    database: str = "sqlite"
    workers: int = 3
    clients: int = 2


@dataclass
class SoakRun:
    """A soak on a home of its own."""

    wish: SoakRequest
    home: Path
    say: SaySentence
    plan: FaultPlan = field(init=False)
    happened: list[InjectedFault] = field(default_factory=list)
    steps: list[tuple[int, float, float]] = field(default_factory=list)  # of clients' clocks; see `Evidence`
    troubles: list[str] = field(default_factory=list)
    """Steps of the soak itself that failed: the rest goes on, so that there is a report."""
    _faults_are_over: threading.Event = field(default_factory=threading.Event)
    _rest_s: float = 0.0

    def __post_init__(self) -> None:
        """Draw the plan."""
        wish = self.wish
        self.plan = plan(wish.seed, seconds=wish.seconds, workers=wish.workers, clients=wish.clients)

    def run(self) -> SoakReport:
        """Run the soak to its end. Remove the servers afterwards, but not the home."""
        self.say("starting servers, workers and clients")
        ground = Ground.up(
            self.home,
            self.plan,
            database=self.wish.database,
            workers=self.wish.workers,
            clients=self.wish.clients,
            before_start=self._start_auditor,
        )
        report: SoakReport | None = None
        try:
            report = self._run_and_report(ground)
            return report
        finally:
            if report is None or report.violations:
                self._run_step_or_default("keeping the databases", ground.dump_databases, None)
            ground.down()

    def _run_step_or_default(self, step: str, action: Callable[[], T], default: T) -> T:
        """Return the result of the action. If it fails, record the trouble and return `default`."""
        try:
            return action()
        except Exception as error:  # noqa: BLE001 - a violation like any other, and more may be found
            cause = f" ({error.__cause__})" if error.__cause__ else ""
            self.troubles.append(f"{step} failed: {type(error).__name__}: {error}{cause}")
            self.say(self.troubles[-1])
            return default

    def _start_auditor(self, ground: Ground) -> None:
        """Plant foreign objects before anything of the product runs."""
        self.auditor = Auditor.of(ground.direct)
        self.auditor.plant()
        self.said = JournalsReader(self.home)

    def _run_and_report(self, ground: Ground) -> SoakReport:
        asyncio.run(set_up_schedules(ground, pauses=False))
        self._inject_faults(ground)
        overdue_sentences = self._come_to_rest(ground)
        evidence = self._run_step_or_default(
            "collecting the evidence", lambda: self._collect_evidence(ground, overdue_sentences), None
        )
        types = self._run_step_or_default(
            "counting workflows", lambda: asyncio.run(count_runs_by_type(ground)), dict[str, int]()
        )
        violations = find_violations(evidence) if evidence else [Violation(2, wait) for wait in overdue_sentences]
        violations += [Violation(1, sentence) for sentence in self.auditor.lost_segments]
        violations += [Violation(8, trouble) for trouble in self.troubles]
        return SoakReport(
            seed=self.wish.seed,
            seconds=self.wish.seconds,
            database=self.wish.database,
            workers=self.wish.workers,
            clients=self.wish.clients,
            happened=sorted(self.happened, key=lambda fault: fault.began_s),
            ops=evidence.ops if evidence else (),
            sets=count_sets(evidence) if evidence else {},
            types=types,
            requests=ground.wire.weather.met,
            processes=_count_processes(ground, self.happened),
            looks=self.auditor.check_count,
            rest_s=self._rest_s,
            violations=violations,
        )

    def _inject_faults(self, ground: Ground) -> None:
        """Begin each fault at its time, in its own thread."""
        faults_began = time.monotonic()
        with ThreadPoolExecutor(len(self.plan.faults) + 1) as pool:
            running_faults = [
                pool.submit(self._inject_fault, ground, fault, faults_began) for fault in self.plan.faults
            ]
            next_check_s = _CHECK_INTERVAL_S
            while (passed := time.monotonic() - faults_began) < self.wish.seconds:
                with suppress(Exception):  # the database is away: there is another look soon
                    self.auditor.sample_fences()
                if passed > next_check_s:
                    next_check_s = passed + _CHECK_INTERVAL_S
                    with suppress(Exception):
                        self.auditor.check_registered_segments()
                time.sleep(_SAMPLE_INTERVAL_S)
            self._faults_are_over.set()
            for running_fault in running_faults:
                self._run_step_or_default("a fault", running_fault.result, None)

    def _inject_fault(self, ground: Ground, fault: ScheduledFault, faults_began: float) -> None:
        if self._faults_are_over.wait(max(0.0, faults_began + fault.at_s - time.monotonic())):
            return
        self.say(f"{time.monotonic() - faults_began:6.1f} s  {fault.kind} {fault.target}")
        since = time.time()
        lift = ground.begin(fault)
        self._faults_are_over.wait(fault.duration_s)
        lift()
        self.happened.append(InjectedFault(kind=fault.kind, target=fault.target, began_s=since, lifted_s=time.time()))
        if fault.kind == "step-clock-of-client":
            self.steps.append((fault.target, since, fault.amount))

    def _come_to_rest(self, ground: Ground) -> list[str]:
        """Start no new work, lift all faults, and wait for what was begun. Return what has not ended in time."""
        self.say("no more faults: coming to rest")
        ground.arming = False
        self._run_step_or_default("starting the servers again", ground.revive, None)
        write_phase(self.home, "drain")
        rest_began = time.monotonic()
        batches = {entry["batch"] for entry in self.said.entries() if "batch" in entry}
        self._run_step_or_default("redriving dead letters", lambda: asyncio.run(redrive_all_dead_letters(ground)), None)
        self._run_step_or_default("resuming batches", lambda: asyncio.run(resume_batches(ground, batches)), None)
        overdue_sentences = self._wait_for_rest(
            lambda: (
                asyncio.run(list_running_jobs(ground)) + self.auditor.list_unsettled(self.said.entries(), flushed=False)
            )
        )
        ground.end_clients()
        self.say("last jobs: trim, reconcile, flush")
        self._run_step_or_default("pausing schedules", lambda: asyncio.run(set_up_schedules(ground, pauses=True)), None)
        self._run_step_or_default(
            "the last jobs", lambda: asyncio.run(asyncio.wait_for(run_last_jobs(ground), REST_WITHIN_S)), None
        )
        overdue_sentences += self._wait_for_rest(
            lambda: (
                asyncio.run(list_running_jobs(ground)) + self.auditor.list_unsettled(self.said.entries(), flushed=True)
            )
        )
        self._rest_s = time.monotonic() - rest_began
        return overdue_sentences

    def _wait_for_rest(self, list_unsettled: Callable[[], list[str]]) -> list[str]:
        """Return a sentence on each thing that has not come to rest in time."""
        deadline_s, last_said_s = time.monotonic() + REST_WITHIN_S, 0.0
        while unsettled := self._list_unsettled(list_unsettled):
            if time.monotonic() > deadline_s:
                return [f"not at rest within {REST_WITHIN_S:.0f} s: {sentence}" for sentence in unsettled]
            if time.monotonic() - last_said_s > 15:
                last_said_s = time.monotonic()
                self.say(f"waits for {len(unsettled)}: {unsettled[0]}")
            time.sleep(1.0)
        return []

    def _list_unsettled(self, list_unsettled: Callable[[], list[str]]) -> list[str]:
        """Return what is not at rest. An error counts as unrest."""
        try:
            return list_unsettled()
        except Exception as error:  # noqa: BLE001 - servers may come back; if not, the wait ends with this sentence
            return [f"looking for what goes on failed: {type(error).__name__}: {error}"]

    def _collect_evidence(self, ground: Ground, overdue_sentences: list[str]) -> Evidence:
        """Collect the evidence, lose the database, rebuild it, and collect the evidence of the rebuilt catalog."""
        self.say("reading all there is")
        owners = self._run_step_or_default("reading owners", self.auditor.wait_for_settled_owners, dict[int, str]())
        entries_by_topic = self._read_all(ground.direct)
        failed_workflows = self._run_step_or_default(
            "reading failed jobs", lambda: asyncio.run(list_failed_workflows(ground)), list[tuple[str, str]]()
        )
        ground.end_workers()
        self._run_step_or_default("the last flush", lambda: flush_and_ship(ground), None)
        overdue_sentences += self._run_step_or_default(
            "following the record log", lambda: bring_replica_up_to_date(ground), []
        )
        exits = {
            f"{role} {number}": member.exits[-1]
            for (role, number), member in ground.members.items()
            if role != REPLICA_ROLE
        }
        evidence = self.auditor.collect(
            self.said.entries(),
            seen=entries_by_topic,
            replica=self.auditor.tables(ground.database(REPLICA_ROLE)),
            steps=self.steps,
            owners=owners,
            failed_workflows=failed_workflows,
            waits=overdue_sentences,
            exits=exits,
            ended_s=time.time() - self._rest_s,
        )
        self.say("rebuilding the catalog")
        with closing(OperationJournal(self.home, "last")) as ops:
            self._run_step_or_default(
                "appending without a flush", lambda: append_entries_without_flush(ground, ops), None
            )
        overdue_sentences += self._run_step_or_default(
            "rebuilding the catalog", lambda: rebuild_with_kills(ground, self.wish.seed), []
        )
        if not overdue_sentences:
            rebuilt = ground.direct.model_copy(update={"database_url": ground.database(REBUILT_DATABASE)})
            entries_by_topic = self._read_all(rebuilt)
            evidence.rebuilt = self._run_step_or_default(
                "looking at the rebuilt catalog",
                lambda: self.auditor.collect_after_loss(
                    evidence, rebuilt.database_url, self.said.entries(), entries_by_topic
                ),
                None,
            )
        return evidence

    def _read_all(self, settings: Settings) -> EntriesByTopic:
        """Return each topic as the product reads it. A topic that cannot be read is a violation and hides no other."""
        entries_by_topic: dict[int, Sequence[tuple[EntryPosition, str]]] = {}
        nothing: EntriesByTopic = {}
        for name in LASTING_TOPICS:
            entries_by_topic |= self._run_step_or_default(
                f"reading {name}", partial(read_topics, settings, [name]), nothing
            )
        return entries_by_topic


def _count_processes(ground: Ground, happened: list[InjectedFault]) -> dict[str, int]:
    killed = Counter(fault.kind for fault in happened)
    deaths = {
        role: sum(
            code == -9
            for (member_role, _), member in ground.members.items()
            if member_role == role
            for code in member.exits
        )
        for role in ("worker", "client")
    }
    return {
        "workers started": sum(member.lives for (role, _), member in ground.members.items() if role == "worker"),
        "replica commands started": ground.members[REPLICA_ROLE, 0].lives,
        "clients started": sum(member.lives for (role, _), member in ground.members.items() if role == "client"),
        "workers died at failpoints": max(0, deaths["worker"] - killed["kill-worker"]),
    }
