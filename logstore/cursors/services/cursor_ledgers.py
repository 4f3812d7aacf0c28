"""Cursor ledgers: a state that has outgrown its row is written to a ledger, and comes back when it is small.

Nothing here is needed for an acknowledgement to be stored: it is in the row when it is answered. So all of it is
best effort, logged when it fails, and tried again at a later acknowledgement; what a failure leaves is a newborn
that the topic's trim detaches.
"""

import logging
import threading
from collections import OrderedDict
from typing import Final

from logstore.clock import Clock
from logstore.cursors.state import Snapshot, of_ledgers, pack_acknowledged, unpack_acknowledged, whole
from logstore.errors import SextonError
from logstore.log.ledgers import Component
from logstore.log.services.component_ledgers import ComponentLedgers, CreatedLedger, Draft
from logstore.ports.catalog import Acknowledged, Cursors, Ledgers, SnapshotChange, StoredCursor
from logstore.positions import LedgerId, TopicId

_LOG: Final = logging.getLogger(__name__)

_CACHE_BYTES: Final = 64 << 20
"""Snapshots kept in memory, packed size; one that is larger than all of it is kept alone."""

_PAUSE_S: Final = 5.0
"""After a failure this cursor's snapshot is left alone for so long: each try that fails leaves a newborn behind."""

_Key = tuple[TopicId, str]


class CursorLedgers:
    """The snapshots of one process: read once, since a ledger never changes, and written one at a time a cursor."""

    def __init__(
        self,
        *,
        cursors: Cursors,
        ledgers: Ledgers,
        contents: ComponentLedgers,
        inline_bytes: int,
        clock: Clock | None = None,
    ) -> None:
        """Work on a catalog's cursors.

        Args:
            cursors: The catalog's cursors.
            ledgers: The catalog's data ledgers.
            contents: Writes and reads component ledgers.
            inline_bytes: A row that holds more gives its state to a ledger; it takes back half of that.
            clock: For tests; the process's own by default.
        """
        self._cursors = cursors
        self._ledgers = ledgers
        self._contents = contents
        self._inline_bytes = inline_bytes
        self._clock = clock or Clock()
        self._cache: OrderedDict[LedgerId, tuple[Snapshot, int]] = OrderedDict()
        self._lock = threading.Lock()
        self._busy: set[_Key] = set()
        self._not_before_s: dict[_Key, float] = {}

    def load(self, ledger_id: LedgerId) -> Snapshot | None:
        """What the ledger holds, or None when it is gone from the catalog or from storage.

        Raises:
            CorruptData: The ledger does not hold what was written.
            StoreUnavailable, CatalogBusy: The catalog or storage did not answer.
        """
        known = self.cached(ledger_id)
        if known:
            return known
        packed = self._contents.read(ledger_id)
        if packed is None:
            return None
        return self._remember(Snapshot(ledger_id=ledger_id, acknowledged=unpack_acknowledged(packed)), len(packed))

    def cached(self, ledger_id: LedgerId) -> Snapshot | None:
        """What this process has read or written of the ledger already."""
        with self._lock:
            if ledger_id not in self._cache:
                return None
            self._cache.move_to_end(ledger_id)
            return self._cache[ledger_id][0]

    def _remember(self, snapshot: Snapshot, size_bytes: int) -> Snapshot:
        with self._lock:
            self._cache[snapshot.ledger_id] = (snapshot, size_bytes)
            while len(self._cache) > 1 and sum(size for _, size in self._cache.values()) > _CACHE_BYTES:
                self._cache.popitem(last=False)
        return snapshot

    def tend(self, topic_id: TopicId, name: str, answer: Acknowledged, held: Snapshot | None) -> None:
        """After an acknowledgement: write a snapshot or fold one, if it is time; never raises for a failure.

        Args:
            topic_id: Whose.
            name: The subscription.
            answer: Of the acknowledgement.
            held: The snapshot that it was made with.
        """
        grown = answer.row_bytes > self._inline_bytes
        counts = held is not None and held.ledger_id == answer.snapshot_ledger
        if grown or (counts and held and self._is_small(held.bytes_beyond(answer.mark_delete) + answer.row_bytes)):
            self.settle(topic_id, name)

    def settle(self, topic_id: TopicId, name: str) -> None:
        """Look at the cursor as it is now, and write or fold its snapshot if it is time; never raises for a failure."""
        key = (topic_id, name)
        if not self._begin(key):
            return
        try:
            self._settle(topic_id, self._cursors.get(topic_id, name))
            self._not_before_s.pop(key, None)
        except SextonError as error:
            self._not_before_s[key] = self._clock.monotonic_s() + _PAUSE_S
            _LOG.warning("topic %s, subscription %s: its state stays where it is: %s", topic_id, name, error)
        finally:
            with self._lock:
                self._busy.discard(key)

    def _begin(self, key: _Key) -> bool:
        """Whether no thread of this process writes it now, and its last failure is some time ago."""
        with self._lock:
            late = self._clock.monotonic_s() >= self._not_before_s.get(key, float("-inf"))
            free = late and key not in self._busy
            if free:
                self._busy.add(key)
            return free

    def _is_small(self, size_bytes: int) -> bool:
        return size_bytes <= self._inline_bytes // 2

    def _settle(self, topic_id: TopicId, row: StoredCursor) -> None:
        held = None if row.snapshot_ledger is None else self.load(row.snapshot_ledger)
        if row.snapshot_ledger is not None and held is None:
            return  # superseded since, or lost: the next acknowledgement is told
        listed = {ledger.ledger_id for ledger in self._ledgers.listed(topic_id)}
        acknowledged = of_ledgers(whole(row.state, held).acknowledged, listed)
        packed = pack_acknowledged(acknowledged)
        change = SnapshotChange(topic_id=topic_id, subscription=row.name, expected=row.snapshot_ledger, seeks=row.seeks)
        if held and self._is_small(len(packed)):
            self._fold(change, held)
        elif len(pack_acknowledged(row.state.acknowledged)) > self._inline_bytes:
            self._write(change, row, packed)

    def _fold(self, change: SnapshotChange, held: Snapshot) -> None:
        limit, deadline_s = self._inline_bytes, self._clock.monotonic_s() + _PAUSE_S
        self._clock.patiently(
            lambda: self._cursors.fold_snapshot(change, held, limit_bytes=limit), deadline_s=deadline_s
        )

    def _write(self, change: SnapshotChange, row: StoredCursor, packed: bytes) -> None:
        draft = Draft(
            topic_id=change.topic_id,
            component=Component.MANAGED_CURSOR,
            keys={"cursor": row.name},
            content=packed,
            properties={"mark_delete": str(row.state.mark_delete)},
        )

        def publish(born: CreatedLedger) -> bool:
            snapshot = Snapshot(ledger_id=born.ledger_id, acknowledged=unpack_acknowledged(packed))
            published = self._cursors.publish_snapshot(change, snapshot, size_bytes=born.size_bytes, sha256=born.sha256)
            if published:
                self._remember(snapshot, len(packed))
            return published

        self._contents.write(draft, publish)
