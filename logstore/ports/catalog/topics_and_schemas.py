"""Ports of topics and of their schema versions."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from logstore.deletion.retention import RetentionPolicy
from logstore.ports.catalog.ledgers_and_segments import TopicLedgerTotals
from logstore.positions import LedgerId, Position, TopicId


class TopicState(StrEnum):
    """State of a topic. The catalog stores the name."""

    ACTIVE = "ACTIVE"  # accepts new work
    DELETING = "DELETING"  # running work may finish


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """Topic. If a deleted topic is created again under its old name, the new topic has another id."""

    topic_id: TopicId
    name: str  # encoded
    state: TopicState
    policy: RetentionPolicy
    created_us: int
    durable_delete: bool | None = None  # whether deletions leave tombstones by default; None: default of each operation


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionSummary:
    name: str
    mark_delete: Position
    created_us: int
    backlog: int | None  # unacknowledged entries; None: unknown, because a cursor ledger has a part of the state


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSummary:
    """Topic, totals of its message ledgers, and its subscriptions, ascending by name."""

    topic: Topic
    totals: TopicLedgerTotals
    subscriptions: Sequence[SubscriptionSummary]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSummaryPage:
    """Page of topics, ascending by encoded name. `more` is the number of matching topics after the page."""

    topics: Sequence[TopicSummary]
    more: int


class Topics(Protocol):
    def create_topic(self, name: str, policy: RetentionPolicy, *, durable_delete: bool | None = None) -> Topic:
        """Create a topic without ledgers. Raise `AlreadyExists` if the name is taken. `name` is encoded.

        `durable_delete` decides whether deletions of this topic leave tombstones by default. With `None`, each
        operation has its own default.
        """

    def get_topic(self, name: str) -> Topic:
        """Return the topic with this encoded name. Raise `UnknownObject` if the topic does not exist."""

    def get_topic_by_id(self, topic_id: TopicId) -> Topic:
        """Return the topic with this id. Raise `UnknownObject` if the topic does not exist."""

    def list_active_topics(self, *, after: TopicId, limit: int) -> list[Topic]:
        """Return up to `limit` ACTIVE topics with ids above `after`, ascending by id.

        A topic that exists while all pages are read is in exactly one page.
        """

    def list_topic_summaries(
        self, *, prefix: str = "", state: TopicState | None = None, after: str = "", limit: int
    ) -> TopicSummaryPage:
        """Return a page of topic summaries, read in one transaction. `limit` is 1 or more.

        `prefix` and `after` are encoded. The page begins after the name `after`, compared by bytes.
        """

    def summarize_topic(self, topic: Topic) -> TopicSummary:
        """Return the summary of one topic. For a deleted topic, all totals are zero, and there are no subscriptions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaVersion:
    version: int  # from 0, without gaps
    ledger_id: LedgerId
    digest: str  # SHA-256 of the content, hexadecimal
    size_bytes: int  # of the content
    created_us: int


class SchemaVersions(Protocol):
    def list_schema_versions(self, topic_id: TopicId) -> list[SchemaVersion]: ...

    def newest_schema_version(self, topic_id: TopicId) -> SchemaVersion | None: ...

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
        """Publish a newborn schema ledger as the next schema version. The ledger becomes listed and CLOSED.

        If the newest schema version has the same digest, the method returns this schema version and files an intent for
        the newborn ledger. Otherwise, if the topic is not ACTIVE, the method also files an intent and raises
        `PreconditionFailed`. A repeated call returns the same schema version. The method returns `None` if the newborn
        ledger was detached meanwhile. The caller then writes another ledger.

        `digest` and `content_bytes` describe the content. `size_bytes` and `sha256` describe the segment's object.
        Digests are SHA-256, hexadecimal.
        """
