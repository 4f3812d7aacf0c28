"""`Sexton`'s jobs on the record log."""

import asyncio
import uuid
from typing import Any

from temporalio.client import WorkflowHandle
from temporalio.common import SearchAttributePair

from logstore.ports.catalog import Topic
from logstore.records.tombstones import DeletePolicy
from workers.client.connections import OwnJobs, of_topic
from workflows import search_attributes
from workflows.limits import records_queue
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


class RecordsJobs(OwnJobs):
    """Flushing, defragmenting and replicating the record log, raids for tombstones, and functions that end records.

    What a guard refuses is in each result's `refused`; `result_of` raises it.
    """

    async def flush_records(self, reason: str = "", actor: str = "") -> WorkflowHandle[Any, FlushRecordsResult]:
        """Flush what has changed until this moment; joins such a flush that runs, which then flushes once more.

        Workers flush by themselves, every `records_interval`.
        """
        request = FlushRecordsInput(once=True, queue=self._records_queue, actor=actor, reason=reason)
        return await self.start(FLUSH_RECORDS, request, NOW, summary="flush changed records now", signal="wake")

    async def defragment_records(
        self, reason: str = "", actor: str = ""
    ) -> WorkflowHandle[Any, DefragmentRecordsResult]:
        """Rewrite blocks that are mostly dead, join small ones, and remove what no manifest names; joins one at work.

        A schedule does so, every `defragment_interval`.
        """
        request = DefragmentRecordsInput(queue=self._records_queue, actor=actor, reason=reason)
        return await self.start(DEFRAGMENT_RECORDS, request, summary="defragment the record log")

    async def raid_tombstones(
        self, eligible_age_s: float | None = None, reason: str = "", actor: str = ""
    ) -> WorkflowHandle[Any, RaidTombstonesResult]:
        """Remove tombstones that cover nothing; joins a raid that is at work, whatever age that asks for.

        A schedule does so, every `raid_interval`.

        Args:
            eligible_age_s: Tombstones younger than that stay, 0 or more; None: as the workers' settings say.
            reason: For people.
            actor: Likewise.

        Raises:
            InvalidInput: An age below 0, an actor or a reason that cannot be kept.
        """
        request = RaidTombstonesInput(
            eligible_age_s=eligible_age_s, queue=self._records_queue, actor=actor, reason=reason
        )
        return await self.start(RAID_TOMBSTONES, request, summary="raid tombstones that cover nothing")

    async def replicate_records(self, reason: str = "", actor: str = "") -> WorkflowHandle[Any, ReplicateRecordsResult]:
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
    ) -> WorkflowHandle[Any, EndRecordsResult]:
        """End every record that a function answers None for; see `logstore.records.functions`.

        What is still needed stays. Tombstones are left unless `durable_delete`, or if that is None the topic, says
        otherwise. A function that fails ends nothing more; `stopped` of the result says why.

        Args:
            function: One of those that the workers' setting `functions` names; the result refuses any other.
            topic: Whose records; None: those of all topics.
            reason: For the audit log.
            actor: Likewise.
            dry_run: Ask the function, and change nothing.
            durable_delete: Whether what ends leaves tombstones; None: as the topic says, otherwise it does.
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
        about = [SearchAttributePair(search_attributes.RUN_ID, request.batch_id)]
        about += [of_topic(topic)] if topic else []
        summary = f"end records of {whose} by {function}"
        return await self.start(END_RECORDS, request, request.batch_id, summary=summary, about=about)

    @property
    def _records_queue(self) -> str:
        return records_queue(self._settings.task_queue)
