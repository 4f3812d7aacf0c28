"""Lists of index buckets of delayed messages, and their port."""

from dataclasses import dataclass
from typing import Protocol

from logstore.delayed.index_buckets import IndexBucket, IndexBucketList, SealAndMergeLimits
from logstore.ports.catalog.claims_and_batches import Claim
from logstore.positions import LedgerId, Position, TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class NewIndexBucket:
    """Newborn ledger that is to be an index bucket, with the size and the digest of its one segment."""

    bucket: IndexBucket
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexBucketSwitch:
    """Change of a topic's list of index buckets, if its list version is `expected`.

    - A seal adds index buckets after the last one and moves `sealed_to`.
    - A merge replaces its sources with one index bucket.
    - A build replaces all index buckets.
    - A drop only removes index buckets.
    """

    topic_id: TopicId
    expected: int  # list version
    removed: tuple[LedgerId, ...] = ()
    added: tuple[NewIndexBucket, ...] = ()
    sealed_to: Position | None = None  # None: unchanged
    reason: str = ""  # for the audit log, if index buckets are removed


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsealedCounts:
    """Counts of a topic's log after the sealed range, taken from the rows of segments."""

    entries: int  # entries with a delivery time
    ledgers: int  # ledgers with any entry
    changed_us: int | None  # registration time of the newest entry with a delivery time; None: there never was one


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedMessageCounts:
    """Totals of all topics, for gauges."""

    buckets: int
    messages: int  # in index buckets
    unsealed: int  # entries with a delivery time after the sealed range of their topic


class DelayedIndex(Protocol):
    """Lists of index buckets. Every change compares and raises the list version of the topic's list."""

    def get_bucket_list(self, topic_id: TopicId) -> IndexBucketList:
        """Return the topic's list. It is empty if there is no list or no such topic."""

    def count_unsealed_entries(self, topic_id: TopicId) -> UnsealedCounts: ...

    def count_delayed_messages(self) -> DelayedMessageCounts: ...

    def find_claim_holder(self, topic_id: TopicId) -> str | None:
        """Return the workflow with a live claim on the topic's list."""

    def list_topics_with_work(self, limits: SealAndMergeLimits, *, after: TopicId, limit: int) -> list[TopicId]:
        """Return unclaimed topics above `after` with work to seal, merge or drop, ascending.

        An index bucket is dropped in three cases:

        1. Its latest message has been due for a minute.
        2. There is a subscription, and every subscription has acknowledged the range of the index bucket.
        3. All of its ledgers were trimmed.
        """

    def list_droppable_buckets(self, topic_id: TopicId) -> list[LedgerId]:
        """Return the topic's index buckets to drop, by the rule of `due_topics`."""

    def claim_bucket_list(self, topic_id: TopicId, claim: Claim) -> bool:
        """Claim a topic's list, or renew the claim. Return whether the list is claimed.

        The claim is refused if another workflow has a live claim, or if the topic does not exist or is not ACTIVE.
        Claims only save work. List versions decide which changes are published.
        """

    def renew_claims(self, claim: Claim) -> int:
        """Renew all claims of the workflow, page by page. Return their number."""

    def release_claim(self, topic_id: TopicId, workflow_id: str) -> None:
        """Release the claim if it belongs to that workflow."""

    def switch_buckets(self, switch: IndexBucketSwitch) -> bool:
        """Change the list in one transaction. Newborn ledgers become listed and CLOSED. Removed ledgers get an intent.

        The change is refused if the list version differs, if a removed index bucket is not listed, or if the topic is
        not ACTIVE. The same transaction then files intents for the newborn ledgers. Return whether the list has the
        change now, also after a repeated call.

        Raises:
            InvalidInput: Index buckets would overlap or end after `sealed_to`. Nothing has changed.
        """

    def retire_all_buckets(self, topic_id: TopicId, *, reason: str) -> int:
        """Retire all index buckets and reset the sealed range, so that the log is sealed again. Return their number.

        The list version rises, so running seals and merges fail to switch and retire the ledgers that they wrote.

        Raises:
            UnknownObject: The topic does not exist.
            PreconditionFailed: The topic is not ACTIVE.
        """

    def now_ms(self) -> int:
        """Return the time of the catalog's clock, in milliseconds."""
