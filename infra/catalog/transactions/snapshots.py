"""The port `TransactionSnapshots` in SQL. Locks: topic, the list of the topic's snapshots, its row."""

from sqlalchemy import Connection

from infra.catalog import tables as t
from infra.catalog.deletion.intent_rows import file_intents
from infra.catalog.engine.database import OnDatabase, writes
from infra.catalog.log.components import born, retire, topic_of_newborn
from infra.catalog.log.ledger_rows import component_list, publish
from infra.catalog.transactions.buffer_rows import open_entries, views
from infra.catalog.transactions.frontier import last_entry
from infra.catalog.transactions.snapshot_rows import put_snapshot, stored_snapshot, take_due
from logstore.log.ledgers import Component
from logstore.ports.catalog import SnapshotSwitch, StoredSnapshot, TopicState
from logstore.positions import LedgerId, TopicId
from logstore.transactions.buffer import NOWHERE, Buffer


class SqlTransactionSnapshots(OnDatabase):
    """The `TransactionSnapshots` port."""

    def current(self, topic_id: TopicId) -> StoredSnapshot:
        """See `TransactionSnapshots.current`."""
        return self._db.read(lambda connection: stored_snapshot(connection, topic_id))

    def buffer(self, topic_id: TopicId) -> Buffer:
        """See `TransactionSnapshots.buffer`."""
        return self._db.read(lambda connection: _buffer(connection, topic_id))

    @writes("catalog.take_due_snapshots")
    def take_due(self, connection: Connection, *, limit: int, lease_s: float) -> list[TopicId]:
        """See `TransactionSnapshots.take_due`."""
        now = self._db.now_us(connection)
        return take_due(connection, limit=limit, now_us=now, until_us=now + round(lease_s * 1_000_000))

    @writes("catalog.publish_transaction_snapshot")
    def publish(
        self,
        connection: Connection,
        switch: SnapshotSwitch,
        ledger_id: LedgerId,
        *,
        size_bytes: int,
        sha256: str | None = None,
    ) -> bool:
        """See `TransactionSnapshots.publish`."""
        topic = topic_of_newborn(connection, switch.topic_id, ledger_id)
        if topic is None:
            return False
        mine = component_list(connection, switch.topic_id, Component.TXN_SNAPSHOT, {})
        row = born(connection, ledger_id, mine)
        if row is None or row.place is not None:
            return row is not None
        now, found = self._db.now_us(connection), stored_snapshot(connection, switch.topic_id, lock=True)
        follows = found.ledger_id == switch.expected and found.read_to <= switch.read_to
        if not follows or topic.state is not TopicState.ACTIVE:
            file_intents(connection, t.ledger.c.ledger_id == ledger_id, batch_id="", now_us=now)
            return False
        publish(connection, row, size_bytes=size_bytes, sha256=sha256, now_us=now)
        if found.ledger_id is not None:
            retire(connection, found.ledger_id, topic, reason=f"superseded by ledger {ledger_id}", now_us=now)
        put_snapshot(connection, switch, ledger_id)
        return True


def _buffer(connection: Connection, topic_id: TopicId) -> Buffer:
    """All at one moment, so that each transaction that is open here has no marker up to the last entry."""
    return Buffer(
        read_to=last_entry(connection, topic_id, empty_too=True) or NOWHERE,
        open=open_entries(connection, topic_id),
        hidden=views(connection, [topic_id])[topic_id].hidden,
    )
