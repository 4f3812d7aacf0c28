"""`Sexton`: start and watch jobs from a program, one typed method a job.

Example:
    ```python
    async with await Sexton.connect(load_settings({}, os.environ, Path.cwd()).settings) as sexton:
        handle = await sexton.trim_topic(topic, reason="end of day", actor="billing")
        print((await handle.result()).outcomes)
    ```
"""

import asyncio
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

from temporalio.client import Client, WorkflowHistory

from infra.catalog import SqlCatalog
from logstore.deletion.intents import Certificate
from logstore.errors import OutcomeUnknown
from logstore.ports.catalog import Cause, Claim, Topic
from logstore.positions import LedgerId
from logstore.records.tombstones import Compound, DeletePolicy
from workers.client import schedules
from workers.client.connections import connect_client
from workers.client.deletion_batches import Batches, released
from workers.client.jobs import Handle, of_run, of_topic
from workers.client.scheduled_runs import restart_schedule
from workers.client.store_jobs import StoreJobs
from workers.client.transactions import TransactionJobs
from workers.client.visibility import WorkflowRow, history_of, visible_workflows
from workers.client.waiting import Say, result_of
from workers.settings import Settings
from workflows.deletion.values import (
    DELETE_LEDGERS,
    DELETE_TOPIC,
    SWEEP_DELETIONS,
    TRIM_TOPIC,
    TRIM_TOPICS,
    DeleteLedgersInput,
    DeleteLedgersProgress,
    DeleteTopicInput,
    DeleteTopicResult,
    ExplicitDetach,
    SweepDeletionsInput,
    SweepDeletionsResult,
    TrimTopicInput,
    TrimTopicResult,
    TrimTopicsInput,
    TrimTopicsResult,
)

R = TypeVar("R")

_LET_GO_S = 0.2  # for a thread to get a processor; 6 of 40 programs aborted without, none of 120 with it
_STARTED_WITHIN_S = 120.0  # after that a redriven batch that was not started is found by a sweep


@dataclass(frozen=True, slots=True, kw_only=True)
class Redriven:
    """Dead letters that are tried again."""

    started: int  # rows
    handle: Handle[Certificate] | None = None  # of their batch; None if there are no rows


