"""The state that every port's fake shares, under one lock."""

import threading
from collections.abc import Iterable
from dataclasses import replace

from logstore.cursors import LedgerSpan
from logstore.errors import (
    PreconditionFailed,
    UnknownObject,
)
from logstore.ports.catalog import (
    Ledger,
    Segment,
    Subscription,
    Topic,
    TopicState,
)
from logstore.positions import LedgerId, TopicId
from tests.fakes.catalog.commits import FakeCommits, Misfortune
from tests.fakes.catalog.cursors import FakeCursors
from tests.fakes.catalog.ledgers import FakeLedgers
from tests.fakes.catalog.topics import FakeTopics


class FakeCatalog:
    """The ports' in-memory state. Any number of threads may use it; every method is one transaction."""

    def __init__(self, *, now_us: int = 1_750_000_000_000_000, first_ledger: int = 0) -> None:
        self.now_us = now_us  # stands still until moved
        self.current_epoch = 1
        self.next_ledger = first_ledger
        self.lock = threading.RLock()
        self.topic_rows: dict[TopicId, Topic] = {}
        self.ledger_rows: dict[LedgerId, Ledger] = {}
        self.lists: dict[TopicId, list[LedgerId]] = {}
        self.segment_rows: dict[LedgerId, list[Segment]] = {}
        self.sequences: dict[tuple[TopicId, str], int] = {}
        self.cursor_rows: dict[tuple[TopicId, str], Subscription] = {}
        self.pending_deletion: list[LedgerId] = []
        self.misfortunes: list[Misfortune] = []
        self.batches: list[int] = []  # writes of every commit call
        self.topics = FakeTopics(self)
        self.ledgers = FakeLedgers(self)
        self.cursors = FakeCursors(self)
        self.commits = FakeCommits(self)

    def advance(self, *, seconds: float) -> None:
        """Move the catalog's clock."""
        self.now_us += round(seconds * 1_000_000)

    def detach(self, topic_id: TopicId, ledger_ids: Iterable[LedgerId]) -> None:
        """Phase one: out of the list, with an intent."""
        with self.lock:
            for ledger_id in ledger_ids:
                self.lists[topic_id].remove(ledger_id)
                self._retire(ledger_id)

    def set_state(self, topic_id: TopicId, state: TopicState) -> None:
        """Let the topic be deleted, or not."""
        with self.lock:
            self.topic_rows[topic_id] = replace(self.topic_rows[topic_id], state=state)

    def spans(self, topic_id: TopicId) -> list[LedgerSpan]:
        """The topic's listed ledgers as cursors need them."""
        return [self.ledger_rows[ledger_id].span for ledger_id in self.lists[topic_id]]

    def topic(self, topic_id: TopicId, *, active: bool = False) -> Topic:
        """The topic; ACTIVE if asked."""
        found = self.topic_rows.get(topic_id)
        if found is None:
            raise UnknownObject("topic_id", expected="an existing topic", found=topic_id)
        if active and found.state is not TopicState.ACTIVE:
            raise PreconditionFailed(f"topic {found.name}: expected state ACTIVE, found {found.state.value}")
        return found

    def _retire(self, ledger_id: LedgerId) -> None:
        del self.ledger_rows[ledger_id]
        self.segment_rows.pop(ledger_id, None)
        self.pending_deletion.append(ledger_id)
