"""Client of jobs on tiered copies, orphans, delayed messages and the record log."""

import asyncio
import uuid
from collections.abc import Sequence

from temporalio.common import SearchAttributePair

from logstore.ports.catalog.log import Topic
from logstore.positions import LedgerId
from logstore.pulsar.plan_jobs import MIN_BETWEEN_SCANS_S, require_safe_times
from logstore.reconciliation import plausibility_guards
from logstore.reconciliation.bulk_job_inputs_and_results import SCRUB_RATE
from logstore.records.tombstone_rules import DeleteDurability
from workers.client.job_client import Handle, JobClient, run_id_search_attribute, topic_search_attribute
from workflows import search_attributes
from workflows.delayed.job_definitions import (
    BUILD_DELAYED_INDEX,
    MERGE_BUCKETS,
    SEAL_BUCKETS,
    BuildDelayedIndexInput,
    MergeBucketsInput,
    MergeBucketsResult,
    SealBucketsInput,
    SealBucketsResult,
)
from workflows.offload.job_definitions import (
    OFFLOAD_LEDGER,
    OFFLOAD_TOPIC,
    OffloadAsk,
    OffloadLedgerInput,
    OffloadLedgerResult,
    OffloadTopicInput,
    OffloadTopicResult,
)
from workflows.pulsar.job_definitions import (
    ABORT_TRANSACTIONS,
    APPLY_PULSAR,
    PLAN_PULSAR,
    UNDO_PULSAR,
    AbortTransactionsInput,
    AbortTransactionsResult,
    ApplyPulsarInput,
    ApplyPulsarResult,
    PlanPulsarInput,
    PlanPulsarResult,
    UndoPulsarInput,
    UndoPulsarResult,
)
from workflows.reconciliation.job_definitions import (
    APPLY_ORPHANS,
    RECONCILE_ORPHANS,
    SCRUB_LEDGERS,
    ApplyOrphansInput,
    ApplyOrphansProgress,
    ApplyOrphansResult,
    ReconcileOrphansInput,
    ReconcileOrphansResult,
    ScrubLedgersInput,
    ScrubLedgersResult,
    scrub_job_key,
)
from workflows.records.job_definitions import (
    DEFRAGMENT_RECORDS,
    END_RECORDS,
    FLUSH_RECORDS,
    NOW,
    RAID_TOMBSTONES,
    REPLICATE_RECORDS,
    DefragmentRecordsInput,
    DefragmentRecordsResult,
    EndRecordsInput,
    EndRecordsResult,
    FlushRecordsInput,
    FlushRecordsResult,
    RaidTombstonesInput,
    RaidTombstonesResult,
    ReplicateRecordsInput,
    ReplicateRecordsResult,
)
from workflows.task_queues import bulk_queue, records_queue
from workflows.topic_build_types import BuildResult


