"""Topics, the versions of their schemas, and the ports of both."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from logstore.deletion.retention import RetentionPolicy
from logstore.ports.catalog.ledgers import TopicTotals
from logstore.positions import LedgerId, Position, TopicId


class TopicState(StrEnum):
    """ACTIVE takes work; DELETING only lets it end. Stored by name."""

    ACTIVE = "ACTIVE"
    DELETING = "DELETING"


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic; a name created again has another id."""

    topic_id: TopicId
    name: str  # encoded
    state: TopicState
    policy: RetentionPolicy
    created_us: int
    durable_delete: bool | None = None  # the default of all of its operations; None: each has its own


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionSummary:
    """What the row of a subscription says."""

    name: str
    mark_delete: Position
    created_us: int
    backlog: int | None  # entries; None: a cursor ledger holds a part of the state, and `Subscriptions` knows the whole


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSummary:
    """A topic, the sums over its data ledgers, and its subscriptions, ascending by name."""

    topic: Topic
    totals: TopicTotals
    subscriptions: Sequence[SubscriptionSummary]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSummaryPage:
    """Some of the topics that were asked for, ascending by encoded name, and how many come behind them."""

    topics: Sequence[TopicSummary]
    more: int


class Topics(Protocol):
    """Topics and their data ledger lists."""

    def create(self, name: str, policy: RetentionPolicy, *, durable_delete: bool | None = None) -> Topic:
        """Create the topic with an empty list.

        Args:
            name: Encoded.
            policy: What of it is kept after it was consumed.
            durable_delete: Whether operations that delete of this topic leave tombstones, unless the operation itself
                says otherwise; None: the default of each operation counts.

        Raises:
            AlreadyExists: The name is taken.
        """

    def get(self, name: str) -> Topic:
        """The topic of that encoded name.

        Raises:
            UnknownObject: There is none.
        """

    def get_by_id(self, topic_id: TopicId) -> Topic:
        """The topic of that id.

        Raises:
            UnknownObject: There is none.
        """

    def list_active(self, *, after: TopicId, limit: int) -> list[Topic]:
        """Up to `limit` topics that are ACTIVE, with ids above `after`, ascending by id.

        Pages of it hold each topic once that is there all the time, whatever is created or deleted meanwhile.
        """

    def page(
        self, *, prefix: str = "", state: TopicState | None = None, after: str = "", limit: int
    ) -> TopicSummaryPage:
        """Topics with what is told of each, read in one transaction, in as few queries for many as for one.

        Args:
            prefix: How their encoded names begin.
            state: The one they are in; None: any.
            after: An encoded name, exclusive: theirs are greater, by bytes.
            limit: The most topics to return, 1 or more.
        """

    def summary(self, topic: Topic) -> TopicSummary:
        """The same of one topic; zeros and no subscriptions, if it was deleted meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaVersion:
    """One version of a topic's schema, and where its content is."""

    version: int  # from 0, without gaps
    ledger_id: LedgerId
    digest: str  # SHA-256 of the content, hexadecimal
    size_bytes: int  # of the content
    created_us: int


class Schemas(Protocol):
    """Schema versions of topics."""

    def all(self, topic_id: TopicId) -> list[SchemaVersion]:
        """Every version, ascending."""

    def newest(self, topic_id: TopicId) -> SchemaVersion | None:
        """The highest version, or None when the topic has no schema."""

    def publish(
        self,
        topic_id: TopicId,
        ledger_id: LedgerId,
        *,
        digest: str,
        content_bytes: int,
        size_bytes: int,
        sha256: str | None = None,
    ) -> SchemaVersion | None:
        """Make a newborn schema ledger the next version: listed, CLOSED, its one segment registered.

        Where the newest version has the same digest that one is returned, and the newborn's intent is filed in the
        same transaction, as it is when the topic is not ACTIVE. Repeated after it happened, the same is returned.

        Args:
            topic_id: Whose.
            ledger_id: The newborn.
            digest: SHA-256 of the content, hexadecimal.
            content_bytes: Size of the content.
            size_bytes: Of the segment's object.
            sha256: Of the segment's object, hexadecimal; None: not known.

        Returns:
            None when the newborn was taken for abandoned meanwhile, or with its topic: write another one.

        Raises:
            PreconditionFailed: The topic is not ACTIVE.
        """
