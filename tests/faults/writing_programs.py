"""Programs that write a topic's log, in one process that may die between any two effects.

`memory` is what they keep of their calls that were answered. A call that died with its process, or failed in a way that
may pass, is made again by the next process; one that was answered is never made again.
"""

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from functools import partial
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

from logstore.deletion.retention import RetentionPolicy
from logstore.errors import AlreadyExists, OutcomeUnknown, RetryableError
from logstore.failpoints import SimulatedCrash
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.log.ledger_object_keys import SHARDS
from logstore.ownership import bundle_of_topic
from logstore.ports.catalog.deletion import AuditCause
from logstore.ports.catalog.log import Topic
from logstore.positions import Position
from logstore.validated_names import TopicName
from tests.faults.auditor import Observation, expected_payload, find_violations_at_any_moment
from tests.faults.topic_plans import (
    ENTRIES_PER_LEDGER,
    ENTRIES_PER_SEGMENT,
    HOLED_ENTRY,
    HOLED_SUBSCRIPTION,
    SCHEMA_CONTENTS,
    SEGMENTS_PER_LEDGER,
    StorageTrouble,
    TopicPlan,
)
from workers.assembly.log_store import LogStore

T = TypeVar("T")

MAX_CALL_TRIES = 40
"""Tries of one call after which a test gives up."""

_PRODUCER = "writer"


class DurableWorld(Protocol):
    """Where programs work: what outlives their processes."""

    def process(self, *, registration_timeout_s: float = 600) -> AbstractContextManager[LogStore]:
        """The log as a process of its own opens it."""

    def look(self) -> Observation:
        """What the auditor sees now."""

    def trouble(self, ledger_id: int, trouble: StorageTrouble, *, last_segment: int) -> None:
        """Let storage misbehave for one ledger."""

    @property
    def database(self) -> Path:
        """The file of its catalog."""


SiteT = TypeVar("SiteT", bound=DurableWorld)


