"""What travels to the activities of the record log; what comes from them is in `logstore/records/jobs.py`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushInput:
    """Changes that are in no block are to be in one."""

    watch_s: float = 0.0  # for how long changes are looked for; 0: what there is now, those of cursors too
    actor: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DefragmentInput:
    """One pass over all blocks."""

    actor: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RaidInput:
    """A raid for tombstones that cover nothing."""

    run_id: str
    eligible_age_s: float | None = None  # None: as the workers' settings say
    actor: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicateInput:
    """Every replica that the workers' settings name is to have the newest manifest."""

    actor: str = ""
    reason: str = ""
