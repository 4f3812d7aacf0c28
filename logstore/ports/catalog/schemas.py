"""Versions of a topic's schema and their port."""

from dataclasses import dataclass
from typing import Protocol

from logstore.positions import LedgerId, TopicId


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
