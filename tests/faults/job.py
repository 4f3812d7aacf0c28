"""The main job in one process, driven as Temporal would drive it.

`history` is what Temporal keeps: results of steps that ended, and attempts of those that did not. A step that
died with its process, or failed in a way that may pass, is tried again by the next process; a step that ended is
never done again. The order of the steps is that of the workflows `trim-topic`, `delete-ledgers` and
`delete-ledger`, with chunks one after the other so that every run is the same.
"""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any, Generic, Protocol, Self, TypeVar

from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.deletion import (
    AdoptInput,
    CertifyInput,
    ChunkInput,
    ChunkResult,
    DeadLetterInput,
    DetachInput,
    DetachResult,
    ForgetInput,
    ForgetResult,
    IntentKey,
    OneInput,
    OneResult,
    Range,
    RangesInput,
    RangesPage,
    delete_ledger_id,
)
from activities.deletion.retention import RollInput
from activities.deletion.topic_deletion import Begun, DetachAllInput, Removed, RemoveInput, TopicOrder
from activities.deletion.trimming import BatchInput, Pages, PagesInput, TopicPage, TrimPageInput, TrimPageResult
from activities.ownership import Place
from logstore.deletion.retention import RetentionPolicy
from logstore.errors import AlreadyExists, NoProgress, OutcomeUnknown, RetryableError
from logstore.failpoints import SimulatedCrash
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.names import TopicName
from logstore.ownership import bundle_of
from logstore.ports.catalog import Cause, Claim, Detached, Topic
from logstore.positions import Position
from tests.faults.auditor import LONG_GONE, Expected, Seen, payload_of, wrong_at_any_moment
from tests.faults.scene import HOLE, HOLED, PER_LEDGER, PER_SEGMENT, SCHEMAS, SEGMENTS, TOPICS, TopicPlan, Trouble
from tests.faults.world import Process

T = TypeVar("T")

_PRODUCER = "writer"
_CHUNK_ROWS = 2
_CHUNK_ATTEMPTS = 3
_ATTEMPTS = 6  # of one intent; more than any trouble that passes
_NEVER = 40  # tries of one step after which a test gives up


JobT = TypeVar("JobT", bound="Job[Any]")


class Exhausted(Exception):
    """An activity failed as often as it may."""


class Site(Protocol):
    """Where a job works: what outlives its processes."""

    def process(self, *, registration_timeout_s: float = 600) -> AbstractContextManager[Process]:
        """A process of its own."""

    def look(self) -> Seen:
        """What the auditor sees now."""

    def trouble(self, ledger_id: int, trouble: Trouble, *, last_segment: int) -> None:
        """Let storage misbehave for one ledger."""


SiteT = TypeVar("SiteT", bound=Site)


