"""Client with one typed method per job, to start and watch jobs from a program.

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
from dataclasses import dataclass, replace
from typing import Self, TypeVar

from temporalio.client import Client, WorkflowHistory

from logstore.catalog import Catalog
from logstore.deletion.intents import BatchCertificate
from logstore.errors import OutcomeUnknown
from logstore.ports.catalog.deletion import AuditCause, Claim
from logstore.ports.catalog.log import Topic
from logstore.positions import LedgerId
from logstore.records.tombstone_rules import CompoundOperation, DeleteDurability
from workers.client import schedules
from workers.client.deletion_batches import DeletionBatchControl, release_paused_batch
from workers.client.job_client import Handle, run_id_search_attribute, topic_search_attribute
from workers.client.maintenance_job_client import MaintenanceJobClient
from workers.client.stuck_scheduled_runs import restart_schedule
from workers.client.temporal_connection import connect_client
from workers.client.transaction_client import TransactionJobClient
from workers.client.wait_for_job import Say, wait_for_result
from workers.client.workflow_search import WorkflowSummary, fetch_history, query_workflows
from workers.settings import Settings
from workflows.deletion.job_definitions import (
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

_THREAD_RELEASE_S = 0.2  # without this pause, 6 of 40 programs aborted; with the pause, none of 120
_REDRIVE_CLAIM_S = 120.0  # if the batch has not started by then, a sweep continues its rows


@dataclass(frozen=True, slots=True, kw_only=True)
class RedriveResult:
    started: int  # number of rows
    handle: Handle[BatchCertificate] | None = None  # None if no row was a dead letter


class Sexton(MaintenanceJobClient, TransactionJobClient):
    """Jobs on one Temporal namespace and one catalog.

    Names, ids, actors and reasons that a job would refuse raise `InvalidInput` before the job starts. If a guard
    refuses a request, the job's result has the error in `refused`, and `wait_for_result` raises it. Common parameters:

    - `reason`: text for people, which is kept with the effects of the job.
    - `actor`: the person or program that asks.
    - `durable_delete`: whether the deletion leaves tombstones. `None` follows the topic's policy.
    - `topics`: topics of a bulk job, 1 to 10,000 for a build. `None` selects every topic with something to do.
    - `master`: a Spark cluster. Empty selects the cluster in the workers' settings.

    Args:
        client: Client from `connect_client`, or another client with the pydantic data converter.
        catalog: Returns a catalog that the caller closes. With `None` the client opens and closes its own catalog.
    """

    def __init__(self, client: Client, settings: Settings, catalog: Callable[[], Catalog] | None = None) -> None:
        super().__init__(client, settings, catalog)
        self.batches = DeletionBatchControl(
            client, lambda batch_id: release_paused_batch(self._open_catalog_once().deletions, batch_id)
        )

    @staticmethod
    async def connect(settings: Settings, catalog: Callable[[], Catalog] | None = None) -> "Sexton":
        """Connect to Temporal.

        Raises:
            InvalidInput: A file with payload keys or TLS certificates cannot be used.
            ServiceFailed: No address is set, no Temporal server answers, or client and server do not trust each other.
        """
        return Sexton(await connect_client(settings), settings, catalog)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the client's catalog and wait for the SDK's threads. Await this before the program ends.

        An SDK thread that still has Python's lock at the interpreter's end aborts the process
        ("PyGILState_Release", exit code 134).
        """
        await asyncio.to_thread(self._exit_stack.close)
        await asyncio.sleep(_THREAD_RELEASE_S)

    async def wait_for_result(self, handle: Handle[R], say: Say) -> R:
        """Wait for the job and return its result. `say` gets messages, for example if the job does not move for 10 s.

        Raises:
            JobStopped: The job, or a job that it waited for, was terminated or cancelled.
            WorkflowFailureError: The job failed, or a guard refused the request.
        """
        result: R = await wait_for_result(self.client, handle, say)
        return result

    async def trim_topic(self, topic: Topic, reason: str = "", actor: str = "") -> Handle[TrimTopicResult]:
        """Delete the topic's unneeded ledgers. A running trim of the topic is joined, and makes one more pass."""
        request = TrimTopicInput(
            topic_id=topic.topic_id, topic=topic.name, actor=actor, reason=reason, policy=self._deletion_policy
        )
        attributes = [topic_search_attribute(topic)]
        return await self.start(
            TRIM_TOPIC, request, topic.topic_id, summary=f"trim {topic.name}", attributes=attributes, signal="again"
        )

    async def trim_topics(self, reason: str = "", actor: str = "") -> Handle[TrimTopicsResult]:
        """Delete the unneeded ledgers of all topics in one batch. Joins a running trim of all topics."""
        request = TrimTopicsInput(actor=actor, reason=reason, policy=self._deletion_policy)
        return await self.start(TRIM_TOPICS, request, summary="trim all topics")

    async def delete_topic(
        self, topic: Topic, reason: str = "", actor: str = "", *, durable_delete: bool | None = None
    ) -> Handle[DeleteTopicResult]:
        """Delete the topic and all its data. Joins a running deletion, or continues an interrupted deletion."""
        request = DeleteTopicInput(
            topic_id=topic.topic_id,
            topic=topic.name,
            actor=actor,
            reason=reason,
            catalog_epoch=await asyncio.to_thread(self._read_catalog_epoch),
            policy=self._deletion_policy,
            durable_delete=DeleteDurability.from_flag(durable_delete),
        )
        summary, attributes = f"delete {topic.name}", [topic_search_attribute(topic)]
        return await self.start(DELETE_TOPIC, request, topic.topic_id, summary=summary, attributes=attributes)

    async def delete_ledgers(
        self,
        topic: Topic,
        ledger_ids: Sequence[LedgerId],
        force: bool = False,
        reason: str = "",
        actor: str = "",
        *,
        durable_delete: bool | None = None,
    ) -> Handle[BatchCertificate]:
        """Detach and delete the given ledgers. If any of them is still needed, delete none.

        If nothing is deleted, the result's `refused` is `LedgerStillNeeded`, or `UnknownObject` for a missing ledger.

        Raises:
            InvalidInput: There are no ids, or more than `MAX_LEDGER_IDS`.
        """
        detach = ExplicitDetach(
            ledger_ids=sorted({int(ledger_id) for ledger_id in ledger_ids}),
            force=force,
            durable_delete=DeleteDurability.from_flag(durable_delete),
        )
        return await self._start_delete_ledgers_job(topic, detach, reason, actor)

    async def run_compound_operation(
        self,
        topic: Topic,
        operation: CompoundOperation,
        reason: str = "",
        actor: str = "",
        *,
        durable_delete: bool | None = None,
    ) -> Handle[BatchCertificate]:
        """Detach copies of one ledger in one transaction, then delete them. A ledger without copies is detached."""
        detach = ExplicitDetach(
            ledger_ids=[int(operation.ledger_id)],
            durable_delete=DeleteDurability.from_flag(durable_delete),
            remove=sorted(operation.remove),
            pass_over=sorted(operation.pass_over),
            generation=operation.generation,
        )
        return await self._start_delete_ledgers_job(topic, detach, reason, actor)

    async def _start_delete_ledgers_job(
        self, topic: Topic, detach: ExplicitDetach, reason: str, actor: str
    ) -> Handle[BatchCertificate]:
        self.require_valid(detach)
        batch_id = f"{topic.topic_id}-{uuid.uuid4().hex[:12]}"
        request = DeleteLedgersInput(
            batch_id=batch_id,
            topic_id=topic.topic_id,
            topic=topic.name,
            catalog_epoch=await asyncio.to_thread(self._read_catalog_epoch),
            actor=actor,
            reason=reason,
            policy=self._deletion_policy,
            detach=detach,
        )
        return await self.start(
            DELETE_LEDGERS,
            request,
            batch_id,
            summary=f"delete {len(detach.ledger_ids)} ledgers of {topic.name}",
            attributes=[topic_search_attribute(topic), run_id_search_attribute(batch_id)],
        )

    async def sweep_deletions(self, reason: str = "", actor: str = "") -> Handle[SweepDeletionsResult]:
        """Continue deletions that no workflow works on, and remove old finished rows. Joins a running sweep."""
        request = SweepDeletionsInput(actor=actor, reason=reason, policy=self._deletion_policy)
        return await self.start(SWEEP_DELETIONS, request, summary="sweep deletions")

    async def redrive_dead_letters(
        self, row_ids: Sequence[int] | None, reason: str = "", actor: str = ""
    ) -> RedriveResult:
        """Make given dead letters pending again, all or none, with attempts from zero. `None` selects all dead letters.

        Raises:
            InvalidInput: There are no ids, or more than 10,000.
            UnknownObject: A row does not exist.
            PreconditionFailed: A row is pending or deleted.
        """
        batch_id = f"redrive-{uuid.uuid4().hex[:12]}"
        request = self.require_valid(
            DeleteLedgersInput(
                batch_id=batch_id,
                topic_id=0,
                topic="",
                catalog_epoch=0,
                actor=actor,
                reason=reason,
                policy=self._deletion_policy,
            )
        )
        await self.mark_namespace_and_get_client()  # checked before any row changes
        cause = AuditCause(actor=actor, reason=reason, workflow_id=DELETE_LEDGERS.id(batch_id))
        count, epoch = await asyncio.to_thread(self._redrive_and_read_epoch, row_ids, batch_id, cause)
        if not count:
            return RedriveResult(started=0)
        request = replace(request, catalog_epoch=epoch, carried=DeleteLedgersProgress(intents=count))
        summary = f"{count} dead letters, tried again"
        handle = await self.start(
            DELETE_LEDGERS, request, batch_id, summary=summary, attributes=[run_id_search_attribute(batch_id)]
        )
        return RedriveResult(started=count, handle=handle)

    def _redrive_and_read_epoch(
        self, row_ids: Sequence[int] | None, batch_id: str, cause: AuditCause
    ) -> tuple[int, int]:
        """Redrive dead letters. Return their number and the catalog's epoch. Repeat once if the outcome is unknown."""
        claim = Claim(workflow_id=cause.workflow_id, run_id="", ttl_s=_REDRIVE_CLAIM_S)
        catalog = self._open_catalog_once()
        epoch = catalog.ledgers.catalog_epoch()
        try:
            result = catalog.upkeep.redrive_dead_letters(row_ids, batch_id=batch_id, claim=claim, cause=cause)
        except OutcomeUnknown:
            result = catalog.upkeep.redrive_dead_letters(row_ids, batch_id=batch_id, claim=claim, cause=cause)
        return result.intents, epoch

    async def fetch_history(self, workflow_id: str, run_id: str | None = None) -> WorkflowHistory:
        return await fetch_history(self.client, workflow_id, run_id)

    async def list_workflows(
        self,
        type: str | None = None,  # noqa: A002 - Temporal's word
        status: str | None = None,
        topic: str | None = None,
        limit: int = 100,
        *,
        finished_recurring: bool = True,
    ) -> list[WorkflowSummary]:
        """Return jobs, newest first. `topic` is an encoded name.

        Without `finished_recurring`, completed runs of recurring jobs are left out if no person started them.
        """
        return await query_workflows(
            self.client, type, status, topic, limit=limit, finished_recurring=finished_recurring
        )

    async def apply_schedules(self) -> list[schedules.AppliedSchedule]:
        return await schedules.apply_schedules(
            await self.mark_namespace_and_get_client(), self._settings, self._deletion_policy
        )

    async def restart_schedule(self, schedule_id: str) -> list[str]:
        return await restart_schedule(await self.mark_namespace_and_get_client(), schedule_id)

    async def list_schedules(self) -> list[schedules.ScheduleSummary]:
        return await schedules.list_schedules(self.client)
