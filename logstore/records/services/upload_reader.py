"""Reader of uploads. The reader derives from an object what registration would have stored.

The metadata and a few columns are read. Message payloads are read only if there are transaction markers, because the
message payload of a transaction marker has the acknowledged positions.
"""

import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Final

import pyarrow.compute as pc

from logstore.cursors.cursor_state import pack_acknowledged
from logstore.errors import CorruptData, StoreUnavailable
from logstore.log.entries import ProducerSequenceRange
from logstore.log.ledgers import LedgerStatement
from logstore.log.segment_format import (
    DIGEST_FIELD,
    EXTENT_FIELD,
    FOOTER_FIELD,
    UPLOAD_ID_FIELD,
    RegisteredLedgerExtent,
    SegmentUploadId,
    decode_segment,
    sha256_hex,
)
from logstore.log.services.segment_reader import (
    MAX_WHOLE_READ_BYTES,
    SegmentGone,
    read_columns_by_ranges,
    read_footer_with_metadata,
)
from logstore.log.services.upload_read_back import reread_if_corrupt
from logstore.ports.catalog.log import Segment
from logstore.ports.object_storage import ObjectInfo, ObjectStore
from logstore.positions import LedgerId
from logstore.records.adoption_rule import UnregisteredUpload, UploadedMarker
from logstore.transactions.transaction_buffer import MarkerVerb, parse_marker
from logstore.transactions.transaction_ids_and_states import TransactionEntryRange, TransactionId

if TYPE_CHECKING:
    import pyarrow as pa

_COLUMNS: Final = ("deliver_at_ms", "producer", "sequence_id", "txn_tc", "txn_seq", "marker")
_MARKER_COLUMNS: Final = ("payload", "properties")


def read_upload_unless_foreign(
    objects: ObjectStore, ledger_id: LedgerId, number: int, item: ObjectInfo
) -> UnregisteredUpload | None:
    """Return the properties of an upload in the primary bucket, or `None` if the object has no valid statement.

    `item` is the listed object. `ledger_id` and `number` are from the object's key.

    Raises:
        CorruptData: The object differs from its metadata, or is no segment.
        StoreUnavailable: The store did not answer, or twice did not find the listed object.
    """
    try:
        return reread_if_corrupt(lambda: _read_upload_once(objects, ledger_id, number, item))
    except SegmentGone:
        pass  # one response does not disprove a listing: an answered append would be lost
    try:
        return reread_if_corrupt(lambda: _read_upload_once(objects, ledger_id, number, item))
    except SegmentGone:
        raise denied_object_error(item.key, "GET") from None


def denied_object_error(key: str, method: str) -> StoreUnavailable:
    return StoreUnavailable(f"{key}: LIST shows it, {method} does not find it; try again")


def _read_upload_once(
    objects: ObjectStore, ledger_id: LedgerId, number: int, item: ObjectInfo
) -> UnregisteredUpload | None:
    metadata, body = _fetch_metadata_and_body(objects, ledger_id, item)
    try:
        epoch = LedgerStatement.from_metadata(metadata).epoch
    except CorruptData:
        return None
    row = Segment(
        ledger_id=ledger_id,
        number=number,
        first_entry=0,
        entries=0,
        size_bytes=item.size_bytes,
        sha256=metadata.get(DIGEST_FIELD),
        delayed=0,
    )
    table = _SegmentColumns(objects, item.key, row, metadata, body).read()
    return UnregisteredUpload(
        number=number,
        entries=table.num_rows,
        size_bytes=row.size_bytes,
        sha256=row.sha256,
        epoch=epoch,
        mark=SegmentUploadId.parse(metadata.get(UPLOAD_ID_FIELD)),
        behind=RegisteredLedgerExtent.parse(metadata.get(EXTENT_FIELD)),
        producers=_producer_sequences(table),
        numbered=len(table) - table.column("sequence_id").null_count,
        transactions=tuple(_iterate_transaction_spans(table)),
        markers=tuple(_markers(table)),
        delayed=len(table) - table.column("deliver_at_ms").null_count,
    )


