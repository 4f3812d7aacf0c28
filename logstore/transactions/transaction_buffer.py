"""Transaction buffer of a topic, computed from the transaction ids and transaction markers in the topic's log.

The computation reads three columns of each segment, and no message payloads. A transaction marker carries the
transaction's id and the catalog's epoch, so a late marker cannot end another transaction. The marker of a subscription
also has the positions that the transaction acknowledged. A rebuild of the catalog applies these positions again.

Source: Pulsar's TxnCommitMarker, TxnAbortMarker and TopicTransactionBufferRecoverCallBack; PIP-31, where any commit
marker makes a transaction committed; Jepsen's analysis of Bufstream 0.1.0, whose markers had no epoch.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from pyroaring import BitMap

from logstore.cursors.cursor_state import (
    VisibleLedgerSpan,
    entries_after,
    pack_acknowledged,
    unite_entries,
    unpack_acknowledged,
)
from logstore.errors import CorruptData
from logstore.log.entries import NewEntry, ProducedEntries, TransactionMarkerFields
from logstore.positions import EARLIEST, LedgerId, Position
from logstore.transactions.transaction_ids_and_states import TransactionId, TransactionState

if TYPE_CHECKING:
    import pyarrow as pa


class MarkerVerb(StrEnum):
    COMMIT = "COMMIT"
    ABORT = "ABORT"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionMarker:
    """Entry that tells a topic, or one subscription of a topic, how a transaction ended."""

    txn: TransactionId
    verb: MarkerVerb
    epoch: int  # epoch of the catalog
    subscription: str = ""  # empty for the topic's messages
    positions: Mapping[LedgerId, BitMap] = field(default_factory=dict)  # entries that the transaction acknowledged


_EPOCH_PROPERTY: Final = "epoch"
_SUBSCRIPTION_PROPERTY: Final = "subscription"


def markers_to_entries(markers: Sequence[TransactionMarker]) -> ProducedEntries:
    """Return entries of an append: one entry for each of `markers`, in the order of `markers`."""
    entries = []
    for marker in markers:
        properties = {_EPOCH_PROPERTY: str(marker.epoch)}
        if marker.subscription:
            properties[_SUBSCRIPTION_PROPERTY] = marker.subscription
        entries.append(NewEntry(payload=pack_acknowledged(marker.positions), properties=properties))
    return ProducedEntries(
        entries=entries, marks=[TransactionMarkerFields(marker.txn, marker.verb.value) for marker in markers]
    )


def parse_marker(txn: TransactionId, verb: str, payload: bytes, properties: Mapping[str, str]) -> TransactionMarker:
    """Return the transaction marker that an entry contains. Raise `CorruptData` if there is none."""
    try:
        return TransactionMarker(
            txn=txn,
            verb=MarkerVerb(verb),
            epoch=int(properties[_EPOCH_PROPERTY]),
            subscription=properties.get(_SUBSCRIPTION_PROPERTY, ""),
            positions=unpack_acknowledged(payload),
        )
    except (KeyError, ValueError) as error:
        document = json.dumps(dict(properties))
        raise CorruptData(f"txn {txn}: expected a marker, found {verb!r} with {document}") from error


COLUMNS: Final = ("txn_tc", "txn_seq", "marker")
"""Columns of a segment that `TransactionBufferAccumulator` reads."""

Entries = Mapping[LedgerId, BitMap]
"""Entry ids by ledger. The bitmaps of a buffer are never changed in place."""

_VERB_CODES: Final = {None: 0, MarkerVerb.COMMIT.value: 1, MarkerVerb.ABORT.value: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionBuffer:
    """State of the transactions in a topic's log, up to the entry `read_to`."""

    read_to: Position = EARLIEST  # last entry that was read, inclusive; entry -1 of an empty ledger
    hidden: Entries = field(default_factory=dict)  # transaction markers, and messages of aborted transactions
    open: Mapping[TransactionId, Entries] = field(default_factory=dict)  # messages of transactions without a marker

    @property
    def max_read_position(self) -> Position:
        """Entry before the first message in `open`, or `read_to` if `open` is empty. The result may be entry -1."""
        firsts = [
            Position(ledger_id, bits.min()) for entries in self.open.values() for ledger_id, bits in entries.items()
        ]
        if not firsts:
            return self.read_to
        first = min(firsts)
        return Position(first.ledger_id, first.entry_id - 1)


