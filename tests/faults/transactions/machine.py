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

from activities.transactions.coordinate_transactions import TransactionCoordinatorActivities, broadcast_workflow_id
from activities.transactions.inputs_and_results import BroadcastInput, DrainInput
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
from logstore.ports.catalog import AuditCause, BeginTransactionWrite, Claim, EndTransactionWrite, Topic
from logstore.positions import Position, TopicId
from logstore.transactions.transaction_buffer import MarkerVerb, TransactionMarker, markers_to_entries
from logstore.transactions.transaction_ids_and_states import BROADCASTING_STATES, TransactionId, TransactionState
from tests.activities.world import environment
from tests.faults.transacting import Inline, without_lingering
from tests.faults.transactions.serial import Fate, Item, Log, Serial, Sub
from tests.faults.world import World
from tests.migrated import migrated
from workers.assembly.log_store import LogStore

TOPICS: Final = ("a", "b", "c")
SUBS: Final = {"a": ("s", "t"), "b": (), "c": ("s",)}
"""Of `b` everything is consumed at once: only a transaction keeps its ledgers."""
_TCS: Final = (0, 1)
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
_POINTS: Final = [f"{name}.{moment}" for name in sorted(EFFECTS) for moment in ("before", "after", "reported_failed")]
_CAUSE: Final = AuditCause(actor="tests", reason="the model", workflow_id="")
_NOT_DONE: Final = (RetryableError, OutcomeUnknown, SimulatedCrash)

