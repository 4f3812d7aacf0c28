"""Markers: entries of a topic's log that tell how a transaction ended, so that the log alone is enough to know it.

A marker bears the transaction's id and the catalog's epoch, so that a late one can touch no other transaction. That of
a subscription carries the positions that the transaction acknowledged, which a rebuild applies again.

Source: Pulsar's TxnCommitMarker and TxnAbortMarker; Bufstream 0.1.0 (Jepsen), whose markers had no epoch.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from pyroaring import BitMap

from logstore.cursors.state import pack_acknowledged, unpack_acknowledged
from logstore.errors import CorruptData
from logstore.log.entries import Mark, NewEntry, ProducedEntries
from logstore.positions import LedgerId
from logstore.transactions.transactions import TransactionId


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
