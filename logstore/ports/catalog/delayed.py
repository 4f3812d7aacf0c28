"""The bucket lists of delayed messages, and their port."""

from dataclasses import dataclass
from typing import Protocol

from logstore.delayed.buckets import Bucket, BucketLimits, BucketList
from logstore.ports.catalog.claims import Claim
from logstore.positions import LedgerId, Position, TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBucket:
    """A newborn ledger that is to be a bucket: its facts as the list will have them, and its one segment."""

    bucket: Bucket
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketSwitch:
    """A change of a topic's list, if its version still is what the writer saw.

    Seal: `born` behind the last bucket, and `sealed_to` moves. Merge: `gone` are the sources, `born` the one in their
    place. Build: all are `gone`. Drop: `gone` alone.
    """

    topic_id: TopicId
    expected: int  # version
    removed: tuple[LedgerId, ...] = ()
    added: tuple[NewBucket, ...] = ()
    sealed_to: Position | None = None  # None: stays
    reason: str = ""  # of the audit log, for what is retired


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsealedCounts:
    """What of a topic's log lies behind its last bucket, as the rows of segments say."""

    entries: int  # with a delivery time
    ledgers: int  # with any entry
    changed_us: int | None  # when the newest one with a delivery time was registered; None: there never was one


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedCounts:
    """Numbers of all topics together, for gauges."""

    buckets: int
    messages: int  # in them
    unsealed: int  # entries with a delivery time behind the last bucket of their topic


class DelayedIndex(Protocol):
    """Which buckets each topic has. Every change compares and sets the version of the topic's list."""

    def listed(self, topic_id: TopicId) -> BucketList:
        """The topic's list; an empty one where there is none, or no such topic."""

    def unsealed(self, topic_id: TopicId) -> UnsealedCounts:
        """What lies behind the last bucket."""

    def counts(self) -> DelayedCounts:
        """How much there is."""

    def holder(self, topic_id: TopicId) -> str | None:
        """The workflow that works on the topic's list, if its claim is alive."""

    def due_topics(self, limits: BucketLimits, *, after: TopicId, limit: int) -> list[TopicId]:
        """Topics with something to seal, to merge or to drop, on which no workflow works, ascending, above `after`.

        To drop is a bucket whose latest time has passed by a minute, that lies behind the mark-delete position of every
        subscription (there is one), or all of whose ledgers were trimmed.
        """

    def droppable(self, topic_id: TopicId) -> list[LedgerId]:
        """Buckets of the topic that are to be dropped, as `due` says."""

    def claim(self, topic_id: TopicId, claim: Claim) -> bool:
        """Take or renew the work on a topic's list; False where another workflow's claim is alive.

        False as well where there is no such topic, or one that is not ACTIVE: nothing is to be done there.
        Claims spare work alone: what is published is decided by the version.
        """

    def renew(self, claim: Claim) -> int:
        """Hold further every list that the workflow has claimed and no other workflow has taken since; how many.

        They are renewed page by page. What dies in between leaves claims that lapse, which costs no more than work.
        """

    def release(self, topic_id: TopicId, workflow_id: str) -> None:
        """Release the claim if it is that workflow's."""

    def switch(self, switch: BucketSwitch) -> bool:
        """Change the list in one transaction: newborn ledgers are listed and CLOSED, and what is gone is retired.

        Retired is: out of its list, with an intent that no workflow works on yet.

        Returns whether the list is as the switch says now (true again when repeated). When the version is another one,
        when a bucket of `gone` is not in the list, or when the topic is not ACTIVE, intents for all that was born are
        filed in the same transaction.

        Raises:
            InvalidInput: Buckets would overlap, or reach behind `sealed_to`; nothing has changed.
        """

    def clear(self, topic_id: TopicId, *, reason: str) -> int:
        """Retire all buckets, raise the version, and let the log be looked through from its beginning; how many.

        Work in flight then fails to switch, and retires what it wrote.

        Raises:
            UnknownObject, PreconditionFailed: No such topic, or one that is not ACTIVE.
        """

    def now_ms(self) -> int:
        """The catalog's clock."""
