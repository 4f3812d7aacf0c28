"""Writer of tiered copies. It builds a copy from segments of a ledger, uploads the copy, and proves the stored copy.

A lifecycle rule of the bucket or a stray delete may remove a published copy later. The copy is therefore proved again
before the primary copy is deleted.

Each attempt has its own uuid, which the catalog stores before storage gets an object. If the attempt dies, a row or an
intent therefore names its objects (apache/pulsar#13526). An attempt succeeds only after it has read the stored objects
back. The sent data proves nothing (apache/pulsar#22839).

Source: Pulsar's tiered storage. Readers never use a copy that was not proved.
"""

import hashlib
import io
import logging
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, cast

from logstore.catalog.log.message_ledgers import MessageLedgers
from logstore.catalog.offload.tiered_copies import Offloads
from logstore.errors import CorruptData, MissingData, SextonError, UploadTimedOut, UploadUnproven
from logstore.failpoints import effect
from logstore.log.ledgers import LedgerStatement
from logstore.log.segment_format import COLUMNS, digest_chunks, digest_footer, list_column_chunks, sha256_hex
from logstore.log.services.segment_reader import SegmentGone, describe_damage, read_columns
from logstore.log.services.upload_read_back import require_stored_object, reread_if_corrupt
from logstore.offload.tiered_copy import (
    TieredIndex,
    data_key,
    index_key,
    parse_uuid_and_location,
    write_tiered_data_file,
)
from logstore.ports.catalog.offload import OffloadStart, OffloadStartOutcome, PublishedTieredCopy
from logstore.ports.object_storage import BucketAtLocation, ObjectStore
from logstore.positions import LedgerId
from logstore.stop_checks import raise_if_stopped

if TYPE_CHECKING:
    import pyarrow as pa

_READ_BACK_PART_BYTES: Final = 8 << 20

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyEvidence:
    uuid: str
    entries: int
    size_bytes: int  # of the data object
    sha256: str  # SHA-256 of the data object, hexadecimal
    index_bytes: int  # of the index object


def prove_published(buckets: BucketAtLocation, copy: PublishedTieredCopy) -> CopyEvidence:
    """Prove that storage has index and data of a published copy, with the right length and content.

    The index has the ETag of the data that was read back after the upload. If the ETag is unchanged, the data was not
    replaced, and is not read again. Otherwise all data is read, and digests are compared.

    Raises:
        MissingData: The index or the data is not in storage.
        CorruptData: The index or the data differs from the catalog, or the context has no valid location.
        StoreUnavailable: Storage did not answer.
    """
    return reread_if_corrupt(lambda: _prove_published_without_retry(buckets, copy))


def _prove_published_without_retry(buckets: BucketAtLocation, copy: PublishedTieredCopy) -> CopyEvidence:
    ledger_id = copy.statement.ledger_id
    uuid, location = parse_uuid_and_location(ledger_id, copy.context)
    objects, key, index_name = buckets(location), data_key(uuid, ledger_id), index_key(uuid, ledger_id)
    stored_index, data = objects.get(index_name), objects.head(key)
    if stored_index is None or data is None:
        raise MissingData(f"ledger {ledger_id}: its tiered copy {uuid} is LIVE and not in storage")
    index = TieredIndex.from_json(stored_index.body, name=index_name)
    expected = (copy.statement, uuid, copy.entries)
    found = (index.statement, index.uuid, index.entries)
    if found != expected:
        raise CorruptData(f"{index_name}: expected {expected}, found {found}")
    if data[0].size_bytes != index.size_bytes:
        raise CorruptData(f"{key}: expected {index.size_bytes} bytes, found {data[0].size_bytes}")
    if data[1] != copy.statement.to_metadata():
        raise CorruptData(f"{key}: expected {copy.statement.to_metadata()}, found {dict(data[1])}")
    if not index.etag or data[0].etag != index.etag:
        digest = compute_stored_digest(objects, key, index.size_bytes)
        if digest != index.sha256:
            raise CorruptData(f"{key}: expected SHA-256 {index.sha256}, found {digest} in an object of the same length")
    return _to_evidence(index, index_bytes=len(stored_index.body))


