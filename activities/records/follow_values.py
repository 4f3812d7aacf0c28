"""The input of the activity by which a database follows the record log."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowInput:
    """What is new in the record log is to be in the replica's database."""

    seed: bool = False  # empty the database first, and apply all
    watch_s: float = 0.0  # for how long changes are looked for; 0: what there is now
