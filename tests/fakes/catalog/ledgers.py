"""Ledgers in memory."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from logstore.cursors.cursor_state import CursorState, VisibleLedgerSpan
from logstore.failpoints import effect
from logstore.log.entries import HighestSequenceIds
from logstore.log.ledgers import Component, CopyKind, CopyState, LedgerOwner, LedgerState, LedgerStatement
from logstore.ports.catalog.log import Ledger, Segment, TopicLedgerTotals
from logstore.positions import LedgerId, Position, TopicId

if TYPE_CHECKING:
    from tests.fakes.catalog.fake_catalog import FakeCatalog


def _iterate_entries(span: VisibleLedgerSpan) -> Iterator[tuple[LedgerId, int]]:
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
            ids = [
                listed_id
                for listed_id in self._catalog.lists.get(topic_id, [])
                if from_ledger is None or listed_id >= from_ledger
            ][:limit]
            rows = [self._catalog.ledger_rows[ledger_id] for ledger_id in ids]
            return [replace(row, copies=self._live_copy_kinds(row.ledger_id)) for row in rows]

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
        return [
            sum(not state.covers(Position(*entry)) for span in spans for entry in _iterate_entries(span))
            for state in states
        ]

    def _live_copy_kinds(self, ledger_id: LedgerId) -> tuple[CopyKind, ...]:
        copies = self._catalog.copies[ledger_id]
        return tuple(kind for kind, copy in sorted(copies.items()) if copy.state is CopyState.LIVE)

    def last_ledger(self, topic_id: TopicId) -> Ledger | None:
        return next(reversed(self.list_ledgers(topic_id)), None)

    def last_ledgers(self, topic_ids: Collection[TopicId]) -> list[Ledger]:
        return [last for topic_id in sorted(topic_ids) if (last := self.last_ledger(topic_id)) is not None]

    def create_ledger(self, topic_id: TopicId, *, application: str) -> LedgerStatement:
        with effect("catalog.create_ledger"), self._catalog.lock:
            topic = self._catalog.topic(topic_id, must_be_active=True)
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
                self._catalog.reopen_intents(ledger_id)
                return False  # a trim took it for abandoned
            self._catalog.topic(newborn.topic_id, must_be_active=True)
            listed = self._catalog.lists[newborn.topic_id]
            if ledger_id in listed:
                return True
            last_listed = listed[-1] if listed else None
            if last_listed != after or (last_listed is not None and ledger_id < last_listed):
                self._catalog.replace_ledger_by_intents(ledger_id, "")
                return False
            if last_listed is not None and rows[last_listed].state is LedgerState.OPEN:
                rows[last_listed] = replace(rows[last_listed], state=LedgerState.CLOSED, closed_us=self._catalog.now_us)
            rows[ledger_id] = replace(newborn, state=LedgerState.OPEN)
            self._catalog.mark_copy_live(ledger_id, CopyKind.LEDGER)
            listed.append(ledger_id)
            self._catalog.versions[newborn.topic_id] += 1
            return True

    def record_abandoned_upload(self, ledger_id: LedgerId, *, epoch: int) -> None:
        with effect("catalog.give_up"), self._catalog.lock:
            if epoch == self._catalog.current_epoch:
                self._catalog.reopen_intents(ledger_id, is_late_upload=True)

    def list_segments(self, ledger_id: LedgerId, *, from_entry: int = 0) -> list[Segment]:
        with self._catalog.lock:
            rows = self._catalog.segment_rows.get(ledger_id, [])
            return [row for row in rows if row.first_entry + row.entries > from_entry]

    def find_segments_of_ranges(
        self, topic_id: TopicId, range_by_ledger: Mapping[LedgerId, range]
    ) -> list[tuple[Ledger, list[Segment]]]:
        with self._catalog.lock:
            ledger_ranges = [
                (ledger, range_by_ledger[ledger.ledger_id])
                for ledger in self.list_ledgers(topic_id)
                if ledger.ledger_id in range_by_ledger
            ]
            return [
                (
                    ledger,
                    [
                        row
                        for row in self.list_segments(ledger.ledger_id, from_entry=entry_range.start)
                        if row.first_entry < entry_range.stop
                    ],
                )
                for ledger, entry_range in ledger_ranges
            ]

    def producer_sequences(self, topic_id: TopicId, producers: Iterable[str]) -> dict[str, HighestSequenceIds]:
        with self._catalog.lock:
            last_by_producer = {name: self._catalog.sequences.get((topic_id, name)) for name in producers}
        return {
            name: HighestSequenceIds.without_transaction(last)
            for name, last in last_by_producer.items()
            if last is not None
        }
