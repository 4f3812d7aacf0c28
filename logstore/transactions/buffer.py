"""The buffer of a topic as its log tells it: markers, and a fold over three columns of its segments, and no payload.

Markers are entries that tell how a transaction ended, so that the log alone is enough to know it. A marker bears the
transaction's id and the catalog's epoch, so that a late one can touch no other transaction. That of a subscription
carries the positions that the transaction acknowledged, which a rebuild applies again.

Source: Pulsar's TxnCommitMarker, TxnAbortMarker and TopicTransactionBufferRecoverCallBack; a transaction with any
commit marker is committed (PIP-31); Bufstream 0.1.0 (Jepsen), whose markers had no epoch.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from pyroaring import BitMap

from logstore.cursors.state import LedgerSpan, beyond, pack_acknowledged, unite, unpack_acknowledged
from logstore.errors import CorruptData
from logstore.log.entries import Mark, NewEntry, ProducedEntries
from logstore.positions import EARLIEST, LedgerId, Position
from logstore.transactions.transactions import TransactionId, TransactionState

if TYPE_CHECKING:
    import pyarrow as pa


class Verb(StrEnum):
    """The column `marker`."""

    COMMIT = "COMMIT"
    ABORT = "ABORT"


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """How a transaction ended, for one topic or for one subscription of it."""

    txn: TransactionId
    verb: Verb
    epoch: int  # of the catalog
    subscription: str = ""  # empty: for the topic's messages
    positions: Mapping[LedgerId, BitMap] = field(default_factory=dict)


_EPOCH: Final = "epoch"
_SUBSCRIPTION: Final = "subscription"


def as_entries(markers: Sequence[Marker]) -> ProducedEntries:
    """Markers as an append of one entry each, in their order."""
    entries = [
        NewEntry(
            payload=pack_acknowledged(one.positions),
            properties={_EPOCH: str(one.epoch)} | ({_SUBSCRIPTION: one.subscription} if one.subscription else {}),
        )
        for one in markers
    ]
    return ProducedEntries(entries=entries, marks=[Mark(one.txn, one.verb.value) for one in markers])


def read_marker(txn: TransactionId, verb: str, payload: bytes, properties: Mapping[str, str]) -> Marker:
    """A marker as it was read.

    Raises:
        CorruptData: It is none.
    """
    try:
        return Marker(
            txn=txn,
            verb=Verb(verb),
            epoch=int(properties[_EPOCH]),
            subscription=properties.get(_SUBSCRIPTION, ""),
            positions=unpack_acknowledged(payload),
        )
    except (KeyError, ValueError) as error:
        shown = json.dumps(dict(properties))
        raise CorruptData(f"txn {txn}: expected a marker, found {verb!r} with {shown}") from error


COLUMNS: Final = ("txn_tc", "txn_seq", "marker")
"""What a fold reads of a segment."""

Entries = Mapping[LedgerId, BitMap]
"""Entry ids by ledger; no bitmap of a buffer is ever changed in place."""


_VERBS: Final = {None: 0, Verb.COMMIT.value: 1, Verb.ABORT.value: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """What is known of the transactions in a topic's log, up to one entry."""

    read_to: Position = EARLIEST  # the last entry that it knows of, inclusive; entry -1 of a ledger that is empty
    hidden: Entries = field(default_factory=dict)  # markers, and messages of aborted transactions
    open: Mapping[TransactionId, Entries] = field(default_factory=dict)  # messages of those without an end

    @property
    def max_read_position(self) -> Position:
        """The entry before the first message of an open transaction; entry -1 is before the first of its ledger."""
        firsts = [Position(at, bits.min()) for entries in self.open.values() for at, bits in entries.items()]
        if not firsts:
            return self.read_to
        first = min(firsts)
        return Position(first.ledger_id, first.entry_id - 1)


