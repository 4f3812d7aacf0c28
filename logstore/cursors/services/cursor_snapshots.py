"""Cursor ledgers. A state that is too large for the cursor's row moves to a ledger, and back when the state is small.

A failed move loses nothing, because the earlier row and snapshot stay. The failure is logged, and a later
acknowledgement moves the state. The failed move may leave a newborn ledger, which the topic's trim detaches.
"""

import logging
import threading
from collections import OrderedDict
from typing import Final

from logstore.catalog.cursors.cursors import Cursors
from logstore.catalog.log.message_ledgers import MessageLedgers
from logstore.cursors.cursor_state import (
    CursorSnapshot,
    complete_state,
    pack_acknowledged,
    select_ledgers,
    unpack_acknowledged,
)
from logstore.errors import SextonError
from logstore.log.ledgers import Component
from logstore.log.services.component_ledgers import ComponentLedgers, CreatedLedger, OneEntryLedgerDraft
from logstore.ports.catalog.cursors import CursorSnapshotCondition, StoredCursor
from logstore.ports.catalog.log import AcknowledgeResult
from logstore.positions import LedgerId, TopicId
from logstore.retrying_clock import Clock

_LOG: Final = logging.getLogger(__name__)

_CACHE_BYTES: Final = 64 << 20
"""Maximum size of all cached snapshots, packed. A snapshot above this size is cached alone."""

_RETRY_PAUSE_S: Final = 5.0
"""Pause after a failed attempt to move a cursor's state, because each failure may leave a newborn ledger."""

_CursorKey = tuple[TopicId, str]  # topic and name of the subscription


