"""Subscriptions and their port."""

from dataclasses import dataclass
from typing import Protocol

from logstore.cursors import CursorState
from logstore.positions import Position, TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """A cursor row."""

    name: str
    state: CursorState
    created_us: int


class Cursors(Protocol):
    """Subscriptions."""

    def subscribe(self, topic_id: TopicId, name: str, *, latest: bool) -> Subscription:
        """Create the subscription at the first listed entry, or behind the last one; an existing one is returned.

        Locks the ledger list and raises its version, so it commits before a detach decides or after.

        Raises:
            UnknownObject: No such topic.
            PreconditionFailed: The topic is not ACTIVE.
        """

    def get(self, topic_id: TopicId, name: str) -> Subscription:
        """The subscription.

        Raises:
            UnknownObject: There is none.
        """

    def all(self, topic_id: TopicId) -> list[Subscription]:
        """The topic's subscriptions, ascending by name."""

    def seek(self, topic_id: TopicId, name: str, position: Position) -> Subscription:
        """Set the cursor so that `position` is its next entry; locks the list like `subscribe`.

        Raises:
            UnknownObject: No such topic or subscription.
            InvalidInput: The position lies beyond the end.
            PreconditionFailed: The topic is not ACTIVE.
        """
