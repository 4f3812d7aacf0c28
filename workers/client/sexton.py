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
from typing import TYPE_CHECKING, Any, Self, TypeVar

from temporalio.client import Client, WorkflowHistory
from temporalio.common import SearchAttributePair

from logstore.catalog import Catalog
from logstore.deletion.intents import BatchCertificate
from logstore.errors import InvalidInput, OutcomeUnknown
from logstore.ports.catalog.deletion import AuditCause, Claim
from logstore.ports.catalog.log import Topic
from logstore.positions import LedgerId
from logstore.pulsar.plan_jobs import MIN_BETWEEN_SCANS_S, require_safe_times
from logstore.reconciliation import plausibility_guards
from logstore.reconciliation.bulk_job_inputs_and_results import SCRUB_RATE
from logstore.records.tombstone_rules import CompoundOperation, DeleteDurability
from logstore.transactions.transaction_ids_and_states import TransactionId
from workers.client import schedules
from workers.client.deletion_batches import DeletionBatchControl, release_paused_batch
from workers.client.job_client import Handle, JobClient
from workers.client.temporal_connection import connect_client
from workers.client.transaction_client import TransactionClient
from workers.client.wait_for_job import Say, wait_for_result
from workers.client.workflow_search import WorkflowSummary, fetch_history, query_workflows
from workers.settings import Settings
from workflows import search_attributes
from workflows.delayed import job_definitions as delayed
from workflows.deletion import job_definitions as deletion
from workflows.job_definition import JobDefinition
from workflows.offload import job_definitions as offload
from workflows.pulsar import job_definitions as pulsar
from workflows.reconciliation import job_definitions as reconciliation
from workflows.records import job_definitions as records
from workflows.topic_build_types import BuildResult, BuildTopicsInput
from workflows.transactions.job_definitions import (
    BROADCAST_TRANSACTION,
    BUILD_TRANSACTION_SNAPSHOTS,
    TRANSACTION_COORDINATOR,
    BroadcastProgress,
    BroadcastTransactionInput,
    BuildTransactionSnapshotsInput,
    CoordinatorInput,
)

if TYPE_CHECKING:
    from workers.assembly.log_store import LogStore

B = TypeVar("B", bound=BuildTopicsInput)
R = TypeVar("R")

_THREAD_RELEASE_S = 0.2  # without this pause, 6 of 40 programs aborted; with the pause, none of 120
_REDRIVE_CLAIM_S = 120.0  # if the batch has not started by then, a sweep continues its rows


@dataclass(frozen=True, slots=True, kw_only=True)
class RedriveResult:
    started: int  # number of rows
    handle: Handle[BatchCertificate] | None = None  # None if no row was a dead letter


