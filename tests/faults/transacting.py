"""The way of transactions: committed, aborted, timed out, resolved, with a participant away and one that is gone.

`judge` looks from outside, through readers: of each transaction every topic shows all or nothing, in the order in which
it was written.
"""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, Self

import pytest

from logstore.errors import TransactionEnded, UnknownObject
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.ports.catalog import AuditCause, BeginTransactionWrite, EndTransactionWrite, Topic
from logstore.positions import Position
from logstore.transactions.transaction_ids_and_states import Participant, TransactionId, TransactionState
from tests.fakes.objects import Fault, FaultKind, Operation
from tests.faults.auditor import Expected
from tests.faults.operators import CAUSE, POLICY, Operators
from tests.faults.scene import TopicPlan
from workflows.deletion.delete_topic import DeleteTopic
from workflows.deletion.job_definitions import DELETE_TOPIC, DeleteTopicInput
from workflows.transactions.build_transaction_snapshots import BuildTransactionSnapshots
from workflows.transactions.job_definitions import (
    BUILD_TRANSACTION_SNAPSHOTS,
    SWEEP_TRANSACTIONS,
    TRANSACTION_COORDINATOR,
    BuildTransactionSnapshotsInput,
    CoordinatorInput,
    SweepTransactionsInput,
)
from workflows.transactions.sweep_transactions import SweepTransactions
from workflows.transactions.transaction_coordinator import TransactionCoordinator

_BILLING: Final = "billing"
_LEFT, _RIGHT, _DOOMED = (
    TopicPlan(name=f"persistent://shop/main/{name}", ledgers=0, acknowledged={_BILLING: 0})
    for name in ("debits", "credits", "drafts")
)
PARTIES: Final = (_LEFT, _RIGHT, _DOOMED)
_BEFORE: Final = 4  # ordinary entries of the first topic, before any transaction
_TC: Final = 3
_SWEEPS: Final = 5
"""After which everything is told; else `judge` says what is not."""

_LONG_S, _SHORT_S = 3_600.0, 0.001
_AWAY: Final = 10  # refused puts: two appends give up, the second one is the broadcast's of one transaction alone

COMMITTED: Final = ("paid", "resolved", "away", "beside")
SKIPPED: Final = ("aborted", "late")


class Inline:
    """Threads of a broadcast that are none: effects come in the same order in every run, and a crash is one."""

    def submit(self, work: Callable[..., Any], *given: Any) -> "Future[Any]":
        """Do it at once."""
        done: Future[Any] = Future()
        done.set_result(work(*given))
        return done

    def shutdown(self) -> None:
        """There is nothing to end."""


@contextmanager
def without_lingering() -> Iterator[None]:
    """A coordinator that looks for more work waits by a clock of its own: how often it looks is always the same."""
    now = [0.0]

    def sleep(_: float) -> None:
        now[0] += 1

    with pytest.MonkeyPatch.context() as patch:
        clock = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
        patch.setattr("activities.transactions.coordinate_transactions.time", clock)
        yield