class Fold:
    """A buffer that is being read out of a log, segment by segment in order, up to an end that is fixed at first."""

    def __init__(self, start: Buffer, spans: Sequence[LedgerSpan]) -> None:
        """Go on from an earlier buffer of the same log.

        Args:
            start: Of ledgers that are not among `spans` it is forgotten.
            spans: The topic's ledgers in order, each with as many entries as are read.
        """
        self._start = start.read_to
        self._ends = {span.ledger_id: span.entries for span in spans}
        self._hidden = _of(start.hidden, self._ends)
        kept = {txn: _of(entries, self._ends) for txn, entries in start.open.items()}
        self._open = {txn: entries for txn, entries in kept.items() if entries}

    def wanted(self, ledger_id: LedgerId) -> range:
        """Entry ids of a ledger that are still to be read."""
        if ledger_id < self._start.ledger_id:
            return range(0)
        first = self._start.entry_id + 1 if ledger_id == self._start.ledger_id else 0
        return range(first, self._ends.get(ledger_id, 0))

    def add(self, ledger_id: LedgerId, first_entry: int, table: "pa.Table") -> None:
        """Read the next segment.

        Args:
            ledger_id: Whose.
            first_entry: The id of its first entry.
            table: `COLUMNS` of all of its entries, in order; those that are not wanted are passed over.

        Raises:
            CorruptData: A marker is neither of a commit nor of an abort.
        """
        for txn, verb, entries in _runs(ledger_id, first_entry, self.wanted(ledger_id), table):
            if not verb:
                unite(self._open.setdefault(txn, {}), {ledger_id: entries})
                continue
            unite(self._hidden, {ledger_id: entries})
            ended = self._open.pop(txn, {})  # any marker tells, also that of a subscription: no message can follow
            if verb == _VERBS[Verb.ABORT.value]:
                unite(self._hidden, ended)

    def buffer(self) -> Buffer:
        """What was read so far; all of it must have been."""
        read = [Position(ledger_id, entries - 1) for ledger_id, entries in self._ends.items()]
        read_to = max([self._start, *read])
        return Buffer(read_to=read_to, hidden=dict(self._hidden), open={txn: dict(e) for txn, e in self._open.items()})


def concluded(buffer: Buffer, states: Mapping[TransactionId, TransactionState], known: Buffer | None = None) -> Buffer:
    """The buffer once the catalog was asked for the transactions that its log leaves open.

    What was decided is decided, whether its marker is in the log yet or never will be. One that the catalog has
    forgotten ended long ago. Its marker was deleted with its ledger by force, or never written, because an operator had
    resolved the topic: what an earlier snapshot shows of it was committed, and what none shows was aborted.

    Args:
        buffer: As the log has it.
        states: Of `buffer.open`, read after its log; absent: forgotten.
        known: An earlier snapshot, if there is one.
    """
    hidden, still = dict(buffer.hidden), dict[TransactionId, Entries]()
    for txn, entries in buffer.open.items():
        state = states.get(txn)
        if state is TransactionState.OPEN:
            still[txn] = entries
        elif state is None:
            unite(hidden, entries if known is None else _unshown(entries, known))
        elif not state.commits:
            unite(hidden, entries)
    return Buffer(read_to=buffer.read_to, hidden=hidden, open=still)


def _unshown(entries: Entries, known: Buffer) -> Entries:
    """Those that the snapshot does not know, or hides, or has as messages of an open transaction."""
    unseen = dict(known.hidden)
    for others in known.open.values():
        unite(unseen, others)
    end, found = known.read_to, dict[LedgerId, BitMap]()
    for ledger_id, bits in entries.items():
        later = beyond(bits, ledger_id, end)
        found[ledger_id] = later | (bits & unseen.get(ledger_id, BitMap()))
    return {ledger_id: bits for ledger_id, bits in found.items() if bits}


def _of(entries: Entries, ledgers: Collection[LedgerId]) -> dict[LedgerId, BitMap]:
    return {ledger_id: bits for ledger_id, bits in entries.items() if ledger_id in ledgers}


def _runs(
    ledger_id: LedgerId, first_entry: int, wanted: range, table: "pa.Table"
) -> Iterator[tuple[TransactionId, int, BitMap]]:
    """Neighbouring entries that are of one transaction, or markers of it with one verb: that, and their ids."""
    import numpy as np  # noqa: PLC0415 - start-up time
    import pyarrow.compute as pc  # noqa: PLC0415

    rows = np.flatnonzero(pc.is_valid(table.column("txn_tc")).to_numpy())
    ids = rows + first_entry
    within = (ids >= wanted.start) & (ids < wanted.stop)
    rows, ids = rows[within], ids[within]
    if not len(rows):
        return
    kept = table.take(rows)
    tcs, sequences = kept.column("txn_tc").to_numpy(), kept.column("txn_seq").to_numpy()
    verbs = np.array([_VERBS.get(one, -1) for one in kept.column("marker").to_pylist()])
    if (verbs < 0).any() or kept.column("txn_seq").null_count:
        raise CorruptData(f"ledger {ledger_id}: expected markers COMMIT and ABORT of transactions, found others")
    differs = (np.diff(tcs) != 0) | (np.diff(sequences) != 0) | (np.diff(verbs) != 0)
    starts = [0, *(np.flatnonzero(differs) + 1).tolist()]
    for start, end in zip(starts, [*starts[1:], len(rows)], strict=True):
        txn = TransactionId(int(tcs[start]), int(sequences[start]))
        yield txn, int(verbs[start]), BitMap(ids[start:end].tolist())
