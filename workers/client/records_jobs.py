"""`Sexton`'s jobs on the record log."""

from typing import Any

from temporalio.client import WorkflowHandle

from workers.client.connections import OwnJobs
from workflows.limits import records_queue
from workflows.records.values import (
    DEFRAGMENT_RECORDS,
    FLUSH_RECORDS,
    NOW,
    RAID_TOMBSTONES,
    REPLICATE_RECORDS,
    DefragmentRecordsInput,
    DefragmentRecordsResult,
    FlushRecordsInput,
    FlushRecordsResult,
    RaidTombstonesInput,
    RaidTombstonesResult,
    ReplicateRecordsInput,
    ReplicateRecordsResult,
)


class RecordsJobs(OwnJobs):
    """Flushing, defragmenting and replicating the record log, and raids for tombstones that cover nothing.

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

    @property
    def _records_queue(self) -> str:
        return records_queue(self._settings.task_queue)
