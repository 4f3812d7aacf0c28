"""Workflows as generators: what Temporal remembers of them, one activity at a time.

They yield activities in the order of `trim-topic`, `delete-ledgers` and `delete-ledger`; who drives them decides
when, in which process, and whether an answer arrives.
"""

from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

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
    RangesInput,
    RangesPage,
    delete_ledger_id,
)
from activities.deletion.retention import RollInput
from activities.deletion.topic_deletion import Begun, DetachAllInput, Removed, RemoveInput, TopicOrder
from activities.offload import PublishInput, RemovePrimariesInput, UploadInput, UploadResult
from logstore.errors import ClaimHeld, OutcomeUnknown, RetryableError, TerminalError
from logstore.ports.catalog import OffloadAnswer
from tests.faults.model.house import Process

_FOR_EVER: Final = 1_000_000
_CHUNK_ROWS: Final = 2
_CHUNK_ATTEMPTS: Final = 3
_ATTEMPTS: Final = 4  # of one intent, its batch's own among them
_INTERVAL_S: Final = 60
_TURNS: Final = 3  # uploads of one ledger that lost to another attempt
_UPLOAD_S: Final = 300.0


class Exhausted(Exception):
    """An activity failed as often as it may."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """One activity, to be run in a process of whoever drives."""

    workflow_id: str
    method: Callable[[Process], Callable[[Any], Any]]
    request: object
    most: int = _FOR_EVER


Steps = Generator[Call, Any, None]


@dataclass
class Job:
    """One workflow. Attempts are counted as Temporal counts them: a lost worker uses one up."""

    name: str
    steps: Steps
    attempts: int = 0
    ended: bool = False
    succeeded: bool = False
    call: Call | None = field(init=False, default=None)
    wait_s: float = 0.0  # before the next attempt

    def __post_init__(self) -> None:
        self._go_on(lambda: next(self.steps))

    def step(self, process: Process, *, loses_answer: bool) -> None:
        """Make one attempt of the activity that is next.

        Args:
            process: Where it runs; whatever kills that is raised.
            loses_answer: It runs to its end, and nobody hears of it.
        """
        assert self.call
        self.attempts += 1
        self.wait_s = 0.0
        environment = ActivityEnvironment()
        workflow_id = self.call.workflow_id
        environment.info = replace(environment.info, workflow_id=workflow_id, workflow_run_id=f"{workflow_id} run")
        try:
            answer = environment.run(self.call.method(process), self.call.request)
        except (RetryableError, OutcomeUnknown) as error:
            self._fail(error)
        except ApplicationError as error:
            self.wait_s = error.next_retry_delay.total_seconds() if error.next_retry_delay else 0.0
            self._fail(error)
        except TerminalError as error:
            refused = error
            self._go_on(lambda: self.steps.throw(refused))
        else:
            if loses_answer:
                self._fail(None)
            else:
                self._go_on(lambda: self.steps.send(answer))

    def lose_worker(self) -> None:
        """The worker died in the attempt."""
        self._fail(None)

    def _fail(self, error: Exception | None) -> None:
        assert self.call
        if self.attempts >= self.call.most:
            self._go_on(lambda: self.steps.throw(Exhausted(f"last error: {error}")))

    def _go_on(self, advance: Callable[[], Call]) -> None:
        self.attempts = 0
        try:
            self.call = advance()
        except StopIteration:
            self.ended = self.succeeded = True
        except (TerminalError, Exhausted):
            self.ended = True


class Workflows:
    """The workflows of the model, and what they start."""

    def __init__(self) -> None:
        """Begin with none."""
        self.jobs: dict[str, Job] = {}
        self.certified: list[str] = []  # batches, since somebody looked
        self._numbers = iter(range(1, 1_000_000))

    @property
    def running(self) -> list[Job]:
        """What has not ended, oldest first."""
        return [job for job in self.jobs.values() if not job.ended]

    def start(self, name: str, steps: Steps) -> Job:
        """Start a workflow unless one of its id runs."""
        earlier = self.jobs.get(name)
        if earlier is None or earlier.ended:
            self.jobs.pop(name, None)  # the newest is the last one to be driven
            self.jobs[name] = Job(name, steps)
        return self.jobs[name]

    def trim(self, topic_id: int) -> Job:
        """Start `trim-topic`."""
        return self.start(f"trim-topic/{topic_id}", self.trimming(topic_id))

    def delete(self, topic_id: int, ledger_ids: list[int], *, force: bool) -> Job:
        """Start `delete-ledgers` for given ledgers."""
        batch_id = f"{topic_id}-{next(self._numbers)}"
        return self.start(f"delete-ledgers/{batch_id}", self._delete(batch_id, topic_id, ledger_ids, force=force))

    def offload(self, ledger_id: int) -> Job:
        """Start `offload-ledger`."""
        name = f"offload-ledger/{ledger_id}"
        return self.start(name, self._offload(name, ledger_id))

    def remove_primaries(self, topic_id: int) -> Job:
        """Start what `offload-topic` ends with."""
        name = f"offload-topic/{topic_id}"
        return self.start(name, self._remove_primaries(name, topic_id))

    def delete_topic(self, topic_id: int, topic: str) -> Job:
        """Start `delete-topic`."""
        name = f"delete-topic/{topic_id}"
        return self.start(name, self._delete_topic(name, topic_id, topic))

    def sweep(self) -> Job:
        """Start `sweep-deletions`."""
        return self.start("sweep-deletions", self.sweeping())

    def redrive(self, claim: Callable[[str], int], epoch: int) -> None:
        """Take dead letters into a batch by `claim`, which answers with their number, and start `delete-ledgers`."""
        batch_id = f"redrive-{next(self._numbers)}"
        if claim(batch_id):
            self.start(f"delete-ledgers/{batch_id}", self._phase_two(batch_id, epoch))

    def delete_one(self, key: IntentKey, epoch: int) -> Job:
        """Start `delete-ledger`; one that ended well is not started again."""
        name = delete_ledger_id(key)
        earlier = self.jobs.get(name)
        return earlier if earlier and earlier.succeeded else self.start(name, self._alone(name, key, epoch))

    def trimming(self, topic_id: int) -> Steps:
        """What `trim-topic` does."""
        while True:
            name, batch_id = f"trim-topic/{topic_id}", f"{topic_id}-{next(self._numbers)}"
            roll = RollInput(topic_id=topic_id)
            with suppress(TerminalError, Exhausted):  # what cannot be rolled must not keep what can be deleted
                yield Call(workflow_id=name, method=lambda p: p.retention.roll_idle, request=roll, most=2)
            detached: DetachResult = yield _detach(name, batch_id, topic_id)
            if not detached.intents:
                return
            yield from self._phase_two(batch_id, detached.catalog_epoch)

    def _delete(self, batch_id: str, topic_id: int, ledger_ids: list[int], *, force: bool) -> Steps:
        detached: DetachResult = yield _detach(
            f"delete-ledgers/{batch_id}", batch_id, topic_id, ledger_ids=ledger_ids, force=force
        )
        yield from self._phase_two(batch_id, detached.catalog_epoch)

    def _offload(self, name: str, ledger_id: int) -> Steps:
        for _ in range(_TURNS):
            upload = UploadInput(ledger_id=ledger_id, timeout_s=_UPLOAD_S)
            done: UploadResult = yield Call(workflow_id=name, method=lambda p: p.offload.upload, request=upload, most=3)
            if done.answer is not OffloadAnswer.BEGUN:
                return
            publish = PublishInput(ledger_id=ledger_id, uuid=done.uuid)
            found = yield Call(workflow_id=name, method=lambda p: p.offload.publish, request=publish)
            if found is not OffloadAnswer.BEGUN:
                return

    def _remove_primaries(self, name: str, topic_id: int) -> Steps:
        batch_id = f"{topic_id}-{next(self._numbers)}"
        request = RemovePrimariesInput(
            topic_id=topic_id,
            batch_id=batch_id,
            batch_workflow_id=f"delete-ledgers/{batch_id}",
            actor="tests",
            reason="the model",
        )
        found = yield Call(workflow_id=name, method=lambda p: p.offload.remove_primaries, request=request)
        if found.intents:
            yield from self._phase_two(batch_id, found.catalog_epoch)

    def _delete_topic(self, name: str, topic_id: int, topic: str) -> Steps:
        order = TopicOrder(topic_id=topic_id, topic=topic, actor="tests", reason="the model", catalog_epoch=None)
        begun: Begun = yield Call(workflow_id=name, method=lambda p: p.topics.set_deleting, request=order)
        order = replace(order, catalog_epoch=begun.catalog_epoch)
        removed = Removed(gone=False)
        while not removed.gone:
            batch_id = f"{topic_id}-{next(self._numbers)}"
            everything = DetachAllInput(order=order, batch_id=batch_id, batch_workflow_id=f"delete-ledgers/{batch_id}")
            detached: DetachResult = yield Call(
                workflow_id=name, method=lambda p: p.topics.detach_all, request=everything
            )
            if detached.intents:
                with suppress(TerminalError, Exhausted):  # its rows are listed, and the topic need not wait for them
                    yield from self._phase_two(batch_id, detached.catalog_epoch)
            last = RemoveInput(order=order, since_us=begun.since_us)
            removed = yield Call(workflow_id=name, method=lambda p: p.topics.remove, request=last)

    def sweeping(self) -> Steps:
        """What `sweep-deletions` does."""
        name = "sweep-deletions"
        while True:
            batch_id = f"sweep-{next(self._numbers)}"
            adopt = AdoptInput(batch_id=batch_id, batch_workflow_id=f"delete-ledgers/{batch_id}", limit=3)
            adopted: DetachResult = yield Call(workflow_id=name, method=lambda p: p.upkeep.adopt, request=adopt)
            if not adopted.intents:
                break
            with suppress(TerminalError, Exhausted):
                yield from self._phase_two(batch_id, adopted.catalog_epoch)
        page = ForgetInput(limit=3, actor="tests", reason="the model")
        forgotten = ForgetResult(rows=1)
        while forgotten.rows or forgotten.runs:
            forgotten = yield Call(workflow_id=name, method=lambda p: p.upkeep.forget, request=page)

    def _phase_two(self, batch_id: str, epoch: int) -> Steps:
        name, after = f"delete-ledgers/{batch_id}", 0
        while True:
            asked = RangesInput(batch_id=batch_id, catalog_epoch=epoch, after=after, rows=_CHUNK_ROWS, limit=2)
            page: RangesPage = yield Call(workflow_id=name, method=lambda p: p.deletion.next_ranges, request=asked)
            if page.stale:
                return
            if not page.ranges:
                break
            for part in page.ranges:
                yield from self._chunk(name, ChunkInput(batch_id=batch_id, chunk=part, catalog_epoch=epoch))
            after = page.ranges[-1].last
        close = CertifyInput(batch_id=batch_id, actor="tests", reason="the model")
        yield Call(workflow_id=name, method=lambda p: p.deletion.certify, request=close)
        self.certified.append(batch_id)

    def _chunk(self, name: str, request: ChunkInput) -> Steps:
        try:
            result: ChunkResult = yield Call(
                workflow_id=name, method=lambda p: p.deletion.delete_chunk, request=request, most=_CHUNK_ATTEMPTS
            )
        except ClaimHeld:
            raise
        except (TerminalError, Exhausted):
            result = yield Call(workflow_id=name, method=lambda p: p.deletion.hand_over_chunk, request=request)
        for key in result.alone:
            self.delete_one(key, request.catalog_epoch)

    def _alone(self, name: str, key: IntentKey, epoch: int) -> Steps:
        request = OneInput(key=key, catalog_epoch=epoch, retry_interval_s=_INTERVAL_S)
        try:
            result = yield Call(
                workflow_id=name, method=lambda p: p.deletion.delete_one, request=request, most=_ATTEMPTS - 1
            )
        except Exhausted as error:
            letter = DeadLetterInput(key=key, catalog_epoch=epoch, error=str(error))
            result = yield Call(workflow_id=name, method=lambda p: p.deletion.dead_letter, request=letter)
        if not result.outcome.success:
            raise Exhausted(result.detail)


def _detach(
    workflow_id: str, batch_id: str, topic_id: int, *, ledger_ids: list[int] | None = None, force: bool = False
) -> Call:
    request = DetachInput(
        topic_id=topic_id,
        batch_id=batch_id,
        batch_workflow_id=f"delete-ledgers/{batch_id}",
        actor="tests",
        reason="the model",
        ledger_ids=ledger_ids,
        force=force,
    )
    return Call(workflow_id=workflow_id, method=lambda p: p.deletion.detach, request=request)
