"""A state machine over the real log on SQLite and storage in memory; its processes die between any two effects.

After each step all topics are read in one go, by readers and by every subscription, and compared with the serial model.
What a step that died or failed has done is looked up where it counts: all of it, or nothing.
"""

import io
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from activities.transactions.coordinate_transactions import (
    BroadcastInput,
    DrainInput,
    TransactionCoordinatorActivities,
    broadcast_workflow_id,
)
from logstore import failpoints
from logstore.deletion.retention import RetentionPolicy
from logstore.errors import (
    AcknowledgementHeld,
    AcknowledgementStale,
    ClaimHeld,
    LedgerStillNeeded,
    OutcomeUnknown,
    RetryableError,
    TransactionEnded,
    TransactionNotDecided,
    TransactionNotOpen,
)
from logstore.failpoints import SimulatedCrash
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.log.ledger_object_keys import segment_key
from logstore.ports.catalog.deletion import AuditCause, Claim
from logstore.ports.catalog.log import BeginTransactionWrite, EndTransactionWrite, Topic
from logstore.positions import Position, TopicId
from logstore.transactions.transaction_buffer import MarkerVerb, TransactionMarker, markers_to_entries
from logstore.transactions.transaction_ids_and_states import BROADCASTING_STATES, TransactionId, TransactionState
from tests.activities.activity_world import make_activity_environment
from tests.faults.simulated_world import World
from tests.faults.transaction_course import InlineThreads, virtual_coordinator_clock
from tests.faults.transactions.serial_model import (
    SerialEntry,
    SerialLog,
    SerialModel,
    SerialSubscription,
    TransactionFate,
)
from tests.migrated_catalogs import create_migrated_sqlite
from workers.assembly.log_store import LogStore

TOPICS: Final = ("a", "b", "c")
SUBSCRIPTIONS_BY_TOPIC: Final = {"a": ("s", "t"), "b": (), "c": ("s",)}
"""Of `b` everything is consumed at once: only a transaction keeps its ledgers."""
_COORDINATOR_IDS: Final = (0, 1)
EFFECTS: Final = {
    "append.register",
    "catalog.group_commit",
    "transactions.append_markers",
    "catalog.settle_transactions",
    "catalog.claim_transactions",
    "catalog.claim_transaction",
    "catalog.hand_over_transactions",
    "catalog.transaction_failed",
    "catalog.expire_transactions",
}
_FAILPOINTS: Final = [
    f"{name}.{moment}" for name in sorted(EFFECTS) for moment in ("before", "after", "reported_failed")
]
_CAUSE: Final = AuditCause(actor="tests", reason="the model", workflow_id="")
_ERRORS_WITH_UNKNOWN_EFFECT: Final = (RetryableError, OutcomeUnknown, SimulatedCrash)

