"""What a segment's object tells of its registration, read without payloads: metadata and a few columns.

Markers alone are read with their payload, which has the positions that a transaction acknowledged.
"""

import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Final

import pyarrow.compute as pc

from logstore.cursors.state import pack_acknowledged
from logstore.errors import CorruptData, StoreUnavailable
from logstore.log.entries import FOOTER_FIELD, decode_segment
from logstore.log.ledgers import (
    DIGEST_FIELD,
    EXTENT_FIELD,
    UPLOAD_ID_FIELD,
    LedgerStatement,
    RegisteredExtent,
    SegmentUploadId,
    sha256_hex,
)
from logstore.log.services.read_back import read_twice
from logstore.log.services.segment_file import (
    MAX_WHOLE_READ_BYTES,
    SegmentGone,
    read_by_ranges,
    read_footer_with_metadata,
)
from logstore.ports.catalog import Segment
from logstore.ports.objects import ObjectInfo, ObjectStore
from logstore.positions import LedgerId
from logstore.records.adoption import Advance, FoundMarker, Run, Upload
from logstore.transactions.buffer import MarkerVerb, parse_marker
from logstore.transactions.transactions import TransactionId

if TYPE_CHECKING:
    import pyarrow as pa

_COLUMNS: Final = ("deliver_at_ms", "producer", "sequence_id", "txn_tc", "txn_seq", "marker")
_OF_MARKERS: Final = ("payload", "properties")


def read_upload(objects: ObjectStore, ledger_id: LedgerId, number: int, found: ObjectInfo) -> Upload | None:
    """What the object tells; None where it does not say whose it is.

    Args:
        objects: The primary bucket.
        ledger_id: Whose prefix it stands in.
        number: Of its key.
        found: As it was listed.

    Raises:
        CorruptData: It is not what its own metadata says, or no segment.
        StoreUnavailable: The store did not answer, or denied twice what it had listed.
    """
    try:
        return read_twice(lambda: _read_upload(objects, ledger_id, number, found))
    except SegmentGone:
        pass  # one answer is not believed against a listing: an append that was answered would be lost
    try:
        return read_twice(lambda: _read_upload(objects, ledger_id, number, found))
    except SegmentGone:
        raise denied(found.key, "GET") from None


def denied(key: str, method: str) -> StoreUnavailable:
    """The error of a listed object that the store says it has not; a retry lists anew, and goes on if it is gone."""
    return StoreUnavailable(f"{key}: LIST shows it, {method} does not find it; try again")


def _read_upload(objects: ObjectStore, ledger_id: LedgerId, number: int, found: ObjectInfo) -> Upload | None:
    metadata, body = _seen(objects, ledger_id, found)
    try:
        epoch = LedgerStatement.from_metadata(metadata).epoch
    except CorruptData:
        return None
    row = Segment(
        ledger_id=ledger_id,
        number=number,
        first_entry=0,
        entries=0,
        size_bytes=found.size_bytes,
        sha256=metadata.get(DIGEST_FIELD),
        delayed=0,
    )
    table = _Columns(objects, found.key, row, metadata, body).table()
    return Upload(
        number=number,
        entries=table.num_rows,
        size_bytes=row.size_bytes,
        sha256=row.sha256,
        epoch=epoch,
        mark=SegmentUploadId.parse(metadata.get(UPLOAD_ID_FIELD)),
        behind=RegisteredExtent.parse(metadata.get(EXTENT_FIELD)),
        producers=_advances(table),
        numbered=len(table) - table.column("sequence_id").null_count,
        transactions=tuple(_runs(table)),
        markers=tuple(_markers(table)),
        delayed=len(table) - table.column("deliver_at_ms").null_count,
    )


def _seen(objects: ObjectStore, ledger_id: LedgerId, found: ObjectInfo) -> tuple[Mapping[str, str], bytes | None]:
    """Its metadata; and its content, where one request for both is cheaper than one for each."""
    if found.size_bytes <= MAX_WHOLE_READ_BYTES:
        stored = objects.get(found.key)
        if stored is None:
            raise SegmentGone(ledger_id, found.key)
        return stored.metadata, stored.body
    seen = objects.head(found.key)
    if seen is None:
        raise SegmentGone(ledger_id, found.key)
    return seen[1], None