class Transacting(Operators):
    """Programs with transactions, and the workflows that tell their participants."""

    def drive(self, *steps: Callable[[], None], registration_timeout_s: float = 600) -> Self:
        """See `Programs`; no coordinator lingers."""
        with without_lingering():
            return super().drive(*steps, registration_timeout_s=registration_timeout_s)

    def _enter(self) -> None:
        self._process.broadcasts._threads = Inline()  # type: ignore[assignment]  # the part of threads that it uses
        super()._enter()
        self.wrong += [f"after {self.crashes[-1:]}: {it}" for it in self._torn()]

    @property
    def expected(self) -> dict[str, Expected]:
        """Nothing of what the auditor counts: markers are entries, too. See `judge`."""
        return {}

    def transact(self) -> Self:
        """All of it, and what must be so in the end.

        Another process than that which wrote tells the rest: it remembers no ledger of the topic that is deleted, so it
        uploads nothing for it.
        """
        return (
            self.drive(self._write, self._tell_most, self._delete_one)
            .drive(self._tell_the_rest, self._settle, self._build, self.judge)
            .sweep()
        )

    def again(self) -> Self:
        """Ask the coordinators once more: there is nothing left to tell."""
        self._turn += 1
        return self.drive(self._settle, self.judge).sweep()

    def sweep(self) -> Self:
        """Trims of what stands take any ledger for abandoned that is not attached."""
        return self.drive(lambda: self.trim_each("sweep", (_LEFT, _RIGHT)), registration_timeout_s=-1)

    # -- what programs do

    def _write(self) -> None:
        """Messages on two topics and acknowledgements in transactions of every end."""
        for plan in PARTIES:
            self._client(f"subscribe {plan.name}", partial(self._subscribe, self._topic(plan), _BILLING))
        for number in range(_BEFORE):
            self._say(_LEFT, f"plain {number}")
        for name in ("paid", "aborted"):
            for plan in (_LEFT, _RIGHT):
                self._say(plan, name, txn=self._begin(name))
        self._say(_LEFT, "behind")
        self._hold("paid", 0, 1)
        self._hold("aborted", 2)
        for plan in (_LEFT, _RIGHT):
            self._say(plan, "resolved", txn=self._begin("resolved"))
        self._say(_LEFT, "late", txn=self._begin("late", _SHORT_S))  # until it times out, what is behind it waits
        self._end("paid", commit=True)
        self._client("roll", lambda: self._process.managed.roll(self._topic(_LEFT)))
        self._end("aborted", commit=False)
        self._end("late", commit=True, refused=True)
        self._end("resolved", commit=True)
        about = Participant(self._topic(_RIGHT).topic_id)
        cause = AuditCause(actor="tests", reason="the topic is away", workflow_id="")
        resolve = partial(
            self._process.catalog.transactions.settle_untold_participant, self._begin("resolved"), about, cause
        )
        self._client("resolve", resolve)

    def _tell_most(self) -> None:
        """One coordinator tells them, and times out what is late; it was started by a sweep."""
        self._sweep("begin")
        self._work()
        self._write_snapshots("first")

    def _delete_one(self) -> None:
        """Of a transaction over three topics one is deleted while it is open."""
        for plan in PARTIES:
            self._say(plan, "away", txn=self._begin("away"))
        for plan in (_LEFT, _DOOMED):
            self._say(plan, "beside", txn=self._begin("beside"))
        topic = self._topic(_DOOMED)
        request = DeleteTopicInput(topic_id=topic.topic_id, topic=topic.name, policy=POLICY, **CAUSE)
        deletion = self._start("delete", DeleteTopic, request, DELETE_TOPIC.id(topic.topic_id))
        self._work(until=lambda: not deletion.is_open)

    def _tell_the_rest(self) -> None:
        """Storage refuses one topic's segments for a while; the other transaction has nothing to do with that topic."""
        self._once("once away", self._let_a_topic_be_away)
        self._end("away", commit=True)
        self._end("beside", commit=True)
        self._client("wake", self._wake)
        self._work()

    def _settle(self) -> None:
        """Sweeps find what a process that died had handed over, once its claims have lapsed."""
        self._client("age", self._let_the_first_be_old)
        self._sweep(f"{self._turn} first")
        self._work()
        for _ in range(_SWEEPS):
            if not self._unfinished():
                break
            self._lapse()
            self._sweep(f"{self._turn} {len(self.driver.made)}")
            self._work()
        self._write_snapshots("second")

    def _build(self) -> None:
        """Snapshots out of the logs take the places of those that were written out of rows."""
        self._client("buffers", self._find_buffers)
        run_id = "snapshots-1"
        request = BuildTransactionSnapshotsInput(run_id=run_id, **CAUSE)
        self._start("build", BuildTransactionSnapshots, request, BUILD_TRANSACTION_SNAPSHOTS.id(run_id))
        self._work()

    def _find_buffers(self) -> None:
        for plan in (_LEFT, _RIGHT):
            topic_id = self._topic(plan).topic_id
            self.world.bulk.buffers[topic_id] = self._process.rebuilder.rebuild_buffer(topic_id)

    # -- what must be so

    def judge(self) -> None:
        """Every transaction is through, as it was decided; readers and cursors have it so."""
        self.wrong += self._torn()
        left = [*COMMITTED[:1], "behind", *COMMITTED[1:]]
        wanted = {_LEFT.name: [*(f"plain {number}" for number in range(_BEFORE)), *left]}
        wanted[_RIGHT.name] = ["paid", "resolved", "away"]
        for plan in (_LEFT, _RIGHT):
            found = list(self._read(plan))
            if found != wanted[plan.name]:
                self.wrong.append(f"{plan.name}: expected {wanted[plan.name]}, found {found}")
        state = self._process.catalog.cursors.get_cursor(self._topic(_LEFT).topic_id, _BILLING).state
        ledger = self._first_ledger()
        acknowledged = [number for number in range(_BEFORE) if state.covers(Position(ledger, number))]
        if acknowledged != [0, 1]:
            self.wrong.append(f"{_LEFT.name}: expected entries 0 and 1 to be acknowledged, found {acknowledged}")
        self.wrong += self._undecided()
        for plan in (_LEFT, _RIGHT):
            topic_id = self._topic(plan).topic_id
            rows = self._process.catalog.transaction_snapshots.read_buffer(topic_id)
            if self._process.buffer_snapshots.load_readable_snapshot(topic_id) != rows:
                self.wrong.append(f"{plan.name}: expected its snapshot to be {rows}")

    def _undecided(self) -> Iterator[str]:
        transactions = self._process.catalog.transactions
        for name in (*COMMITTED, *SKIPPED):
            wanted = TransactionState.COMMITTED if name in COMMITTED else TransactionState.ABORTED
            try:
                found = transactions.get_transaction(self._begin(name)).state
            except UnknownObject:
                if name != "paid":
                    yield f"transaction {name} is forgotten"
            else:
                if found is not wanted or name == "paid":
                    yield f"transaction {name}: expected {wanted}, found {found}"
        with closing(sqlite3.connect(self.world.database)) as connection:
            (ranges,) = connection.execute("SELECT count(*) FROM buffer_range").fetchone()
        if ranges:
            yield f"{ranges} runs of messages are not settled"

    def _torn(self) -> Iterator[str]:
        """Read in one go, a transaction is seen in all topics that stand or in none, and an aborted one in none."""
        seen = {plan.name: set(self._read(plan)) for plan in (_LEFT, _RIGHT) if f"create {plan.name}" in self.memory}
        if len(seen) < 2:
            return
        for name in ("paid", "resolved", "away"):
            if (name in seen[_LEFT.name]) != (name in seen[_RIGHT.name]):
                yield f"half of transaction {name} is visible: {seen}"
        for name in SKIPPED:
            if name in seen[_LEFT.name] | seen[_RIGHT.name]:
                yield f"transaction {name} was aborted and is visible"

    # -- steps

    def _say(self, plan: TopicPlan, text: str, *, txn: TransactionId | None = None) -> None:
        """Append one entry, once: its producer has a name, so that a repeated call stores nothing again."""
        entry = NewEntry(payload=text.encode(), sequence_id=0)
        produced = ProducedEntries(entries=[entry], producer=text, txn=txn)
        self._client(f"say {plan.name} {text}", partial(self._append, self._topic(plan), produced))

    def _begin(self, name: str, timeout_s: float = _LONG_S) -> TransactionId:
        write = BeginTransactionWrite(tc_id=_TC, timeout_s=timeout_s)
        return self._client(f"begin {name}", lambda: self._process.committer.commit_write(write).txn)

    def _hold(self, name: str, *entries: int) -> None:
        topic, txn = self._topic(_LEFT), self._begin(name)
        ledger = self._client("first ledger", self._first_ledger)
        positions = tuple(Position(ledger, number) for number in entries)
        self._client(f"hold {name}", partial(self._move, topic, _BILLING, positions=positions, txn=txn))

    def _end(self, name: str, *, commit: bool, refused: bool = False) -> None:
        write = EndTransactionWrite(txn=self._begin(name), commit=commit)

        def end() -> bool:
            try:
                self._process.committer.commit_write(write)
            except TransactionEnded:
                return False
            return True

        assert self._client(f"end {name}", end) is not refused

    def _first_ledger(self) -> Any:
        return self._process.catalog.ledgers.list_ledgers(self._topic(_LEFT).topic_id)[0].ledger_id

    def _let_a_topic_be_away(self) -> None:
        last = self._process.catalog.ledgers.last_ledger(self._topic(_RIGHT).topic_id)
        assert last
        below = f"ledgers/{last.ledger_id % 256:02x}/{last.ledger_id:016x}/"
        away = Fault(
            operation=Operation.PUT, kind=FaultKind.BEFORE, times=_AWAY, matches=lambda key: key.startswith(below)
        )
        self.world.store.plan(away)

    def _let_the_first_be_old(self) -> None:
        """One that finished long ago is forgotten."""
        txn = self._begin("paid")
        with closing(sqlite3.connect(self.world.database)) as connection, connection:
            old = 'UPDATE "transaction" SET finished_us = 1 WHERE tc_id = ? AND sequence = ? AND finished_us > 0'
            connection.execute(old, (txn.tc_id, txn.sequence))

    def _lapse(self) -> None:
        with closing(sqlite3.connect(self.world.database)) as connection, connection:
            connection.execute('UPDATE "transaction" SET claim_until_us = 1 WHERE claim_until_us > 0')

    def _write_snapshots(self, name: str) -> None:
        """Of every buffer that has changed; the second one of a topic takes the place of the first."""

        def write() -> int:
            with closing(sqlite3.connect(self.world.database)) as connection, connection:
                connection.execute("UPDATE transaction_snapshot SET due_us = 1 WHERE due_us > 0")
            return self._process.buffer_snapshots.write_snapshots_and_count_due()

        self._client(f"snapshots {name}", write)

    def _wake(self) -> object:
        request, workflow_id = CoordinatorInput(tc_id=_TC, linger_s=0), TRANSACTION_COORDINATOR.id(_TC)
        return self.driver.server.start(TransactionCoordinator, request, id=workflow_id, signal="wake")

    def _sweep(self, name: str) -> None:
        workflow_id = f"{SWEEP_TRANSACTIONS.id()}-{name}"  # a schedule appends its time
        self._start("sweep", SweepTransactions, SweepTransactionsInput(**CAUSE), workflow_id)

    def _work(self, *, until: Callable[[], bool] | None = None) -> None:
        """Do not wait for deadlines by default: a begin that was reported as failed leaves an open transaction."""
        super()._work(until=until or self._is_quiet)

    def _is_quiet(self) -> bool:
        """Only timers of coordinators are left, for deadlines that the catalog's clock does not reach."""
        left = self.driver.server.running
        return all(one.run.start.type == "transaction-coordinator" and not one.tasks for one in left)

    def _unfinished(self) -> Sequence[object]:
        decided = (TransactionState.COMMITTING, TransactionState.ABORTING)
        late = [one for one in self._process.catalog.transactions.list_busy_coordinators() if one == _TC]
        return late or self._process.catalog.transactions.list_transactions(states=decided, limit=1)

    def _read(self, plan: TopicPlan) -> Iterator[str]:
        topic: Topic = self.memory[f"create {plan.name}"]
        return ((entry.payload or b"").decode() for entry in self._process.managed.scan(topic))
