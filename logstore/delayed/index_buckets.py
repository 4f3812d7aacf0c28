"""Index buckets of a topic's delayed messages, and the topic's list of index buckets.

No two index buckets cover the same entry. The id of an index bucket is the id of the ledger that stores its snapshot.
The snapshot has those messages of the covered range that were not due when the snapshot was written. Messages after
`IndexBucketList.sealed_to` are only in the log.

Source: PIP-195 (bucket-based delayed message index).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final, Self

from logstore.errors import InvalidInput
from logstore.positions import EARLIEST, LedgerId, Position


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexBucket:
    """Immutable index bucket. Times are milliseconds since 1970, UTC."""

    bucket_id: LedgerId  # ledger of the snapshot
    first: Position  # first entry of the covered range
    last: Position  # last entry of the covered range, inclusive
    messages: int  # 1 or more
    segments: int  # number of snapshot segments
    first_ms: int  # earliest delivery time
    last_ms: int  # latest delivery time


@dataclass(frozen=True, slots=True, kw_only=True)
class SealCounts:
    """Numbers of topics, index buckets and messages of seals."""

    topics: int = 0  # checked
    buckets: int = 0  # new index buckets
    messages: int = 0  # in new index buckets
    dropped: int = 0  # removed index buckets, whose messages need no index any more
    held: int = 0  # topics whose list of index buckets another job had claimed
    overtaken: int = 0  # topics whose list of index buckets changed meanwhile; a later run seals them
    failed: int = 0  # skipped topics; the next run finds them again
    troubles: list[str] = field(default_factory=list)  # a sample of errors

    def plus(self, later: "SealCounts", *, max_troubles: int) -> Self:
        """Return the sum. Fields of subclasses stay as they are."""
        sums = {name: getattr(self, name) + getattr(later, name) for name in _SUMMED_SEAL_FIELDS}
        return replace(self, **sums, troubles=[*self.troubles, *later.troubles][:max_troubles])


_SUMMED_SEAL_FIELDS: Final = ("topics", "buckets", "messages", "dropped", "held", "overtaken", "failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexBucketToMerge:
    """Index bucket that is to be merged: its id, its number of messages and its range."""

    bucket_id: int
    messages: int
    first: str  # ledger:entry
    last: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexBucketList:
    """Index buckets of a topic at one list version, ascending by range."""

    version: int = 0  # list version; every change raises it
    sealed_to: Position = EARLIEST  # last entry that was searched for delayed messages, inclusive
    buckets: tuple[IndexBucket, ...] = ()

    @property
    def messages(self) -> int:
        return sum(bucket.messages for bucket in self.buckets)

    def includes_change(
        self, *, expected: int, removed: Collection[LedgerId], added: Collection[LedgerId], sealed_to: Position | None
    ) -> bool:
        """Return whether this list has the given change of list version `expected`, and possibly later changes."""
        listed = {bucket.bucket_id for bucket in self.buckets}
        is_sealed = sealed_to is None or self.sealed_to >= sealed_to
        return self.version > expected and is_sealed and listed.issuperset(added) and listed.isdisjoint(removed)

    def next_version(
        self,
        *,
        removed: Collection[LedgerId] = (),
        added: Collection[IndexBucket] = (),
        sealed_to: Position | None = None,
    ) -> "IndexBucketList":
        """Return the list after a change. Without `sealed_to`, the sealed range keeps its end.

        Raise `InvalidInput` if an index bucket is empty, overlaps another one, or ends after the sealed range.
        """
        remaining = [bucket for bucket in self.buckets if bucket.bucket_id not in removed]
        buckets = tuple(sorted([*remaining, *added], key=lambda bucket: bucket.first))
        for bucket in buckets:
            if bucket.first > bucket.last or bucket.messages < 1:
                raise InvalidInput("bucket", expected="a range of entries, and messages in it", found=bucket)
        for left, right in pairwise(buckets):
            if left.last >= right.first:
                raise InvalidInput("bucket", expected=f"a range that begins behind {left.last}", found=right.first)
        end = self.sealed_to if sealed_to is None else sealed_to
        if buckets and buckets[-1].last > end:
            raise InvalidInput("sealed_to", expected=f"{buckets[-1].last} or more", found=end)
        return IndexBucketList(version=self.version + 1, sealed_to=end, buckets=buckets)


@dataclass(frozen=True, slots=True, kw_only=True)
class SealAndMergeLimits:
    """Limits at which a log is sealed and index buckets are merged. The constructor refuses limits below 1."""

    messages: int = 50_000  # number of unsealed delayed messages that triggers a seal
    ledgers: int = 100  # number of ledgers with unsealed entries that triggers a seal
    idle_s: float = 3_600.0  # age of the newest delayed message that triggers a seal, even if no other limit is reached
    buckets: int = 20  # number of index buckets above which index buckets are merged

    def __post_init__(self) -> None:
        for name in ("messages", "ledgers", "idle_s", "buckets"):
            if getattr(self, name) < 1:
                raise InvalidInput(f"delayed_{name}", expected="1 or more", found=getattr(self, name))


def find_pair_to_merge(
    buckets: Sequence[IndexBucket], *, damaged: Collection[LedgerId] = ()
) -> tuple[IndexBucket, IndexBucket] | None:
    """Return the two adjacent, undamaged index buckets with the fewest messages. `buckets` must ascend by range."""
    pairs = (pair for pair in pairwise(buckets) if not {bucket.bucket_id for bucket in pair}.intersection(damaged))
    return min(pairs, key=lambda pair: pair[0].messages + pair[1].messages, default=None)
