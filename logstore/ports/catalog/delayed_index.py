"""Port of the lists of index buckets of delayed messages."""

from dataclasses import dataclass
from typing import Protocol

from logstore.delayed.index_buckets import IndexBucket, IndexBucketList, SealAndMergeLimits
from logstore.ports.catalog.claims_and_deletion_results import Claim
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


class DelayedIndex(Protocol):
    """Lists of index buckets. Every change checks and raises the list version."""

    def get_bucket_list(self, topic_id: TopicId) -> IndexBucketList:
        """Return the topic's list of index buckets. For an unknown topic the list is empty."""

    def count_unsealed_entries(self, topic_id: TopicId) -> UnsealedEntryCounts: ...

    def count_delayed_messages(self) -> CatalogDelayedMessageCounts: ...

    def find_claim_holder(self, topic_id: TopicId) -> str | None:
        """Return the id of the workflow that has a live claim on the topic's list of index buckets."""

    def list_topics_with_work(self, limits: SealAndMergeLimits, *, after: TopicId, limit: int) -> list[TopicId]:
        """Return unclaimed topics with ids above `after` that need a seal, a merge or a drop, ascending.

        An index bucket is dropped in three cases:

        1. All messages of the index bucket have been due for a minute.
        2. The topic has subscriptions, and all of them have acknowledged the range of the index bucket.
        3. All ledgers in the range of the index bucket were trimmed.
        """

    def list_droppable_buckets(self, topic_id: TopicId) -> list[LedgerId]:
        """Return the topic's index buckets to drop, by the rule of `list_topics_with_work`."""

    def claim_bucket_list(self, topic_id: TopicId, claim: Claim) -> bool:
        """Claim a topic's list of index buckets, or renew the claim. Return whether the workflow has the claim now.

        The claim is refused if another workflow has a live claim, or if the topic does not exist or is not ACTIVE.
        Claims only avoid duplicate work. List versions decide which changes are published.
        """

    def renew_claims(self, claim: Claim) -> int: ...

    def release_claim(self, topic_id: TopicId, workflow_id: str) -> None: ...

    def switch_buckets(self, switch: IndexBucketSwitch) -> bool:
        """Change the list in one transaction. Return whether the list has the change now, also after a repeated call.

        The ledgers of added index buckets become listed and CLOSED. For each removed ledger an intent is filed. The
        change is refused if the list version is not `expected`, if a removed index bucket is not listed, or if the
        topic is not ACTIVE. A refused change files intents for the ledgers of added index buckets. If index buckets
        would overlap or end after the sealed range, the method raises `InvalidInput` and changes nothing.
        """

    def retire_all_buckets(self, topic_id: TopicId, *, reason: str) -> int:
        """Remove all index buckets from the list and file intents for them. Return the number of removed index buckets.

        The sealed range is reset, so that the log is sealed again. The list version rises, so that the switches of
        running seals and merges are refused. A refused switch files intents for its newborn ledgers.

        Raises:
            UnknownObject, PreconditionFailed: The topic does not exist or is not ACTIVE.
        """

    def now_ms(self) -> int:
        """Return the time of the catalog's clock, in milliseconds since 1970."""