class Job(Generic[SiteT]):
    """One run of the main job over a world."""

    def __init__(self, world: SiteT, plans: Sequence[TopicPlan] = TOPICS, *, run: str = "1") -> None:
        """Begin with an empty history.

        Args:
            world: What it works on, and what outlives its processes.
            plans: Its topics.
            run: Tells its workflow runs from those of another job.
        """
        self.world = world
        self.plans = plans
        self.run_name = run
        self.history: dict[str, Any] = {}
        self.attempts: dict[str, int] = {}
        self.deletes = False  # whole topics, at the end
        self.crashes: list[str] = []
        self.wrong: list[str] = []  # what the auditor found right after a crash
        self._process: Process

    def fork(self, world: SiteT) -> Self:
        """The same job so far, over a fork of its world."""
        forked = type(self)(world, self.plans, run=self.run_name)
        forked.history, forked.attempts = dict(self.history), dict(self.attempts)
        forked.deletes = self.deletes
        return forked

    def remember(self) -> None:
        """Called when the history has grown."""

    @property
    def expected(self) -> dict[str, Expected]:
        """What must be true of its topics in the end."""
        return {plan.name: plan.expected_once_deleted if self.deletes else plan.expected for plan in self.plans}

    def drive(self, *steps: Callable[[], None], registration_timeout_s: float = 600) -> Self:
        """Go through the steps in order, in as many processes as it takes."""
        while True:
            with self.world.process(registration_timeout_s=registration_timeout_s) as self._process:
                try:
                    for step in steps:
                        step()
                except SimulatedCrash as crash:
                    self.crashes.append(str(crash))
                else:
                    return self
            self.wrong += [f"right after {self.crashes[-1]}: {it}" for it in wrong_at_any_moment(self.world.look())]

    def run(self) -> Self:
        """All of it, and at the end what a topic's next trim would do about newborn ledgers."""
        return self.drive(self.write, self.remove, self.keep_up).sweep()

    def delete(self) -> Self:
        """Write what is not written yet, then delete every topic as a whole."""
        self.deletes = True
        return self.drive(self.write, self.delete_topics)

    def sweep(self) -> Self:
        """Trims that take any ledger for abandoned that is not attached."""
        return self.drive(lambda: self._trims("sweep"), registration_timeout_s=-1)

    def write(self) -> None:
        """Create, subscribe, append, roll and acknowledge; then let storage misbehave."""
        for plan in self.plans:
            topic = self._topic(plan)
            self._unload(plan)
            for name in plan.subscriptions:
                self._client(f"subscribe {plan.name} {name}", partial(self._subscribe, topic, name))
            for index in range(plan.ledgers):
                self._write_ledger(plan, topic, index)
            self._acknowledge(plan, topic)
            if plan.components:
                self._outgrow(plan, topic)
                self._describe(plan, topic)
        self._once("troubles", self._let_storage_misbehave)

    def remove(self) -> None:
        """Trim every topic, and delete one ledger by its id."""
        self._trims("trim")
        self.delete_picked()

    def delete_picked(self) -> None:
        """Delete one ledger by its id, out of the middle."""
        for plan in self.plans:
            if plan.picked is not None:
                self._delete_picked(plan, self._topic(plan))

    def trim_all(self) -> Self:
        """Write what is not written yet, then trim all topics in one batch, as often as anything goes."""
        return self.drive(self.write, self.trim_topics, self.delete_picked, self.keep_up).sweep()

    def trim_topics(self) -> None:
        """As `trim-topics` does, a page for each two topics."""
        for turn in range(_NEVER):
            batch_id = f"trim-all-{self.run_name}-{turn}"
            workflow_id = f"trim-topics-{self.run_name}-{turn}"
            for page in self._pages(workflow_id):
                request = TrimPageInput(
                    page=page,
                    batch_id=batch_id,
                    batch_workflow_id=f"delete-ledgers/{batch_id}",
                    actor="tests",
                    reason="the main job",
                )
                name = f"{batch_id} page {page.first}"
                done: TrimPageResult = self._activity(name, workflow_id, lambda p: p.trimming.trim_page, request)
                assert not done.failed, done.troubles
            batch = BatchInput(batch_id=batch_id)
            counted: DetachResult = self._activity(
                f"{batch_id} count", workflow_id, lambda p: p.trimming.count_batch, batch
            )
            if not counted.intents:
                return
            self._delete_ledgers(batch_id, counted.catalog_epoch)
        raise AssertionError("trims of all topics do not come to an end")

    def _pages(self, workflow_id: str) -> Iterator[TopicPage]:
        after = 0
        while True:
            asked = PagesInput(after=after, topics=2, limit=2)
            name = f"{workflow_id} pages {after}"
            found: Pages = self._activity(name, workflow_id, lambda p: p.trimming.next_pages, asked)
            yield from found.pages
            if not found.pages:
                return
            after = found.pages[-1].last

    def delete_topics(self) -> None:
        """As `delete-topic` does, topic by topic."""
        for plan in self.plans:
            self._delete_topic(self._topic(plan), f"delete-{self.run_name}-{plan.name.rpartition('/')[2]}")

    def _delete_topic(self, topic: Topic, run: str) -> None:
        workflow_id = f"delete-topic/{topic.topic_id}"
        order = TopicOrder(topic_id=topic.topic_id, topic=topic.name, actor="tests", reason="the main job")
        begun: Begun = self._activity(f"{run} begin", workflow_id, lambda p: p.topics.set_deleting, order)
        for turn in range(_NEVER):
            batch_id = f"{topic.topic_id}-{run}-{turn}"
            everything = DetachAllInput(order=order, batch_id=batch_id, batch_workflow_id=f"delete-ledgers/{batch_id}")
            detached: DetachResult = self._activity(
                f"{batch_id} detach", workflow_id, lambda p: p.topics.detach_all, everything
            )
            if detached.intents:
                self._delete_ledgers(batch_id, detached.catalog_epoch, topic.name)
            last = RemoveInput(order=order, since_us=begun.since_us)
            removed: Removed = self._activity(f"{batch_id} remove", workflow_id, lambda p: p.topics.remove, last)
            if removed.gone:
                return
        raise AssertionError(f"{run} does not come to an end")

    def keep_up(self) -> None:
        """Redrive the dead letters and die before their workflow is started; then sweep, which finds them."""
        self._client("age", self._plant_what_ended_long_ago)
        redriven: Detached = self._client("redrive", self._redrive)
        if redriven.intents:
            for tell in ("pause", "resume", "pause again", "release"):
                self._client(f"{tell} redrive", partial(self._tell, tell.split()[0]))
        for turn in range(_NEVER):
            if not self._sweep(f"sweep-{self.run_name}-{turn}"):
                return
        raise AssertionError("the sweep does not come to an end")

    def _plant_what_ended_long_ago(self) -> None:
        columns = "row_id, ledger_id, state, outcome, finished_us, batch_id, copy, generation, application, component"
        more = "topic_id, topic, keys, context, segments, last_segment, ledger_created_us, size_bytes, epoch, attempts"
        values = f"-1, {LONG_GONE}, 'DELETED', 'DELETED', 1, 'old', 'LEDGER', 1, 'sexton', 'MANAGED_LEDGER'"
        row = f"{values}, 1, 'persistent://shop/main/old', '{{}}', '{{}}', 0, -1, 1, 0, 1, 1, 0, 0, 1"
        old = f"INSERT OR IGNORE INTO pending_deletion ({columns}, {more}, objects_deleted, bytes_deleted, created_us)"
        with sqlite3.connect(self._process.catalog.database.engine.url.database or "") as connection:
            connection.execute(f"{old} VALUES ({row})")
        connection.close()

    def _tell(self, what: str) -> object:
        """As an operator does with a batch; `release` comes when its workflow is gone."""
        return getattr(self._process.catalog.deletions, what)("redrive")

    def _redrive(self) -> Detached:
        """Under one name, whoever repeats it, so that driving the job again asks for nothing new."""
        return self._process.catalog.redrives.redrive(
            None,
            batch_id="redrive",
            claim=Claim(workflow_id="delete-ledgers/redrive", run_id="", ttl_s=-1),
            cause=Cause(actor="tests", reason="mended", workflow_id="delete-ledgers/redrive"),
        )

    def _sweep(self, batch_id: str) -> bool:
        """As `sweep-deletions` does; whether there was anything to do."""
        page = AdoptInput(batch_id=batch_id, batch_workflow_id=f"delete-ledgers/{batch_id}", limit=1)
        adopted: DetachResult = self._activity(f"{batch_id} adopt", batch_id, lambda p: p.upkeep.adopt, page)
        if adopted.intents:
            self._delete_ledgers(batch_id, adopted.catalog_epoch)
        forget = ForgetInput(limit=1, actor="tests", reason="the main job")
        gone: ForgetResult = self._activity(f"{batch_id} forget", batch_id, lambda p: p.upkeep.forget, forget)
        return adopted.intents + gone.rows + gone.runs > 0

    def _trims(self, what: str) -> None:
        for plan in self.plans:
            if plan.picked is None or what == "sweep":
                self._trim(self._topic(plan), f"{what}-{self.run_name}-{plan.name.rpartition('/')[2]}")

    def _unload(self, plan: TopicPlan) -> None:
        """Write down who unloads the topic's bundle."""
        bundle = bundle_of(TopicName.parse(plan.name), bundles=self._process.catalog.fences.bundles())
        cause, detail = Cause(actor="tests", reason="the main job", workflow_id=""), {"bundle": bundle}
        self._client(f"unload {bundle}", lambda: self._process.catalog.audit_log.record("unload", cause, detail=detail))

    def _topic(self, plan: TopicPlan) -> Topic:
        def create() -> Topic:
            try:
                return self._process.catalog.topics.create(plan.name, self._policy(plan))
            except AlreadyExists:
                return self._process.catalog.topics.get(plan.name)

        return self._client(f"create {plan.name}", create)

    def _policy(self, plan: TopicPlan) -> RetentionPolicy:
        return RetentionPolicy() if plan.picked is None else RetentionPolicy(retention_s=86_400)

    def _write_ledger(self, plan: TopicPlan, topic: Topic, index: int) -> None:
        if index and not self.attempts.get("again"):
            self._client(f"roll {plan.name} {index}", lambda: self._process.managed.roll(topic))
        for part in range(SEGMENTS):
            first = index * PER_LEDGER + part * PER_SEGMENT
            entries = [
                NewEntry(payload=payload_of(plan.name, number), sequence_id=number)
                for number in range(first, first + PER_SEGMENT)
            ]
            produced = ProducedEntries(entries=entries, producer=_PRODUCER)
            self._client(f"append {plan.name} {first}", partial(self._append, topic, produced))

    def _acknowledge(self, plan: TopicPlan, topic: Topic) -> None:
        listed = self._client(f"list {plan.name}", lambda: self._process.catalog.ledgers.listed(topic.topic_id))
        for name, count in plan.acknowledged.items():
            if not count:
                continue
            singles = tuple(Position(listed[0].ledger_id, entry) for entry in reversed(range(PER_LEDGER)))
            last = Position(listed[count - 1].ledger_id, PER_LEDGER - 1)
            asked: list[dict[str, Any]] = [{"positions": singles}, {"up_to": last}]
            for at, one in enumerate(asked):
                self._client(f"acknowledge {plan.name} {name} {at}", partial(self._move, topic, name, **one))
            end = Position(last.ledger_id, last.entry_id + 1)
            self._client(f"seek {plan.name} {name}", partial(self._seek, topic, name, end))

    def _outgrow(self, plan: TopicPlan, topic: Topic) -> None:
        """Let a cursor's state go to ledgers, from one to the next, and back; and seek it while it is in one.

        What would undo a later step if it were done again is done once in the life of the world.
        """
        last = self.history[f"list {plan.name}"][-1].ledger_id
        move, seek = partial(self._move, topic, HOLED), partial(self._seek, topic, HOLED)
        steps: list[Callable[[], object]] = [
            partial(move, up_to=Position(last, -1)),
            *(partial(move, positions=(Position(last, entry),)) for entry in (3, 1, 0, 2)),
            partial(seek, Position(last, 1)),
            partial(move, positions=(Position(last, 3),)),
            partial(seek, Position(last, 0)),
        ]
        for at, step in enumerate(steps):
            self._client(f"once {plan.name} {HOLED} {at}", step)
        self._client(f"hole {plan.name}", partial(move, positions=(Position(last, HOLE),)))

    def _describe(self, plan: TopicPlan, topic: Topic) -> None:
        """Set schemas, the last one twice."""
        for at, content in enumerate(SCHEMAS):
            self._client(f"once {plan.name} schema {at}", partial(self._set_schema, topic, content))
        self._client(f"schema {plan.name}", partial(self._set_schema, topic, SCHEMAS[-1]))

    def _set_schema(self, topic: Topic, content: bytes) -> object:
        return self._process.schemas.set(topic, content)

    def _subscribe(self, topic: Topic, name: str) -> object:
        return self._process.subscriptions.subscribe(topic.topic_id, name, latest=False)

    def _append(self, topic: Topic, produced: ProducedEntries) -> object:
        return self._process.managed.append(topic, produced)

    def _move(self, topic: Topic, name: str, **asked: Any) -> object:
        return self._process.subscriptions.acknowledge(topic.topic_id, name, **asked)

    def _seek(self, topic: Topic, name: str, position: Position) -> object:
        return self._process.subscriptions.seek(topic.topic_id, name, position)

    def _let_storage_misbehave(self) -> None:
        seen = self.world.look()
        for plan in self.plans:
            listed = seen.listed(plan.name)
            for place, trouble in plan.troubles.items():
                segments = seen.ledgers[listed[place]].segments
                self.world.trouble(listed[place], trouble, last_segment=segments[-1][0])

    def _trim(self, topic: Topic, run: str) -> None:
        """As `trim-topic` does."""
        for turn in range(_NEVER):
            workflow_id = f"trim-topic/{topic.topic_id}"
            roll = RollInput(topic_id=topic.topic_id)
            self._activity(f"{run} {turn} roll", workflow_id, lambda p: p.retention.roll_idle, roll)
            batch_id = f"{topic.topic_id}-{run}-{turn}"
            detached = self._detach(batch_id, workflow_id, topic, None)
            if not detached.intents:
                return
            self._delete_ledgers(batch_id, detached.catalog_epoch, topic.name)
        raise AssertionError(f"{run} does not come to an end")

    def _delete_picked(self, plan: TopicPlan, topic: Topic) -> None:
        """As `delete-ledgers` does when it is asked for given ledgers."""
        listed: list[int] = self._client(
            f"pick {plan.name}",
            lambda: [ledger.ledger_id for ledger in self._process.catalog.ledgers.listed(topic.topic_id)],
        )
        assert plan.picked is not None
        batch_id = f"{topic.topic_id}-pick-{self.run_name}"
        detached = self._detach(batch_id, f"delete-ledgers/{batch_id}", topic, [listed[plan.picked]])
        self._delete_ledgers(batch_id, detached.catalog_epoch, topic.name)

    def _detach(self, batch_id: str, workflow_id: str, topic: Topic, ids: list[int] | None) -> DetachResult:
        request = DetachInput(
            topic_id=topic.topic_id,
            batch_id=batch_id,
            batch_workflow_id=f"delete-ledgers/{batch_id}",
            actor="tests",
            reason="the main job",
            ledger_ids=ids,
            topic=topic.name,
            place=Place.ASK,
        )
        return self._activity(f"{batch_id} detach", workflow_id, lambda p: p.deletion.detach, request)

    def _delete_ledgers(self, batch_id: str, epoch: int, topic: str = "") -> None:
        """As `delete-ledgers` does: under a lease where the batch is of one topic."""
        workflow_id, after = f"delete-ledgers/{batch_id}", 0
        while True:
            asked = RangesInput(batch_id=batch_id, catalog_epoch=epoch, after=after, rows=_CHUNK_ROWS, limit=2)
            page: RangesPage = self._activity(
                f"{batch_id} ranges {after}", workflow_id, lambda p: p.deletion.next_ranges, asked
            )
            if not page.ranges:
                break
            for part in page.ranges:
                for key in self._chunk(batch_id, epoch, part, topic).alone:
                    self._delete_ledger(key, epoch, batch_id, topic)  # begins at once, while the batch is still at work
            after = page.ranges[-1].last
        close = CertifyInput(batch_id=batch_id, actor="tests", reason="the main job", topic=topic, place=Place.ASK)
        self._activity(f"{batch_id} certify", workflow_id, lambda p: p.deletion.certify, close)

    def _chunk(self, batch_id: str, epoch: int, part: Range, topic: str) -> ChunkResult:
        name, workflow_id = f"{batch_id} chunk {part.first}", f"delete-ledgers/{batch_id}"
        request = ChunkInput(batch_id=batch_id, chunk=part, catalog_epoch=epoch, topic=topic, place=Place.ASK)
        try:
            return self._activity(name, workflow_id, lambda p: p.deletion.delete_chunk, request, most=_CHUNK_ATTEMPTS)
        except Exhausted:
            return self._activity(f"{name} over", workflow_id, lambda p: p.deletion.hand_over_chunk, request)

    def _delete_ledger(self, key: IntentKey, epoch: int, batch_id: str, topic: str = "") -> None:
        """As `delete-ledger` does; one that failed is started again by another batch."""
        name, workflow_id = f"{batch_id} {delete_ledger_id(key)}", delete_ledger_id(key)
        request = OneInput(key=key, catalog_epoch=epoch, retry_interval_s=0, topic=topic, place=Place.ASK)
        try:
            self._activity(name, workflow_id, lambda p: p.deletion.delete_one, request, most=_ATTEMPTS - 1)
        except (Exhausted, NoProgress) as error:
            letter = DeadLetterInput(key=key, error=str(error), catalog_epoch=epoch, topic=topic, place=Place.ASK)
            result: OneResult = self._activity(f"{name} dead", workflow_id, lambda p: p.deletion.dead_letter, letter)
            assert not result.outcome.success, f"{name}: gave up on a ledger that is gone"

    def _client(self, name: str, act: Callable[[], T]) -> T:
        """A call that a program makes and repeats until it is answered."""
        return self._step(name, act, _NEVER)

    def _once(self, name: str, act: Callable[[], None]) -> None:
        self._step(name, act, 1)

    def _activity(
        self,
        name: str,
        workflow_id: str,
        method: Callable[[Process], Callable[[Any], T]],
        request: object,
        *,
        most: int = _NEVER,
    ) -> T:
        environment = ActivityEnvironment()
        environment.info = replace(environment.info, workflow_id=workflow_id, workflow_run_id=f"{workflow_id} run")

        def run() -> T:
            answer = environment.run(method(self._process), request)
            while getattr(answer, "elsewhere", None):  # nobody could be asked for the owner: no attempt is burnt
                answer = environment.run(method(self._process), request)
            return answer

        return self._step(name, run, most)

    def _step(self, name: str, act: Callable[[], T], most: int) -> T:
        """What the history has, or what an attempt gives; a crash uses up an attempt as a timeout does."""
        last = ""
        while name not in self.history:
            if self.attempts.get(name, 0) >= most:
                assert most < _NEVER, f"{name} failed {most} times, last with {last}"
                raise Exhausted(f"{name}: {most} attempts, last error: {last}")
            self.attempts[name] = self.attempts.get(name, 0) + 1
            try:
                self.history[name] = act()
                self.remember()
            except (RetryableError, OutcomeUnknown) as error:
                last = repr(error)
            except ApplicationError as error:
                if error.non_retryable:
                    raise
                last = repr(error)
        return self.history[name]  # type: ignore[no-any-return]  # of the type that `act` gives


def again(job: JobT) -> JobT:
    """The same job once more in the same world, as a user or a schedule would run it."""
    repeated = type(job)(job.world, job.plans, run=f"{job.run_name}-again")
    repeated.attempts["again"] = 1
    listed = {plan.name: job.history[f"list {plan.name}"] for plan in job.plans}
    repeated.history |= {f"list {name}": found for name, found in listed.items()} | {"troubles": None}
    repeated.history |= {
        name: result for name, result in job.history.items() if name.startswith(("seek", "pick", "once"))
    }
    if job.deletes:
        return _deleted_again(job, repeated)
    return repeated.run()


def _deleted_again(job: JobT, repeated: JobT) -> JobT:
    """Only the deletion: to write again would create the topics anew."""
    repeated.history |= {f"create {plan.name}": job.history[f"create {plan.name}"] for plan in job.plans}
    repeated.deletes = True
    return repeated.drive(repeated.delete_topics)
