"""Topics and their port."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from logstore.deletion.retention import RetentionPolicy
from logstore.positions import TopicId


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


class Topics(Protocol):
    """Topics and their data ledger lists."""

    def create(self, name: str, policy: RetentionPolicy) -> Topic:
        """Create the topic with an empty list.

        Raises:
            AlreadyExists: The name is taken.
        """

    def get(self, name: str) -> Topic:
        """The topic of that encoded name.

        Raises:
            UnknownObject: There is none.
        """

    def by_id(self, topic_id: TopicId) -> Topic:
        """The topic of that id.

        Raises:
            UnknownObject: There is none.
        """

    def all(self) -> list[Topic]:
        """Every topic, ascending by name."""

    def active(self, *, after: TopicId, limit: int) -> list[Topic]:
        """Up to `limit` topics that are ACTIVE, with ids above `after`, ascending by id.

        Pages of it hold each topic once that is there all the time, whatever is created or deleted meanwhile.
        """
