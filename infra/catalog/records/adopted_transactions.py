"""Transactions as the segments tell of them that adoption takes in."""

from base64 import b64decode
from collections.abc import Iterable, Sequence
from functools import cached_property

from pyroaring import BitMap
from sqlalchemy import Connection, func, select

from infra.catalog import tables as t
from infra.catalog.transactions.buffer_rows import forget_entries_from, hide_entries, insert_ranges
from infra.catalog.transactions.deciding import settle_cursors, store_decisions
from infra.catalog.transactions.participant_rows import insert_participants, replace_held
from infra.catalog.transactions.transaction_rows import insert_open, lock_transactions, read_states
from logstore.cursors.state import unpack_acknowledged
from logstore.ports.catalog import StoredParticipant
from logstore.positions import LedgerId, TopicId
from logstore.records.adoption import AdoptedSegment, FoundMarker
from logstore.transactions.transactions import Participant, TransactionId, TransactionState


def decided_at_flush(connection: Connection, named: Iterable[TransactionId]) -> set[TransactionId]:
    """Those that were decided at the flush; what adoption has decided since is later, whatever clock it has."""
    flushed = _flushed_us(connection)
    rows = lock_transactions(connection, named)
    return {txn for txn, row in rows.items() if row.decided_us is not None and row.decided_us <= flushed}


def adopt_transactions(
    connection: Connection, topic_id: TopicId, name: str, taken: Sequence[AdoptedSegment], *, now_us: int
) -> None:
    """Write ranges and markers, and the transactions: as far as a marker says, otherwise open and past their time.

    What a transaction acknowledged comes back with its marker, and a commit is applied to the subscription. That of a
    transaction which was decided at the flush is not: a flush writes such a decision together with the cursors that it
    changed, and a seek that came later may be in these rows.

    Args:
        connection: In a writing transaction.
        topic_id: Whose segments they are.
        name: Of the topic.
        taken: The segments, in the order of the log; what is registered of earlier ones was told before.
        now_us: By the catalog's clock.
    """
    _Told(connection, topic_id, name, taken, now_us).write()


def _flushed_us(connection: Connection) -> int:
    return int(connection.execute(select(func.coalesce(t.record_log.c.flushed_us, 0))).scalar_one())


class _Told:
    """Transactions as the adopted segments of a topic tell of them."""

    def __init__(
        self, connection: Connection, topic_id: TopicId, name: str, taken: Sequence[AdoptedSegment], now_us: int
    ) -> None:
        self._connection, self._topic_id, self._name = connection, topic_id, name
        self._taken, self._now = taken, now_us

    def write(self) -> None:
        runs = [
            (one.ledger_id, one.first_entry + run.offset, run.entries, self._topic_id, run.txn)
            for one in self._taken
            for run in one.upload.transactions
        ]
        named = {run[-1] for run in runs} | {marker.txn for marker in self._markers}
        unknown = sorted(named - read_states(self._connection, named).keys()) if named else []
        if unknown:
            insert_open(self._connection, [(txn, -1) for txn in unknown], now_us=self._now)
        joined = {(txn, Participant(self._topic_id), self._name) for *_, txn in runs}
        joined |= {(one.txn, self._of(one), self._name) for one in self._markers if one.subscription}
        insert_participants(self._connection, joined)
        self._forget_former_entries()
        rows = [(*run[:-1], run[-1].tc_id, run[-1].sequence) for run in runs]
        insert_ranges(self._connection, rows)
        hidden: dict[LedgerId, BitMap] = {}
        for one in self._taken:
            bits = BitMap(one.first_entry + marker.offset for marker in one.upload.markers)
            if bits:
                hidden[one.ledger_id] = hidden.get(one.ledger_id, BitMap()) | bits
        hide_entries(self._connection, dict.fromkeys(hidden, self._topic_id), hidden)
        self._decide()

    def _forget_former_entries(self) -> None:
        """A rebuild that skips a block of segments or ledgers still has the buffers of the entries that it lost."""
        first_entry_by_ledger: dict[LedgerId, int] = {}
        for one in self._taken:
            first = first_entry_by_ledger.get(one.ledger_id, one.first_entry)
            first_entry_by_ledger[one.ledger_id] = min(first, one.first_entry)
        forget_entries_from(self._connection, first_entry_by_ledger)

    def _decide(self) -> None:
        known = decided_at_flush(self._connection, {one.txn for one in self._markers}) if self._markers else set()
        held = [one for one in self._markers if one.subscription and one.positions and one.txn not in known]
        for one in held:
            replace_held(self._connection, one.txn, self._of(one), unpack_acknowledged(b64decode(one.positions)))
        states = read_states(self._connection, {one.txn for one in self._markers}) if self._markers else {}
        decided = {
            one.txn: TransactionState.COMMITTING if one.commits else TransactionState.ABORTING
            for one in self._markers
            if states[one.txn] is TransactionState.OPEN
        }
        store_decisions(self._connection, decided, now_us=max(self._now, _flushed_us(self._connection) + 1))
        settle_cursors(
            self._connection,
            [
                StoredParticipant(
                    participant=self._of(one),
                    topic=self._name,
                    positions=unpack_acknowledged(b64decode(one.positions)),
                )
                for one in held
                if one.commits
            ],
        )

    @cached_property
    def _markers(self) -> list[FoundMarker]:
        return [marker for one in self._taken for marker in one.upload.markers]

    def _of(self, marker: FoundMarker) -> Participant:
        return Participant(self._topic_id, marker.subscription)
