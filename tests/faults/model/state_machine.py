"""The rules: what programs, operators, time, storage and death may do, in any order.

A shrunk failure prints as a program of these rules. After each, and after each attempt of an activity, the auditor
looks; in the end everything is driven to rest, and nothing may be stored but what is referenced, what a dead letter
keeps, and what is not Sexton's.
"""

from contextlib import suppress
from enum import Enum
from functools import partial
from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from activities.deletion.phase_two_steps import intent_key
from logstore import failpoints
from logstore.deletion.retention import RetentionPolicy
from logstore.errors import AlreadyExists, StoreUnavailable
from logstore.failpoints import SimulatedCrash
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.log.ledgers import LedgerState
from logstore.ports.catalog.deletion import AuditCause, Claim
from logstore.ports.catalog.log import TopicState
from logstore.positions import LedgerId, Position
from tests.fakes.object_store import Fault, FaultKind, StoreOperation
from tests.faults.failpoint_hits import find_effect_names
from tests.faults.model.model_actions import (
    ABANDON_TIMEOUT_S,
    CLAIM_LAPSE_S,
    TOPICS,
    CallEnd,
    Interlude,
    InterludePlace,
)
from tests.faults.model.model_auditor import StepLicence
from tests.faults.model.model_judge import ExpectedAcknowledgements, ModelJudge
from tests.faults.model.model_observation import EntryPlace, observe_model
from tests.faults.simulated_world import ENDLESS_TIMES

_EFFECT_AREAS: Final = {"append", "roll", "component", "catalog", "storage", "offload", "tiered"}
_EFFECTS: Final = sorted(name for name in find_effect_names() if name.partition(".")[0] in _EFFECT_AREAS)
_INTERRUPTIONS: Final = ("before crash", "after crash", "before fail", "reported_failed fail")

topics = st.sampled_from(TOPICS)
programs = st.sampled_from(["a", "b"])
places = st.integers(0, 4)  # in a list, from its head
entries = st.integers(0, 4)
names = st.sampled_from(["billing", "archive"])
policies = st.sampled_from(
    [
        RetentionPolicy(),
        RetentionPolicy(retention_s=1_000),
        RetentionPolicy(retention_bytes=1),
        RetentionPolicy(retention_s=1_000, retention_bytes=4_000),
    ]
)


class StorageChange(Enum):
    """What storage does with a ledger's objects."""

    REFUSES = "refuses to delete the first segment"
    SILENT = "answers no listing"
    LATE_ERROR = "deletes, and reports a failure"
    LATE_PUT_ERROR = "stores, and reports a failure"
    EMPTY = "lists nothing, once"
    OVER = "is well again"


class ForeignAct(Enum):
    """What others do."""

    NOTES = "a file of an unknown kind"
    META = "the statement of another owner"
    SEGMENT = "a segment that says nothing of its owner"
    INTENT = "an intent for a listed ledger (PIP-186: its metadata update failed)"
    INTENT_FOR_ANOTHER_APPLICATION = "an intent for what is not ours"
    INTENT_WITHOUT_COMPONENT = "an intent that lacks an essential property, for the highest id there is"
    CATALOG = "another epoch"


_SQUATTERS: Final = {
    ForeignAct.NOTES: "notes.txt",
    ForeignAct.META: f"{7:016x}.meta.json",
    ForeignAct.SEGMENT: f"{90:08d}.parquet",
}


