"""A catalog without transactions: everything that was registered is visible, and to begin one is refused."""

from typing import TYPE_CHECKING

from logstore.ports.catalog.transactions import Frontier
from logstore.positions import TopicId
from tests.fakes.catalog.unsupported_ports import UnsupportedPort

if TYPE_CHECKING:
    from tests.fakes.catalog.fake_catalog import FakeCatalog


class FakeTransactions(UnsupportedPort):
    """The part of the port `Transactions` that a log without transactions needs."""

    def __init__(self, catalog: "FakeCatalog") -> None:
        super().__init__("transactions")
        self._catalog = catalog

    def read_frontier(self, topic_id: TopicId, *, from_ledger: int = -1) -> Frontier:
        listed = self._catalog.spans(topic_id) if topic_id in self._catalog.lists else []
        spans = [span for span in listed if span.entries]
        return Frontier(last=spans[-1].last if spans else None)
