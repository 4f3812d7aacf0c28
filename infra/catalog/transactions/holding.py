"""Acknowledgements of transactions in a group commit: held in a participant's row until the transaction is decided."""

from collections.abc import Mapping, Sequence

from pyroaring import BitMap
from sqlalchemy import Connection, select

from infra.catalog import tables as t
from infra.catalog.engine.many import any_of
from infra.catalog.transactions.participant_rows import held, hold, join
from logstore.cursors.state import CursorState, LedgerSpan
from logstore.errors import TransactionNotOpen, UnknownObject
from logstore.ports.catalog import Acknowledge
from logstore.positions import LedgerId, TopicId
from logstore.transactions.pending_acks import require_free, taken
from logstore.transactions.transactions import Participant, TransactionId, TransactionState

_Key = tuple[TopicId, str]


class Holding:
    """What transactions hold of the subscriptions that a batch of acknowledgements is of; cursors are locked."""

    def __init__(
        self,
        connection: Connection,
        writes: Sequence[Acknowledge],
        transactions: Mapping[TransactionId, TransactionState],
    ) -> None:
        """Read what is held of subscriptions of which entries are acknowledged; rows of the transactions are locked."""
        self._connection, self._transactions = connection, transactions
        some = [write for write in writes if write.txn is not None or write.positions or write.up_to is not None]
        keys = {(write.topic_id, write.subscription) for write in some}
        self._held = held(connection, keys)
        self._changed: dict[tuple[TransactionId, Participant], dict[LedgerId, BitMap]] = {}

    def hold(self, write: Acknowledge, txn: TransactionId, state: CursorState, spans: Sequence[LedgerSpan]) -> None:
        """Hold what the write asks for.

        Raises:
            UnknownObject, TransactionNotOpen: The transaction does not exist, or is decided.
            InvalidInput, AcknowledgementHeld: See `taken`.
        """
        found = self._transactions.get(txn)
        if found is None:
            raise UnknownObject("txn", expected="a transaction of this catalog", found=str(txn))
        if found is not TransactionState.OPEN:
            raise TransactionNotOpen(str(txn), doing="acknowledge", state=found.value)
        mine = self._held[write.topic_id, write.subscription]
        mine[txn] = taken(write.subscription, state, spans, mine, txn, positions=write.positions, up_to=write.up_to)
        self._changed[txn, Participant(write.topic_id, write.subscription)] = mine[txn]

    def require_free(self, write: Acknowledge, state: CursorState) -> None:
        """Refuse a plain acknowledgement of what is held.

        Raises:
            AcknowledgementHeld: See `pending_acks.require_free`.
        """
        mine = self._held.get((write.topic_id, write.subscription), {})
        require_free(write.subscription, state, mine, positions=write.positions, up_to=write.up_to)

    def put(self) -> None:
        """Write what has changed."""
        if not self._changed:
            return
        ids = {participant.topic_id for _, participant in self._changed}
        query = select(t.topic.c.topic_id, t.topic.c.name).where(
            t.topic.c.topic_id.in_(any_of(self._connection.dialect.name, ids))
        )
        names = {TopicId(row.topic_id): row.name for row in self._connection.execute(query)}
        join(self._connection, [(txn, one, names.get(one.topic_id, "")) for txn, one in self._changed])
        for (txn, one), positions in self._changed.items():
            hold(self._connection, txn, one, positions)
