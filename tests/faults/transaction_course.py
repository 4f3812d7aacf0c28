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
from logstore.ports.catalog.deletion import AuditCause
from logstore.ports.catalog.log import BeginTransactionWrite, EndTransactionWrite, Topic
from logstore.positions import Position
from logstore.transactions.transaction_ids_and_states import Participant, TransactionId, TransactionState
from tests.fakes.object_store import Fault, FaultKind, StoreOperation
from tests.faults.auditor import ExpectedTopic
from tests.faults.main_job_operators import DELETION_POLICY, TEST_CAUSE, MainJobOperators
from tests.faults.topic_plans import TopicPlan
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

_SUBSCRIPTION: Final = "billing"
_LEFT, _RIGHT, _DOOMED = (
    TopicPlan(name=f"persistent://shop/main/{name}", ledgers=0, acknowledged={_SUBSCRIPTION: 0})
    for name in ("debits", "credits", "drafts")
)
TRANSACTION_PLANS: Final = (_LEFT, _RIGHT, _DOOMED)
_PLAIN_ENTRIES: Final = 4  # ordinary entries of the first topic, before any transaction
_COORDINATOR_ID: Final = 3
_MAX_SWEEPS: Final = 5
"""After which everything is told; else `judge` says what is not."""

_LONG_S, _SHORT_S = 3_600.0, 0.001
_REFUSED_PUTS: Final = (
    10  # refused puts: two appends give up, the second one is the broadcast's of one transaction alone
)

COMMITTED_NAMES: Final = ("paid", "resolved", "away", "beside")
ABORTED_NAMES: Final = ("aborted", "late")


class InlineThreads:
    """Threads of a broadcast that are none: effects come in the same order in every run, and a crash is one."""

    def submit(self, work: Callable[..., Any], *arguments: Any) -> "Future[Any]":
        """Do it at once."""
        future: Future[Any] = Future()
        future.set_result(work(*arguments))
        return future

    def shutdown(self) -> None:
        """There is nothing to end."""


@contextmanager
def virtual_coordinator_clock() -> Iterator[None]:
    """A coordinator that looks for more work waits by a clock of its own: how often it looks is always the same."""
    now_s = [0.0]

    def sleep(_: float) -> None:
        now_s[0] += 1

    with pytest.MonkeyPatch.context() as patch:
        clock = SimpleNamespace(monotonic=lambda: now_s[0], sleep=sleep)
        patch.setattr("activities.transactions.coordinate_transactions.time", clock)
        yield


