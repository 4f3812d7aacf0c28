"""Ports of topics and of their schema versions."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from logstore.deletion.retention import RetentionPolicy
from logstore.ports.catalog.ledgers_and_segments import TopicLedgerTotals
from logstore.positions import LedgerId, Position, TopicId


class TopicState(StrEnum):
    """State of a topic. ACTIVE accepts work, DELETING only lets running work finish. Stored by name."""

    ACTIVE = "ACTIVE"
    DELETING = "DELETING"


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """Topic. If its name is created again, the new topic has another id."""

    topic_id: TopicId
    name: str  # encoded
    state: TopicState
    policy: RetentionPolicy
    created_us: int
    durable_delete: bool | None = None  # default of all operations; None: each operation has its own default


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionSummary:
    """Row of a subscription, with its backlog."""

    name: str
    mark_delete: Position
    created_us: int
    backlog: int | None  # entries; None: a cursor ledger has a part of the state, see `Subscriptions`


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSummary:
    """Topic, totals of its data ledgers, and its subscriptions, ascending by name."""

    topic: Topic
    totals: TopicLedgerTotals
    subscriptions: Sequence[SubscriptionSummary]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSummaryPage:
    """Page of topics, ascending by encoded name, with the number of matching topics after it."""

    topics: Sequence[TopicSummary]
    more: int


class Topics(Protocol):
    """Topics and their data ledger lists."""

    def create_topic(self, name: str, policy: RetentionPolicy, *, durable_delete: bool | None = None) -> Topic:
        """Create a topic with an empty list. `name` is encoded.

        `durable_delete` decides whether deletions of this topic leave tombstones by default. `None` keeps the default
        of each operation.

        Raises:
            AlreadyExists: The name is taken.
        """

    def get_topic(self, name: str) -> Topic:
        """Return the topic with this encoded name.

        Raises:
            UnknownObject: The topic does not exist.
        """

    def get_topic_by_id(self, topic_id: TopicId) -> Topic:
        """Return the topic with this id.

        Raises:
            UnknownObject: The topic does not exist.
        """

    def list_active_topics(self, *, after: TopicId, limit: int) -> list[Topic]:
        """Return up to `limit` ACTIVE topics with ids above `after`, ascending by id.

        A topic that exists all the time is in exactly one of the successive pages.
        """

    def list_topic_summaries(
        self, *, prefix: str = "", state: TopicState | None = None, after: str = "", limit: int
    ) -> TopicSummaryPage:
        """Return summaries of topics, read in one transaction with a fixed number of queries.

        Names are encoded. The page begins after the name `after`, compared by bytes. `limit` is 1 or more.
        """

    def summarize_topic(self, topic: Topic) -> TopicSummary:
        """Return the summary of one topic. If the topic was deleted meanwhile, it has zeros and no subscriptions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaVersion:
    """Schema version of a topic, and the ledger with its content."""

    version: int  # from 0, without gaps
    ledger_id: LedgerId
    digest: str  # SHA-256 of the content, hexadecimal
    size_bytes: int  # of the content
    created_us: int


class SchemaVersions(Protocol):
    """Schema versions of topics."""

    def list_schema_versions(self, topic_id: TopicId) -> list[SchemaVersion]: ...

    def newest_schema_version(self, topic_id: TopicId) -> SchemaVersion | None:
        """Return the newest schema version, or `None` if the topic has no schema."""

    def publish_schema_version(
        self,
        topic_id: TopicId,
        ledger_id: LedgerId,
        *,
        digest: str,
        content_bytes: int,
        size_bytes: int,
        sha256: str | None = None,
    ) -> SchemaVersion | None:
        """Make a newborn schema ledger the next schema version: listed, CLOSED, with its one segment.

        If the newest schema version has the same digest, that version is returned. In this case, and if the topic is
        not ACTIVE, the same transaction files the intent of the newborn ledger. A repeated call returns the same schema
        version.

        `digest` and `content_bytes` describe the content. `size_bytes` and `sha256` describe the segment's object.
        Digests are SHA-256, hexadecimal.

        Returns:
            `None` if the newborn ledger was abandoned meanwhile, alone or with its topic. Then write another ledger.

        Raises:
            PreconditionFailed: The topic is not ACTIVE.
        """
