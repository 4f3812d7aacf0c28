"""Subscriptions with their complete state, which is in the cursor's row and in the cursor snapshot.

A state that is too large for the cursor's row moves to a cursor ledger, and back when the state is small. A failed move
loses nothing, because the earlier row and snapshot stay. The failure is logged, and a later acknowledgement moves the
state. The failed move may leave a newborn ledger, which the topic's trim detaches.
"""

import logging
import threading
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

from logstore.catalog.cursors.cursors import Cursors
from logstore.catalog.log.message_ledgers import MessageLedgers
from logstore.catalog.transactions.sql_transactions import Transactions
from logstore.cursors.cursor_state import (
    CursorSnapshot,
    CursorState,
    complete_state,
    pack_acknowledged,
    select_ledgers,
    unpack_acknowledged,
)
from logstore.errors import CatalogBusy, MissingData, SextonError, SnapshotNeeded
from logstore.log.ledgers import Component
from logstore.log.services.component_ledgers import ComponentLedgers, CreatedLedger, OneEntryLedgerDraft
from logstore.log.services.group_commit import GroupCommitter
from logstore.ports.catalog.cursors import CursorSnapshotCondition, StoredCursor
from logstore.ports.catalog.log import AcknowledgeResult, AcknowledgeWrite
from logstore.positions import LedgerId, Position, TopicId
from logstore.retrying_clock import Clock
from logstore.stop_checks import raise_if_stopped
from logstore.transactions.pending_acks import hide_held
from logstore.transactions.transaction_ids_and_states import TransactionId

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
            limit, deadline_s = self._inline_bytes, self._clock.monotonic_s() + _RETRY_PAUSE_S
            self._clock.retry(
                lambda: self._cursors.move_snapshot_into_row(condition, snapshot, limit_bytes=limit),
                deadline_s=deadline_s,
            )
        elif len(pack_acknowledged(row.state.acknowledged)) > self._inline_bytes:
            self._write_snapshot(condition, row, packed)

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


_MAX_SNAPSHOT_CHANGES: Final = 16
"""Number of times that other processes may replace a snapshot during one call before the call gives up."""

_MAX_REMEMBERED_SUBSCRIPTIONS: Final = 10_000
"""Maximum number of subscriptions whose snapshots a process remembers. The process then forgets all snapshots."""


