"""Deleting a whole topic: the catalog's part, and its port."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from logstore.ports.catalog.batches import Cause, Claim, Detached, Tally
from logstore.positions import TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicContents:
    """What hangs on a topic, whatever component owns it."""

    ledgers: Mapping[str, int]  # by component
    copies: Mapping[str, Mapping[str, int]]  # by component, then by kind of copy
    subscriptions: int


class TopicDeletions(Protocol):
    """The steps of a topic's deletion; each goes on from whatever an earlier try left."""

    def contents(self, topic_id: TopicId) -> TopicContents:
        """Count what a deletion would take. Changes nothing.

        Raises:
            UnknownObject: No such topic.
        """

    def begin(self, topic_id: TopicId, name: str, cause: Cause) -> int:
        """Set the topic DELETING and write the audit row; when that was, microseconds by the catalog's clock.

        Whoever comes after its commit can attach nothing to the topic, for that requires ACTIVE under a lock. It
        does not wait for those who hold that lock already, or a busy topic would never begin to go: `detach_all` does.

        Idempotency: a topic that is DELETING, or that was deleted, answers when it began, and is audited once.

        Raises:
            UnknownObject: There is no such topic, and never was.
            PreconditionFailed: The topic of that id bears another name.
        """

    def detach_all(self, topic_id: TopicId, *, batch_id: str, claim: Claim, cause: Cause) -> Detached:
        """Phase one for everything of the topic, in one transaction: an intent for each copy of each ledger.

        Whatever the component, and whatever the state: newborn and open ledgers, copies that are being written.
        Rows that name ledgers, cursors and schema versions, go with them. The topic's intents without a live claim
        join the batch.

        Idempotency: keyed by `batch_id`; a repeated call returns what the first one did. A topic that is gone has
        nothing left to detach.

        Raises:
            PreconditionFailed: The topic is not DELETING, or the batch id is one of another request.
        """

    def remove(self, topic_id: TopicId, cause: Cause) -> bool:
        """Remove what the topic is besides ledgers, and its own row; its name is free from then on.

        Returns:
            Whether the topic is gone now; False when a ledger is attached to it still, and nothing was changed.

        Raises:
            PreconditionFailed: The topic is not DELETING.
        """

    def tally(self, topic_id: TopicId, *, since_us: int) -> Tally:
        """Count intents of the topic that ended since then, and all of them that have not succeeded."""