class Sexton(JobClient):
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

    async def trim_topic(self, topic: Topic, reason: str = "", actor: str = "") -> Handle[deletion.TrimTopicResult]:
        """Delete the topic's unneeded ledgers. A running trim of the topic is joined, and makes one more pass."""
        request = deletion.TrimTopicInput(
            topic_id=topic.topic_id, topic=topic.name, actor=actor, reason=reason, policy=self._deletion_policy
        )
        return await self.start(deletion.TRIM_TOPIC, request, signal="again")

    async def trim_topics(self, reason: str = "", actor: str = "") -> Handle[deletion.TrimTopicsResult]:
        """Delete the unneeded ledgers of all topics in one batch. Joins a running trim of all topics."""
        request = deletion.TrimTopicsInput(actor=actor, reason=reason, policy=self._deletion_policy)
        return await self.start(deletion.TRIM_TOPICS, request)

    async def delete_topic(
        self, topic: Topic, reason: str = "", actor: str = "", *, durable_delete: bool | None = None
    ) -> Handle[deletion.DeleteTopicResult]:
        """Delete the topic and all its data. Joins a running deletion, or continues an interrupted deletion."""
        request = deletion.DeleteTopicInput(
            topic_id=topic.topic_id,
            topic=topic.name,
            actor=actor,
            reason=reason,
            catalog_epoch=await asyncio.to_thread(self._read_catalog_epoch),
            policy=self._deletion_policy,
            durable_delete=DeleteDurability.from_flag(durable_delete),
        )
        return await self.start(deletion.DELETE_TOPIC, request)

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
        detach = deletion.ExplicitDetach(
            ledger_ids=_sort_ids(ledger_ids), force=force, durable_delete=DeleteDurability.from_flag(durable_delete)
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
        detach = deletion.ExplicitDetach(
            ledger_ids=[int(operation.ledger_id)],
            durable_delete=DeleteDurability.from_flag(durable_delete),
            remove=sorted(operation.remove),
            pass_over=sorted(operation.pass_over),
            generation=operation.generation,
        )
        return await self._start_delete_ledgers_job(topic, detach, reason, actor)

    async def _start_delete_ledgers_job(
        self, topic: Topic, detach: deletion.ExplicitDetach, reason: str, actor: str
    ) -> Handle[BatchCertificate]:
        self.require_valid(detach)
        request = deletion.DeleteLedgersInput(
            batch_id=_make_id(topic.topic_id),
            topic_id=topic.topic_id,
            topic=topic.name,
            catalog_epoch=await asyncio.to_thread(self._read_catalog_epoch),
            actor=actor,
            reason=reason,
            policy=self._deletion_policy,
            detach=detach,
        )
        return await self.start(deletion.DELETE_LEDGERS, request)

    async def sweep_deletions(self, reason: str = "", actor: str = "") -> Handle[deletion.SweepDeletionsResult]:
        """Continue deletions that no workflow works on, and remove old finished rows. Joins a running sweep."""
        request = deletion.SweepDeletionsInput(actor=actor, reason=reason, policy=self._deletion_policy)
        return await self.start(deletion.SWEEP_DELETIONS, request)

    async def redrive_dead_letters(
        self, row_ids: Sequence[int] | None, reason: str = "", actor: str = ""
    ) -> RedriveResult:
        """Make given dead letters pending again, all or none, with attempts from zero. `None` selects all dead letters.

        Raises:
            InvalidInput: There are no ids, or more than 10,000.
            UnknownObject: A row does not exist.
            PreconditionFailed: A row is pending or deleted.
        """
        batch_id = _make_id("redrive")
        request = self.require_valid(
            deletion.DeleteLedgersInput(
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
        cause = AuditCause(actor=actor, reason=reason, workflow_id=deletion.DELETE_LEDGERS.id(batch_id))
        count, epoch = await asyncio.to_thread(self._redrive_and_read_epoch, row_ids, batch_id, cause)
        if not count:
            return RedriveResult(started=0)
        progress = deletion.DeleteLedgersProgress(intents=count)
        request = replace(request, catalog_epoch=epoch, carried=progress)
        handle = await self.start(deletion.DELETE_LEDGERS, request, summary=f"{count} dead letters, tried again")
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

    async def offload_topic(
        self,
        topic: Topic,
        ledger_ids: Sequence[LedgerId] | None = None,
        delete_primary: bool = False,
        reason: str = "",
        actor: str = "",
    ) -> Handle[offload.OffloadTopicResult]:
        """Copy closed ledgers to the tiered bucket. `ledger_ids` has at most `MAX_OFFLOAD_LEDGERS`; `None` selects all.

        With `delete_primary` the job then deletes the primary copy of each selected ledger that has a tiered copy.
        """
        ids = None if ledger_ids is None else _sort_ids(ledger_ids)
        ask = offload.OffloadAsk(actor=actor, reason=reason, ledger_ids=ids, delete_primary=delete_primary)
        request = offload.OffloadTopicInput(
            topic_id=topic.topic_id, topic=topic.name, policy=self._offload_policy, deletion=self._deletion_policy
        )
        return await self.start(offload.OFFLOAD_TOPIC, request, signal="ask", signal_args=[self.require_valid(ask)])

    async def offload_ledger(self, topic: Topic, ledger_id: LedgerId) -> Handle[offload.OffloadLedgerResult]:
        """Copy one closed ledger to the tiered bucket. Joins a running offload of the ledger."""
        request = offload.OffloadLedgerInput(ledger_id=ledger_id, topic=topic.name, policy=self._offload_policy)
        return await self.start(offload.OFFLOAD_LEDGER, request)

    async def plan_orphans(
        self,
        *,
        older_than_s: float = 86_400,
        unsafe_age: bool = False,
        inventories: Sequence[str] = (),
        master: str = "",
        reason: str = "",
        actor: str = "",
    ) -> Handle[reconciliation.ReconcileOrphansResult]:
        """Compare storage with the catalog and write findings. The job changes neither storage nor catalog.

        `unsafe_age` accepts an age below the safe minimum. Use it only while no process writes. `inventories` are paths
        of inventory manifests that workers can read. Inventories replace listings of the buckets.

        Raises:
            PreconditionFailed: `older_than_s` is below the safe minimum.
        """
        plausibility_guards.require_min_age(older_than_s, unsafe=unsafe_age)
        request = reconciliation.ReconcileOrphansInput(
            run_id=_make_id("plan"),
            actor=actor,
            reason=reason,
            older_than_s=older_than_s,
            unsafe_age=unsafe_age,
            inventories=list(inventories),
            master=master,
            queue=self._queue_of(reconciliation.RECONCILE_ORPHANS),
        )
        return await self.start(reconciliation.RECONCILE_ORPHANS, request)

    async def apply_orphans(
        self,
        run_id: str,
        *,
        max_orphan_share: float = plausibility_guards.MAX_ORPHAN_SHARE,
        rate: int = 0,
        reason: str = "",
        actor: str = "",
    ) -> Handle[reconciliation.ApplyOrphansResult]:
        """Check the findings of a finished plan again, and act on them. Joins a running apply of the plan.

        `rate` is the limit of objects a second at the start, and 0 is none.
        """
        request = reconciliation.ApplyOrphansInput(
            run_id=run_id,
            actor=actor,
            reason=reason,
            max_orphan_share=max_orphan_share,
            policy=self._deletion_policy,
            carried=reconciliation.ApplyOrphansProgress(rate=rate),
        )
        return await self.start(reconciliation.APPLY_ORPHANS, request)

    async def scrub_ledgers(
        self,
        topics: Sequence[Topic] | None,
        *,
        bytes_per_s: int = SCRUB_RATE,
        master: str = "",
        reason: str = "",
        actor: str = "",
    ) -> Handle[reconciliation.ScrubLedgersResult]:
        """Read every stored segment and tiered copy, and compare their digests. The job changes nothing.

        If a scrub of the same topics runs, join it. If such a scrub has stopped before its end, continue it. `topics`
        has at most 1,000 topics; `None` selects every topic. `bytes_per_s` bounds the read rate of all tasks together.
        """
        request = reconciliation.ScrubLedgersInput(
            actor=actor,
            reason=reason,
            topic_ids=_sort_ids([topic.topic_id for topic in topics or ()]),
            bytes_per_s=bytes_per_s,
            master=master,
            queue=self._queue_of(reconciliation.SCRUB_LEDGERS),
        )
        return await self.start(reconciliation.SCRUB_LEDGERS, request)

    async def plan_pulsar(
        self,
        *,
        older_than_s: float | None = None,
        between_s: float = MIN_BETWEEN_SCANS_S,
        unsafe_age: bool = False,
        master: str = "",
        reason: str = "",
        actor: str = "",
    ) -> Handle[pulsar.PlanPulsarResult]:
        """Scan the Pulsar cluster of the workers' settings twice, and write findings. The job changes nothing there.

        `older_than_s` replaces the age floors of all states of a ledger. `between_s` is the time between the scans.
        `unsafe_age` accepts values below the safe minimum.

        Raises:
            InvalidInput: `older_than_s` or `between_s` is below 0, or `between_s` is above 24 hours.
            PreconditionFailed: `older_than_s` or `between_s` is below the safe minimum.
        """
        require_safe_times(between_s, older_than_s, unsafe=unsafe_age)
        request = pulsar.PlanPulsarInput(
            run_id=_make_id("pulsar"),
            actor=actor,
            reason=reason,
            older_than_s=older_than_s,
            between_s=between_s,
            unsafe_age=unsafe_age,
            master=master,
            queue=self._queue_of(pulsar.PLAN_PULSAR),
        )
        return await self.start(pulsar.PLAN_PULSAR, request)

    async def apply_pulsar(
        self,
        run_id: str,
        *,
        max_orphan_share: float = plausibility_guards.MAX_ORPHAN_SHARE,
        limit: int = 0,
        include_unconfirmed: bool = False,
        include_irreversible: bool = False,
        rate: int = 0,
        reason: str = "",
        actor: str = "",
    ) -> Handle[pulsar.ApplyPulsarResult]:
        """Look at the orphan ledgers of a complete plan of a Pulsar cluster once more, and delete their metadata.

        Joins a running apply of the plan with the same options. `limit` removes only so many of the oldest orphans that
        are left. `include_unconfirmed` also removes orphans of which nothing that was read rules a reference out.
        `include_irreversible` also removes objects, uploads and managed ledgers, which no undo puts back. `rate` is the
        limit of removals a second at the start, and 0 is none.
        """
        request = pulsar.ApplyPulsarInput(
            run_id=run_id,
            actor=actor,
            reason=reason,
            max_orphan_share=max_orphan_share,
            limit=limit,
            include_unconfirmed=include_unconfirmed,
            include_irreversible=include_irreversible,
            carried=reconciliation.ApplyOrphansProgress(rate=rate),
        )
        return await self.start(pulsar.APPLY_PULSAR, request, joins_same_request_only=True)

    async def undo_pulsar(
        self, run_id: str, *, ledger_ids: Sequence[int] = (), reason: str = "", actor: str = ""
    ) -> Handle[pulsar.UndoPulsarResult]:
        """Put back the metadata of ledgers that applies of the plan have deleted: of `ledger_ids`, or of all."""
        request = pulsar.UndoPulsarInput(run_id=run_id, actor=actor, reason=reason, ledger_ids=sorted(ledger_ids))
        return await self.start(pulsar.UNDO_PULSAR, request, joins_same_request_only=True)

    async def abort_transactions(
        self, transactions: Sequence[str], *, unsafe_age: bool = False, reason: str = "", actor: str = ""
    ) -> Handle[pulsar.AbortTransactionsResult]:
        """Abort transactions of the Pulsar cluster of the workers' settings, and check that they hold nobody back.

        `transactions` has at most `MAX_ABORTED_TRANSACTIONS` ids. `unsafe_age` accepts young transactions.
        """
        request = pulsar.AbortTransactionsInput(
            run_id=_make_id("abort"),
            transactions=list(transactions),
            actor=actor,
            reason=reason,
            unsafe_age=unsafe_age,
        )
        return await self.start(pulsar.ABORT_TRANSACTIONS, request)

    async def seal_buckets(self, topic: Topic, reason: str = "", actor: str = "") -> Handle[delayed.SealBucketsResult]:
        """Seal delayed messages up to the oldest open transaction. Joins a running seal. A merge may follow."""
        request = delayed.SealBucketsInput(topic_id=topic.topic_id, topic=topic.name, actor=actor, reason=reason)
        return await self.start(delayed.SEAL_BUCKETS, request)

    async def merge_buckets(
        self, topic: Topic, max_buckets: int | None = None, reason: str = "", actor: str = ""
    ) -> Handle[delayed.MergeBucketsResult]:
        """Merge index buckets down to `max_buckets`. `None` means the workers' setting. Joins a running merge."""
        request = delayed.MergeBucketsInput(
            topic_id=topic.topic_id, topic=topic.name, max_buckets=max_buckets, actor=actor, reason=reason
        )
        return await self.start(delayed.MERGE_BUCKETS, request)

    async def build_delayed_index(
        self, topics: Sequence[Topic] | None, *, master: str = "", reason: str = "", actor: str = ""
    ) -> Handle[BuildResult]:
        """Build new index buckets of topics from their logs, and replace the existing index buckets."""
        request = delayed.BuildDelayedIndexInput(actor=actor, reason=reason, master=master)
        return await self._start_topic_build_job(delayed.BUILD_DELAYED_INDEX, topics, request)

    async def build_transaction_snapshots(
        self, topics: Sequence[Topic] | None, *, master: str = "", reason: str = "", actor: str = ""
    ) -> Handle[BuildResult]:
        """Rebuild transaction buffers from the logs of topics, and store them as the topics' transaction snapshots."""
        request = BuildTransactionSnapshotsInput(actor=actor, reason=reason, master=master)
        return await self._start_topic_build_job(BUILD_TRANSACTION_SNAPSHOTS, topics, request)

    async def _start_topic_build_job(
        self, job: JobDefinition[B, BuildResult], topics: Sequence[Topic] | None, request: B
    ) -> Handle[BuildResult]:
        """Start a build of topics. The method fills in `run_id`, `topic_ids` and `queue` of the request."""
        if topics is not None and not topics:
            raise InvalidInput("topics", expected="at least one, or None for every topic", found=topics)
        topic_ids = _sort_ids([topic.topic_id for topic in topics or ()])
        request = replace(request, run_id=_make_id(request.runs), topic_ids=topic_ids, queue=self._queue_of(job))
        attributes: list[SearchAttributePair[Any]] = []
        if topics is not None and len(topic_ids) == 1:
            attributes.append(SearchAttributePair(search_attributes.TOPIC, topics[0].name))
        return await self.start(job, request, attributes=attributes)

    def transactions(self, log: "LogStore") -> TransactionClient:
        return TransactionClient(log, self._settings.transaction_coordinators, self.wake_coordinator)

    async def wake_coordinator(self, tc_id: int) -> None:
        """Wake a coordinator to look for work. Starts its workflow if it is not running."""
        queue = self._queue_of(TRANSACTION_COORDINATOR)
        request = CoordinatorInput(tc_id=tc_id, queue=queue)
        await self.start(TRANSACTION_COORDINATOR, request, signal="wake")

    async def broadcast_transaction(self, txn: TransactionId) -> Handle[BroadcastProgress]:
        """Send the decision of one transaction to its participants. Joins a running broadcast of the transaction."""
        queue = self._queue_of(BROADCAST_TRANSACTION)
        request = BroadcastTransactionInput(txn=str(txn), queue=queue)
        return await self.start(BROADCAST_TRANSACTION, request, signal="retry")

    async def flush_records(self, reason: str = "", actor: str = "") -> Handle[records.FlushRecordsResult]:
        """Flush all changes made until now. If the job is already running, join it, so that it flushes once more."""
        queue = self._queue_of(records.FLUSH_RECORDS)
        request = records.FlushRecordsInput(once=True, queue=queue, actor=actor, reason=reason)
        return await self.start(records.FLUSH_RECORDS, request, signal="wake")

    async def defragment_records(self, reason: str = "", actor: str = "") -> Handle[records.DefragmentRecordsResult]:
        """Rewrite blocks with few live records, join small blocks, and remove blocks that no manifest names.

        Joins a running job.
        """
        queue = self._queue_of(records.DEFRAGMENT_RECORDS)
        request = records.DefragmentRecordsInput(queue=queue, actor=actor, reason=reason)
        return await self.start(records.DEFRAGMENT_RECORDS, request)

    async def raid_tombstones(
        self, eligible_age_s: float | None = None, reason: str = "", actor: str = ""
    ) -> Handle[records.RaidTombstonesResult]:
        """Remove old tombstones whose older record versions are in no block. Joins a running raid."""
        queue = self._queue_of(records.RAID_TOMBSTONES)
        request = records.RaidTombstonesInput(eligible_age_s=eligible_age_s, queue=queue, actor=actor, reason=reason)
        return await self.start(records.RAID_TOMBSTONES, request)

    async def replicate_records(self, reason: str = "", actor: str = "") -> Handle[records.ReplicateRecordsResult]:
        """Ship blocks and the newest manifest to the replica buckets in the workers' settings. Joins a running job."""
        queue = self._queue_of(records.REPLICATE_RECORDS)
        request = records.ReplicateRecordsInput(queue=queue, actor=actor, reason=reason)
        return await self.start(records.REPLICATE_RECORDS, request)

    async def end_records(
        self,
        function: str,
        topic: Topic | None,
        reason: str = "",
        actor: str = "",
        *,
        dry_run: bool = False,
        durable_delete: bool | None = None,
    ) -> Handle[records.EndRecordsResult]:
        """Delete every closed ledger for which a record function returns `None`. Ledgers that are still needed stay.

        `function` is a name in the workers' setting `functions`. If `topic` is `None`, all topics are selected.
        """
        request = records.EndRecordsInput(
            function=function,
            batch_id=_make_id(function),
            topic_id=topic.topic_id if topic else 0,
            topic=topic.name if topic else "",
            dry_run=dry_run,
            durable_delete=DeleteDurability.from_flag(durable_delete),
            catalog_epoch=await asyncio.to_thread(self._read_catalog_epoch),
            actor=actor,
            reason=reason,
            policy=self._deletion_policy,
        )
        return await self.start(records.END_RECORDS, request)

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
        return await schedules.apply_schedules(await self.mark_namespace_and_get_client(), self._settings)

    async def restart_schedule(self, schedule_id: str) -> list[str]:
        return await schedules.restart_schedule(await self.mark_namespace_and_get_client(), schedule_id)

    async def list_schedules(self) -> list[schedules.ScheduleSummary]:
        return await schedules.list_schedules(self.client)


def _make_id(prefix: object) -> str:
    """Return a new id of a batch or of a run, which begins with `prefix`."""
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


def _sort_ids(ids: Sequence[int]) -> list[int]:
    return sorted({int(number) for number in ids})
