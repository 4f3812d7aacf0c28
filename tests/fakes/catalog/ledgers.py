"""Ledgers in memory."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from logstore.cursors.cursor_state import CursorState, VisibleLedgerSpan
from logstore.failpoints import effect
from logstore.log.ledgers import Component, CopyKind, CopyState, LedgerOwner, LedgerState, LedgerStatement
from logstore.log.producer_sequences import HighestSequenceIds
from logstore.ports.catalog import (
    Ledger,
    Segment,
    TopicLedgerTotals,
)
from logstore.positions import LedgerId, Position, TopicId

if TYPE_CHECKING:
    from tests.fakes.catalog.state import FakeCatalog


def _entries(span: VisibleLedgerSpan) -> Iterator[tuple[LedgerId, int]]:
    return ((span.ledger_id, entry_id) for entry_id in range(span.entries))


class FakeLedgers:
    """The `MessageLedgers` port."""

    def __init__(self, catalog: "FakeCatalog") -> None:
        self._catalog = catalog

    def catalog_epoch(self) -> int:
        return self._catalog.current_epoch

    def list_ledgers(
        self, topic_id: TopicId, *, from_ledger: LedgerId | None = None, limit: int | None = None
    ) -> list[Ledger]:
        with self._catalog.lock:
            ids = [one for one in self._catalog.lists.get(topic_id, []) if from_ledger is None or one >= from_ledger][
                :limit
            ]
            rows = [self._catalog.ledger_rows[ledger_id] for ledger_id in ids]
            return [replace(row, copies=self._live(row.ledger_id)) for row in rows]

    def get_topic_totals(self, topic_id: TopicId) -> TopicLedgerTotals:
        rows = self.list_ledgers(topic_id)
        filled = [row for row in rows if row.entries]
        return TopicLedgerTotals(
            ledgers=len(rows),
            entries=sum(row.entries for row in rows),
            size_bytes=sum(row.size_bytes for row in rows),
            first=Position(filled[0].ledger_id, 0) if filled else None,
            last=filled[-1].span.last if filled else None,
        )

    def count_backlogs(self, topic_id: TopicId, states: Sequence[CursorState]) -> list[int]:
        spans = [row.span for row in self.list_ledgers(topic_id)]
        return [sum(not state.covers(Position(*at)) for span in spans for at in _entries(span)) for state in states]

    def _live(self, ledger_id: LedgerId) -> tuple[CopyKind, ...]:
        copies = self._catalog.copies[ledger_id]
        return tuple(kind for kind, copy in sorted(copies.items()) if copy.state is CopyState.LIVE)

    def last_ledger(self, topic_id: TopicId) -> Ledger | None:
        return next(reversed(self.list_ledgers(topic_id)), None)

    def last_ledgers(self, topic_ids: Collection[TopicId]) -> list[Ledger]:
        return [last for topic_id in sorted(topic_ids) if (last := self.last_ledger(topic_id)) is not None]

    def create_ledger(self, topic_id: TopicId, *, application: str) -> LedgerStatement:
        with effect("catalog.create_ledger"), self._catalog.lock:
            topic = self._catalog.topic(topic_id, active=True)
            owner = LedgerOwner(
                application=application,
                component=Component.MANAGED_LEDGER,
                topic_id=topic_id,
                topic=topic.name,
                keys={},
            )
            return self._catalog.bear(owner)

    def attach_ledger(self, ledger_id: LedgerId, *, after: LedgerId | None) -> bool:
        with effect("catalog.attach"), self._catalog.lock:
            rows = self._catalog.ledger_rows
            newborn = rows.get(ledger_id)
            if newborn is None:
                self._catalog.reopen_intent(ledger_id)
                return False  # a trim took it for abandoned
            self._catalog.topic(newborn.topic_id, active=True)
            listed = self._catalog.lists[newborn.topic_id]
            if ledger_id in listed:
                return True
            last = listed[-1] if listed else None
            if last != after or (last is not None and ledger_id < last):
                self._catalog.file_intents(ledger_id, "")
                return False
            if last is not None and rows[last].state is LedgerState.OPEN:
                rows[last] = replace(rows[last], state=LedgerState.CLOSED, closed_us=self._catalog.now_us)
            rows[ledger_id] = replace(newborn, state=LedgerState.OPEN)
            self._catalog.confirm_copy(ledger_id, CopyKind.LEDGER)
            listed.append(ledger_id)
            self._catalog.versions[newborn.topic_id] += 1
            return True

    def record_abandoned_upload(self, ledger_id: LedgerId, *, epoch: int) -> None:
        with effect("catalog.give_up"), self._catalog.lock:
            if epoch == self._catalog.current_epoch:
                self._catalog.reopen_intent(ledger_id, late=True)

    def list_segments(self, ledger_id: LedgerId, *, from_entry: int = 0) -> list[Segment]:
        with self._catalog.lock:
            rows = self._catalog.segment_rows.get(ledger_id, [])
            return [row for row in rows if row.first_entry + row.entries > from_entry]

    def find_segments_of_ranges(
        self, topic_id: TopicId, range_by_ledger: Mapping[LedgerId, range]
    ) -> list[tuple[Ledger, list[Segment]]]:
        with self._catalog.lock:
            found = [
                (one, range_by_ledger[one.ledger_id])
                for one in self.list_ledgers(topic_id)
                if one.ledger_id in range_by_ledger
            ]
            return [
                (
                    one,
                    [
                        row
                        for row in self.list_segments(one.ledger_id, from_entry=of.start)
                        if row.first_entry < of.stop
                    ],
                )
                for one, of in found
            ]

    def producer_sequences(self, topic_id: TopicId, producers: Iterable[str]) -> dict[str, HighestSequenceIds]:
        with self._catalog.lock:
            found = {name: self._catalog.sequences.get((topic_id, name)) for name in producers}
        return {name: HighestSequenceIds.without_transaction(last) for name, last in found.items() if last is not None}