class WritingPrograms(Generic[SiteT]):
    """Programs over a world."""

    def __init__(self, world: SiteT, plans: Sequence[TopicPlan]) -> None:
        """Begin with an empty memory.

        Args:
            world: What they work on, and what outlives their processes.
            plans: Its topics.
        """
        self.world = world
        self.plans = plans
        self.memory: dict[str, Any] = {}
        self.writes_again = False
        self.crashes: list[str] = []
        self.wrong: list[str] = []  # what the auditor found right after a crash
        self._process: LogStore

    def remember(self) -> None:
        """Called when the memory has grown."""

    def _enter(self) -> None:
        """Called when a process has begun."""

    def _died(self) -> None:
        """Called when a process has died."""

    def drive(self, *steps: Callable[[], None], registration_timeout_s: float = 600) -> Self:
        """Go through the steps in order, in as many processes as it takes."""
        while True:
            with self.world.process(registration_timeout_s=registration_timeout_s) as self._process:
                self._enter()
                try:
                    for step in steps:
                        step()
                except SimulatedCrash as crash:
                    self.crashes.append(str(crash))
                    self._died()
                else:
                    return self
            self.wrong += [
                f"right after {self.crashes[-1]}: {sentence}"
                for sentence in find_violations_at_any_moment(self.world.look())
            ]

    def write(self) -> None:
        """Create, subscribe, append, roll and acknowledge; then let storage misbehave."""
        for plan in self.plans:
            topic = self._topic(plan)
            self._record_unload(plan)
            for name in plan.subscriptions:
                self._client(f"subscribe {plan.name} {name}", partial(self._subscribe, topic, name))
            for index in range(plan.ledgers):
                self._write_ledger(plan, topic, index)
            self._acknowledge_and_seek(plan, topic)
            if plan.components:
                self._outgrow_cursor_row(plan, topic)
                self._set_all_schemas(plan, topic)
        self._once("troubles", self._inject_troubles)

    def _record_unload(self, plan: TopicPlan) -> None:
        """Write down who unloads the topic's bundle."""
        bundle = bundle_of_topic(TopicName.parse(plan.name), bundle_count=self._process.catalog.fences.count_bundles())
        cause, detail = AuditCause(actor="tests", reason="the main job", workflow_id=""), {"bundle": bundle}
        self._client(
            f"unload {bundle}", lambda: self._process.catalog.audit_log.record_act("unload", cause, detail=detail)
        )

    def _topic(self, plan: TopicPlan) -> Topic:
        def create() -> Topic:
            try:
                return self._process.catalog.topics.create_topic(plan.name, self._retention_policy(plan))
            except AlreadyExists:
                return self._process.catalog.topics.get_topic(plan.name)

        return self._client(f"create {plan.name}", create)

    def _retention_policy(self, plan: TopicPlan) -> RetentionPolicy:
        return RetentionPolicy() if plan.picked is None else RetentionPolicy(retention_s=86_400)

    def _write_ledger(self, plan: TopicPlan, topic: Topic, index: int) -> None:
        if index and not self.writes_again:
            self._client(f"roll {plan.name} {index}", lambda: self._roll_topic(plan, topic))
        for part in range(SEGMENTS_PER_LEDGER):
            first_sequence = index * ENTRIES_PER_LEDGER + part * ENTRIES_PER_SEGMENT
            entries = [
                NewEntry(payload=expected_payload(plan.name, number), sequence_id=number)
                for number in range(first_sequence, first_sequence + ENTRIES_PER_SEGMENT)
            ]
            produced = ProducedEntries(entries=entries, producer=_PRODUCER)
            self._client(f"append {plan.name} {first_sequence}", partial(self._append, topic, produced))

    def _roll_topic(self, plan: TopicPlan, topic: Topic) -> object:
        """Roll; neighbours of one shard get the next id that is the first of its 256, as a busy catalog gives them."""
        if plan.neighbours:
            with closing(sqlite3.connect(self.world.database, timeout=30)) as connection, connection:
                round_up_next_id = "UPDATE catalog SET next_ledger_id = (next_ledger_id + :last) / :shards * :shards"
                connection.execute(round_up_next_id, {"last": SHARDS - 1, "shards": SHARDS})
        return self._process.topic_logs.roll(topic)

    def _acknowledge_and_seek(self, plan: TopicPlan, topic: Topic) -> None:
        listed = self._client(f"list {plan.name}", lambda: self._process.catalog.ledgers.list_ledgers(topic.topic_id))
        for name, count in plan.acknowledged.items():
            if not count:
                continue
            single_positions = tuple(
                Position(listed[0].ledger_id, entry) for entry in reversed(range(ENTRIES_PER_LEDGER))
            )
            last_position = Position(listed[count - 1].ledger_id, ENTRIES_PER_LEDGER - 1)
            requests: list[dict[str, Any]] = [{"positions": single_positions}, {"up_to": last_position}]
            for number, request in enumerate(requests):
                self._client(
                    f"acknowledge {plan.name} {name} {number}",
                    partial(self._acknowledge_entries, topic, name, **request),
                )
            end = Position(last_position.ledger_id, last_position.entry_id + 1)
            self._client(f"seek {plan.name} {name}", partial(self._seek, topic, name, end))

    def _outgrow_cursor_row(self, plan: TopicPlan, topic: Topic) -> None:
        """Let a cursor's state go to ledgers, from one to the next, and back; and seek it while it is in one.

        What would undo a later step if it were done again is done once in the life of the world.
        """
        last_ledger = self.memory[f"list {plan.name}"][-1].ledger_id
        move, seek = (
            partial(self._acknowledge_entries, topic, HOLED_SUBSCRIPTION),
            partial(self._seek, topic, HOLED_SUBSCRIPTION),
        )
        steps: list[Callable[[], object]] = [
            partial(move, up_to=Position(last_ledger, -1)),
            *(partial(move, positions=(Position(last_ledger, entry),)) for entry in (3, 1, 0, 2)),
            partial(seek, Position(last_ledger, 1)),
            partial(move, positions=(Position(last_ledger, 3),)),
            partial(seek, Position(last_ledger, 0)),
        ]
        for number, step in enumerate(steps):
            self._client(f"once {plan.name} {HOLED_SUBSCRIPTION} {number}", step)
        self._client(f"hole {plan.name}", partial(move, positions=(Position(last_ledger, HOLED_ENTRY),)))

    def _set_all_schemas(self, plan: TopicPlan, topic: Topic) -> None:
        """Set schemas, the last one twice."""
        for number, content in enumerate(SCHEMA_CONTENTS):
            self._client(f"once {plan.name} schema {number}", partial(self._set_schema, topic, content))
        self._client(f"schema {plan.name}", partial(self._set_schema, topic, SCHEMA_CONTENTS[-1]))

    def _set_schema(self, topic: Topic, content: bytes) -> object:
        return self._process.schemas.set(topic, content)

    def _subscribe(self, topic: Topic, name: str) -> object:
        return self._process.subscriptions.subscribe(topic.topic_id, name, latest=False)

    def _append(self, topic: Topic, produced: ProducedEntries) -> object:
        return self._process.topic_logs.append(topic, produced)

    def _acknowledge_entries(self, topic: Topic, name: str, **request: Any) -> object:
        return self._process.subscriptions.acknowledge(topic.topic_id, name, **request)

    def _seek(self, topic: Topic, name: str, position: Position) -> object:
        return self._process.subscriptions.seek(topic.topic_id, name, position)

    def _inject_troubles(self) -> None:
        observation = self.world.look()
        for plan in self.plans:
            listed = observation.listed(plan.name)
            for place, trouble in plan.troubles.items():
                segments = observation.ledgers[listed[place]].segments
                self.world.trouble(listed[place], trouble, last_segment=segments[-1][0])

    def _client(self, name: str, act: Callable[[], T], *, max_tries: int = MAX_CALL_TRIES) -> T:
        """A call that a program makes and repeats until it is answered."""
        tries, last_error = 0, ""
        while name not in self.memory:
            assert tries < max_tries, f"{name} failed {max_tries} times, last with {last_error}"
            tries += 1
            try:
                self.memory[name] = act()
                self.remember()
            except (RetryableError, OutcomeUnknown) as error:
                last_error = repr(error)
        return self.memory[name]  # type: ignore[no-any-return]  # of the type that `act` gives

    def _once(self, name: str, act: Callable[[], None]) -> None:
        self._client(name, act, max_tries=1)
