"""Values of the catalog: delayed."""

from dataclasses import dataclass

from logstore.delayed.index_buckets import IndexBucket
from logstore.positions import LedgerId, Position, TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class NewIndexBucket:
    """Newborn ledger that is to be an index bucket, with the size and the digest of its only segment."""

    bucket: IndexBucket
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexBucketSwitch:
    """Change of a topic's list of index buckets. The change requires that the list version is `expected`."""

    topic_id: TopicId
    expected: int  # list version
    removed: tuple[LedgerId, ...] = ()
    added: tuple[NewIndexBucket, ...] = ()
    sealed_to: Position | None = None  # None: unchanged
    reason: str = ""  # for the audit log, if index buckets are removed


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsealedEntryCounts:
    """Counts of the entries after the sealed range of a topic's log."""

    entries: int  # entries with a delivery time
    ledgers: int  # ledgers with unsealed entries, with or without a delivery time
    changed_us: int | None  # registration time of the newest entry with a delivery time; None: no such entry exists


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogDelayedMessageCounts:
    buckets: int
    messages: int  # in index buckets
    unsealed: int  # entries with a delivery time after the sealed range of their topic