class _Columns:
    """The columns of one object, of which as little as possible is fetched."""

    def __init__(
        self, objects: ObjectStore, key: str, row: Segment, metadata: Mapping[str, str], body: bytes | None
    ) -> None:
        self._objects, self._key, self._row, self._metadata, self._body = objects, key, row, metadata, body

    def table(self) -> "pa.Table":
        if self._body is not None:
            body = self._checked(self._body)
            table = self._decoded(body)
            return self._decoded(body, with_markers=True) if _has_markers(table) else table
        footer = (
            read_footer_with_metadata(self._objects, self._row, self._metadata)
            if self._metadata.get(FOOTER_FIELD)
            else None
        )
        table = read_by_ranges(self._objects, self._row, _COLUMNS, footer)
        return self._decoded(self._whole(), with_markers=True) if _has_markers(table) else table

    def _whole(self) -> bytes:
        stored = self._objects.get(self._key)
        if stored is None:
            raise SegmentGone(self._row.ledger_id, self._key)
        return self._checked(stored.body)

    def _checked(self, body: bytes) -> bytes:
        if len(body) != self._row.size_bytes or self._row.sha256 not in {None, sha256_hex(body)}:
            raise CorruptData(f"{self._key}: expected the object that its metadata vouches for, found another one")
        return body

    def _decoded(self, body: bytes, *, with_markers: bool = False) -> "pa.Table":
        columns = (*_COLUMNS, *_OF_MARKERS) if with_markers else _COLUMNS
        return decode_segment(io.BytesIO(body), columns=columns, name=self._key)


def _has_markers(table: "pa.Table") -> bool:
    return bool(table.column("marker").null_count < len(table))


def _txns(table: "pa.Table") -> list[TransactionId | None]:
    pairs = zip(table.column("txn_tc").to_pylist(), table.column("txn_seq").to_pylist(), strict=True)
    return [None if tc_id is None else TransactionId(tc_id, sequence) for tc_id, sequence in pairs]


def _advances(table: "pa.Table") -> tuple[Advance, ...]:
    """As the writer had registered them: by producer and transaction."""
    told = table.filter(pc.is_valid(table.column("sequence_id")))
    ids: dict[tuple[str, TransactionId | None], list[int]] = {}
    columns = (told.column("producer").to_pylist(), _txns(told), told.column("sequence_id").to_pylist())
    for producer, txn, sequence_id in zip(*columns, strict=True):
        if producer:
            ids.setdefault((producer, txn), []).append(sequence_id)
    return tuple(Advance(key[0], min(of), max(of), key[1]) for key, of in ids.items())


def _runs(table: "pa.Table") -> Iterator[Run]:
    """Messages of transactions; a marker only speaks of one."""
    verbs = table.column("marker").to_pylist()
    of: list[TransactionId | None] = [None if verb else txn for txn, verb in zip(_txns(table), verbs, strict=True)]
    at = 0
    for txn, rows in groupby(of):
        count = len(list(rows))
        if txn:
            yield Run(txn, at, count)
        at += count


def _markers(table: "pa.Table") -> Iterator[FoundMarker]:
    if "payload" not in table.column_names:
        return
    columns: Sequence[list[object]] = [table.column(name).to_pylist() for name in ("marker", *_OF_MARKERS)]
    for offset, (txn, verb, payload, properties) in enumerate(zip(_txns(table), *columns, strict=True)):
        if txn is not None and verb is not None:
            told = parse_marker(txn, str(verb), payload, dict(properties or ()))
            packed = base64.b64encode(pack_acknowledged(told.positions)).decode() if told.subscription else ""
            yield FoundMarker(offset, txn, told.verb is MarkerVerb.COMMIT, told.subscription, packed)
