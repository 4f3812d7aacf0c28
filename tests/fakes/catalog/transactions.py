"""A catalog without transactions: everything that was registered is visible, and to begin one is refused."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyroaring import BitMap

from logstore.errors import Unsupported
from logstore.ports.catalog import Frontier
from logstore.positions import LedgerId, TopicId
from logstore.transactions.transactions import TransactionId

if TYPE_CHECKING:
    from tests.fakes.catalog.state import FakeCatalog


class FakeTransactions:
    """The part of the port `Transactions` that a log without transactions needs."""

    def __init__(self, catalog: "FakeCatalog") -> None:
        self._catalog = catalog

    def frontier(self, topic_id: TopicId, *, from_ledger: int = -1) -> Frontier:
        listed = self._catalog.spans(topic_id) if topic_id in self._catalog.lists else []
        spans = [span for span in listed if span.entries]
        return Frontier(last=spans[-1].last if spans else None)

    def held(self, topic_id: TopicId, subscription: str) -> Mapping[TransactionId, Mapping[LedgerId, BitMap]]:
        return {}

    def __getattr__(self, name: str) -> Any:
        raise Unsupported(f"the catalog in memory has no transactions: {name}")


class FakeTransactionSnapshots:
    """A log without transactions has no snapshots of them."""

    def __getattr__(self, name: str) -> Any:
        raise Unsupported(f"the catalog in memory has no transactions: {name}")
