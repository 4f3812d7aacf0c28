"""Cursors in memory."""

from typing import TYPE_CHECKING

from logstore import cursors
from logstore.cursors import CursorState
from logstore.errors import (
    UnknownObject,
)
from logstore.failpoints import effect
from logstore.ports.catalog import (
    Subscription,
)
from logstore.positions import LedgerId, Position, TopicId

if TYPE_CHECKING:
    from tests.fakes.catalog.state import FakeCatalog


BEFORE_ANY = Position(LedgerId(-1), -1)


class FakeCursors:
    """The `Cursors` port."""

    def __init__(self, catalog: "FakeCatalog") -> None:
        self._catalog = catalog

    def subscribe(self, topic_id: TopicId, name: str, *, latest: bool) -> Subscription:
        """See the port."""
        with effect("catalog.subscribe"), self._catalog.lock:
            self._catalog.topic(topic_id, active=True)
            existing = self._catalog.cursor_rows.get((topic_id, name))
            if existing:
                return existing
            spans = self._catalog.spans(topic_id)
            start = BEFORE_ANY
            if spans:
                start = spans[-1].last if latest else Position(spans[0].ledger_id, -1)
            self._catalog.versions[topic_id] += 1
            return self._store(topic_id, name, cursors.advance(CursorState(start), spans))

    def get(self, topic_id: TopicId, name: str) -> Subscription:
        """See the port."""
        with self._catalog.lock:
            found = self._catalog.cursor_rows.get((topic_id, name))
        if found is None:
            raise UnknownObject("subscription", expected="an existing subscription", found=name)
        return found

    def all(self, topic_id: TopicId) -> list[Subscription]:
        """See the port."""
        with self._catalog.lock:
            return [row for key, row in sorted(self._catalog.cursor_rows.items()) if key[0] == topic_id]

    def seek(self, topic_id: TopicId, name: str, position: Position) -> Subscription:
        """See the port."""
        with effect("catalog.seek"), self._catalog.lock:
            self._catalog.topic(topic_id, active=True)
            self.get(topic_id, name)
            self._catalog.versions[topic_id] += 1
            return self._store(topic_id, name, cursors.seek(position, self._catalog.spans(topic_id)))

    def _store(self, topic_id: TopicId, name: str, state: CursorState) -> Subscription:
        existing = self._catalog.cursor_rows.get((topic_id, name))
        created_us = existing.created_us if existing else self._catalog.now_us
        row = Subscription(name=name, state=state, created_us=created_us)
        self._catalog.cursor_rows[topic_id, name] = row
        return row
