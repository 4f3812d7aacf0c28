"""Cursors in memory."""

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from logstore.cursors import cursor_state as cursors
from logstore.cursors.cursor_state import (
    CursorSnapshot,
    CursorState,
    complete_state,
    pack_acknowledged,
    state_without_snapshot,
)
from logstore.errors import UnknownObject
from logstore.failpoints import effect
from logstore.log.ledgers import LedgerState
from logstore.ports.catalog.cursors import CursorSnapshotCondition, StoredCursor
from logstore.ports.catalog.log import TopicState
from logstore.positions import Position, TopicId

if TYPE_CHECKING:
    from tests.fakes.catalog.fake_catalog import FakeCatalog


class FakeCursors:
    """The `Cursors` port."""

    def __init__(self, catalog: "FakeCatalog") -> None:
        self._catalog = catalog

    def create_subscription(self, topic_id: TopicId, name: str, *, latest: bool) -> StoredCursor:
        with effect("catalog.subscribe"), self._catalog.lock:
            self._catalog.topic(topic_id, must_be_active=True)
            existing = self._catalog.cursor_rows.get((topic_id, name))
            if existing:
                return existing
            spans = self._catalog.spans(topic_id)
            self._catalog.versions[topic_id] += 1
            return self._store(topic_id, name, cursors.initial_state(spans, latest=latest))

    def get_cursor(self, topic_id: TopicId, name: str) -> StoredCursor:
        with self._catalog.lock:
            cursor = self._catalog.cursor_rows.get((topic_id, name))
        if cursor is None:
            raise UnknownObject("subscription", expected="an existing subscription", found=name)
        return cursor

    def list_cursors(self, topic_id: TopicId) -> list[StoredCursor]:
        with self._catalog.lock:
            return [row for key, row in sorted(self._catalog.cursor_rows.items()) if key[0] == topic_id]

    def find_cursors_with_snapshot(self, topic_ids: Collection[TopicId]) -> dict[TopicId, list[str]]:
        names_by_topic: dict[TopicId, list[str]] = {}
        with self._catalog.lock:
            for (topic_id, name), row in sorted(self._catalog.cursor_rows.items()):
                if topic_id in topic_ids and row.snapshot_ledger is not None:
                    names_by_topic.setdefault(topic_id, []).append(name)
        return names_by_topic

    def seek_cursor(self, topic_id: TopicId, name: str, position: Position) -> StoredCursor:
        with effect("catalog.seek"), self._catalog.lock:
            self._catalog.topic(topic_id, must_be_active=True)
            row = self.get_cursor(topic_id, name)
            state = cursors.seek(position, self._catalog.spans(topic_id))
            if row.snapshot_ledger is not None:
                self._catalog.components._retire_ledger(row.snapshot_ledger, "the cursor was moved by a seek")
            self._catalog.versions[topic_id] += 1
            moved = replace(row, state=state, snapshot_ledger=None, seeks=row.seeks + 1, releases=row.releases + 1)
            return self._store_row(topic_id, moved)

    def publish_snapshot(
        self,
        condition: CursorSnapshotCondition,
        snapshot: CursorSnapshot,
        *,
        size_bytes: int,
        sha256: str | None = None,
    ) -> bool:
        with effect("catalog.publish_snapshot"), self._catalog.lock:
            newborn = self._catalog.components._find_newborn_or_reopen_intents(snapshot.ledger_id)
            if newborn is None or newborn.state is LedgerState.CLOSED:
                return newborn is not None
            row = self._find_unchanged_row(condition)
            if row is None:
                self._catalog.replace_ledger_by_intents(snapshot.ledger_id, "")
                return False
            self._catalog.components._publish(newborn, size_bytes, sha256)
            if row.snapshot_ledger is not None:
                self._catalog.components._retire_ledger(
                    row.snapshot_ledger, f"superseded by ledger {snapshot.ledger_id}"
                )
            rest = state_without_snapshot(row.state, snapshot)
            self._store_row(condition.topic_id, replace(row, state=rest, snapshot_ledger=snapshot.ledger_id))
            return True

    def move_snapshot_into_row(
        self, condition: CursorSnapshotCondition, snapshot: CursorSnapshot, *, limit_bytes: int
    ) -> bool:
        with effect("catalog.fold_snapshot"), self._catalog.lock:
            row = self._find_unchanged_row(condition)
            if row is None or row.snapshot_ledger != snapshot.ledger_id:
                return False
            state = cursors.advance_mark_delete(
                complete_state(row.state, snapshot), self._catalog.spans(condition.topic_id)
            )
            if len(pack_acknowledged(state.acknowledged)) > limit_bytes:
                return False
            self._catalog.components._retire_ledger(snapshot.ledger_id, "folded into its cursor's row")
            self._store_row(condition.topic_id, replace(row, state=state, snapshot_ledger=None))
            return True

    def _find_unchanged_row(self, change: CursorSnapshotCondition) -> StoredCursor | None:
        row = self._catalog.cursor_rows.get((change.topic_id, change.subscription))
        same = row is not None and (row.snapshot_ledger, row.seeks) == (change.expected, change.seeks)
        return row if same and self._catalog.topic(change.topic_id).state is TopicState.ACTIVE else None

    def _store_row(self, topic_id: TopicId, row: StoredCursor) -> StoredCursor:
        self._catalog.cursor_rows[topic_id, row.name] = row
        return row

    def _store(self, topic_id: TopicId, name: str, state: CursorState) -> StoredCursor:
        existing = self._catalog.cursor_rows.get((topic_id, name))
        if existing:
            return self._store_row(topic_id, replace(existing, state=state))
        return self._store_row(topic_id, StoredCursor(name=name, state=state, created_us=self._catalog.now_us))
