"""Snapshots of transaction buffers: written after changes, off the path of appends and commits, and read back.

Nobody waits for a snapshot, and nothing is lost without one: it bounds how much log a rebuild reads. The buffer, as SQL
has it at one moment, is stored as a component's ledger and switched to by one transaction; a writer that dies before
it leaves a newborn, which a trim of the topic takes away.

Source: Pulsar's SnapshotSegmentAbortedTxnProcessor (PIP-196).
"""

import logging
from typing import Final

from logstore.errors import CorruptData, SextonError
from logstore.failpoints import effect
from logstore.log.ledgers import Component
from logstore.log.services.component_ledgers import ComponentLedgers, CreatedLedger, Draft
from logstore.ports.catalog import SnapshotSwitch, TransactionSnapshots
from logstore.positions import LedgerId, TopicId
from logstore.transactions.buffer import Buffer
from logstore.transactions.snapshots import pack, unpack

_LOG: Final = logging.getLogger(__name__)

_LEASE_S: Final = 60.0
"""A topic whose snapshot failed, or whose writer died, is due again after that."""

_AT_ONCE: Final = 16


class BufferSnapshots:
    """Writes and reads snapshots. Threads share one; any number of processes may run."""

    def __init__(self, *, snapshots: TransactionSnapshots, contents: ComponentLedgers) -> None:
        """Work on a catalog and the ledgers of its components."""
        self._snapshots, self._contents = snapshots, contents

    def write_due(self) -> int:
        """Write a page of snapshots that are due, from what SQL says; how many were due.

        A topic that fails is logged and due again later. Idempotency: two writers of one topic leave one snapshot.

        Raises:
            StoreUnavailable, CatalogBusy: The catalog does not say what is due.
        """
        due = self._snapshots.take_due(limit=_AT_ONCE, lease_s=_LEASE_S)
        for topic_id in due:
            try:
                expected = self._snapshots.current(topic_id).ledger_id
                self._write(topic_id, self._snapshots.buffer(topic_id), expected)
            except SextonError as error:
                _LOG.warning("topic %s: its transactions' snapshot is not written: %s", topic_id, error)
        return len(due)

    def replace(self, topic_id: TopicId, buffer: Buffer) -> bool:
        """Make this buffer the topic's snapshot, unless there is one that knows of more entries; whether it is.

        Raises:
            UnknownObject, PreconditionFailed: The topic does not exist or is not ACTIVE.
            StoreUnavailable, CatalogBusy, OutcomeUnknown: Bounded retries were not enough; repeating is fine.
        """
        found = self._snapshots.current(topic_id)
        return found.read_to <= buffer.read_to and self._write(topic_id, buffer, found.ledger_id)

    def _write(self, topic_id: TopicId, buffer: Buffer, expected: LedgerId | None) -> bool:
        switch = SnapshotSwitch(topic_id=topic_id, expected=expected, read_to=buffer.read_to)
        draft = Draft(
            topic_id=topic_id,
            component=Component.TXN_SNAPSHOT,
            keys={},
            content=pack(topic_id, buffer),
            properties={"read_to": str(buffer.read_to), "max_read_position": str(buffer.max_read_position)},
        )

        def publish(born: CreatedLedger) -> bool:
            return self._snapshots.publish(switch, born.ledger_id, size_bytes=born.size_bytes, sha256=born.sha256)

        with effect("transactions.write_snapshot"):
            return self._contents.write(draft, publish)

    def load(self, topic_id: TopicId) -> Buffer | None:
        """The topic's snapshot; None where there is none, or it is damaged, which is logged.

        Raises:
            StoreUnavailable, CatalogBusy: The catalog or storage did not answer.
        """
        ledger_id = self._snapshots.current(topic_id).ledger_id
        if ledger_id is None:
            return None
        try:
            content = self._contents.read(ledger_id)
            return unpack(content or b"", topic_id)
        except CorruptData as damaged:
            _LOG.warning("topic %s: the whole log is read, because its snapshot is damaged: %s", topic_id, damaged)
            return None
