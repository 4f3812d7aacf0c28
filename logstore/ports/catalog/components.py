"""Ledgers of components other than messages, and their port."""

from collections.abc import Mapping
from typing import Protocol

from logstore.log.ledgers import Component, LedgerStatement
from logstore.ports.catalog.ledgers import Ledger
from logstore.positions import TopicId


class Components(Protocol):
    """Every ledger of a topic, whichever component it belongs to.

    A component's owner (a cursor, a topic's schema) has a list of its own, made when its first ledger is created.
    Its ledgers are written whole: they are published CLOSED, by the port of the component.
    """

    def create(
        self, topic_id: TopicId, component: Component, keys: Mapping[str, str], *, application: str
    ) -> LedgerStatement:
        """Take the next ledger id and insert the row, CREATING and not listed yet.

        Not idempotent: as with `Ledgers.create`, a row that is never published is detached by the topic's trim.

        Args:
            topic_id: Whose.
            component: What kind of ledger.
            keys: What makes its owner unique within the topic, e.g. `{"cursor": "billing"}`.
            application: As it stands in storage's own statement.

        Raises:
            UnknownObject: No such topic.
            PreconditionFailed: The topic is not ACTIVE.
        """

    def listed(self, topic_id: TopicId) -> list[Ledger]:
        """Listed ledgers of all components: the data ledgers first, each list in its order."""
