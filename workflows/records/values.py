"""What travels to and from the workflows of the record log, and by which names and ids programs know them."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from logstore.deletion.intents import Refusal
from logstore.records.jobs import DefragmentedBlocks, FlushedRecords, RaidedTombstones, ShippedBlocks
from workflows.jobs import Job

HELD: Final = timedelta(seconds=5)
"""Until the record log, on which another job works, is asked for again."""

HELD_TIMES: Final = 24
"""So often: longer than a claim outlives the job that had it."""

NOW: Final = "now"
"""Key of the flush that somebody waits for, beside the one that goes on for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushRecordsResult:
    """What was flushed, or why a guard refused it."""

    done: FlushedRecords = field(default_factory=FlushedRecords)
    looks: int = 0  # activities that were run
    refused: Refusal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushRecordsInput:
    """Once, or for ever."""

    once: bool = False  # flush what there is, and end
    watch_s: float = 60.0  # for so long one activity looks for changes; 0: it flushes once, and a signal is waited for
    queue: str = ""  # of the activities, where a flush may wait; empty: where the workflow runs
    actor: str = ""
    reason: str = ""
    carried: FlushRecordsResult = field(default_factory=FlushRecordsResult)

    def details(self) -> str:
        """What the job does, and the command that shows how far it is; its *static details*."""
        how = "once" if self.once else "for ever, every `records_interval`"
        return f"Flushes changed records into blocks of the record log, {how}; `sexton records status` shows it."


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRecordsInput:
    """A look whether the jobs of the record log run that are to run always."""

    watch_s: float = 60.0  # of the flush that it starts
    queue: str = ""  # of the activities of the jobs that it starts
    actor: str = ""
    reason: str = ""

    def details(self) -> str:
        """What the job does, and the command that shows how far it is; its *static details*."""
        return "Starts `flush-records` where it does not run; `sexton records status` shows what is not flushed."


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRecordsResult:
    """What the look did."""

    started: list[str] = field(default_factory=list)  # ids of workflows


@dataclass(frozen=True, slots=True, kw_only=True)
class DefragmentRecordsInput:
    """One pass over all blocks."""

    scheduled: bool = False  # the job is run as a child, under the one id that it has
    queue: str = ""  # of the activity; empty: where the workflow runs
    actor: str = ""
    reason: str = ""

    def details(self) -> str:
        """What the job does, and the command that shows how far it is; its *static details*."""
        return (
            "Rewrites blocks of the record log that are mostly dead, joins small ones, and removes what no manifest"
            " names any more; `sexton records status` shows blocks and bytes."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DefragmentRecordsResult:
    """What the pass did, or why a guard refused it."""

    done: DefragmentedBlocks = field(default_factory=DefragmentedBlocks)
    joined: bool = False  # another run was at work, and nothing was done here
    refused: Refusal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RaidTombstonesInput:
    """A raid for tombstones that cover nothing."""

    eligible_age_s: float | None = None  # None: as the workers' settings say
    scheduled: bool = False  # the job is run as a child, under the one id that it has
    queue: str = ""  # of the activity; empty: where the workflow runs
    actor: str = ""
    reason: str = ""

    def details(self) -> str:
        """What the job does, and the command that shows how far it is; its *static details*."""
        return (
            "Removes tombstones that are old enough and cover no version of their record on disk;"
            " `sexton tombstones stats` shows how many there are."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RaidTombstonesResult:
    """What the raid did, or why a guard refused it."""

    run_id: str = ""
    done: RaidedTombstones = field(default_factory=RaidedTombstones)
    joined: bool = False  # another raid was at work, and nothing was done here
    refused: Refusal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicateRecordsInput:
    """Every replica that the workers' settings name is to have the newest manifest."""

    scheduled: bool = False  # the job is run as a child, under the one id that it has
    queue: str = ""  # of the activity; empty: where the workflow runs
    actor: str = ""
    reason: str = ""

    def details(self) -> str:
        """What the job does, and the command that shows how far it is; its *static details*."""
        return "Copies new blocks and the manifest into every replica's bucket; `sexton records replicas` shows them."


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicateRecordsResult:
    """What each replica was sent, or why a guard refused it."""

    shipped: list[ShippedBlocks] = field(default_factory=list)
    joined: bool = False  # another run was at work, and nothing was done here
    refused: Refusal | None = None


FLUSH_RECORDS = Job("flush-records", FlushRecordsInput, FlushRecordsResult, keys=("", NOW))
SWEEP_RECORDS = Job("sweep-records", SweepRecordsInput, SweepRecordsResult)
DEFRAGMENT_RECORDS = Job("defragment-records", DefragmentRecordsInput, DefragmentRecordsResult)
RAID_TOMBSTONES = Job("raid-tombstones", RaidTombstonesInput, RaidTombstonesResult)
REPLICATE_RECORDS = Job("replicate-records", ReplicateRecordsInput, ReplicateRecordsResult)