class TransactionOperators(MainJobOperators):
    """Programs with transactions, and the workflows that tell their participants."""

    def drive(self, *steps: Callable[[], None], registration_timeout_s: float = 600) -> Self:
        """See `Programs`; no coordinator lingers."""
        with virtual_coordinator_clock():
            return super().drive(*steps, registration_timeout_s=registration_timeout_s)

    def _enter(self) -> None:
        self._process.broadcasts._threads = InlineThreads()  # type: ignore[assignment]  # the part of threads that it uses
        super()._enter()
        self.wrong += [f"after {self.crashes[-1:]}: {sentence}" for sentence in self._find_torn_transactions()]

    @property
    def expected(self) -> dict[str, ExpectedTopic]:
        """Nothing of what the auditor counts: markers are entries, too. See `judge`."""
        return {}

    def transact(self) -> Self:
        """All of it, and what must be so in the end.

        Another process than that which wrote tells the rest: it remembers no ledger of the topic that is deleted, so it
        uploads nothing for it.
        """
        return (
            self.drive(self._write_transactions, self._broadcast_by_sweep, self._delete_topic_of_open_transactions)
            .drive(self._broadcast_while_topic_is_away, self._settle, self._build_snapshots, self.judge)
            .sweep()
        )

    def again(self) -> Self:
        """Ask the coordinators once more: there is nothing left to tell."""
        self._turn += 1
        return self.drive(self._settle, self.judge).sweep()

    def sweep(self) -> Self:
        """Trims of what stands take any ledger for abandoned that is not attached."""
        return self.drive(lambda: self.trim_topics_separately("sweep", (_LEFT, _RIGHT)), registration_timeout_s=-1)

    # -- what programs do

    def _write_transactions(self) -> None:
        """Messages on two topics and acknowledgements in transactions of every end."""
        for plan in TRANSACTION_PLANS:
            self._client(f"subscribe {plan.name}", partial(self._subscribe, self._topic(plan), _SUBSCRIPTION))
        for number in range(_PLAIN_ENTRIES):
            self._say(_LEFT, f"plain {number}")
        for name in ("paid", "aborted"):
            for plan in (_LEFT, _RIGHT):
                self._say(plan, name, txn=self._begin(name))
        self._say(_LEFT, "behind")
        self._acknowledge_in_transaction("paid", 0, 1)
        self._acknowledge_in_transaction("aborted", 2)
        for plan in (_LEFT, _RIGHT):
            self._say(plan, "resolved", txn=self._begin("resolved"))
        self._say(_LEFT, "late", txn=self._begin("late", _SHORT_S))  # until it times out, what is behind it waits
        self._end_transaction("paid", commit=True)
        self._client("roll", lambda: self._process.topic_logs.roll(self._topic(_LEFT)))
        self._end_transaction("aborted", commit=False)
        self._end_transaction("late", commit=True, refused=True)
        self._end_transaction("resolved", commit=True)
        participant = Participant(self._topic(_RIGHT).topic_id)
        cause = AuditCause(actor="tests", reason="the topic is away", workflow_id="")
        resolve = partial(
            self._process.catalog.transactions.settle_untold_participant, self._begin("resolved"), participant, cause
        )
        self._client("resolve", resolve)

    def _broadcast_by_sweep(self) -> None:
        """One coordinator tells them, and times out what is late; it was started by a sweep."""
        self._sweep("begin")
        self._work()
        self._write_snapshots("first")

    def _delete_topic_of_open_transactions(self) -> None:
        """Of a transaction over three topics one is deleted while it is open."""
        for plan in TRANSACTION_PLANS:
            self._say(plan, "away", txn=self._begin("away"))
        for plan in (_LEFT, _DOOMED):
            self._say(plan, "beside", txn=self._begin("beside"))
        topic = self._topic(_DOOMED)
        request = DeleteTopicInput(topic_id=topic.topic_id, topic=topic.name, policy=DELETION_POLICY, **TEST_CAUSE)
        deletion = self._start("delete", DeleteTopic, request, DELETE_TOPIC.id(topic.topic_id))
        self._work(until=lambda: not deletion.is_open)

    def _broadcast_while_topic_is_away(self) -> None:
        """Storage refuses one topic's segments for a while; the other transaction has nothing to do with that topic."""
        self._once("once away", self._refuse_puts_of_credits)
        self._end_transaction("away", commit=True)
        self._end_transaction("beside", commit=True)
        self._client("wake", self._wake_coordinator)
        self._work()

    def _settle(self) -> None:
        """Sweeps find what a process that died had handed over, once its claims have lapsed."""
        self._client("age", self._age_first_transaction)
        self._sweep(f"{self._turn} first")
        self._work()
        for _ in range(_MAX_SWEEPS):
            if not self._list_unfinished_transactions():
                break
            self._lapse()
            self._sweep(f"{self._turn} {len(self.driver.made)}")
            self._work()
        self._write_snapshots("second")

    def _build_snapshots(self) -> None:
        """Snapshots out of the logs take the places of those that were written out of rows."""
        self._client("buffers", self._rebuild_buffers)
        run_id = "snapshots-1"
        request = BuildTransactionSnapshotsInput(run_id=run_id, **TEST_CAUSE)
        self._start("build", BuildTransactionSnapshots, request, BUILD_TRANSACTION_SNAPSHOTS.id(run_id))
        self._work()

    def _rebuild_buffers(self) -> None:
        for plan in (_LEFT, _RIGHT):
            topic_id = self._topic(plan).topic_id
            self.world.bulk.buffers[topic_id] = self._process.rebuilder.rebuild_buffer(topic_id)

    # -- what must be so

    def judge(self) -> None:
        """Every transaction is through, as it was decided; readers and cursors have it so."""
        self.wrong += self._find_torn_transactions()
        debit_payloads = [*COMMITTED_NAMES[:1], "behind", *COMMITTED_NAMES[1:]]
        expected_by_topic = {_LEFT.name: [*(f"plain {number}" for number in range(_PLAIN_ENTRIES)), *debit_payloads]}
        expected_by_topic[_RIGHT.name] = ["paid", "resolved", "away"]
        for plan in (_LEFT, _RIGHT):
            payloads = list(self._read_payloads(plan))
            if payloads != expected_by_topic[plan.name]:
                self.wrong.append(f"{plan.name}: expected {expected_by_topic[plan.name]}, found {payloads}")
        state = self._process.catalog.cursors.get_cursor(self._topic(_LEFT).topic_id, _SUBSCRIPTION).state
        ledger = self._first_ledger()
        acknowledged = [number for number in range(_PLAIN_ENTRIES) if state.covers(Position(ledger, number))]
        if acknowledged != [0, 1]:
            self.wrong.append(f"{_LEFT.name}: expected entries 0 and 1 to be acknowledged, found {acknowledged}")
        self.wrong += self._find_wrong_decisions()
        for plan in (_LEFT, _RIGHT):
            topic_id = self._topic(plan).topic_id
            rows = self._process.catalog.transaction_snapshots.read_buffer(topic_id)
            if self._process.buffer_snapshots.load_readable_snapshot(topic_id) != rows:
                self.wrong.append(f"{plan.name}: expected its snapshot to be {rows}")

    def _find_wrong_decisions(self) -> Iterator[str]:
        transactions = self._process.catalog.transactions
        for name in (*COMMITTED_NAMES, *ABORTED_NAMES):
            expected_state = TransactionState.COMMITTED if name in COMMITTED_NAMES else TransactionState.ABORTED
            try:
                state = transactions.get_transaction(self._begin(name)).state
            except UnknownObject:
                if name != "paid":
                    yield f"transaction {name} is forgotten"
            else:
                if state is not expected_state or name == "paid":
                    yield f"transaction {name}: expected {expected_state}, found {state}"
        with closing(sqlite3.connect(self.world.database)) as connection:
            (ranges,) = connection.execute("SELECT count(*) FROM buffer_range").fetchone()
        if ranges:
            yield f"{ranges} runs of messages are not settled"

    def _find_torn_transactions(self) -> Iterator[str]:
        """Read in one go, a transaction is seen in all topics that stand or in none, and an aborted one in none."""
        visible_by_topic = {
            plan.name: set(self._read_payloads(plan))
            for plan in (_LEFT, _RIGHT)
            if f"create {plan.name}" in self.memory
        }
        if len(visible_by_topic) < 2:
            return
        for name in ("paid", "resolved", "away"):
            if (name in visible_by_topic[_LEFT.name]) != (name in visible_by_topic[_RIGHT.name]):
                yield f"half of transaction {name} is visible: {visible_by_topic}"
        for name in ABORTED_NAMES:
            if name in visible_by_topic[_LEFT.name] | visible_by_topic[_RIGHT.name]:
                yield f"transaction {name} was aborted and is visible"

    # -- steps

    def _say(self, plan: TopicPlan, text: str, *, txn: TransactionId | None = None) -> None:
        """Append one entry, once: its producer has a name, so that a repeated call stores nothing again."""
        entry = NewEntry(payload=text.encode(), sequence_id=0)
        produced = ProducedEntries(entries=[entry], producer=text, txn=txn)
        self._client(f"say {plan.name} {text}", partial(self._append, self._topic(plan), produced))

    def _begin(self, name: str, timeout_s: float = _LONG_S) -> TransactionId:
        write = BeginTransactionWrite(tc_id=_COORDINATOR_ID, timeout_s=timeout_s)
        return self._client(f"begin {name}", lambda: self._process.committer.commit_write(write).txn)

    def _acknowledge_in_transaction(self, name: str, *entries: int) -> None:
        topic, txn = self._topic(_LEFT), self._begin(name)
        ledger = self._client("first ledger", self._first_ledger)
        positions = tuple(Position(ledger, number) for number in entries)
        self._client(
            f"hold {name}", partial(self._acknowledge_entries, topic, _SUBSCRIPTION, positions=positions, txn=txn)
        )

    def _end_transaction(self, name: str, *, commit: bool, refused: bool = False) -> None:
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

    def _refuse_puts_of_credits(self) -> None:
        last_ledger = self._process.catalog.ledgers.last_ledger(self._topic(_RIGHT).topic_id)
        assert last_ledger
        prefix = f"ledgers/{last_ledger.ledger_id % 256:02x}/{last_ledger.ledger_id:016x}/"
        refusal = Fault(
            operation=StoreOperation.PUT,
            kind=FaultKind.BEFORE,
            times=_REFUSED_PUTS,
            matches=lambda key: key.startswith(prefix),
        )
        self.world.store.plan(refusal)

    def _age_first_transaction(self) -> None:
        """One that finished long ago is forgotten."""
        txn = self._begin("paid")
        with closing(sqlite3.connect(self.world.database)) as connection, connection:
            update = 'UPDATE "transaction" SET finished_us = 1 WHERE tc_id = ? AND sequence = ? AND finished_us > 0'
            connection.execute(update, (txn.tc_id, txn.sequence))

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

    def _wake_coordinator(self) -> object:
        request, workflow_id = (
            CoordinatorInput(tc_id=_COORDINATOR_ID, linger_s=0),
            TRANSACTION_COORDINATOR.id(_COORDINATOR_ID),
        )
        return self.driver.server.start(TransactionCoordinator, request, id=workflow_id, signal="wake")

    def _sweep(self, name: str) -> None:
        workflow_id = f"{SWEEP_TRANSACTIONS.id()}-{name}"  # a schedule appends its time
        self._start("sweep", SweepTransactions, SweepTransactionsInput(**TEST_CAUSE), workflow_id)

    def _work(self, *, until: Callable[[], bool] | None = None) -> None:
        """Do not wait for deadlines by default: a begin that was reported as failed leaves an open transaction."""
        super()._work(until=until or self._has_only_coordinator_timers)

    def _has_only_coordinator_timers(self) -> bool:
        """Only timers of coordinators are left, for deadlines that the catalog's clock does not reach."""
        running = self.driver.server.running
        return all(
            execution.run.start.type == "transaction-coordinator" and not execution.tasks for execution in running
        )

    def _list_unfinished_transactions(self) -> Sequence[object]:
        decided = (TransactionState.COMMITTING, TransactionState.ABORTING)
        late = [
            coordinator
            for coordinator in self._process.catalog.transactions.list_busy_coordinators()
            if coordinator == _COORDINATOR_ID
        ]
        return late or self._process.catalog.transactions.list_transactions(states=decided, limit=1)

    def _read_payloads(self, plan: TopicPlan) -> Iterator[str]:
        topic: Topic = self.memory[f"create {plan.name}"]
        return ((entry.payload or b"").decode() for entry in self._process.topic_logs.scan(topic))
