"""Ports of topics and of their schema versions."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from logstore.deletion.retention import RetentionPolicy
from logstore.ports.catalog.ledgers import TopicTotals
from logstore.positions import LedgerId, Position, TopicId


class TopicState(StrEnum):
    """ACTIVE accepts work, DELETING only lets it end. Stored by name."""

    ACTIVE = "ACTIVE"
    DELETING = "DELETING"


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """Topic. A name that is created again gets another id."""

    topic_id: TopicId
    name: str  # encoded
    state: TopicState
    policy: RetentionPolicy
    created_us: int
    durable_delete: bool | None = None  # the default of all of its operations; None: each has its own


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionSummary:
    """Row of a subscription, with its backlog."""

    name: str
    mark_delete: Position
    created_us: int
    backlog: int | None  # entries; None: a cursor ledger holds a part of the state, and `Subscriptions` knows the whole


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSummary:
    """Topic, totals of its data ledgers, and its subscriptions, ascending by name."""

    topic: Topic
    totals: TopicTotals
    subscriptions: Sequence[SubscriptionSummary]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSummaryPage:
    """Page of topics, ascending by encoded name, with the number of matching topics after it."""

    topics: Sequence[TopicSummary]
    more: int


class Topics(Protocol):
    """Topics and their data ledger lists."""

    def create(self, name: str, policy: RetentionPolicy, *, durable_delete: bool | None = None) -> Topic:
        """Create the topic with an empty list.

        Args:
            name: Encoded name.
            policy: Retention of consumed entries.
            durable_delete: Whether deletions of this topic leave tombstones by default. `None` keeps each operation's
                default.

        Raises:
            AlreadyExists: The name is taken.
        """

    def get(self, name: str) -> Topic:
        """Return the topic of an encoded name.

        Raises:
            UnknownObject: The topic does not exist.
        """

    def get_by_id(self, topic_id: TopicId) -> Topic:
        """Return the topic of an id.

        Raises:
            UnknownObject: The topic does not exist.
        """

    def list_active(self, *, after: TopicId, limit: int) -> list[Topic]:
        """Return up to `limit` ACTIVE topics with ids above `after`, ascending by id.

        Successive pages have each topic once that exists throughout.
        """

    def page(
        self, *, prefix: str = "", state: TopicState | None = None, after: str = "", limit: int
    ) -> TopicSummaryPage:
        """Return summaries of topics, read in one transaction with a fixed number of queries.

        Args:
            prefix: Prefix of the encoded names.
            state: State of the topics, or `None` for any.
            after: Encoded name before the first one, compared by bytes.
            limit: Maximum of topics, 1 or more.
        """

    def summary(self, topic: Topic) -> TopicSummary:
        """Return the summary of one topic: zeros and no subscriptions if it was deleted meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaVersion:
    """Version of a topic's schema, and the ledger with its content."""

    version: int  # from 0, without gaps
    ledger_id: LedgerId
    digest: str  # SHA-256 of the content, hexadecimal
    size_bytes: int  # of the content
    created_us: int


class Schemas(Protocol):
    """Schema versions of topics."""

    def all(self, topic_id: TopicId) -> list[SchemaVersion]:
        """Return every version, ascending."""

    def newest(self, topic_id: TopicId) -> SchemaVersion | None:
        """Return the newest version, or `None` if the topic has no schema."""

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
        """Make a newborn schema ledger the next version: listed, CLOSED, with its one segment.

        If the newest version has the same digest, it is returned. Then, and if the topic is not ACTIVE, the newborn's
        intent is filed in the same transaction. A repeated call returns the same version.

        Args:
            topic_id: Topic of the schema.
            ledger_id: Newborn ledger.
            digest: SHA-256 of the content, hexadecimal.
            content_bytes: Size of the content.
            size_bytes: Size of the segment's object.
            sha256: Digest of the segment's object, hexadecimal, or `None` if unknown.

        Returns:
            `None` if the newborn was abandoned meanwhile, alone or with its topic. Write another one.

        Raises:
            PreconditionFailed: The topic is not ACTIVE.
        """
