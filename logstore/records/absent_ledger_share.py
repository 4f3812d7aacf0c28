"""Guard that stops a rebuild if too many ledgers have no objects in storage."""

from typing import Final

from logstore.errors import PreconditionFailed
from logstore.reconciliation.plausibility_guards import MAX_ORPHAN_SHARE, check_fraction, round_up_share

MAX_ABSENT_SHARE: Final = MAX_ORPHAN_SHARE
"""Default maximum share of listed ledgers that have no objects."""


def require_small_absent_share(absent: int, ledgers: int, max_share: float) -> None:
    """Refuse a catalog if more than `max_share` of its listed ledgers have no object in any bucket."""
    check_fraction("max-absent-share", max_share)
    share = absent / ledgers if absent else 0.0
    if share > max_share:
        raise PreconditionFailed(
            f"absent share: expected at most {max_share:g} of all listed ledgers without objects, found {share:.3g}:"
            f" {absent:,} of {ledgers:,}; nothing was settled. See that the buckets and their endpoint are the right"
            " ones and hold what they should, then run the same command again, or give another database with"
            " --into if the old catalog has flushed since; if their data is lost for good, give"
            f" --max-absent-share {round_up_share(share)}"
        )