class StoreStateMachine(ModelJudge, RuleBasedStateMachine):
    """Everything that may happen."""

    @initialize(first=policies, second=policies, ledgers=st.integers(0, 4))
    def begin(self, first: RetentionPolicy, second: RetentionPolicy, ledgers: int) -> None:
        """Two topics, written to."""
        for name, policy in zip(TOPICS, (first, second), strict=True):
            self._create(name, policy)
        for _ in range(ledgers):
            for name in TOPICS:
                self.append(topic=name, program="a", count=2, rolls=True)
        self.seen = observe_model(self.house, frozenset())

    def _create(self, name: str, policy: RetentionPolicy) -> None:
        """Create the topic, or find the one that an earlier try made before it died."""
        topics, full = self.house.catalog.topics, f"persistent://shop/main/{name}"
        try:
            self.topics[name] = topics.create_topic(full, policy)
        except AlreadyExists:
            self.topics[name] = topics.get_topic(full)
        self.answered[name], self.unanswered[name] = set(), []

    # -- programs

    @rule(topic=topics, program=programs, count=st.integers(1, 3), rolls=st.booleans())
    def append(self, topic: str, program: str, count: int, rolls: bool) -> None:
        """Append what comes next, or, where the last append was not answered, the same once more; perhaps roll."""
        first_number = max(self.answered[topic], default=-1) + 1
        numbers = self.unanswered[topic] or list(range(first_number, first_number + count))
        new_entries = [NewEntry(payload=str(number).encode(), sequence_id=number) for number in numbers]
        produced = ProducedEntries(entries=new_entries, producer="writer")
        end, _ = self.call(program, lambda process: process.topic_logs.append(self.topics[topic], produced))
        self.unanswered[topic] = numbers if end is CallEnd.UNSURE else []
        self.answered[topic] |= set(numbers) if end is CallEnd.ANSWERED else set()
        if rolls:
            self.call(program, lambda process: process.topic_logs.roll(self.topics[topic]))

    @rule(topic=topics, program=programs)
    def oversleep(self, topic: str, program: str) -> None:
        """Append so slowly that it is too late to register, to a ledger that may be deleted meanwhile."""
        self.plan(InterludePlace.PUT, Interlude.TRIMMED)
        self.append(topic=topic, program=program, count=1, rolls=False)

    @rule(topic=topics, program=programs, sleeps=st.booleans())
    def roll(self, topic: str, program: str, sleeps: bool) -> None:
        """Close the last ledger and open another; perhaps so slowly that its newborn is taken for abandoned."""
        if sleeps:
            self.plan(InterludePlace.PUT, Interlude.TRIMMED)
        self.call(program, lambda process: process.topic_logs.roll(self.topics[topic]))

    @rule(topic=topics, program=programs, late=st.booleans())
    def fall_asleep(self, topic: str, program: str, late: bool) -> None:
        """Create a ledger, and fall asleep over it; perhaps until it is about to be said that nothing is there."""
        create = self.house.catalog.ledgers.create_ledger
        _, newborn = self.call(program, lambda _: create(self.topics[topic].topic_id, application="sexton"))
        self.asleep += [newborn] if newborn else []
        if late:
            self.house.catalog.advance(seconds=ABANDON_TIMEOUT_S)
            self.plan(InterludePlace.FINISH, Interlude.WOKEN)

    @precondition(lambda self: self.asleep)
    @rule()
    def wake_up(self) -> None:
        """Go on where one fell asleep."""
        self.wake()

    @rule(topic=topics, program=programs)
    def read(self, topic: str, program: str) -> None:
        """Read everything there is."""
        end, sequence_ids = self.call(
            program, lambda process: [entry.sequence_id for entry in process.topic_logs.scan(self.topics[topic])]
        )
        listed = [number for number, _ in self.list_numbers_with_ledger(topic)]
        self.wrong += (
            [f"read {sequence_ids}, expected {listed}"] if end is not CallEnd.UNSURE and sequence_ids != listed else []
        )

    @rule(topic=topics, name=names, latest=st.booleans(), program=programs)
    def subscribe(self, topic: str, name: str, latest: bool, program: str) -> None:
        """Begin a subscription; an existing one stays as it is."""
        topic_id = self.topics[topic].topic_id
        if (topic_id, name) not in self.seen.cursors:
            everything = frozenset(self.seen.entries(topic_id)) if latest else frozenset()
            self.expected = ExpectedAcknowledgements(key=(topic_id, name), covered=(everything,))
        self.call(program, lambda process: process.subscriptions.subscribe(topic_id, name, latest=latest))

    @rule(
        topic=topics,
        name=names,
        wanted=st.lists(st.tuples(places, entries), min_size=1, max_size=4),
        program=programs,
    )
    def acknowledge(self, topic: str, name: str, wanted: list[EntryPlace], program: str) -> None:
        """Acknowledge single entries: all of them or, where one does not exist, none."""
        positions = tuple(self.position(topic, *position) for position in wanted)
        added_places = {(int(position.ledger_id), position.entry_id) for position in positions}
        self._acknowledge(topic, name, program, added_places, positions=positions)

    @rule(topic=topics, name=names, program=programs, last=st.one_of(st.none(), st.tuples(places, entries)))
    def acknowledge_up_to(self, topic: str, name: str, program: str, last: EntryPlace | None) -> None:
        """Acknowledge an entry and everything before it, or, without one, whatever there is."""
        listed_places = self.seen.entries(self.id(topic)) or [(0, 0)]
        position = (
            self.position(topic, *last) if last else Position(LedgerId(listed_places[-1][0]), listed_places[-1][1])
        )
        added_places = {
            listed_place
            for listed_place in listed_places
            if listed_place <= (int(position.ledger_id), position.entry_id)
        }
        cursor = self.house.catalog.cursor_rows.get((self.topics[topic].topic_id, name))
        self._acknowledge(
            topic, name, program, added_places, up_to=position, releases=cursor.releases if cursor else None
        )

    @rule(topic=topics, name=names, program=programs, releases=st.integers(0, 3))
    def acknowledge_what_was_read_long_ago(self, topic: str, name: str, program: str, releases: int) -> None:
        """Acknowledge all there is, as read before what may have been given back since: then nothing is taken."""
        topic_id, listed_places = self.topics[topic].topic_id, self.seen.entries(self.id(topic))
        cursor = self.house.catalog.cursor_rows.get((topic_id, name))
        if cursor is None or not listed_places:
            return
        position = Position(LedgerId(listed_places[-1][0]), listed_places[-1][1])
        added_places = set(listed_places) if cursor.releases == releases else set()
        self._acknowledge(topic, name, program, added_places, up_to=position, releases=releases)

    def _acknowledge(self, topic: str, name: str, program: str, added_places: set[EntryPlace], **request: Any) -> None:
        topic_id = self.topics[topic].topic_id
        end, _ = self.call(program, lambda process: process.subscriptions.acknowledge(topic_id, name, **request))
        if (topic_id, name) in self.seen.cursors:
            self.expect(topic_id, name, end, self.seen.covered(topic_id, name) | added_places)

    @rule(topic=topics, name=names, place=places, entry=entries, program=programs)
    def seek(self, topic: str, name: str, place: int, entry: int, program: str) -> None:
        """Read again, or go on, from an entry."""
        topic_id, position = self.topics[topic].topic_id, self.position(topic, place, entry)
        before = frozenset(
            listed_place
            for listed_place in self.seen.entries(topic_id)
            if listed_place < (int(position.ledger_id), position.entry_id)
        )
        self.licence = StepLicence(sought=(topic_id, name))
        end, _ = self.call(program, lambda process: process.subscriptions.seek(topic_id, name, position))
        self.expect(topic_id, name, end, before)

    @rule(topic=topics, program=programs, version=st.integers(0, 2), sleeps=st.booleans())
    def set_schema(self, topic: str, program: str, version: int, sleeps: bool) -> None:
        """Make one of three schemas the newest, and read it; perhaps as slowly as a roll may be."""
        if sleeps:
            self.plan(InterludePlace.PUT, Interlude.TRIMMED)
        content = f"schema {version}".encode()
        end, _ = self.call(program, lambda process: process.schemas.set(self.topics[topic], content))
        if end is CallEnd.ANSWERED:
            content_read = self.house.process("reader").schemas.read(self.topics[topic])[1]
            self.wrong += (
                [] if content_read == content else [f"the schema reads {content_read!r}, expected {content!r}"]
            )

    # -- operators and Temporal

    @rule(topic=topics, steps=st.integers(0, 8))
    def trim(self, topic: str, steps: int) -> None:
        """Ask for a trim, and let it get so far."""
        self.go_on(self.workflows.trim(self.id(topic), self.topics[topic].name), steps)

    @rule(steps=st.integers(0, 8))
    def trim_all(self, steps: int) -> None:
        """Let the schedule trim all topics in one batch, and let it get so far."""
        self.go_on(self.workflows.trim_all(), steps)

    @rule(topic=topics, wanted=st.lists(places, min_size=1, max_size=3), force=st.booleans(), steps=st.integers(0, 8))
    def delete(self, topic: str, wanted: list[int], force: bool, steps: int) -> None:
        """Ask for the deletion of given ledgers, some of which may be gone, and let it get so far."""
        ids = self.ever(topic)
        if ids:
            chosen = [ids[place % len(ids)] for place in wanted]
            self.go_on(self.workflows.delete(self.id(topic), self.topics[topic].name, chosen, force=force), steps)

    @rule(topic=topics, place=places, steps=st.integers(1, 4), overtaken=st.booleans())
    def offload(self, topic: str, place: int, steps: int, overtaken: bool) -> None:
        """Ask for a tiered copy of a ledger, and let it get so far; perhaps its retry, and a sweep, come first."""
        if overtaken:
            self.plan(InterludePlace.UPLOAD, Interlude.SWEPT)
        listed = self.seen.list_topic_ledgers(self.id(topic))
        closed = [ledger_id for ledger_id in listed if self.seen.ledgers[ledger_id].state is LedgerState.CLOSED]
        if closed:
            self.go_on(self.workflows.offload(closed[place % len(closed)], self.topics[topic].name), steps)

    @rule(topic=topics, steps=st.integers(1, 6))
    def remove_primaries(self, topic: str, steps: int) -> None:
        """Ask for the removal of primary copies that a tiered one replaces, and let it get so far."""
        self.go_on(self.workflows.remove_primaries(self.id(topic), self.topics[topic].name), steps)

    @rule(topic=topics, steps=st.integers(0, 8), policy=policies)
    def delete_topic(self, topic: str, steps: int, policy: RetentionPolicy) -> None:
        """Ask for the deletion of the whole topic, and let it get so far; where it is gone, create it again."""
        self.go_on(self.workflows.delete_topic(self.id(topic), self.topics[topic].name), steps)
        if self.topics[topic].topic_id not in self.house.catalog.topic_rows:
            with suppress(SimulatedCrash, StoreUnavailable):
                self._create(topic, policy)

    @rule(steps=st.integers(0, 8))
    def sweep(self, steps: int) -> None:
        """Let the schedule look for what nobody works on, and let it get so far."""
        self.go_on(self.workflows.sweep(), steps)

    @precondition(lambda self: self.seen.intended("DEAD_LETTERED") or self.forged)
    @rule(program=programs, which=st.one_of(st.none(), st.integers(0, 3)))
    def redrive(self, program: str, which: int | None) -> None:
        """Try dead letters again, all or one."""
        rows = [row.row_id for row in self.seen.intents.values() if row.state.value == "DEAD_LETTERED"]
        chosen_row_ids = [rows[which % len(rows)]] if which is not None and rows else None
        self.licence = StepLicence(redriven=True)
        self.workflows.redrive(partial(self._redrive_dead_letters, program, chosen_row_ids))

    def _redrive_dead_letters(self, program: str, row_ids: list[int] | None, batch_id: str) -> int:
        claim = Claim(workflow_id=f"delete-ledgers/{batch_id}", run_id="", ttl_s=CLAIM_LAPSE_S)
        cause = AuditCause(actor="tests", reason="the model", workflow_id="")
        redrives = self.house.catalog.upkeep
        _, redriven = self.call(
            program, lambda _: redrives.redrive_dead_letters(row_ids, batch_id=batch_id, claim=claim, cause=cause)
        )
        return redriven.intents if redriven else 0

    @precondition(lambda self: self.seen.intents)
    @rule(which=st.integers(0, 7), steps=st.integers(1, 4))
    def delete_alone(self, which: int, steps: int) -> None:
        """Ask for phase two of one intent, whoever is at work on it."""
        rows = [self.seen.intents[row_id] for row_id in sorted(self.seen.intents)]
        row = rows[which % len(rows)]
        self.go_on(self.workflows.claim_and_delete_copy(intent_key(row), row.topic), steps)

    @precondition(lambda self: self.workflows.running)
    @rule(which=st.integers(0, 3), steps=st.integers(1, 8), loses_answer=st.booleans())
    def work(self, which: int, steps: int, loses_answer: bool) -> None:
        """Go on with whatever can be done; perhaps the first activity runs to its end, and nobody hears of it."""
        self.step(task_choice=which, loses_answer=loses_answer)
        for _ in range(steps - 1):
            self.step(task_choice=which)

    @precondition(lambda self: self.workflows.running)
    @rule()
    def work_off(self) -> None:
        """Drive every workflow to its end."""
        self.finish_work()

    @precondition(lambda self: self.workflows.running)
    @rule(which=st.integers(0, 3))
    def terminate(self, which: int) -> None:
        """End a workflow from outside, wherever it is."""
        running = self.workflows.running
        self.workflows.server.terminate(running[which % len(running)].workflow_id)

    # -- time, storage, death, and others

    @rule(seconds=st.sampled_from([1.0, 61.0, CLAIM_LAPSE_S, ABANDON_TIMEOUT_S, 4_000.0]))
    def pass_time(self, seconds: float) -> None:
        """Claims lapse, ledgers age."""
        self.house.catalog.advance(seconds=seconds)

    @rule(effect=st.sampled_from(_EFFECTS), moment=st.sampled_from(_INTERRUPTIONS), nth=st.integers(1, 2))
    def arm(self, effect: str, moment: str, nth: int) -> None:
        """Let something die, or be told of a failure, around one of the next effects of that name."""
        point, action = moment.split()
        failpoints.arm(f"{effect}.{point}", action, nth=nth)

    @rule(at=st.sampled_from(InterludePlace), what=st.sampled_from(Interlude))
    def interlope(self, at: InterludePlace, what: Interlude) -> None:
        """Let something else happen at such a place, the next time that somebody comes to it."""
        self.plan(at, what)

    @rule(trouble=st.sampled_from(StorageChange), which=st.integers(0, 7), times=st.sampled_from([1, 2, ENDLESS_TIMES]))
    def disturb(self, trouble: StorageChange, which: int, times: int) -> None:
        """Let storage misbehave for one of the ledgers that have anything in it, or for the next one."""
        known_ledgers = sorted(
            {known_ledger for known_ledger, _ in self.seen.copies | self.seen.copies_with_intent("PENDING")}
        )
        ledger_id = known_ledgers[which % len(known_ledgers)] if known_ledgers else int(self.house.catalog.next_ledger)
        prefix, store, cold = f"ledgers/{ledger_id % 256:02x}/{ledger_id:016x}/", self.house.store, self.house.cold
        match trouble:
            case StorageChange.REFUSES:
                store.plan(
                    _primary_fault(StoreOperation.DELETE, FaultKind.REPORT_KEY_FAILED, times, f"{prefix}{0:08d}")
                )
                cold.plan(_tiered_fault(StoreOperation.DELETE, FaultKind.REPORT_KEY_FAILED, times, ledger_id))
            case StorageChange.SILENT:
                store.plan(_primary_fault(StoreOperation.LIST, FaultKind.BEFORE, times, prefix))
                cold.plan(_tiered_fault(StoreOperation.LIST, FaultKind.BEFORE, times, ledger_id))
            case StorageChange.LATE_ERROR:
                store.plan(_primary_fault(StoreOperation.DELETE, FaultKind.AFTER, min(times, 2), prefix))
                cold.plan(_tiered_fault(StoreOperation.DELETE, FaultKind.AFTER, min(times, 2), ledger_id))
            case StorageChange.LATE_PUT_ERROR:
                store.plan(_primary_fault(StoreOperation.PUT, FaultKind.AFTER, 1, prefix))
                cold.plan(_tiered_fault(StoreOperation.PUT, FaultKind.AFTER, 1, ledger_id))
            case StorageChange.EMPTY:
                store.short[prefix] = 0
            case StorageChange.OVER:
                self.mend()

    @rule(what=st.sampled_from(ForeignAct), topic=topics, place=places)
    def intrude(self, what: ForeignAct, topic: str, place: int) -> None:
        """Somebody else puts an object under a ledger's prefix, files an intent, or replaces the catalog."""
        ledger_id = int(self.position(topic, place, 0).ledger_id)
        if what in _SQUATTERS and ledger_id in self.seen.listed:
            self.house.store.plant(f"ledgers/{ledger_id % 256:02x}/{ledger_id:016x}/{_SQUATTERS[what]}", b"not ours")
        if what is ForeignAct.INTENT and ledger_id in self.seen.listed:
            self.forge(topic, ledger_id, component="MANAGED_LEDGER")
        if what is ForeignAct.INTENT_FOR_ANOTHER_APPLICATION:
            self.forge(topic, 0xFFFFF, component="MANAGED_LEDGER")
        if what is ForeignAct.INTENT_WITHOUT_COMPONENT:
            self.forge(topic, 2**63 - 1, component="")
        if what is ForeignAct.CATALOG:
            self.house.catalog.current_epoch += 1

    # -- the auditor

    def check_invariants(self, *_: object) -> None:
        """After every step; not an `@invariant`, which would be printed between the steps of a failure."""
        self.keep_every_promise()

    def teardown(self) -> None:
        """Once more with whatever was planned; then nobody dies, storage is well, and nothing is left to do."""
        try:
            if not self.failed and self.topics:
                self._drive_to_rest()
        finally:
            failpoints.disarm_all_and_take_hits()
            self.house.close()

    def _drive_to_rest(self) -> None:
        self._sweep()
        failpoints.disarm_all_and_take_hits()
        self.mend()
        for _ in range(12):
            self.house.catalog.advance(seconds=ABANDON_TIMEOUT_S)
            self._sweep()
            if self._is_at_rest():
                break
        else:
            pending = self.seen.copies_with_intent("PENDING")
            raise AssertionError(f"never ended: {pending}, {self.seen.copies - self.seen.live}, {self.seen.lists}")
        self.redrive(program="reader", which=None)
        self.finish_work()
        exhausted = [row for row in self.seen.intents.values() if row.outcome and row.outcome.value == "DEAD_LETTERED"]
        assert not exhausted, f"storage is well, and these are dead letters still: {exhausted}"
        accounted_ledgers = self.seen.listed | self.seen.intended("DEAD_LETTERED")
        assert self.seen.stored.keys() <= accounted_ledgers, (
            f"stored, and nobody's: {self.seen.stored.keys() - accounted_ledgers}"
        )
        assert self.seen.tiered_parts_by_copy.keys() <= self.seen.live, (
            f"stored, and nobody's: {self.seen.tiered_parts_by_copy}"
        )
        for topic in TOPICS:
            self.read(topic=topic, program="reader")
        self.keep_every_promise()

    def _is_at_rest(self) -> bool:
        attached = self.seen.ledgers.keys() == self.seen.listed and self.seen.copies == self.seen.live
        deleting = [topic for topic in self.house.catalog.topic_rows.values() if topic.state is TopicState.DELETING]
        return attached and not deleting and not self.seen.copies_with_intent("PENDING")

    def _sweep(self) -> None:
        for topic in list(self.house.catalog.topic_rows.values()):
            if topic.state is TopicState.DELETING:
                self.workflows.delete_topic(int(topic.topic_id), topic.name)
            self.workflows.trim(int(topic.topic_id), topic.name)
        self.workflows.sweep()
        self.finish_work()


def _tiered_fault(operation: StoreOperation, kind: FaultKind, times: int, ledger_id: int) -> Fault:
    mark = f"-ledger-{ledger_id}"
    return Fault(operation=operation, kind=kind, times=times, matches=lambda name: mark in name)


def _primary_fault(operation: StoreOperation, kind: FaultKind, times: int, prefix: str) -> Fault:
    return Fault(operation=operation, kind=kind, times=times, matches=lambda name: name.startswith(prefix))