_pick = st.integers(0, 1_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPage:
    """What a consumer was given of a subscription, and has not acknowledged yet."""

    topic_id: TopicId
    sub: str
    positions: dict[str, Position]  # by text
    releases: int  # as the store says
    serial_releases: int  # as the model says


class TransactionStateMachine(RuleBasedStateMachine):
    """See the module's text."""

    def __init__(self) -> None:
        """An empty catalog, and one process."""
        super().__init__()
        self._example_resources = ExitStack()
        self._example_resources.enter_context(virtual_coordinator_clock())
        folder = Path(self._example_resources.enter_context(tempfile.TemporaryDirectory()))
        template = folder / "template.db"
        create_migrated_sqlite(template)
        self.world = World(folder / "catalog.db", template)
        self.serial = SerialModel()
        self.topics: dict[str, Topic] = {}
        self.ids: dict[str, TransactionId] = {}
        self.pages: list[ReadPage] = []
        self._texts = iter(range(10**6))
        self._batches = iter(range(10**6))
        self._process = ExitStack()
        self.log: LogStore
        self._open()

    def _open(self) -> None:
        self.log = self._process.enter_context(self.world.process())
        self.log.broadcasts._threads = InlineThreads()  # type: ignore[assignment]  # the part of threads that it uses
        self.coordination = TransactionCoordinatorActivities(
            transactions=self.log.catalog.transactions, broadcasts=self.log.broadcasts, finished_retention_s=1e9
        )

    def _restart_process(self) -> None:
        self._process.close()
        self._open()

    def teardown(self) -> None:
        """End what the example has opened."""
        failpoints.disarm_all_and_take_hits()
        self._process.close()
        self._example_resources.close()

    # -- what programs do

    @initialize()
    def begin(self) -> None:
        """Topics with some messages and subscriptions from the first one on, and a transaction of each coordinator."""
        for name in TOPICS:
            self._create_topic(name)
        for number in range(len(TOPICS)):
            self.append(topic=number, count=3, txn=None)
        for tc in _COORDINATOR_IDS:
            self.begin_transaction(tc=tc)

    def _create_topic(self, name: str) -> None:
        topic = self.log.catalog.topics.create_topic(f"persistent://x/y/{name}", RetentionPolicy())
        self.topics[name] = topic
        self.serial.logs[name] = SerialLog()
        for sub in SUBSCRIPTIONS_BY_TOPIC[name]:
            self.log.subscriptions.subscribe(topic.topic_id, sub, latest=False)
            self.serial.logs[name].subs[sub] = SerialSubscription()

    @rule(tc=st.sampled_from(_COORDINATOR_IDS))
    def begin_transaction(self, tc: int) -> None:
        """One whose beginning is unknown stays open without anything in it."""
        write = BeginTransactionWrite(tc_id=tc, timeout_s=3_600.0)
        begin_result = self._try_call(lambda: self.log.committer.commit_write(write))
        if begin_result is not None:
            self.ids[str(begin_result.txn)] = begin_result.txn
            self.serial.fates[str(begin_result.txn)] = TransactionFate.OPEN

    @rule(topic=_pick, count=st.integers(1, 3), txn=st.none() | _pick)
    def append(self, topic: int, count: int, txn: int | None) -> None:
        """All entries or none; in a transaction that is not open, none."""
        name, transaction = self._topic(topic), self._pick_transaction(txn)
        if name is None:
            return
        items = [SerialEntry(f"{name}{next(self._texts)}", transaction) for _ in range(count)]
        entries = [NewEntry(payload=item.text.encode()) for item in items]
        produced = ProducedEntries(entries=entries, txn=self.ids[transaction] if transaction else None)
        refused = transaction is not None and self.serial.fates[transaction] is not TransactionFate.OPEN
        try:
            self._try_call(lambda: self.log.topic_logs.append(self.topics[name], produced))
        except TransactionNotOpen:
            assert refused
        stored_texts = {item.text for item in items} & set(self._stored(name))
        assert len(stored_texts) in ({0} if refused else {0, count}), f"{stored_texts} of {items} were stored"
        self.serial.logs[name].items += items if stored_texts else []

    @rule(
        topic=_pick, sub=_pick, which=_pick, count=st.integers(1, 3), up_to=st.booleans(), txn=st.none() | _pick | _pick
    )
    def acknowledge(self, topic: int, sub: int, which: int, count: int, *, up_to: bool, txn: int | None) -> None:
        """Entries that a reader sees: for good, or held by a transaction; in one that conflicts, nothing."""
        name, transaction = self._topic(topic), self._pick_transaction(txn)
        position_by_text = self._position_by_visible_text(name) if name else {}
        if name is None or not position_by_text or not SUBSCRIPTIONS_BY_TOPIC[name]:
            return
        subscription = list(self.serial.logs[name].subs)[sub % len(self.serial.logs[name].subs)]
        texts = list(position_by_text)
        first_index = which % len(texts)
        wanted_texts = set(texts[: first_index + 1] if up_to else texts[first_index : first_index + count])
        request: dict[str, Any] = {"positions": [position_by_text[text] for text in sorted(wanted_texts)]}
        if up_to:
            releases = self.log.subscriptions.get(self.topics[name].topic_id, subscription).releases
            request = {"up_to": position_by_text[texts[first_index]], "releases": releases}
        self._acknowledge(name, subscription, transaction, request, wanted_texts)

    @rule(topic=_pick, sub=_pick, count=st.integers(1, 9))
    def read(self, topic: int, sub: int, count: int) -> None:
        """A consumer is given entries, and acknowledges them later."""
        name = self._topic(topic)
        if name is None or not SUBSCRIPTIONS_BY_TOPIC[name]:
            return
        subscription = SUBSCRIPTIONS_BY_TOPIC[name][sub % len(SUBSCRIPTIONS_BY_TOPIC[name])]
        topic_id = self.topics[name].topic_id
        read = self.log.subscriptions.get_for_consumer(topic_id, subscription)
        entries = self.log.topic_logs.read(self.topics[name], max_entries=count, cursor_state=read.state)
        positions = {(entry.payload or b"").decode(): entry.position for entry in entries}
        serial_releases = self.serial.logs[name].subs[subscription].releases
        page = ReadPage(
            topic_id=topic_id,
            sub=subscription,
            positions=positions,
            releases=read.releases,
            serial_releases=serial_releases,
        )
        self.pages += [page] if positions else []

    @precondition(lambda self: self.pages)
    @rule(page=_pick, which=_pick, txn=st.none() | _pick, says_releases=st.booleans())
    def acknowledge_what_was_read(self, page: int, which: int, txn: int | None, *, says_releases: bool) -> None:
        """Everything up to an entry that was read some time ago: nothing that was given back since goes with it."""
        read, transaction = self.pages.pop(page % len(self.pages)), self._pick_transaction(txn)
        name = next((name for name, topic in self.topics.items() if topic.topic_id == read.topic_id), None)
        if name is None or name not in self.serial.logs:
            return
        text = list(read.positions)[which % len(read.positions)]
        position_by_text, serial_subscription = (
            self._position_by_visible_text(name),
            self.serial.logs[name].subs[read.sub],
        )
        if text not in position_by_text:
            return
        texts = list(position_by_text)
        wanted_texts = set(texts[: texts.index(text) + 1])
        request = {"up_to": position_by_text[text], "releases": read.releases if says_releases else None}
        current = serial_subscription.releases == (read.serial_releases if says_releases else 0)
        if not current:
            assert wanted_texts <= serial_subscription.acknowledged or self._is_refused_as_stale(
                name, read.sub, transaction, request
            )
            return
        skipped = wanted_texts - serial_subscription.acknowledged - serial_subscription.taken - set(read.positions)
        assert not skipped or not says_releases, f"{skipped} were left out of a read of {read}"
        self._acknowledge(name, read.sub, transaction, request, wanted_texts)

    def _is_refused_as_stale(self, name: str, sub: str, txn: str | None, request: dict[str, Any]) -> bool:
        """Whether the store refuses it, however it ends otherwise; asked without faults, since nothing may change."""
        failpoints.disarm_all_and_take_hits()
        if txn and self.serial.fates[txn] is not TransactionFate.OPEN:
            txn = None
        mark = self.log.subscriptions.get(self.topics[name].topic_id, sub).state.mark_delete
        try:
            inside = self.ids[txn] if txn else None
            self.log.subscriptions.acknowledge(self.topics[name].topic_id, sub, **request, txn=inside)
        except AcknowledgementStale:
            return True
        return bool(request["up_to"] <= mark)

    def _acknowledge(
        self,
        name: str,
        subscription: str,
        transaction: str | None,
        request: dict[str, Any],
        wanted_texts: set[str],
    ) -> None:
        position_by_text = self._position_by_visible_text(name)
        serial_subscription, held_by_itself, up_to = (
            self.serial.logs[name].subs[subscription],
            set[str](),
            "up_to" in request,
        )
        held_by_others: set[str] = set().union(
            *(held_texts for holder, held_texts in serial_subscription.held.items() if holder != transaction)
        )
        if transaction:
            held_by_itself = serial_subscription.held.get(transaction, set())
        if transaction and not up_to:
            held_by_others |= serial_subscription.acknowledged
        else:
            held_by_others -= serial_subscription.acknowledged
        conflict = bool(wanted_texts & (held_by_others - held_by_itself))
        refused = transaction is not None and self.serial.fates[transaction] is not TransactionFate.OPEN
        topic_id = self.topics[name].topic_id
        call = self.log.subscriptions.acknowledge
        result = None
        try:
            result = self._try_call(
                lambda: call(topic_id, subscription, **request, txn=self.ids[transaction] if transaction else None)
            )
        except TransactionNotOpen:
            assert refused
            return
        except AcknowledgementHeld:
            assert conflict, f"{wanted_texts} were refused, and nobody else has them"
            return
        assert result is None or not (conflict or refused), (
            f"{wanted_texts} were taken by {transaction}: {serial_subscription}"
        )
        if transaction:
            self._check_held_entries(
                name,
                subscription,
                transaction,
                held_by_itself,
                held_by_itself | (wanted_texts - serial_subscription.acknowledged),
            )
        elif wanted_texts <= self._acknowledged(name, subscription, position_by_text):
            serial_subscription.acknowledged |= wanted_texts
        else:
            assert result is None, f"{wanted_texts} were acknowledged, and are not"

    def _check_held_entries(self, name: str, sub: str, txn: str, before: set[str], after: set[str]) -> None:
        """What it held before the step or after it, and nothing in between."""
        held_bits_by_ledger = self.log.catalog.transactions.find_held_entries(self.topics[name].topic_id, sub).get(
            self.ids[txn], {}
        )
        places = {
            (position.ledger_id, position.entry_id): text
            for text, position in self._position_by_visible_text(name).items()
        }
        held_texts = {
            places[ledger, entry]
            for ledger, bits in held_bits_by_ledger.items()
            for entry in bits
            if (ledger, entry) in places
        }
        assert held_texts in (before & set(places.values()), after), (
            f"{txn} holds {held_texts}, expected {before} or {after}"
        )
        if held_texts == after:
            self.serial.logs[name].subs[sub].held[txn] = held_texts

    @rule(txn=_pick, commit=st.booleans())
    def end(self, txn: int, *, commit: bool) -> None:
        """The first decision stands; one past the deadline is no commit."""
        transaction = self._pick_transaction(txn)
        if transaction is None:
            return
        before = self.serial.fates[transaction]
        wanted_fate = TransactionFate.COMMITTED if commit else TransactionFate.ABORTED
        allowed = before is wanted_fate or (
            before is TransactionFate.OPEN and not (commit and transaction in self.serial.late)
        )
        write = EndTransactionWrite(txn=self.ids[transaction], commit=commit)
        try:
            result = self._try_call(lambda: self.log.committer.commit_write(write))
        except TransactionEnded:
            assert not allowed
            result = None
        else:
            assert allowed or result is None, f"{transaction} was {before} and ended as {wanted_fate}"
        self._check_decision(transaction, {before, wanted_fate} if allowed else {before})

    @rule(txn=_pick)
    def pass_deadline(self, txn: int) -> None:
        """Time goes by, for one of them."""
        transaction = self._pick_transaction(txn)
        if transaction and self.serial.fates[transaction] is TransactionFate.OPEN:
            transaction_id = self.ids[transaction]
            key = f"tc_id = {transaction_id.tc_id} AND sequence = {transaction_id.sequence}"
            self._execute_sql(f'UPDATE "transaction" SET deadline_us = 1 WHERE {key}')
            self.serial.late.add(transaction)

    # -- what coordinators and operators do

    @rule(tc=st.sampled_from(_COORDINATOR_IDS), lapsed=st.booleans())
    def drain(self, tc: int, *, lapsed: bool) -> None:
        """A coordinator's activity; perhaps long after what died before it."""
        if lapsed:
            self._expire_claims()
        self._try_call(
            lambda: make_activity_environment(f"transaction-coordinator/{tc}").run(
                self.coordination.abort_expired_and_broadcast_decided, _drain_input(tc)
            )
        )
        self._check_overdue_decisions()

    @rule(txn=_pick)
    def tell(self, txn: int) -> None:
        """A broadcast's activity, for any transaction."""
        transaction = self._pick_transaction(txn)
        if transaction:
            self._tell(transaction)

    def _tell(self, txn: str) -> None:
        env = make_activity_environment(broadcast_workflow_id(self.ids[txn]))
        try:
            self._try_call(lambda: env.run(self.coordination.tell_owed_participants, BroadcastInput(txn=txn)))
        except TransactionNotDecided:
            assert self.serial.fates[txn] is TransactionFate.OPEN
        except ClaimHeld:
            return

    @rule(point=st.sampled_from(_FAILPOINTS), action=st.sampled_from(["crash", "fail"]), nth=st.integers(1, 2))
    def arm(self, point: str, action: str, nth: int) -> None:
        """The next time that anything comes there, or the time after."""
        failpoints.arm(point, action, nth=nth)

    @rule(
        topic=_pick,
        txn=_pick,
        verb=st.sampled_from(MarkerVerb),
        epoch=st.integers(0, 2),
        sub=st.sampled_from(["", "s"]),
    )
    def late_marker(self, topic: int, txn: int, verb: MarkerVerb, epoch: int, sub: str) -> None:
        """A marker that was on its way for long, of whatever became of its transaction, or of one that never was."""
        name, transaction = self._topic(topic), self._pick_transaction(txn)
        if name:
            marked_transaction = self.ids[transaction] if transaction and txn % 3 else TransactionId(3, txn)
            marker = TransactionMarker(txn=marked_transaction, verb=verb, epoch=epoch, subscription=sub)
            self._try_call(lambda: self.log.topic_logs.append(self.topics[name], markers_to_entries([marker])))

    @rule(topic=_pick)
    def roll(self, topic: int) -> None:
        """A new ledger."""
        name = self._topic(topic)
        if name:
            self._try_call(lambda: self.log.topic_logs.roll(self.topics[name]))

    @rule(topic=_pick)
    def trim(self, topic: int) -> None:
        """Phase one: nothing that anybody may need goes, and nothing stays at the head that nobody needs."""
        name = self._topic(topic)
        if name:
            self._trim_topic(name)

    def _trim_topic(self, name: str) -> None:
        topic, log = self.topics[name], self.serial.logs[name]
        for sub in log.subs:  # what was acknowledged by commits is passed by the next acknowledgement
            if self._try_call(lambda sub=sub: self.log.subscriptions.acknowledge(topic.topic_id, sub)) is None:  # type: ignore[misc]
                return
        are_all_told = not self._list_untold_transactions()
        batch = f"b-{next(self._batches)}"
        claim = Claim(workflow_id=f"delete-ledgers/{batch}", run_id="", ttl_s=60)
        detach = self.log.catalog.phase_one.detach_ledgers
        before = {item.text: item for item in log.items}
        self._try_call(lambda: detach(topic.topic_id, None, force=False, batch_id=batch, claim=claim, cause=_CAUSE))
        stored_texts = set(self._stored(name))
        trimmed_items = [item for item in log.items if item.text not in stored_texts]
        assert trimmed_items == log.items[: len(trimmed_items)], f"{trimmed_items} went out of the middle"
        needed = [item for item in trimmed_items if self.serial.pins(name, item, are_all_told=True)]
        assert not needed, f"{needed} went, and are needed"
        log.items = log.items[len(trimmed_items) :]
        if are_all_told:
            closed = [row.ledger_id for row in self.log.catalog.ledgers.list_ledgers(topic.topic_id)][:-1]
            for ledger_id in closed[:1]:
                kept_items = [before[text] for text in self._stored(name, ledger_id) if text in before]
                pinning = [item for item in kept_items if self.serial.pins(name, item, are_all_told=True)]
                assert pinning, f"ledger {ledger_id} of {name} stays with {kept_items}, which nobody needs"

    @rule(topic=_pick, which=_pick)
    def delete_ledger(self, topic: int, which: int) -> None:
        """By force, wherever it stands, unless a transaction that is not over has messages in it."""
        name = self._topic(topic)
        closed = self.log.catalog.ledgers.list_ledgers(self.topics[name].topic_id)[:-1] if name else []
        if name is None or not closed:
            return
        deleted_ledger = closed[which % len(closed)].ledger_id
        items_in_ledger = [
            item for item in self.serial.logs[name].items if item.text in set(self._stored(name, deleted_ledger))
        ]
        untold = set(self._list_untold_transactions())
        must_stay = any(
            self.serial.fate(item) is TransactionFate.OPEN or item.txn in untold for item in items_in_ledger
        )
        batch = f"b-{next(self._batches)}"
        claim = Claim(workflow_id=f"delete-ledgers/{batch}", run_id="", ttl_s=60)
        detach, topic_id = self.log.catalog.phase_one.detach_ledgers, self.topics[name].topic_id
        try:
            self._try_call(
                lambda: detach(topic_id, [deleted_ledger], force=True, batch_id=batch, claim=claim, cause=_CAUSE)
            )
        except LedgerStillNeeded:
            assert must_stay, f"ledger {deleted_ledger} of {name} is kept with {items_in_ledger}"
        if deleted_ledger not in {row.ledger_id for row in self.log.catalog.ledgers.list_ledgers(topic_id)}:
            assert not must_stay, f"{items_in_ledger} went, and are of transactions that are not over"
            self.serial.logs[name].items = [
                item for item in self.serial.logs[name].items if item not in items_in_ledger
            ]

    @rule(topic=_pick, sub=_pick, which=_pick)
    def seek(self, topic: int, sub: int, which: int) -> None:
        """To an entry that readers see, whatever transactions hold."""
        name = self._topic(topic)
        position_by_text = self._position_by_visible_text(name) if name else {}
        if name is None or not position_by_text or not SUBSCRIPTIONS_BY_TOPIC[name]:
            return
        subscription = list(self.serial.logs[name].subs)[sub % len(self.serial.logs[name].subs)]
        text = list(position_by_text)[which % len(position_by_text)]
        self.log.subscriptions.seek(self.topics[name].topic_id, subscription, position_by_text[text])
        texts = [item.text for item in self.serial.logs[name].items]
        serial_subscription = self.serial.logs[name].subs[subscription]
        serial_subscription.acknowledged = set(texts[: texts.index(text)])
        serial_subscription.releases += 1

    @rule()
    def delete_topic(self) -> None:
        """One of them, with whatever open transactions it has."""
        name = TOPICS[-1]
        if name not in self.serial.logs:
            return
        topic, phase_one = self.topics[name], self.log.catalog.phase_one
        batch = f"gone-{topic.topic_id}"
        claim = Claim(workflow_id=f"delete-ledgers/{batch}", run_id="", ttl_s=60)
        phase_one.begin_topic_deletion(topic.topic_id, topic.name, _CAUSE)
        phase_one.detach_whole_topic(topic.topic_id, batch_id=batch, claim=claim, cause=_CAUSE)
        phase_one.remove_topic(topic.topic_id, _CAUSE)
        del self.serial.logs[name]

    @precondition(lambda self: len(self.serial.logs) < len(TOPICS))
    @rule()
    def create_again(self) -> None:
        """The topic that was deleted, under its name: nothing of before is in it, nor comes into it."""
        self._create_topic(TOPICS[-1])

    # -- what must be so

    @invariant()
    def readers_see_what_the_model_says(self) -> None:
        """All topics in one go: of each transaction all or nothing, in order, and nothing of one that was aborted."""
        for name, log in self.serial.logs.items():
            topic = self.topics[name]
            visible_texts = [(entry.payload or b"").decode() for entry in self.log.topic_logs.scan(topic)]
            assert visible_texts == self.serial.visible(name), (
                f"{name}: expected {self.serial.visible(name)}, found {visible_texts}"
            )
            for sub in log.subs:
                state = self.log.subscriptions.read_state(topic.topic_id, sub)
                entries = self.log.topic_logs.scan(topic, cursor_state=state)
                visible_texts = [(entry.payload or b"").decode() for entry in entries]
                deliverable_texts = self.serial.deliverable(name, sub)
                assert visible_texts == deliverable_texts, (
                    f"{name}, {sub}: expected {deliverable_texts}, found {visible_texts}"
                )

    def settle(self) -> None:
        """Decide what is open, tell everybody, consume everything: then nothing is owed, and nothing pinned."""
        failpoints.disarm_all_and_take_hits()
        for number, txn in enumerate(self.ids):
            if self.serial.fates[txn] is TransactionFate.OPEN:
                commit = number % 2 == 0 and txn not in self.serial.late
                self.log.committer.commit_write(EndTransactionWrite(txn=self.ids[txn], commit=commit))
                self.serial.decide(txn, TransactionFate.COMMITTED if commit else TransactionFate.ABORTED)
        self.readers_see_what_the_model_says()
        self._expire_claims()
        for tc in _COORDINATOR_IDS:
            make_activity_environment(f"transaction-coordinator/{tc}").run(
                self.coordination.abort_expired_and_broadcast_decided, _drain_input(tc)
            )
        assert not self._list_untold_transactions(), f"{self._list_untold_transactions()} are not through"
        self.readers_see_what_the_model_says()
        assert self._execute_sql("SELECT count(*) FROM buffer_range") == [(0,)]
        for name, log in self.serial.logs.items():
            for sub, serial_subscription in log.subs.items():
                position_by_text = self._position_by_visible_text(name)
                if position_by_text:
                    last_position = list(position_by_text.values())[-1]
                    topic_id = self.topics[name].topic_id
                    releases = self.log.subscriptions.get(topic_id, sub).releases
                    self.log.subscriptions.acknowledge(topic_id, sub, up_to=last_position, releases=releases)
                    serial_subscription.acknowledged |= set(position_by_text)
            self.log.topic_logs.roll(self.topics[name])
            self._trim_topic(name)
            assert not log.items, f"{name}: {log.items} are consumed and stay"

    # -- looks at what is so

    def _try_call(self, act: Callable[[], Any]) -> Any:
        """What the call answers; None if it failed in a way that leaves open what it has done."""
        try:
            return act()
        except SimulatedCrash:
            self._restart_process()
        except _ERRORS_WITH_UNKNOWN_EFFECT:
            if "died" in str(self.log.committer._refusal):
                self._restart_process()
        except Exception as error:
            if isinstance(error.__cause__, _ERRORS_WITH_UNKNOWN_EFFECT):
                return None
            raise
        return None

    def _topic(self, pick: int) -> str | None:
        names = list(self.serial.logs)
        return names[pick % len(names)]

    def _pick_transaction(self, pick: int | None) -> str | None:
        """Mostly one that is open."""
        if pick is None or not self.ids:
            return None
        names = list(self.ids)
        open_names = [name for name in names if self.serial.fates[name] is TransactionFate.OPEN]
        chosen = open_names if open_names and pick % 4 else names
        return chosen[pick % len(chosen)]

    def _check_decision(self, txn: str, allowed: set[TransactionFate]) -> None:
        state = self.log.catalog.transactions.get_transaction_states([self.ids[txn]])[self.ids[txn]]
        fate = (
            TransactionFate.OPEN
            if state is TransactionState.OPEN
            else TransactionFate.COMMITTED
            if state.is_commit
            else TransactionFate.ABORTED
        )
        assert fate in allowed, f"{txn} is {fate}, expected one of {allowed}"
        if fate is not self.serial.fates[txn]:
            self.serial.decide(txn, fate)

    def _check_overdue_decisions(self) -> None:
        for txn in list(self.serial.late):
            self._check_decision(txn, {TransactionFate.OPEN, TransactionFate.ABORTED})

    def _list_untold_transactions(self) -> list[str]:
        states = tuple(map(TransactionState, BROADCASTING_STATES))
        return [
            str(transaction.txn)
            for transaction in self.log.catalog.transactions.list_transactions(states=states, limit=1_000)
        ]

    def _stored(self, name: str, ledger_id: int | None = None) -> list[str]:
        """Payloads of every registered entry that is no marker, read from the objects."""
        return list(self._iterate_stored_payloads(name, ledger_id))

    def _iterate_stored_payloads(self, name: str, ledger_id: int | None) -> Iterator[str]:
        ledgers = self.log.catalog.ledgers
        for row in ledgers.list_ledgers(self.topics[name].topic_id):
            for segment in ledgers.list_segments(row.ledger_id) if ledger_id in {None, row.ledger_id} else ():
                body = self.world.objects[segment_key(row.ledger_id, segment.number)]
                table = pq.read_table(io.BytesIO(body), columns=["payload", "marker"])
                for payload, marker in zip(*(table.column(column).to_pylist() for column in (0, 1)), strict=True):
                    if marker is None:
                        yield payload.decode()

    def _position_by_visible_text(self, name: str) -> dict[str, Position]:
        """Of what readers see."""
        entries = self.log.topic_logs.scan(self.topics[name])
        return {(entry.payload or b"").decode(): entry.position for entry in entries}

    def _acknowledged(self, name: str, sub: str, position_by_text: dict[str, Position]) -> set[str]:
        state = self.log.subscriptions.get(self.topics[name].topic_id, sub).state
        return {text for text, position in position_by_text.items() if state.covers(position)}

    def _expire_claims(self) -> None:
        self._execute_sql('UPDATE "transaction" SET claim_until_us = 1 WHERE claim_until_us > 0')

    def _execute_sql(self, statement: str) -> list[Any]:
        with closing(sqlite3.connect(self.world.database)) as connection, connection:
            return connection.execute(statement).fetchall()


def _drain_input(tc: int) -> DrainInput:
    return DrainInput(tc_id=tc, linger_s=0.0)
