"""Buckets of a topic's delayed messages, and the list of them that every change compares and sets.

A bucket covers a range of the log, from one entry to another, and no two buckets cover the same entry. Its snapshot, a
`DELAYED_INDEX` ledger, holds the messages of that range whose time had not come when it was written; the id of that
ledger is the bucket's own. What the list does not cover lies behind `sealed_to`, in the log alone.

Source: PIP-195 (bucket-based delayed message index).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from logstore.errors import InvalidInput
from logstore.positions import LedgerId, Position

NOWHERE: Final = Position(LedgerId(-1), -1)
"""Before the first entry of every log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """An immutable bucket. Times are milliseconds since 1970, UTC."""

    bucket_id: LedgerId  # the ledger of its snapshot
    first: Position  # the range of the log that it covers, inclusive
    last: Position
    messages: int  # 1 or more
    segments: int  # of its snapshot
    first_ms: int  # the earliest delivery time in it
    last_ms: int  # the latest one


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketFacts:
    """A bucket, as a person is shown it."""

    bucket_id: int
    messages: int
    first: str  # ledger:entry
    last: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketList:
    """A topic's buckets at one moment, ascending by range."""

    version: int = 0  # raised by every change
    sealed_to: Position = NOWHERE  # up to here the log was looked through, inclusive
    buckets: tuple[Bucket, ...] = ()

    @property
    def messages(self) -> int:
        """Messages of all buckets."""
        return sum(one.messages for one in self.buckets)

    def reflects(
        self, *, expected: int, gone: Collection[LedgerId], born: Collection[LedgerId], sealed_to: Position | None
    ) -> bool:
        """Whether a change of the version `expected` was made; a later version may have come of it since."""
        listed = {one.bucket_id for one in self.buckets}
        sealed = sealed_to is None or self.sealed_to >= sealed_to
        return self.version > expected and sealed and listed.issuperset(born) and listed.isdisjoint(gone)

    def changed(
        self, *, gone: Collection[LedgerId] = (), born: Collection[Bucket] = (), sealed_to: Position | None = None
    ) -> "BucketList":
        """The next version of the list.

        Raises:
            InvalidInput: Two buckets would cover the same entry, one would be empty, or reach behind what was looked
                through.
        """
        kept = [one for one in self.buckets if one.bucket_id not in gone]
        buckets = tuple(sorted([*kept, *born], key=lambda one: one.first))
        for one in buckets:
            if one.first > one.last or one.messages < 1:
                raise InvalidInput("bucket", expected="a range of entries, and messages in it", found=one)
        for left, right in pairwise(buckets):
            if left.last >= right.first:
                raise InvalidInput("bucket", expected=f"a range that begins behind {left.last}", found=right.first)
        end = self.sealed_to if sealed_to is None else sealed_to
        if buckets and buckets[-1].last > end:
            raise InvalidInput("sealed_to", expected=f"{buckets[-1].last} or more", found=end)
        return BucketList(version=self.version + 1, sealed_to=end, buckets=buckets)


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketLimits:
    """When buckets are sealed and merged: an operator's choice.

    Raises:
        InvalidInput: One of them is below 1.
    """

    messages: int = 50_000  # behind the last bucket, from which on it is time for the next one
    ledgers: int = 100  # the same of ledgers
    idle_s: float = 3_600.0  # or with any, and no new one for so long
    buckets: int = 20  # more than these are merged

    def __post_init__(self) -> None:
        """Refuse what is no limit."""
        for name in ("messages", "ledgers", "idle_s", "buckets"):
            if getattr(self, name) < 1:
                raise InvalidInput(f"delayed_{name}", expected="1 or more", found=getattr(self, name))


def pair_to_merge(buckets: Sequence[Bucket], *, damaged: Collection[LedgerId] = ()) -> tuple[Bucket, Bucket] | None:
    """The two adjacent buckets with the fewest messages, the first such pair; None where there are not two.

    Args:
        buckets: Ascending by range.
        damaged: Of these none is chosen.
    """
    pairs = (pair for pair in pairwise(buckets) if not {one.bucket_id for one in pair}.intersection(damaged))
    return min(pairs, key=lambda pair: pair[0].messages + pair[1].messages, default=None)