_pick = st.integers(0, 1_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPage:
    """What a consumer was given of a subscription, and has not acknowledged yet."""

    topic_id: TopicId
    sub: str
    positions: dict[str, Position]  # by text
    releases: int  # as the store says
    serial_releases: int  # as the model says


class Transactions(RuleBasedStateMachine):
    """See the module's text."""

    def __init__(self) -> None:
        """An empty catalog, and one process."""
        super().__init__()
        self._life = ExitStack()
        self._life.enter_context(without_lingering())
        folder = Path(self._life.enter_context(tempfile.TemporaryDirectory()))
        template = folder / "template.db"
        migrated(template)
        self.world = World(folder / "catalog.db", template)
        self.serial = Serial()
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
        self.log.broadcasts._threads = Inline()  # type: ignore[assignment]  # the part of threads that it uses
        self.coordination = TransactionCoordinatorActivities(
            transactions=self.log.catalog.transactions, broadcasts=self.log.broadcasts, finished_retention_s=1e9
        )

    def _reopen(self) -> None:
        self._process.close()
        self._open()

    def teardown(self) -> None:
        """End what the example has opened."""
        failpoints.disarm_all_and_take_hits()
        self._process.close()
        self._life.close()

    # -- what programs do

    @initialize()
    def begin(self) -> None:
        """Topics with some messages and subscriptions from the first one on, and a transaction of each coordinator."""
        for name in TOPICS:
            self._create(name)
        for number in range(len(TOPICS)):
            self.append(topic=number, count=3, txn=None)
        for tc in _TCS:
            self.begin_transaction(tc=tc)

    def _create(self, name: str) -> None:
        topic = self.log.catalog.topics.create_topic(f"persistent://x/y/{name}", RetentionPolicy())
        self.topics[name] = topic
        self.serial.logs[name] = Log()
        for sub in SUBS[name]:
            self.log.subscriptions.subscribe(topic.topic_id, sub, latest=False)
            self.serial.logs[name].subs[sub] = Sub()

    @rule(tc=st.sampled_from(_TCS))
    def begin_transaction(self, tc: int) -> None:
        """One whose beginning is unknown stays open without anything in it."""
        write = BeginTransactionWrite(tc_id=tc, timeout_s=3_600.0)
        begun = self._try(lambda: self.log.committer.commit_write(write))
        if begun is not None:
            self.ids[str(begun.txn)] = begun.txn
            self.serial.fates[str(begun.txn)] = Fate.OPEN

    @rule(topic=_pick, count=st.integers(1, 3), txn=st.none() | _pick)
    def append(self, topic: int, count: int, txn: int | None) -> None:
        """All entries or none; in a transaction that is not open, none."""
        name, inside = self._topic(topic), self._txn(txn)
        if name is None:
            return
        items = [Item(f"{name}{next(self._texts)}", inside) for _ in range(count)]
        entries = [NewEntry(payload=item.text.encode()) for item in items]
        produced = ProducedEntries(entries=entries, txn=self.ids[inside] if inside else None)
        refused = inside is not None and self.serial.fates[inside] is not Fate.OPEN
        try:
            self._try(lambda: self.log.managed.append(self.topics[name], produced))
        except TransactionNotOpen:
            assert refused
        found = {item.text for item in items} & set(self._stored(name))
        assert len(found) in ({0} if refused else {0, count}), f"{found} of {items} were stored"
        self.serial.logs[name].items += items if found else []

    @rule(
        topic=_pick, sub=_pick, which=_pick, count=st.integers(1, 3), up_to=st.booleans(), txn=st.none() | _pick | _pick
    )
    def acknowledge(self, topic: int, sub: int, which: int, count: int, *, up_to: bool, txn: int | None) -> None:
        """Entries that a reader sees: for good, or held by a transaction; in one that conflicts, nothing."""
        name, inside = self._topic(topic), self._txn(txn)
        seen = self._positions(name) if name else {}
        if name is None or not seen or not SUBS[name]:
            return
        called = list(self.serial.logs[name].subs)[sub % len(self.serial.logs[name].subs)]
        texts = list(seen)
        first = which % len(texts)
        wanted = set(texts[: first + 1] if up_to else texts[first : first + count])
        asked: dict[str, Any] = {"positions": [seen[text] for text in sorted(wanted)]}
        if up_to:
            releases = self.log.subscriptions.get(self.topics[name].topic_id, called).releases
            asked = {"up_to": seen[texts[first]], "releases": releases}
        self._acknowledge(name, called, inside, asked, wanted)

    @rule(topic=_pick, sub=_pick, count=st.integers(1, 9))
    def read(self, topic: int, sub: int, count: int) -> None:
        """A consumer is given entries, and acknowledges them later."""
        name = self._topic(topic)
        if name is None or not SUBS[name]:
            return
        called = SUBS[name][sub % len(SUBS[name])]
        topic_id = self.topics[name].topic_id
        read = self.log.subscriptions.get_for_consumer(topic_id, called)
        entries = self.log.managed.read(self.topics[name], max_entries=count, cursor_state=read.state)
        positions = {(entry.payload or b"").decode(): entry.position for entry in entries}
        known = self.serial.logs[name].subs[called].releases
        page = ReadPage(
            topic_id=topic_id, sub=called, positions=positions, releases=read.releases, serial_releases=known
        )
        self.pages += [page] if positions else []

    @precondition(lambda self: self.pages)
    @rule(page=_pick, which=_pick, txn=st.none() | _pick, says_releases=st.booleans())
    def acknowledge_what_was_read(self, page: int, which: int, txn: int | None, *, says_releases: bool) -> None:
        """Everything up to an entry that was read some time ago: nothing that was given back since goes with it."""
        read, inside = self.pages.pop(page % len(self.pages)), self._txn(txn)
        name = next((name for name, topic in self.topics.items() if topic.topic_id == read.topic_id), None)
        if name is None or name not in self.serial.logs:
            return
        text = list(read.positions)[which % len(read.positions)]
        seen, known = self._positions(name), self.serial.logs[name].subs[read.sub]
        if text not in seen:
            return
        texts = list(seen)
        wanted = set(texts[: texts.index(text) + 1])
        asked = {"up_to": seen[text], "releases": read.releases if says_releases else None}
        current = known.releases == (read.serial_releases if says_releases else 0)
        if not current:
            assert wanted <= known.acknowledged or self._is_refused_as_stale(name, read.sub, inside, asked)
            return
        skipped = wanted - known.acknowledged - known.taken - set(read.positions)
        assert not skipped or not says_releases, f"{skipped} were left out of a read of {read}"
        self._acknowledge(name, read.sub, inside, asked, wanted)

    def _is_refused_as_stale(self, name: str, sub: str, txn: str | None, asked: dict[str, Any]) -> bool:
        """Whether the store refuses it, however it ends otherwise; asked without faults, since nothing may change."""
        failpoints.disarm_all_and_take_hits()
        if txn and self.serial.fates[txn] is not Fate.OPEN:
            txn = None
        mark = self.log.subscriptions.get(self.topics[name].topic_id, sub).state.mark_delete
        try:
            inside = self.ids[txn] if txn else None
            self.log.subscriptions.acknowledge(self.topics[name].topic_id, sub, **asked, txn=inside)
        except AcknowledgementStale:
            return True
        return bool(asked["up_to"] <= mark)

    def _acknowledge(
        self,
        name: str,
        called: str,
        inside: str | None,
        asked: dict[str, Any],
        wanted: set[str],
    ) -> None:
        seen = self._positions(name)
        known, own, up_to = self.serial.logs[name].subs[called], set[str](), "up_to" in asked
        others: set[str] = set().union(*(held for one, held in known.held.items() if one != inside))
        if inside:
            own = known.held.get(inside, set())
            others |= set() if up_to else known.acknowledged
        else:
            others -= known.acknowledged
        conflict = bool(wanted & (others - own))
        refused = inside is not None and self.serial.fates[inside] is not Fate.OPEN
        topic_id = self.topics[name].topic_id
        call = self.log.subscriptions.acknowledge
        done = None
        try:
            done = self._try(lambda: call(topic_id, called, **asked, txn=self.ids[inside] if inside else None))
        except TransactionNotOpen:
            assert refused
            return
        except AcknowledgementHeld:
            assert conflict, f"{wanted} were refused, and nobody else has them"
            return
        assert done is None or not (conflict or refused), f"{wanted} were taken by {inside}: {known}"
        if inside:
            self._held_now(name, called, inside, own, own | (wanted - known.acknowledged))
        elif wanted <= self._acknowledged(name, called, seen):
            known.acknowledged |= wanted
        else:
            assert done is None, f"{wanted} were acknowledged, and are not"

    def _held_now(self, name: str, sub: str, txn: str, before: set[str], after: set[str]) -> None:
        """What it held before the step or after it, and nothing in between."""
        held = self.log.catalog.transactions.find_held_entries(self.topics[name].topic_id, sub).get(self.ids[txn], {})
        places = {(at.ledger_id, at.entry_id): text for text, at in self._positions(name).items()}
        found = {places[ledger, entry] for ledger, bits in held.items() for entry in bits if (ledger, entry) in places}
        assert found in (before & set(places.values()), after), f"{txn} holds {found}, expected {before} or {after}"
        if found == after:
            self.serial.logs[name].subs[sub].held[txn] = found

    @rule(txn=_pick, commit=st.booleans())
    def end(self, txn: int, *, commit: bool) -> None:
        """The first decision stands; one past the deadline is no commit."""
        inside = self._txn(txn)
        if inside is None:
            return
        before = self.serial.fates[inside]
        wanted = Fate.COMMITTED if commit else Fate.ABORTED
        allowed = before is wanted or (before is Fate.OPEN and not (commit and inside in self.serial.late))
        write = EndTransactionWrite(txn=self.ids[inside], commit=commit)
        try:
            done = self._try(lambda: self.log.committer.commit_write(write))
        except TransactionEnded:
            assert not allowed
            done = None
        else:
            assert allowed or done is None, f"{inside} was {before} and ended as {wanted}"
        self._look_at(inside, {before, wanted} if allowed else {before})

    @rule(txn=_pick)
    def pass_deadline(self, txn: int) -> None:
        """Time goes by, for one of them."""
        inside = self._txn(txn)
        if inside and self.serial.fates[inside] is Fate.OPEN:
            at = self.ids[inside]
            self._sql(f'UPDATE "transaction" SET deadline_us = 1 WHERE tc_id = {at.tc_id} AND sequence = {at.sequence}')
            self.serial.late.add(inside)

    # -- what coordinators and operators do

    @rule(tc=st.sampled_from(_TCS), lapsed=st.booleans())
    def drain(self, tc: int, *, lapsed: bool) -> None:
        """A coordinator's activity; perhaps long after what died before it."""
        if lapsed:
            self._lapse()
        self._try(
            lambda: environment(f"transaction-coordinator/{tc}").run(
                self.coordination.abort_expired_and_broadcast_decided, _drain(tc)
            )
        )
        self._look_at_late()

    @rule(txn=_pick)
    def tell(self, txn: int) -> None:
        """A broadcast's activity, for any transaction."""
        inside = self._txn(txn)
        if inside:
            self._tell(inside)

    def _tell(self, txn: str) -> None:
        env = environment(broadcast_workflow_id(self.ids[txn]))
        try:
            self._try(lambda: env.run(self.coordination.tell_owed_participants, BroadcastInput(txn=txn)))
        except TransactionNotDecided:
            assert self.serial.fates[txn] is Fate.OPEN
        except ClaimHeld:
            return

    @rule(point=st.sampled_from(_POINTS), action=st.sampled_from(["crash", "fail"]), nth=st.integers(1, 2))
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
        name, inside = self._topic(topic), self._txn(txn)
        if name:
            of = self.ids[inside] if inside and txn % 3 else TransactionId(3, txn)
            marker = TransactionMarker(txn=of, verb=verb, epoch=epoch, subscription=sub)
            self._try(lambda: self.log.managed.append(self.topics[name], markers_to_entries([marker])))

    @rule(topic=_pick)
    def roll(self, topic: int) -> None:
        """A new ledger."""
        name = self._topic(topic)
        if name:
            self._try(lambda: self.log.managed.roll(self.topics[name]))

    @rule(topic=_pick)
    def trim(self, topic: int) -> None:
        """Phase one: nothing that anybody may need goes, and nothing stays at the head that nobody needs."""
        name = self._topic(topic)
        if name:
            self._trim(name)

    def _trim(self, name: str) -> None:
        topic, log = self.topics[name], self.serial.logs[name]
        for sub in log.subs:  # what was acknowledged by commits is passed by the next acknowledgement
            if self._try(lambda sub=sub: self.log.subscriptions.acknowledge(topic.topic_id, sub)) is None:  # type: ignore[misc]
                return
        told = not self._untold()
        batch = f"b-{next(self._batches)}"
        claim = Claim(workflow_id=f"delete-ledgers/{batch}", run_id="", ttl_s=60)
        detach = self.log.catalog.phase_one.detach_ledgers
        before = {item.text: item for item in log.items}
        self._try(lambda: detach(topic.topic_id, None, force=False, batch_id=batch, claim=claim, cause=_CAUSE))
        left = set(self._stored(name))
        gone = [item for item in log.items if item.text not in left]
        assert gone == log.items[: len(gone)], f"{gone} went out of the middle"
        needed = [item for item in gone if self.serial.pins(name, item, told=True)]
        assert not needed, f"{needed} went, and are needed"
        log.items = log.items[len(gone) :]
        if told:
            closed = [row.ledger_id for row in self.log.catalog.ledgers.list_ledgers(topic.topic_id)][:-1]
            for ledger_id in closed[:1]:
                kept = [before[text] for text in self._stored(name, ledger_id) if text in before]
                pinning = [item for item in kept if self.serial.pins(name, item, told=True)]
                assert pinning, f"ledger {ledger_id} of {name} stays with {kept}, which nobody needs"

    @rule(topic=_pick, which=_pick)
    def delete_ledger(self, topic: int, which: int) -> None:
        """By force, wherever it stands, unless a transaction that is not over has messages in it."""
        name = self._topic(topic)
        closed = self.log.catalog.ledgers.list_ledgers(self.topics[name].topic_id)[:-1] if name else []
        if name is None or not closed:
            return
        gone = closed[which % len(closed)].ledger_id
        inside = [item for item in self.serial.logs[name].items if item.text in set(self._stored(name, gone))]
        untold = set(self._untold())
        kept = any(self.serial.fate(item) is Fate.OPEN or item.txn in untold for item in inside)
        batch = f"b-{next(self._batches)}"
        claim = Claim(workflow_id=f"delete-ledgers/{batch}", run_id="", ttl_s=60)
        detach, topic_id = self.log.catalog.phase_one.detach_ledgers, self.topics[name].topic_id
        try:
            self._try(lambda: detach(topic_id, [gone], force=True, batch_id=batch, claim=claim, cause=_CAUSE))
        except LedgerStillNeeded:
            assert kept, f"ledger {gone} of {name} is kept with {inside}"
        if gone not in {row.ledger_id for row in self.log.catalog.ledgers.list_ledgers(topic_id)}:
            assert not kept, f"{inside} went, and are of transactions that are not over"
            self.serial.logs[name].items = [item for item in self.serial.logs[name].items if item not in inside]

    @rule(topic=_pick, sub=_pick, which=_pick)
    def seek(self, topic: int, sub: int, which: int) -> None:
        """To an entry that readers see, whatever transactions hold."""
        name = self._topic(topic)
        seen = self._positions(name) if name else {}
        if name is None or not seen or not SUBS[name]:
            return
        called = list(self.serial.logs[name].subs)[sub % len(self.serial.logs[name].subs)]
        text = list(seen)[which % len(seen)]
        self.log.subscriptions.seek(self.topics[name].topic_id, called, seen[text])
        texts = [item.text for item in self.serial.logs[name].items]
        known = self.serial.logs[name].subs[called]
        known.acknowledged = set(texts[: texts.index(text)])
        known.releases += 1

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
        self._create(TOPICS[-1])

    # -- what must be so

    @invariant()
    def readers_see_what_the_model_says(self) -> None:
        """All topics in one go: of each transaction all or nothing, in order, and nothing of one that was aborted."""
        for name, log in self.serial.logs.items():
            topic = self.topics[name]
            found = [(entry.payload or b"").decode() for entry in self.log.managed.scan(topic)]
            assert found == self.serial.visible(name), f"{name}: expected {self.serial.visible(name)}, found {found}"
            for sub in log.subs:
                state = self.log.subscriptions.read_state(topic.topic_id, sub)
                entries = self.log.managed.scan(topic, cursor_state=state)
                found = [(entry.payload or b"").decode() for entry in entries]
                wanted = self.serial.deliverable(name, sub)
                assert found == wanted, f"{name}, {sub}: expected {wanted}, found {found}"

    def settle(self) -> None:
        """Decide what is open, tell everybody, consume everything: then nothing is owed, and nothing pinned."""
        failpoints.disarm_all_and_take_hits()
        for number, txn in enumerate(self.ids):
            if self.serial.fates[txn] is Fate.OPEN:
                commit = number % 2 == 0 and txn not in self.serial.late
                self.log.committer.commit_write(EndTransactionWrite(txn=self.ids[txn], commit=commit))
                self.serial.decide(txn, Fate.COMMITTED if commit else Fate.ABORTED)
        self.readers_see_what_the_model_says()
        self._lapse()
        for tc in _TCS:
            environment(f"transaction-coordinator/{tc}").run(
                self.coordination.abort_expired_and_broadcast_decided, _drain(tc)
            )
        assert not self._untold(), f"{self._untold()} are not through"
        self.readers_see_what_the_model_says()
        assert self._sql("SELECT count(*) FROM buffer_range") == [(0,)]
        for name, log in self.serial.logs.items():
            for sub, known in log.subs.items():
                seen = self._positions(name)
                if seen:
                    last = list(seen.values())[-1]
                    topic_id = self.topics[name].topic_id
                    releases = self.log.subscriptions.get(topic_id, sub).releases
                    self.log.subscriptions.acknowledge(topic_id, sub, up_to=last, releases=releases)
                    known.acknowledged |= set(seen)
            self.log.managed.roll(self.topics[name])
            self._trim(name)
            assert not log.items, f"{name}: {log.items} are consumed and stay"

    # -- looks at what is so

    def _try(self, act: Callable[[], Any]) -> Any:
        """What the call answers; None if it failed in a way that leaves open what it has done."""
        try:
            return act()
        except SimulatedCrash:
            self._reopen()
        except _NOT_DONE:
            if "died" in str(self.log.committer._refusal):
                self._reopen()
        except Exception as error:
            if isinstance(error.__cause__, _NOT_DONE):
                return None
            raise
        return None

    def _topic(self, pick: int) -> str | None:
        names = list(self.serial.logs)
        return names[pick % len(names)]

    def _txn(self, pick: int | None) -> str | None:
        """Mostly one that is open."""
        if pick is None or not self.ids:
            return None
        names = list(self.ids)
        still = [name for name in names if self.serial.fates[name] is Fate.OPEN]
        chosen = still if still and pick % 4 else names
        return chosen[pick % len(chosen)]

    def _look_at(self, txn: str, allowed: set[Fate]) -> None:
        state = self.log.catalog.transactions.get_transaction_states([self.ids[txn]])[self.ids[txn]]
        found = Fate.OPEN if state is TransactionState.OPEN else Fate.COMMITTED if state.is_commit else Fate.ABORTED
        assert found in allowed, f"{txn} is {found}, expected one of {allowed}"
        if found is not self.serial.fates[txn]:
            self.serial.decide(txn, found)

    def _look_at_late(self) -> None:
        for txn in list(self.serial.late):
            self._look_at(txn, {Fate.OPEN, Fate.ABORTED})

    def _untold(self) -> list[str]:
        states = tuple(map(TransactionState, BROADCASTING_STATES))
        return [str(one.txn) for one in self.log.catalog.transactions.list_transactions(states=states, limit=1_000)]

    def _stored(self, name: str, ledger_id: int | None = None) -> list[str]:
        """Payloads of every registered entry that is no marker, read from the objects."""
        return list(self._payloads(name, ledger_id))

    def _payloads(self, name: str, ledger_id: int | None) -> Iterator[str]:
        ledgers = self.log.catalog.ledgers
        for row in ledgers.list_ledgers(self.topics[name].topic_id):
            for segment in ledgers.list_segments(row.ledger_id) if ledger_id in {None, row.ledger_id} else ():
                body = self.world.objects[segment_key(row.ledger_id, segment.number)]
                table = pq.read_table(io.BytesIO(body), columns=["payload", "marker"])
                for payload, marker in zip(*(table.column(at).to_pylist() for at in (0, 1)), strict=True):
                    if marker is None:
                        yield payload.decode()

    def _positions(self, name: str) -> dict[str, Position]:
        """Of what readers see."""
        entries = self.log.managed.scan(self.topics[name])
        return {(entry.payload or b"").decode(): entry.position for entry in entries}

    def _acknowledged(self, name: str, sub: str, seen: dict[str, Position]) -> set[str]:
        state = self.log.subscriptions.get(self.topics[name].topic_id, sub).state
        return {text for text, position in seen.items() if state.covers(position)}

    def _lapse(self) -> None:
        self._sql('UPDATE "transaction" SET claim_until_us = 1 WHERE claim_until_us > 0')

    def _sql(self, statement: str) -> list[Any]:
        with closing(sqlite3.connect(self.world.database)) as connection, connection:
            return connection.execute(statement).fetchall()


def _drain(tc: int) -> DrainInput:
    return DrainInput(tc_id=tc, linger_s=0.0)