class Sexton(StoreJobs, TransactionJobs):
    """Jobs on one Temporal namespace and one catalog.

    Input that a job would refuse is refused before it is started: names, ids, actors and reasons, as `InvalidInput`.
    """

    def __init__(self, client: Client, settings: Settings, catalog: Callable[[], SqlCatalog] | None = None) -> None:
        """Use a client that was made with `connect_client`, or one with the pydantic data converter; see `OwnJobs`."""
        super().__init__(client, settings, catalog)
        self.batches = Batches(client, lambda batch_id: released(self._catalog().deletions, batch_id))

    @staticmethod
    async def connect(settings: Settings, catalog: Callable[[], SqlCatalog] | None = None) -> "Sexton":
        """Connect to Temporal; see `connect_client`."""
        return Sexton(await connect_client(settings), settings, catalog)

    async def __aenter__(self) -> Self:
        """Use it for one block; see `close`."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close it."""
        await self.close()

    async def close(self) -> None:
        """Close its catalog, and give the SDK's threads time to let go of the last answer; await it before the end.

        Temporal's SDK has no call that ends them. One that still holds Python's lock when the interpreter is finalized
        aborts the process ("PyGILState_Release", exit code 134), after all work is done.
        """
        await asyncio.to_thread(self._opened.close)
        await asyncio.sleep(_LET_GO_S)

    async def result_of(self, handle: Handle[R], say: Say) -> R:
        """The job's result; `say` is told what is waited for and, where nothing moves for 10 s, why and what to do.

        Raises:
            JobStopped: It was terminated or cancelled, or a job that it waited for was.
            WorkflowFailureError: It failed, or a guard refused what it was asked.
        """
        result: R = await result_of(self.client, handle, say)
        return result

    async def trim_topic(self, topic: Topic, reason: str = "", actor: str = "") -> Handle[TrimTopicResult]:
        """Delete what retention does not keep; joins a running trim of the topic, which then passes once more."""
        request = TrimTopicInput(
            topic_id=topic.topic_id, topic=topic.name, actor=actor, reason=reason, policy=self._policy
        )
        about = [of_topic(topic)]
        return await self.start(
            TRIM_TOPIC, request, topic.topic_id, summary=f"trim {topic.name}", about=about, signal="again"
        )

    async def trim_topics(self, reason: str = "", actor: str = "") -> Handle[TrimTopicsResult]:
        """Delete what retention does not keep of all topics, in one batch; joins a running trim of all topics."""
        request = TrimTopicsInput(actor=actor, reason=reason, policy=self._policy)
        return await self.start(TRIM_TOPICS, request, summary="trim all topics")

    async def delete_topic(
        self, topic: Topic, reason: str = "", actor: str = "", *, durable_delete: bool | None = None
    ) -> Handle[DeleteTopicResult]:
        """Delete everything of the topic and the topic; joins its deletion if that runs, otherwise goes on from there.

        Tombstones are left unless `durable_delete`, or if that is None the topic, says otherwise.
        """
        request = DeleteTopicInput(
            topic_id=topic.topic_id,
            topic=topic.name,
            actor=actor,
            reason=reason,
            catalog_epoch=await asyncio.to_thread(self._epoch),
            policy=self._policy,
            durable_delete=DeletePolicy.of(durable_delete),
        )
        about = [of_topic(topic)]
        return await self.start(DELETE_TOPIC, request, topic.topic_id, summary=f"delete {topic.name}", about=about)

    async def delete_ledgers(
        self,
        topic: Topic,
        ledger_ids: Sequence[LedgerId],
        force: bool = False,
        reason: str = "",
        actor: str = "",
        *,
        durable_delete: bool | None = None,
    ) -> Handle[Certificate]:
        """Detach and delete given ledgers, all or none; when one is needed, none.

        They leave tombstones, unless `durable_delete`, or if that is None the topic, says otherwise.

        The result then says so in `refused`, with the type `LedgerStillNeeded`; `UnknownObject` where there is no such
        ledger. `result_of` raises both.

        Raises:
            InvalidInput: None, or more than `MOST_IDS` ids.
        """
        policy = DeletePolicy.of(durable_delete)
        detach = ExplicitDetach(ledger_ids=sorted({int(one) for one in ledger_ids}), force=force, durable_delete=policy)
        return await self._detached(topic, detach, reason, actor)

    async def operate(
        self,
        topic: Topic,
        operation: Compound,
        reason: str = "",
        actor: str = "",
        *,
        durable_delete: bool | None = None,
    ) -> Handle[Certificate]:
        """Take copies of one ledger away in one transaction, which ends it once none is left; then delete them.

        If it ends it leaves a tombstone, unless `durable_delete`, or if that is None the topic, says otherwise. What a
        guard refuses is in the result's `refused`; `result_of` raises it.
        """
        detach = ExplicitDetach(
            ledger_ids=[int(operation.ledger_id)],
            durable_delete=DeletePolicy.of(durable_delete),
            remove=sorted(operation.remove),
            pass_over=sorted(operation.pass_over),
            generation=operation.generation,
        )
        return await self._detached(topic, detach, reason, actor)

    async def _detached(self, topic: Topic, detach: ExplicitDetach, reason: str, actor: str) -> Handle[Certificate]:
        self.checked(detach)
        batch_id = f"{topic.topic_id}-{uuid.uuid4().hex[:12]}"
        request = DeleteLedgersInput(
            batch_id=batch_id,
            topic_id=topic.topic_id,
            topic=topic.name,
            catalog_epoch=await asyncio.to_thread(self._epoch),
            actor=actor,
            reason=reason,
            policy=self._policy,
            detach=detach,
        )
        summary, about = f"delete {len(detach.ledger_ids)} ledgers of {topic.name}", [of_topic(topic), of_run(batch_id)]
        return await self.start(DELETE_LEDGERS, request, batch_id, summary=summary, about=about)

    async def sweep_deletions(self, reason: str = "", actor: str = "") -> Handle[SweepDeletionsResult]:
        """Take up deletions that no workflow works on, and forget old ones; joins a sweep that runs already."""
        request = SweepDeletionsInput(actor=actor, reason=reason, policy=self._policy)
        return await self.start(SWEEP_DELETIONS, request, summary="sweep deletions")

    async def redrive(self, row_ids: Sequence[int] | None, reason: str = "", actor: str = "") -> Redriven:
        """Try dead letters again, None: all there are; see `Upkeep.redrive` for what is refused."""
        batch_id = f"redrive-{uuid.uuid4().hex[:12]}"
        asked = self.checked(Cause(actor=actor, reason=reason, workflow_id=DELETE_LEDGERS.id(batch_id)))
        await self.ours()  # before rows change
        count, epoch = await asyncio.to_thread(self._redrive, row_ids, batch_id, asked)
        if not count:
            return Redriven(started=0)
        request = DeleteLedgersInput(
            batch_id=batch_id,
            topic_id=0,
            topic="",
            catalog_epoch=epoch,
            actor=actor,
            reason=reason,
            policy=self._policy,
            carried=DeleteLedgersProgress(intents=count),
        )
        summary = f"{count} dead letters, tried again"
        handle = await self.start(DELETE_LEDGERS, request, batch_id, summary=summary, about=[of_run(batch_id)])
        return Redriven(started=count, handle=handle)

    def _redrive(self, row_ids: Sequence[int] | None, batch_id: str, cause: Cause) -> tuple[int, int]:
        """How many rows, and the catalog's epoch; one that may have landed is asked for once more, by its name."""
        claim = Claim(workflow_id=cause.workflow_id, run_id="", ttl_s=_STARTED_WITHIN_S)
        catalog = self._catalog()
        epoch = catalog.ledgers.epoch()
        try:
            done = catalog.upkeep.redrive(row_ids, batch_id=batch_id, claim=claim, cause=cause)
        except OutcomeUnknown:
            done = catalog.upkeep.redrive(row_ids, batch_id=batch_id, claim=claim, cause=cause)
        return done.intents, epoch

    async def history_of(self, workflow_id: str, run_id: str | None = None) -> WorkflowHistory:
        """Everything that Temporal has recorded of a run, the newest one by default; see `visibility.history_of`."""
        return await history_of(self.client, workflow_id, run_id)

    async def list_workflows(
        self,
        type: str | None = None,  # noqa: A002 - Temporal's word
        status: str | None = None,
        topic: str | None = None,
        limit: int = 100,
        *,
        finished_recurring: bool = True,
    ) -> list[WorkflowRow]:
        """Jobs, newest first.

        Args:
            type: A workflow type, e.g. `trim-topic`.
            status: Temporal's name of a status, e.g. `Running`.
            topic: An encoded topic name.
            limit: The most workflows to return.
            finished_recurring: Whether completed runs that a schedule started are among them.
        """
        return await visible_workflows(
            self.client, type, status, topic, limit=limit, finished_recurring=finished_recurring
        )

    async def apply_schedules(self) -> list[schedules.AppliedSchedule]:
        """Bring the namespace's recurring jobs to what the settings say; see `workers.client.schedules`."""
        return await schedules.apply_schedules(await self.ours(), self._settings, self._policy)

    async def restart_schedule(self, schedule_id: str) -> list[str]:
        """End what is stuck of a recurring job, and start it anew; see `workers.client.scheduled_runs`."""
        return await restart_schedule(await self.ours(), schedule_id)

    async def list_schedules(self) -> list[schedules.ScheduleRow]:
        """Those recurring jobs that are scheduled."""
        return await schedules.list_schedules(self.client)