class CursorSnapshots:
    """Cache, reader and writer of cursor snapshots. A snapshot is read once, because ledgers are immutable.

    A state larger than `inline_bytes` moves from the row to a ledger. A state of at most half this size moves back.
    Only one thread of the process at a time moves the state of a cursor.
    """

    def __init__(
        self,
        *,
        cursors: Cursors,
        ledgers: MessageLedgers,
        component_ledgers: ComponentLedgers,
        inline_bytes: int,
        clock: Clock | None = None,
    ) -> None:
        self._cursors = cursors
        self._ledgers = ledgers
        self._component_ledgers = component_ledgers
        self._inline_bytes = inline_bytes
        self._clock = clock or Clock()
        self._cache: OrderedDict[LedgerId, tuple[CursorSnapshot, int]] = OrderedDict()
        self._lock = threading.Lock()
        self._reserved_cursors: set[_CursorKey] = set()
        self._retry_at_s_by_cursor: dict[_CursorKey, float] = {}

    def load_snapshot(self, ledger_id: LedgerId) -> CursorSnapshot | None:
        """Return the snapshot in a ledger, or `None` if the catalog or storage has no such ledger."""
        cached = self.get_cached_snapshot(ledger_id)
        if cached:
            return cached
        packed = self._component_ledgers.read(ledger_id)
        if packed is None:
            return None
        return self._cache_snapshot(
            CursorSnapshot(ledger_id=ledger_id, acknowledged=unpack_acknowledged(packed)), len(packed)
        )

    def get_cached_snapshot(self, ledger_id: LedgerId) -> CursorSnapshot | None:
        with self._lock:
            if ledger_id not in self._cache:
                return None
            self._cache.move_to_end(ledger_id)
            return self._cache[ledger_id][0]

    def _cache_snapshot(self, snapshot: CursorSnapshot, size_bytes: int) -> CursorSnapshot:
        with self._lock:
            self._cache[snapshot.ledger_id] = (snapshot, size_bytes)
            while len(self._cache) > 1 and sum(size for _, size in self._cache.values()) > _CACHE_BYTES:
                self._cache.popitem(last=False)
        return snapshot

    def write_or_fold_snapshot_after_acknowledgement(
        self, topic_id: TopicId, name: str, acknowledged: AcknowledgeResult, used_snapshot: CursorSnapshot | None
    ) -> None:
        """Call `write_or_fold_snapshot` after an acknowledgement if the size of the state requires it.

        `used_snapshot` is the snapshot with which the acknowledgement was made.
        """
        is_too_large = acknowledged.row_bytes > self._inline_bytes
        is_current = used_snapshot is not None and used_snapshot.ledger_id == acknowledged.snapshot_ledger
        if is_too_large or (
            is_current
            and used_snapshot
            and self._is_small(used_snapshot.bytes_beyond(acknowledged.mark_delete) + acknowledged.row_bytes)
        ):
            self.write_or_fold_snapshot(topic_id, name)

    def write_or_fold_snapshot(self, topic_id: TopicId, name: str) -> None:
        """Move a large state into a new snapshot, or fold a small snapshot into the row. Failures are only logged."""
        key = (topic_id, name)
        if not self._reserve_cursor_unless_pausing(key):
            return
        try:
            self._write_or_fold_snapshot(topic_id, self._cursors.get_cursor(topic_id, name))
            self._retry_at_s_by_cursor.pop(key, None)
        except SextonError as error:
            self._retry_at_s_by_cursor[key] = self._clock.monotonic_s() + _RETRY_PAUSE_S
            _LOG.warning("topic %s, subscription %s: its state stays where it is: %s", topic_id, name, error)
        finally:
            with self._lock:
                self._reserved_cursors.discard(key)

    def _reserve_cursor_unless_pausing(self, key: _CursorKey) -> bool:
        with self._lock:
            may_retry = self._clock.monotonic_s() >= self._retry_at_s_by_cursor.get(key, float("-inf"))
            is_reserved = may_retry and key not in self._reserved_cursors
            if is_reserved:
                self._reserved_cursors.add(key)
            return is_reserved

    def _is_small(self, size_bytes: int) -> bool:
        return size_bytes <= self._inline_bytes // 2

    def _write_or_fold_snapshot(self, topic_id: TopicId, row: StoredCursor) -> None:
        snapshot = None if row.snapshot_ledger is None else self.load_snapshot(row.snapshot_ledger)
        if row.snapshot_ledger is not None and snapshot is None:
            return  # replaced or lost: the next acknowledgement finds out
        listed = {ledger.ledger_id for ledger in self._ledgers.list_ledgers(topic_id)}
        acknowledged = select_ledgers(complete_state(row.state, snapshot).acknowledged, listed)
        packed = pack_acknowledged(acknowledged)
        condition = CursorSnapshotCondition(
            topic_id=topic_id, subscription=row.name, expected=row.snapshot_ledger, seeks=row.seeks
        )
        if snapshot and self._is_small(len(packed)):
            self._fold_into_row(condition, snapshot)
        elif len(pack_acknowledged(row.state.acknowledged)) > self._inline_bytes:
            self._write_snapshot(condition, row, packed)

    def _fold_into_row(self, condition: CursorSnapshotCondition, snapshot: CursorSnapshot) -> None:
        limit, deadline_s = self._inline_bytes, self._clock.monotonic_s() + _RETRY_PAUSE_S
        self._clock.retry(
            lambda: self._cursors.move_snapshot_into_row(condition, snapshot, limit_bytes=limit), deadline_s=deadline_s
        )

    def _write_snapshot(self, condition: CursorSnapshotCondition, row: StoredCursor, packed: bytes) -> None:
        draft = OneEntryLedgerDraft(
            topic_id=condition.topic_id,
            component=Component.MANAGED_CURSOR,
            keys={"cursor": row.name},
            content=packed,
            properties={"mark_delete": str(row.state.mark_delete)},
        )

        def publish(created: CreatedLedger) -> bool:
            snapshot = CursorSnapshot(ledger_id=created.ledger_id, acknowledged=unpack_acknowledged(packed))
            is_published = self._cursors.publish_snapshot(
                condition, snapshot, size_bytes=created.size_bytes, sha256=created.sha256
            )
            if is_published:
                self._cache_snapshot(snapshot, len(packed))
            return is_published

        self._component_ledgers.write_and_publish(draft, publish)