class MaintenanceJobClient(JobClient):
    async def offload_topic(
        self,
        topic: Topic,
        ledger_ids: Sequence[LedgerId] | None = None,
        delete_primary: bool = False,
        reason: str = "",
        actor: str = "",
    ) -> Handle[OffloadTopicResult]:
        """Copy closed ledgers to the tiered bucket. `ledger_ids` has at most `MAX_OFFLOAD_LEDGERS`; `None` selects all.

        With `delete_primary` the job then deletes the primary copy of each selected ledger that has a tiered copy.
        """
        ids = None if ledger_ids is None else sorted({int(ledger_id) for ledger_id in ledger_ids})
        ask = self.require_valid(OffloadAsk(actor=actor, reason=reason, ledger_ids=ids, delete_primary=delete_primary))
        request = OffloadTopicInput(
            topic_id=topic.topic_id, topic=topic.name, policy=self._offload_policy, deletion=self._deletion_policy
        )
        return await self.start(
            OFFLOAD_TOPIC,
            request,
            topic.topic_id,
            summary=f"offload {topic.name}",
            attributes=[topic_search_attribute(topic)],
            signal="ask",
            signal_args=[ask],
        )

    async def offload_ledger(self, topic: Topic, ledger_id: LedgerId) -> Handle[OffloadLedgerResult]:
        """Copy one closed ledger to the tiered bucket. Joins a running offload of the ledger."""
        request = OffloadLedgerInput(ledger_id=ledger_id, topic=topic.name, policy=self._offload_policy)
        attributes = [topic_search_attribute(topic), SearchAttributePair(search_attributes.LEDGER_ID, ledger_id)]
        summary = f"ledger {ledger_id} of {topic.name}"
        return await self.start(OFFLOAD_LEDGER, request, ledger_id, summary=summary, attributes=attributes)

    async def plan_orphans(
        self,
        *,
        older_than_s: float = 86_400,
        unsafe_age: bool = False,
        inventories: Sequence[str] = (),
        master: str = "",
        reason: str = "",
        actor: str = "",
    ) -> Handle[ReconcileOrphansResult]:
        """Compare storage with the catalog and write findings. The job changes neither storage nor catalog.

        `unsafe_age` accepts an age below the safe minimum. Use it only while no process writes. `inventories` are paths
        of inventory manifests that workers can read. Inventories replace listings of the buckets.

        Raises:
            PreconditionFailed: `older_than_s` is below the safe minimum.
        """
        plausibility_guards.require_min_age(older_than_s, unsafe=unsafe_age)
        run_id = f"plan-{uuid.uuid4().hex[:12]}"
        request = ReconcileOrphansInput(
            run_id=run_id,
            actor=actor,
            reason=reason,
            older_than_s=older_than_s,
            unsafe_age=unsafe_age,
            inventories=list(inventories),
            master=master,
            queue=bulk_queue(self._settings.task_queue),
        )
        summary = "compare storage with the catalog"
        return await self.start(
            RECONCILE_ORPHANS, request, run_id, summary=summary, attributes=[run_id_search_attribute(run_id)]
        )

    async def plan_pulsar(
        self,
        *,
        older_than_s: float | None = None,
        between_s: float = MIN_BETWEEN_SCANS_S,
        unsafe_age: bool = False,
        master: str = "",
        reason: str = "",
        actor: str = "",
    ) -> Handle[PlanPulsarResult]:
        """Scan the Pulsar cluster of the workers' settings twice, and write findings. The job changes nothing there.

        `older_than_s` replaces the age floors of all states of a ledger. `between_s` is the time between the scans.
        `unsafe_age` accepts values below the safe minimum.

        Raises:
            InvalidInput: `older_than_s` or `between_s` is below 0, or `between_s` is above 24 hours.
            PreconditionFailed: `older_than_s` or `between_s` is below the safe minimum.
        """
        require_safe_times(between_s, older_than_s, unsafe=unsafe_age)
        run_id = f"pulsar-{uuid.uuid4().hex[:12]}"
        request = PlanPulsarInput(
            run_id=run_id,
            actor=actor,
            reason=reason,
            older_than_s=older_than_s,
            between_s=between_s,
            unsafe_age=unsafe_age,
            master=master,
            queue=bulk_queue(self._settings.task_queue),
        )
        summary = "compare two scans of the Pulsar cluster"
        return await self.start(
            PLAN_PULSAR, request, run_id, summary=summary, attributes=[run_id_search_attribute(run_id)]
        )

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
    ) -> Handle[ApplyPulsarResult]:
        """Look at the orphan ledgers of a complete plan of a Pulsar cluster once more, and delete their metadata.

        Joins a running apply of the plan with the same options. `limit` removes only so many of the oldest orphans that
        are left. `include_unconfirmed` also removes orphans of which nothing that was read rules a reference out.
        `include_irreversible` also removes objects, uploads and managed ledgers, which no undo puts back. `rate` is the
        limit of removals a second at the start, and 0 is none.
        """
        request = ApplyPulsarInput(
            run_id=run_id,
            actor=actor,
            reason=reason,
            max_orphan_share=max_orphan_share,
            limit=limit,
            include_unconfirmed=include_unconfirmed,
            include_irreversible=include_irreversible,
            carried=ApplyOrphansProgress(rate=rate),
        )
        return await self.start(
            APPLY_PULSAR,
            request,
            run_id,
            summary=f"apply {run_id}",
            attributes=[run_id_search_attribute(run_id)],
            joins_same_request_only=True,
        )

    async def undo_pulsar(
        self, run_id: str, *, ledger_ids: Sequence[int] = (), reason: str = "", actor: str = ""
    ) -> Handle[UndoPulsarResult]:
        """Put back the metadata of ledgers that applies of the plan have deleted: of `ledger_ids`, or of all."""
        request = UndoPulsarInput(run_id=run_id, actor=actor, reason=reason, ledger_ids=sorted(ledger_ids))
        return await self.start(
            UNDO_PULSAR,
            request,
            run_id,
            summary=f"undo {run_id}",
            attributes=[run_id_search_attribute(run_id)],
            joins_same_request_only=True,
        )

    async def abort_transactions(
        self, transactions: Sequence[str], *, unsafe_age: bool = False, reason: str = "", actor: str = ""
    ) -> Handle[AbortTransactionsResult]:
        """Abort transactions of the Pulsar cluster of the workers' settings, and check that they hold nobody back.

        `transactions` has at most `MAX_ABORTED_TRANSACTIONS` ids. `unsafe_age` accepts young transactions.
        """
        run_id = f"abort-{uuid.uuid4().hex[:12]}"
        request = AbortTransactionsInput(
            run_id=run_id, transactions=list(transactions), actor=actor, reason=reason, unsafe_age=unsafe_age
        )
        summary = f"abort {len(request.transactions):,} transactions of the Pulsar cluster"
        return await self.start(
            ABORT_TRANSACTIONS, request, run_id, summary=summary, attributes=[run_id_search_attribute(run_id)]
        )

    async def apply_orphans(
        self,
        run_id: str,
        *,
        max_orphan_share: float = plausibility_guards.MAX_ORPHAN_SHARE,
        rate: int = 0,
        reason: str = "",
        actor: str = "",
    ) -> Handle[ApplyOrphansResult]:
        """Check the findings of a finished plan again, and act on them. Joins a running apply of the plan.

        `rate` is the limit of objects a second at the start, and 0 is none.
        """
        request = ApplyOrphansInput(
            run_id=run_id,
            actor=actor,
            reason=reason,
            max_orphan_share=max_orphan_share,
            policy=self._deletion_policy,
            carried=ApplyOrphansProgress(rate=rate),
        )
        return await self.start(
            APPLY_ORPHANS, request, run_id, summary=f"apply {run_id}", attributes=[run_id_search_attribute(run_id)]
        )

    async def scrub_ledgers(
        self,
        topics: Sequence[Topic] | None,
        *,
        bytes_per_s: int = SCRUB_RATE,
        master: str = "",
        reason: str = "",
        actor: str = "",
    ) -> Handle[ScrubLedgersResult]:
        """Read every stored segment and tiered copy, and compare their digests. The job changes nothing.

        If a scrub of the same topics runs, join it. If such a scrub has stopped before its end, continue it. `topics`
        has at most 1,000 topics; `None` selects every topic. `bytes_per_s` bounds the read rate of all tasks together.
        """
        ids = [] if topics is None else sorted({int(topic.topic_id) for topic in topics})
        request = ScrubLedgersInput(
            actor=actor,
            reason=reason,
            topic_ids=ids,
            bytes_per_s=bytes_per_s,
            master=master,
            queue=bulk_queue(self._settings.task_queue),
        )
        scope = f"{len(ids):,} topics" if ids else "every topic"
        return await self.start(SCRUB_LEDGERS, request, *scrub_job_key(ids), summary=f"scrub ledgers of {scope}")

    async def seal_buckets(self, topic: Topic, reason: str = "", actor: str = "") -> Handle[SealBucketsResult]:
        """Seal delayed messages up to the oldest open transaction. Joins a running seal. A merge may follow."""
        request = SealBucketsInput(topic_id=topic.topic_id, topic=topic.name, actor=actor, reason=reason)
        summary = f"seal delayed messages of {topic.name}"
        return await self.start(
            SEAL_BUCKETS, request, topic.topic_id, summary=summary, attributes=[topic_search_attribute(topic)]
        )

    async def merge_buckets(
        self, topic: Topic, max_buckets: int | None = None, reason: str = "", actor: str = ""
    ) -> Handle[MergeBucketsResult]:
        """Merge index buckets down to `max_buckets`. `None` means the workers' setting. Joins a running merge."""
        request = MergeBucketsInput(
            topic_id=topic.topic_id, topic=topic.name, max_buckets=max_buckets, actor=actor, reason=reason
        )
        summary = f"merge buckets of {topic.name}"
        return await self.start(
            MERGE_BUCKETS, request, topic.topic_id, summary=summary, attributes=[topic_search_attribute(topic)]
        )

    async def build_delayed_index(
        self, topics: Sequence[Topic] | None, *, master: str = "", reason: str = "", actor: str = ""
    ) -> Handle[BuildResult]:
        """Build new index buckets of topics from their logs, and replace the existing index buckets."""
        request = BuildDelayedIndexInput(actor=actor, reason=reason, master=master)
        return await self.start_topic_build_job(BUILD_DELAYED_INDEX, topics, request)

    async def flush_records(self, reason: str = "", actor: str = "") -> Handle[FlushRecordsResult]:
        """Flush all changes made until now. If the job is already running, join it, so that it flushes once more."""
        request = FlushRecordsInput(once=True, queue=self._records_queue, actor=actor, reason=reason)
        return await self.start(FLUSH_RECORDS, request, NOW, summary="flush changed records now", signal="wake")

    async def defragment_records(self, reason: str = "", actor: str = "") -> Handle[DefragmentRecordsResult]:
        """Rewrite blocks with few live records, join small blocks, and remove blocks that no manifest names.

        Joins a running job.
        """
        request = DefragmentRecordsInput(queue=self._records_queue, actor=actor, reason=reason)
        return await self.start(DEFRAGMENT_RECORDS, request, summary="defragment the record log")

    async def raid_tombstones(
        self, eligible_age_s: float | None = None, reason: str = "", actor: str = ""
    ) -> Handle[RaidTombstonesResult]:
        """Remove old tombstones whose older record versions are in no block. Joins a running raid."""
        request = RaidTombstonesInput(
            eligible_age_s=eligible_age_s, queue=self._records_queue, actor=actor, reason=reason
        )
        return await self.start(RAID_TOMBSTONES, request, summary="raid tombstones that cover nothing")

    async def replicate_records(self, reason: str = "", actor: str = "") -> Handle[ReplicateRecordsResult]:
        """Ship blocks and the newest manifest to the replica buckets in the workers' settings. Joins a running job."""
        request = ReplicateRecordsInput(queue=self._records_queue, actor=actor, reason=reason)
        return await self.start(REPLICATE_RECORDS, request, summary="replicate the record log")

    async def end_records(
        self,
        function: str,
        topic: Topic | None,
        reason: str = "",
        actor: str = "",
        *,
        dry_run: bool = False,
        durable_delete: bool | None = None,
    ) -> Handle[EndRecordsResult]:
        """Delete every closed ledger for which a record function returns `None`. Ledgers that are still needed stay.

        `function` is a name in the workers' setting `functions`. If `topic` is `None`, all topics are selected.
        """
        request = EndRecordsInput(
            function=function,
            batch_id=f"{function}-{uuid.uuid4().hex[:12]}",
            topic_id=topic.topic_id if topic else 0,
            topic=topic.name if topic else "",
            dry_run=dry_run,
            durable_delete=DeleteDurability.from_flag(durable_delete),
            catalog_epoch=await asyncio.to_thread(self._read_catalog_epoch),
            actor=actor,
            reason=reason,
            policy=self._deletion_policy,
        )
        scope = topic.name if topic else "all topics"
        attributes = [run_id_search_attribute(request.batch_id)]
        attributes += [topic_search_attribute(topic)] if topic else []
        summary = f"end records of {scope} by {function}"
        return await self.start(END_RECORDS, request, request.batch_id, summary=summary, attributes=attributes)

    @property
    def _records_queue(self) -> str:
        return records_queue(self._settings.task_queue)