def _fetch_metadata_and_body(
    objects: ObjectStore, ledger_id: LedgerId, item: ObjectInfo
) -> tuple[Mapping[str, str], bytes | None]:
    if item.size_bytes <= MAX_WHOLE_READ_BYTES:
        stored = objects.get(item.key)
        if stored is None:
            raise SegmentGone(ledger_id, item.key)
        return stored.metadata, stored.body
    head = objects.head(item.key)
    if head is None:
        raise SegmentGone(ledger_id, item.key)
    return head[1], None


class _SegmentColumns:
    def __init__(
        self, objects: ObjectStore, key: str, row: Segment, metadata: Mapping[str, str], body: bytes | None
    ) -> None:
        self._objects, self._key, self._row, self._metadata, self._body = objects, key, row, metadata, body

    def read(self) -> "pa.Table":
        if self._body is not None:
            body = self._verify(self._body)
            table = self._decode(body)
            return self._decode(body, with_markers=True) if _has_markers(table) else table
        footer = (
            read_footer_with_metadata(self._objects, self._row, self._metadata)
            if self._metadata.get(FOOTER_FIELD)
            else None
        )
        table = read_columns_by_ranges(self._objects, self._row, _COLUMNS, footer)
        return self._decode(self._fetch_object(), with_markers=True) if _has_markers(table) else table

    def _fetch_object(self) -> bytes:
        stored = self._objects.get(self._key)
        if stored is None:
            raise SegmentGone(self._row.ledger_id, self._key)
        return self._verify(stored.body)

    def _verify(self, body: bytes) -> bytes:
        if len(body) != self._row.size_bytes or self._row.sha256 not in {None, sha256_hex(body)}:
            raise CorruptData(f"{self._key}: expected the object that its metadata vouches for, found another one")
        return body

    def _decode(self, body: bytes, *, with_markers: bool = False) -> "pa.Table":
        columns = (*_COLUMNS, *_MARKER_COLUMNS) if with_markers else _COLUMNS
        return decode_segment(io.BytesIO(body), columns=columns, name=self._key)


def _has_markers(table: "pa.Table") -> bool:
    return bool(table.column("marker").null_count < len(table))


def _transaction_ids(table: "pa.Table") -> list[TransactionId | None]:
    pairs = zip(table.column("txn_tc").to_pylist(), table.column("txn_seq").to_pylist(), strict=True)
    return [None if tc_id is None else TransactionId(tc_id, sequence) for tc_id, sequence in pairs]


def _producer_sequences(table: "pa.Table") -> tuple[ProducerSequenceRange, ...]:
    numbered = table.filter(pc.is_valid(table.column("sequence_id")))
    ids_by_writer: dict[tuple[str, TransactionId | None], list[int]] = {}
    columns = (
        numbered.column("producer").to_pylist(),
        _transaction_ids(numbered),
        numbered.column("sequence_id").to_pylist(),
    )
    for producer, txn, sequence_id in zip(*columns, strict=True):
        if producer:
            ids_by_writer.setdefault((producer, txn), []).append(sequence_id)
    return tuple(
        ProducerSequenceRange(producer, min(ids), max(ids), txn) for (producer, txn), ids in ids_by_writer.items()
    )


def _iterate_transaction_spans(table: "pa.Table") -> Iterator[TransactionEntryRange]:
    """Yield a span for each run of consecutive messages of one transaction. Transaction markers are no messages."""
    verbs = table.column("marker").to_pylist()
    txns = [None if verb else txn for txn, verb in zip(_transaction_ids(table), verbs, strict=True)]
    offset = 0
    for txn, rows in groupby(txns):
        entries = len(list(rows))
        if txn:
            yield TransactionEntryRange(txn, offset, entries)
        offset += entries


def _markers(table: "pa.Table") -> Iterator[UploadedMarker]:
    if "payload" not in table.column_names:
        return
    columns: Sequence[list[object]] = [table.column(name).to_pylist() for name in ("marker", *_MARKER_COLUMNS)]
    rows = zip(_transaction_ids(table), *columns, strict=True)
    for offset, (txn, verb, payload, properties) in enumerate(rows):
        if txn is not None and verb is not None:
            marker = parse_marker(txn, str(verb), payload, dict(properties or ()))
            packed = base64.b64encode(pack_acknowledged(marker.positions)).decode() if marker.subscription else ""
            yield UploadedMarker(offset, txn, marker.verb is MarkerVerb.COMMIT, marker.subscription, packed)
