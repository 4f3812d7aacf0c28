"""Phase one by retention for many topics that share a batch, and its port."""

from collections.abc import Sequence
from typing import Protocol

from logstore.ports.catalog.batches import Cause, Claim, Detached
from logstore.positions import TopicId


class TopicTrims(Protocol):
    """What retention lets go, topic by topic."""

    def promising(self, topic_ids: Sequence[TopicId]) -> frozenset[TopicId]:
        """Those of the topics in which a detach could find something: most have nothing, and need no lock."""

    def detach_into(self, topic_id: TopicId, *, batch_id: str, claim: Claim, cause: Cause) -> Detached:
        """As `Deletions.detach` by retention, in one transaction for the topic, into a batch of many topics.

        Opens the batch, or holds it until `ttl_s` from now. Newborn ledgers that were never attached count as
        ledgers too.

        Idempotency: keyed by batch and topic: where intents of the topic are in the batch, they are counted and
        nothing else happens.

        Raises:
            UnknownObject: No such topic.
            CorruptData: A cursor's row cannot be read.
            ClaimHeld: The batch is finished, or another workflow's; nothing was changed.
        """

    def detached_into(self, batch_id: str) -> Detached:
        """The whole batch, counted from its rows; all zero when nothing was detached into it."""
