"""The rule by which a rebuild stops: too many ledgers of which storage holds nothing."""

from typing import Final

from logstore.errors import PreconditionFailed
from logstore.reconciliation.rules import MAX_ORPHAN_SHARE, check_fraction, round_up_share

MAX_ABSENT_SHARE: Final = MAX_ORPHAN_SHARE
"""Of all ledgers, above which a rebuild refuses unless it is told otherwise."""


def check_absent_share(absent: int, ledgers: int, max_share: float) -> None:
    """Refuse to go on with a catalog of whose ledgers too many have no objects.

    Args:
        absent: Listed ledgers of which no bucket holds anything.
        ledgers: All listed ledgers, these included.
        max_share: 0 to 1 inclusive.

    Raises:
        InvalidInput: A share that is none.
        PreconditionFailed: More.
    """
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