class Subscriptions:
    """Subscriptions of all topics. Thread-safe."""

    def __init__(
        self, *, cursors: Cursors, transactions: Transactions, committer: GroupCommitter, snapshots: CursorSnapshots
    ) -> None:
        self._cursors, self._transactions = cursors, transactions
        self._committer = committer
        self._snapshots = snapshots
        self._snapshot_by_subscription: dict[tuple[TopicId, str], LedgerId] = {}

    def subscribe(self, topic_id: TopicId, name: str, *, latest: bool) -> StoredCursor:
        """Create the subscription before the first listed entry, or with `latest` after the last entry. Idempotent.

        Raises:
            UnknownObject: The topic does not exist.
            PreconditionFailed: The topic is not ACTIVE.
            MissingData, CorruptData, StoreUnavailable, CatalogBusy: The errors of `get`.
        """
        return self._load_subscription(topic_id, self._cursors.create_subscription(topic_id, name, latest=latest))

    def get(self, topic_id: TopicId, name: str) -> StoredCursor:
        """Return the subscription.

        Raises:
            UnknownObject: The subscription does not exist.
            MissingData: The cursor ledger is lost. A seek replaces the lost state.
            CorruptData: The cursor ledger is damaged.
            StoreUnavailable, CatalogBusy: The catalog or storage did not answer.
        """
        return self._load_subscription(topic_id, self._cursors.get_cursor(topic_id, name))

    def read_state(self, topic_id: TopicId, name: str) -> CursorState:
        """Return the state for a consumer. The state includes the acknowledgements of open transactions."""
        return self.get_for_consumer(topic_id, name).state

    def get_for_consumer(self, topic_id: TopicId, name: str) -> StoredCursor:
        """Return the subscription with the state of `read_state`. Raise the errors of `get`.

        If an open transaction aborts later, the entries that it acknowledged are given back, which raises the releases.
        An acknowledgement up to a position with the `releases` of this result is then refused.
        """
        # Held entries are read before the cursor, because a commit moves them to the cursor.
        held_entries = self._transactions.find_held_entries(topic_id, name)
        subscription = self.get(topic_id, name)
        if not held_entries:
            return subscription
        # These releases were read before the held entries. Releases read later could include an abort after this read.
        releases = subscription.releases
        held_entries = self._transactions.find_held_entries(topic_id, name)
        subscription = self.get(topic_id, name)
        return replace(subscription, state=hide_held(subscription.state, held_entries), releases=releases)

    def all(self, topic_id: TopicId) -> list[StoredCursor]:
        """Return the topic's subscriptions, ascending by name. `lost_snapshot` names a cursor ledger that is lost."""
        return [self._load_subscription_or_loss(topic_id, row) for row in self._cursors.list_cursors(topic_id)]

    def acknowledge(
        self,
        topic_id: TopicId,
        name: str,
        *,
        positions: Sequence[Position] = (),
        up_to: Position | None = None,
        releases: int | None = None,
        txn: TransactionId | None = None,
    ) -> AcknowledgeResult:
        """Acknowledge `positions` and all entries up to `up_to`. With neither, only advance the mark-delete position.

        With `txn`, the acknowledgement takes effect when the transaction commits. Until the transaction is decided, no
        consumer gets the entries again.

        With `up_to` the caller states that it has received all entries up to `up_to`. `releases` must be the
        `StoredCursor.releases` that the caller got before it read these entries. `None` means 0 releases, and the call
        is refused if these entries may have a delivery time.

        Idempotency: to acknowledge an entry again changes nothing.

        Raises:
            UnknownObject: The subscription does not exist.
            InvalidInput: No reader can have received the entry of a position.
            TransactionNotOpen: The transaction is decided.
            AcknowledgementHeld: An entry is acknowledged in another open transaction. With `txn`, also if an entry is
                already acknowledged.
            AcknowledgementStale: An abort, an expired transaction, a seek or a rebuild of the catalog has given entries
                back since `up_to` was read. Or `releases` is `None`, and a segment up to `up_to` has delayed messages.
            MissingData, CorruptData: The errors of `get`.
            StoreUnavailable, CatalogBusy: Nothing is acknowledged.
            OutcomeUnknown: The entries may be acknowledged.
        """
        request = AcknowledgeWrite(
            topic_id=topic_id, subscription=name, positions=tuple(positions), up_to=up_to, txn=txn, releases=releases
        )
        ledger_id = self._snapshot_by_subscription.get((topic_id, name))
        snapshot = None if ledger_id is None else self._snapshots.get_cached_snapshot(ledger_id)
        for _ in range(_MAX_SNAPSHOT_CHANGES):
            try:
                answer = self._committer.commit_write(replace(request, snapshot=snapshot))
            except SnapshotNeeded as refused:
                snapshot = self._load_snapshot_or_successor(topic_id, name, LedgerId(refused.needed))
            else:
                if answer.snapshot_ledger is None:
                    self._snapshot_by_subscription.pop((topic_id, name), None)
                self._snapshots.write_or_fold_snapshot_after_acknowledgement(topic_id, name, answer, snapshot)
                return answer
        raise _snapshot_keeps_changing(topic_id, name)

    def seek(self, topic_id: TopicId, name: str, position: Position) -> StoredCursor:
        """Set the cursor so that `position` is its next entry. All acknowledgements are dropped.

        Raises:
            UnknownObject: The topic or the subscription does not exist.
            InvalidInput: The position is after the end of the log.
            PreconditionFailed: The topic is not ACTIVE.
        """
        return self._load_subscription(topic_id, self._cursors.seek_cursor(topic_id, name, position))

    def advance_and_fold_cursors_with_snapshots(self, topic_id: TopicId) -> list[SextonError]:
        """Advance each cursor that has a snapshot, and fold small snapshots. Return the errors of cursors that failed.

        A forced detach moves mark-delete positions without reading snapshots. The first entries after the new position
        may be acknowledged in the snapshot. Without new acknowledgements, this position would never advance, and
        ledgers whose entries are all acknowledged would be kept (apache/pulsar#9136).
        """
        errors = []
        for name in self._cursors.find_cursors_with_snapshot([topic_id]).get(topic_id, []):
            raise_if_stopped()
            try:
                self.acknowledge(topic_id, name)
                self._snapshots.write_or_fold_snapshot(topic_id, name)
            except SextonError as error:
                errors.append(error)
        return errors

    def select_topics_to_advance(self, topic_ids: Collection[TopicId]) -> frozenset[TopicId]:
        return frozenset(self._cursors.find_cursors_with_snapshot(topic_ids))

    def _load_subscription_or_loss(self, topic_id: TopicId, row: StoredCursor) -> StoredCursor:
        try:
            return self._load_subscription(topic_id, row)
        except MissingData:
            current = self._cursors.get_cursor(topic_id, row.name)
            return replace(current, lost_snapshot=current.snapshot_ledger)

    def _load_subscription(self, topic_id: TopicId, row: StoredCursor) -> StoredCursor:
        for _ in range(_MAX_SNAPSHOT_CHANGES):
            if row.snapshot_ledger is None:
                return row
            if snapshot := self._snapshots.load_snapshot(row.snapshot_ledger):
                return replace(row, state=complete_state(row.state, snapshot))
            row = self._require_changed_row(topic_id, row.name, row.snapshot_ledger)
        raise _snapshot_keeps_changing(topic_id, row.name)

    def forget(self) -> None:
        """Forget the snapshots of all subscriptions. The next acknowledgements look the snapshots up again."""
        self._snapshot_by_subscription.clear()

    def _load_snapshot_or_successor(self, topic_id: TopicId, name: str, first: LedgerId) -> CursorSnapshot | None:
        ledger_id: LedgerId | None = first
        for _ in range(_MAX_SNAPSHOT_CHANGES):
            if ledger_id is None:
                return None
            snapshot = self._snapshots.load_snapshot(ledger_id)
            if snapshot:
                if len(self._snapshot_by_subscription) >= _MAX_REMEMBERED_SUBSCRIPTIONS:
                    self._snapshot_by_subscription.clear()
                self._snapshot_by_subscription[topic_id, name] = ledger_id
                return snapshot
            ledger_id = self._require_changed_row(topic_id, name, ledger_id).snapshot_ledger
        raise _snapshot_keeps_changing(topic_id, name)

    def _require_changed_row(self, topic_id: TopicId, name: str, missed: LedgerId) -> StoredCursor:
        """Read the row again. Raise `MissingData` if the row still names the ledger `missed`, which does not exist."""
        row = self._cursors.get_cursor(topic_id, name)
        if row.snapshot_ledger == missed:
            problem = f"topic {topic_id}, subscription {name}: cursor ledger {missed} is listed and no copy holds it"
            raise MissingData(f"{problem}; a seek replaces the state")
        return row


def _snapshot_keeps_changing(topic_id: TopicId, name: str) -> CatalogBusy:
    return CatalogBusy(
        f"topic {topic_id}, subscription {name}: its snapshot was replaced {_MAX_SNAPSHOT_CHANGES} times meanwhile"
    )