class TransactionBufferAccumulator:
    """Computation of a buffer from the segments of a log, in order. `spans` has each ledger's number of entries.

    `start` is an earlier buffer. Entries of `start` in ledgers outside `spans` are dropped.
    """

    def __init__(self, start: TransactionBuffer, spans: Sequence[VisibleLedgerSpan]) -> None:
        self._start = start.read_to
        self._end_by_ledger = {span.ledger_id: span.entries for span in spans}
        self._hidden = _select_ledgers(start.hidden, self._end_by_ledger)
        open_entries = {txn: _select_ledgers(entries, self._end_by_ledger) for txn, entries in start.open.items()}
        self._open = {txn: entries for txn, entries in open_entries.items() if entries}

    def unread_entries(self, ledger_id: LedgerId) -> range:
        if ledger_id < self._start.ledger_id:
            return range(0)
        first = self._start.entry_id + 1 if ledger_id == self._start.ledger_id else 0
        return range(first, self._end_by_ledger.get(ledger_id, 0))

    def add_segment(self, ledger_id: LedgerId, first_entry: int, table: "pa.Table") -> None:
        """Add the next segment. Entries that were added before are ignored.

        `table` has `COLUMNS` of all entries of the segment, in order. Raise `CorruptData` for an unknown verb.
        """
        unread = self.unread_entries(ledger_id)
        for txn, verb_code, entries in _iterate_transaction_runs(ledger_id, first_entry, unread, table):
            if not verb_code:
                unite_entries(self._open.setdefault(txn, {}), {ledger_id: entries})
                continue
            unite_entries(self._hidden, {ledger_id: entries})
            # A subscription's marker also ends the transaction: no message of the transaction follows any marker.
            ended = self._open.pop(txn, {})
            if verb_code == _VERB_CODES[MarkerVerb.ABORT.value]:
                unite_entries(self._hidden, ended)

    def buffer(self) -> TransactionBuffer:
        ends = [Position(ledger_id, entry_count - 1) for ledger_id, entry_count in self._end_by_ledger.items()]
        open_entries = {txn: dict(entries) for txn, entries in self._open.items()}
        return TransactionBuffer(read_to=max([self._start, *ends]), hidden=dict(self._hidden), open=open_entries)


def resolve_open_transactions(
    buffer: TransactionBuffer,
    states: Mapping[TransactionId, TransactionState],
    earlier: TransactionBuffer | None = None,
) -> TransactionBuffer:
    """Decide the open transactions of a buffer by their states in the catalog. Return the new buffer.

    1. A transaction that is OPEN in the catalog stays open.
    2. A transaction that is decided in the catalog is decided in the new buffer, even without a marker in the log.
    3. A transaction that is not in `states` ended long ago, and the catalog has forgotten it. The marker was deleted
       with a ledger by force, or was never written because an operator had settled the topic by hand. A message of the
       transaction is visible if it was visible in the snapshot `earlier`. Otherwise the message is hidden.

    `states` must be read after the log.
    """
    hidden, still_open = dict(buffer.hidden), dict[TransactionId, Entries]()
    for txn, entries in buffer.open.items():
        state = states.get(txn)
        if state is TransactionState.OPEN:
            still_open[txn] = entries
        elif state is None:
            unite_entries(hidden, entries if earlier is None else _select_invisible_entries(entries, earlier))
        elif not state.is_commit:
            unite_entries(hidden, entries)
    return TransactionBuffer(read_to=buffer.read_to, hidden=hidden, open=still_open)


def _select_invisible_entries(entries: Entries, earlier: TransactionBuffer) -> Entries:
    invisible = dict(earlier.hidden)
    for open_entries in earlier.open.values():
        unite_entries(invisible, open_entries)
    selected = dict[LedgerId, BitMap]()
    for ledger_id, bits in entries.items():
        unread = entries_after(bits, ledger_id, earlier.read_to)
        selected[ledger_id] = unread | (bits & invisible.get(ledger_id, BitMap()))
    return {ledger_id: bits for ledger_id, bits in selected.items() if bits}


def _select_ledgers(entries: Entries, ledgers: Collection[LedgerId]) -> dict[LedgerId, BitMap]:
    return {ledger_id: bits for ledger_id, bits in entries.items() if ledger_id in ledgers}


def _iterate_transaction_runs(
    ledger_id: LedgerId, first_entry: int, unread: range, table: "pa.Table"
) -> Iterator[tuple[TransactionId, int, BitMap]]:
    """Yield runs of adjacent entries that have the same transaction and the same verb code."""
    import numpy as np  # noqa: PLC0415 - start-up time
    import pyarrow.compute as pc  # noqa: PLC0415

    rows = np.flatnonzero(pc.is_valid(table.column("txn_tc")).to_numpy())
    ids = rows + first_entry
    is_unread = (ids >= unread.start) & (ids < unread.stop)
    rows, ids = rows[is_unread], ids[is_unread]
    if not len(rows):
        return
    selected = table.take(rows)
    tc_ids, sequences = selected.column("txn_tc").to_numpy(), selected.column("txn_seq").to_numpy()
    verb_codes = np.array([_VERB_CODES.get(verb, -1) for verb in selected.column("marker").to_pylist()])
    if (verb_codes < 0).any() or selected.column("txn_seq").null_count:
        raise CorruptData(f"ledger {ledger_id}: expected markers COMMIT and ABORT of transactions, found others")
    differs = (np.diff(tc_ids) != 0) | (np.diff(sequences) != 0) | (np.diff(verb_codes) != 0)
    starts = [0, *(np.flatnonzero(differs) + 1).tolist()]
    for start, end in zip(starts, [*starts[1:], len(rows)], strict=True):
        txn = TransactionId(int(tc_ids[start]), int(sequences[start]))
        yield txn, int(verb_codes[start]), BitMap(ids[start:end].tolist())
