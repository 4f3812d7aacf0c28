"""`Sexton`'s jobs beside deletions and transactions: tiered copies, orphans, delayed messages and the record log."""

import asyncio
import uuid
from collections.abc import Sequence

from temporalio.common import SearchAttributePair

from logstore.ports.catalog import Topic
from logstore.positions import LedgerId
from logstore.reconciliation import rules
from logstore.reconciliation.jobs import SCRUB_RATE
from logstore.records.tombstones import DeletePolicy
from workers.client.jobs import Handle, OwnJobs, of_run, of_topic
from workflows import limits, search_attributes
from workflows.delayed.values import (
    BUILD_DELAYED_INDEX,
    MERGE_BUCKETS,
    SEAL_BUCKETS,
    BuildDelayedIndexInput,
    MergeBucketsInput,
    MergeBucketsResult,
    SealBucketsInput,
    SealBucketsResult,
)
from workflows.jobs import BuildResult
from workflows.offload.values import (
    OFFLOAD_LEDGER,
    OFFLOAD_TOPIC,
    OffloadAsk,
    OffloadLedgerInput,
    OffloadLedgerResult,
    OffloadTopicInput,
    OffloadTopicResult,
)
from workflows.reconciliation.values import (
    APPLY_ORPHANS,
    RECONCILE_ORPHANS,
    SCRUB_LEDGERS,
    ApplyOrphansInput,
    ApplyOrphansResult,
    ReconcileOrphansInput,
    ReconcileOrphansResult,
    ScrubLedgersInput,
    ScrubLedgersResult,
    scrub_scope,
)
from workflows.records.values import (
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


class StoreJobs(OwnJobs):
    """Those jobs. What a guard refuses is in a result's `refused`; `result_of` raises it.

    Of every job `reason` is for people and is kept with what it does, and `actor` is the person or program that asks.
    `master` is a Spark cluster; empty: that of the workers' settings.
    """

    async def offload_topic(
        self,
        topic: Topic,
        ledger_ids: Sequence[LedgerId] | None = None,
        delete_primary: bool = False,
        reason: str = "",
        actor: str = "",
    ) -> Handle[OffloadTopicResult]:
        """Copy closed ledgers to the tiered bucket; what is asked of a topic twice is done one after the other.

        Without `ledger_ids` it is every closed ledger. With `delete_primary`, the primary copy of each of them that has
        a tiered copy is deleted afterwards.

        Raises:
            InvalidInput: None, or more than `MOST_OFFLOADED` ids.
        """
        ids = None if ledger_ids is None else sorted({int(one) for one in ledger_ids})
        ask = self.checked(OffloadAsk(actor=actor, reason=reason, ledger_ids=ids, delete_primary=delete_primary))
        request = OffloadTopicInput(
            topic_id=topic.topic_id, topic=topic.name, policy=self._offload_policy, deletion=self._policy
        )
        return await self.start(
            OFFLOAD_TOPIC,
            request,
            topic.topic_id,
            summary=f"offload {topic.name}",
            about=[of_topic(topic)],
            signal="ask",
            signal_args=[ask],
        )

    async def offload_ledger(self, topic: Topic, ledger_id: LedgerId) -> Handle[OffloadLedgerResult]:
        """Copy one closed ledger to the tiered bucket; joins a run that is at work on it."""
        request = OffloadLedgerInput(ledger_id=ledger_id, topic=topic.name, policy=self._offload_policy)
        about = [of_topic(topic), SearchAttributePair(search_attributes.LEDGER_ID, ledger_id)]
        summary = f"ledger {ledger_id} of {topic.name}"
        return await self.start(OFFLOAD_LEDGER, request, ledger_id, summary=summary, about=about)

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
        """Compare storage with the catalog and write down what differs; changes neither.

        Objects and rows younger than `older_than_s` are left out; `unsafe_age` says that an age below the floor is
        meant, because no process writes. `inventories` are manifests that stand in for listings, as workers see them.

        Raises:
            InvalidInput: A negative age, or what can be no manifest or cluster.
            PreconditionFailed: An age below the floor.
        """
        rules.check_age(older_than_s, unsafe=unsafe_age)
        run_id = f"plan-{uuid.uuid4().hex[:12]}"
        request = ReconcileOrphansInput(
            run_id=run_id,
            actor=actor,
            reason=reason,
            older_than_s=older_than_s,
            unsafe_age=unsafe_age,
            inventories=list(inventories),
            master=master,
            queue=limits.bulk_queue(self._settings.task_queue),
        )
        summary = "compare storage with the catalog"
        return await self.start(RECONCILE_ORPHANS, request, run_id, summary=summary, about=[of_run(run_id)])

    async def apply_orphans(
        self, run_id: str, *, max_orphan_share: float = rules.MAX_ORPHAN_SHARE, reason: str = "", actor: str = ""
    ) -> Handle[ApplyOrphansResult]:
        """Remove what a finished plan found, after another look; joins an apply of the same plan.

        Raises:
            InvalidInput: A run id or a share that can be none.
        """
        request = ApplyOrphansInput(
            run_id=run_id, actor=actor, reason=reason, max_orphan_share=max_orphan_share, policy=self._policy
        )
        return await self.start(APPLY_ORPHANS, request, run_id, summary=f"apply {run_id}", about=[of_run(run_id)])

    async def scrub_ledgers(
        self,
        topics: Sequence[Topic] | None,
        *,
        bytes_per_s: int = SCRUB_RATE,
        master: str = "",
        reason: str = "",
        actor: str = "",
    ) -> Handle[ScrubLedgersResult]:
        """Read every stored segment and tiered copy, and compare their digests; changes nothing.

        Joins a scrub of the same topics that runs; one that did not finish goes on where it was. `topics` are at most
        1,000; None: every topic. `bytes_per_s` bounds all tasks together.

        Raises:
            InvalidInput: Too many topics, a rate out of bounds, or what can be no cluster.
        """
        ids = [] if topics is None else sorted({int(topic.topic_id) for topic in topics})
        request = ScrubLedgersInput(
            actor=actor,
            reason=reason,
            topic_ids=ids,
            bytes_per_s=bytes_per_s,
            master=master,
            queue=limits.bulk_queue(self._settings.task_queue),
        )
        whose = f"{len(ids):,} topics" if ids else "every topic"
        return await self.start(SCRUB_LEDGERS, request, *scrub_scope(ids), summary=f"scrub ledgers of {whose}")

    async def seal_buckets(self, topic: Topic, reason: str = "", actor: str = "") -> Handle[SealBucketsResult]:
        """Seal all delayed messages of a topic that consumers may see, however few; joins a seal of it that runs.

        Where it then has more buckets than it may have, a merge of them is started.
        """
        request = SealBucketsInput(topic_id=topic.topic_id, topic=topic.name, actor=actor, reason=reason)
        summary = f"seal delayed messages of {topic.name}"
        return await self.start(SEAL_BUCKETS, request, topic.topic_id, summary=summary, about=[of_topic(topic)])

    async def merge_buckets(
        self, topic: Topic, max_buckets: int | None = None, reason: str = "", actor: str = ""
    ) -> Handle[MergeBucketsResult]:
        """Merge buckets of a topic until it has no more than it may have; joins a merge of it that runs.

        `max_buckets` is 1 or more; None: as many as the workers' settings say.

        Raises:
            InvalidInput: A limit below 1, an actor or a reason that cannot be kept.
        """
        request = MergeBucketsInput(
            topic_id=topic.topic_id, topic=topic.name, max_buckets=max_buckets, actor=actor, reason=reason
        )
        summary = f"merge buckets of {topic.name}"
        return await self.start(MERGE_BUCKETS, request, topic.topic_id, summary=summary, about=[of_topic(topic)])

    async def build_delayed_index(
        self, topics: Sequence[Topic] | None, *, master: str = "", reason: str = "", actor: str = ""
    ) -> Handle[BuildResult]:
        """Build the buckets of topics from their logs, in the place of those that they have.

        `topics` are at least one, at most 10,000; None: every topic with delayed messages.

        Raises:
            InvalidInput: No topics, too many, or what can be no cluster.
        """
        request = BuildDelayedIndexInput(actor=actor, reason=reason, master=master)
        return await self.build_topics(BUILD_DELAYED_INDEX, topics, request)

    async def flush_records(self, reason: str = "", actor: str = "") -> Handle[FlushRecordsResult]:
        """Flush what has changed until this moment; joins such a flush that runs, which then flushes once more.

        Workers flush by themselves, every `records_interval`.
        """
        request = FlushRecordsInput(once=True, queue=self._records_queue, actor=actor, reason=reason)
        return await self.start(FLUSH_RECORDS, request, NOW, summary="flush changed records now", signal="wake")

    async def defragment_records(self, reason: str = "", actor: str = "") -> Handle[DefragmentRecordsResult]:
        """Rewrite blocks that are mostly dead, join small ones, and remove what no manifest names; joins one at work.

        A schedule does so, every `defragment_interval`.
        """
        request = DefragmentRecordsInput(queue=self._records_queue, actor=actor, reason=reason)
        return await self.start(DEFRAGMENT_RECORDS, request, summary="defragment the record log")

    async def raid_tombstones(
        self, eligible_age_s: float | None = None, reason: str = "", actor: str = ""
    ) -> Handle[RaidTombstonesResult]:
        """Remove tombstones that cover nothing; joins a raid that is at work, whatever age that asks for.

        A schedule does so, every `raid_interval`. Tombstones younger than `eligible_age_s`, 0 or more, stay; None: as
        the workers' settings say.

        Raises:
            InvalidInput: An age below 0, an actor or a reason that cannot be kept.
        """
        request = RaidTombstonesInput(
            eligible_age_s=eligible_age_s, queue=self._records_queue, actor=actor, reason=reason
        )
        return await self.start(RAID_TOMBSTONES, request, summary="raid tombstones that cover nothing")

    async def replicate_records(self, reason: str = "", actor: str = "") -> Handle[ReplicateRecordsResult]:
        """Bring every replica that the workers' settings name to the newest manifest; joins one at work.

        A schedule does so, every `replicate_interval`.
        """
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
        """End every record that a function answers None for; see `logstore.records.functions`.

        It is one of those that the workers' setting `functions` names; the result refuses any other. Without a topic it
        is asked of the records of all. What is still needed stays. Tombstones are left unless `durable_delete`, or if
        that is None the topic, says otherwise. A function that fails ends nothing more; `stopped` of the result says
        why. With `dry_run` it is asked, and nothing changes.
        """
        request = EndRecordsInput(
            function=function,
            batch_id=f"{function}-{uuid.uuid4().hex[:12]}",
            topic_id=topic.topic_id if topic else 0,
            topic=topic.name if topic else "",
            dry_run=dry_run,
            durable_delete=DeletePolicy.of(durable_delete),
            catalog_epoch=await asyncio.to_thread(self._epoch),
            actor=actor,
            reason=reason,
            policy=self._policy,
        )
        whose = topic.name if topic else "all topics"
        about = [of_run(request.batch_id)]
        about += [of_topic(topic)] if topic else []
        summary = f"end records of {whose} by {function}"
        return await self.start(END_RECORDS, request, request.batch_id, summary=summary, about=about)

    @property
    def _records_queue(self) -> str:
        return limits.records_queue(self._settings.task_queue)