def compute_stored_digest(
    objects: ObjectStore, key: str, size_bytes: int, *, on_part: Callable[[int], None] = lambda _: None
) -> str:
    """Read an object and return its SHA-256 in hexadecimal. `on_part` receives the size of each part in bytes."""
    digest, offset = hashlib.sha256(), 0
    while offset < size_bytes and (part := objects.get_range(key, offset, _READ_BACK_PART_BYTES)):
        raise_if_stopped()
        digest.update(part)
        offset += len(part)
        on_part(len(part))
    return digest.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadAttemptResult:
    """Result of an attempt to offload. BEGUN means that the copy is stored and proved, but not yet published."""

    answer: OffloadStartOutcome
    evidence: CopyEvidence | None = None  # None: the ledger is gone


class Offloader:
    """Thread-safe uploader of tiered copies.

    `driver_metadata` is part of each new offload context. It names `driver` and `bucket`, and may name `endpoint` and
    `region`. `folder` must be on disk, because an upload writes a temporary file as large as the ledger there.
    """

    def __init__(
        self,
        *,
        offloads: Offloads,
        ledgers: MessageLedgers,
        primary: ObjectStore,
        buckets: BucketAtLocation,
        driver_metadata: Mapping[str, str],
        folder: Path,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._offloads = offloads
        self._ledgers = ledgers
        self._primary = primary
        self._buckets = buckets
        self._driver_metadata = dict(driver_metadata)
        self._folder = folder
        self._monotonic_s = monotonic_s

    def upload_and_prove(
        self, ledger_id: LedgerId, uuid: str, *, timeout_s: float, topic: str | None = None
    ) -> UploadAttemptResult:
        """Write and prove a tiered copy of the ledger under a new uuid.

        `Offloads.publish_tiered_copy` then makes the copy LIVE. After `timeout_s` the call sends no request. If `topic`
        is given, it must be the encoded name of the ledger's topic.

        Raises:
            UploadTimedOut, UploadUnproven, StoreUnavailable, CatalogBusy, OutcomeUnknown: A new attempt may succeed.
            InvalidInput: The ledger belongs to another topic.
            PreconditionFailed: The ledger cannot be offloaded.
            MissingData: A segment of the primary copy, or the published tiered copy, is not in storage.
            CorruptData: The primary copy or the published tiered copy is damaged.
        """
        deadline_s = self._monotonic_s() + timeout_s  # computed before the catalog computes the end by its own clock
        begun = self._offloads.begin_offload(
            ledger_id, uuid=uuid, driver_metadata=self._driver_metadata, timeout_s=timeout_s, topic=topic
        )
        if begun.answer is OffloadStartOutcome.GONE:
            return UploadAttemptResult(answer=OffloadStartOutcome.GONE)
        if begun.answer is OffloadStartOutcome.ALREADY:
            assert begun.statement is not None
            copy = PublishedTieredCopy(statement=begun.statement, entries=begun.entries, context=begun.context)
            return UploadAttemptResult(answer=OffloadStartOutcome.ALREADY, evidence=self.prove(copy))
        try:
            return UploadAttemptResult(
                answer=OffloadStartOutcome.BEGUN,
                evidence=self._write_and_prove(begun, uuid, self._make_deadline_check(uuid, deadline_s)),
            )
        except SegmentGone as gone:
            self._abandon(ledger_id, uuid)
            if self._offloads.find_readable_copies(ledger_id) is None:
                return UploadAttemptResult(answer=OffloadStartOutcome.GONE)
            raise MissingData(f"ledger {ledger_id}: {gone} is listed and not in storage") from gone
        except Exception:
            self._abandon(ledger_id, uuid)
            raise

    def prove(self, copy: PublishedTieredCopy) -> CopyEvidence:
        return prove_published(self._buckets, copy)

    def _make_deadline_check(self, uuid: str, deadline_s: float) -> Callable[[], None]:
        def proceed() -> None:
            raise_if_stopped()
            if self._monotonic_s() >= deadline_s:
                raise UploadTimedOut(f"upload {uuid}: its time is over; nothing more is sent")

        return proceed

    def _abandon(self, ledger_id: LedgerId, uuid: str) -> None:
        try:
            self._offloads.abandon_offload(ledger_id, uuid)
        except SextonError as error:
            _LOG.warning("ledger %s: upload %s failed and was not given up: %s", ledger_id, uuid, error)

    def _write_and_prove(self, begun: OffloadStart, uuid: str, proceed: Callable[[], None]) -> CopyEvidence:
        assert begun.statement is not None
        ledger_id = begun.statement.ledger_id
        objects = self._buckets(parse_uuid_and_location(ledger_id, begun.context)[1])
        metadata = begun.statement.to_metadata()
        self._folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=self._folder) as file:
            index = self._write_entries_and_build_index(file, begun.statement, uuid, begun.entries, proceed)
            key = data_key(uuid, ledger_id)
            with effect("offload.put_data"):
                objects.put_file_if_absent(key, file, metadata=metadata, require_may_proceed=proceed)
        etag = _verify_object_and_get_etag(objects, key, metadata, size_bytes=index.size_bytes, sha256=index.sha256)
        index = replace(index, etag=etag)
        key, body = index_key(uuid, ledger_id), index.to_json()
        with effect("offload.put_index"):
            objects.put_file_if_absent(key, io.BytesIO(body), metadata=metadata, require_may_proceed=proceed)
        _verify_object_and_get_etag(objects, key, metadata, size_bytes=len(body), sha256=sha256_hex(body))
        return _to_evidence(index, index_bytes=len(body))

    def _write_entries_and_build_index(
        self, file: BinaryIO, statement: LedgerStatement, uuid: str, entries: int, proceed: Callable[[], None]
    ) -> TieredIndex:
        groups = write_tiered_data_file(file, self._read_segments(statement, proceed))
        found_entries = sum(group.entries for group in groups)
        if found_entries != entries:
            raise CorruptData(
                f"ledger {statement.ledger_id}: expected {entries} entries, found {found_entries} in segments"
            )
        size_bytes = file.seek(0, io.SEEK_END)
        file.seek(0)
        return TieredIndex(
            statement=statement,
            uuid=uuid,
            entries=entries,
            size_bytes=size_bytes,
            sha256=hashlib.file_digest(cast("io.BufferedIOBase", file), "sha256").hexdigest(),
            row_groups=groups,
            footer=str(digest_footer(file)),
            chunks=_digest_row_groups(file),
        )

    def _read_segments(self, statement: LedgerStatement, proceed: Callable[[], None]) -> "Iterator[pa.Table]":
        ledger_id, next_entry = statement.ledger_id, 0
        for segment in self._ledgers.list_segments(ledger_id):
            proceed()
            if segment.first_entry != next_entry:
                raise CorruptData(
                    f"ledger {ledger_id}: expected a segment at {next_entry}, found {segment.first_entry}"
                )
            next_entry += segment.entries
            try:
                table = read_columns(self._primary, segment, COLUMNS)
            except CorruptData as error:
                raise describe_damage(f"topic {statement.owner.topic}", segment, error) from error
            yield table


def _digest_row_groups(file: BinaryIO) -> tuple[str, ...]:
    import pyarrow.parquet as pq  # noqa: PLC0415 - start-up time

    file.seek(0)
    footer = pq.read_metadata(file)

    def read(start: int, length: int) -> bytes:
        file.seek(start)
        return file.read(length)

    return tuple(digest_chunks(read, list_column_chunks(footer, group)) for group in range(footer.num_row_groups))


def _to_evidence(index: TieredIndex, *, index_bytes: int) -> CopyEvidence:
    return CopyEvidence(
        uuid=index.uuid,
        entries=index.entries,
        size_bytes=index.size_bytes,
        sha256=index.sha256,
        index_bytes=index_bytes,
    )


def _verify_object_and_get_etag(
    objects: ObjectStore, key: str, metadata: Mapping[str, str], *, size_bytes: int, sha256: str
) -> str:
    """Read an object back and compare it with the arguments. Return the ETag, or "" if there is none."""
    stored = require_stored_object(objects, key, size_bytes=size_bytes, metadata=metadata)
    digest = compute_stored_digest(objects, key, size_bytes)
    if digest != sha256:
        raise UploadUnproven(f"{key}: expected SHA-256 {sha256}, found {digest}")
    return stored.etag or ""
