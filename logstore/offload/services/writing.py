"""Writing the tiered copy of a ledger: built from its segments one at a time, uploaded, proved, and asked for again.

What was true when the copy was published may have been lost since: a bucket's lifecycle rule, a stray delete.

An attempt has a uuid of its own. The catalog knows it before storage does, so whatever it leaves behind, wherever it
dies, is named by a row or by a deletion intent (apache/pulsar#13526). It counts only with evidence: the store's own
answer to what it holds, not to what was sent (apache/pulsar#22839).

Source: Pulsar's tiered storage; two readers never meet a copy that was not proved.
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

from logstore.errors import CorruptData, MissingData, SextonError, UploadTimedOut, UploadUnproven
from logstore.failpoints import effect
from logstore.log.chunk_digests import column_chunks, digest_chunks
from logstore.log.entries import COLUMNS, mark_footer
from logstore.log.ledgers import LedgerStatement, digest_of
from logstore.log.services.read_back import read_twice, require_stored
from logstore.log.services.segment_file import SegmentGone, describe_damage, read_columns
from logstore.offload.tiered import TieredIndex, data_key, index_key, location_of, write_copy
from logstore.ports.catalog import Ledgers, Offload, OffloadAnswer, Offloads, Published
from logstore.ports.objects import Buckets, ObjectStore
from logstore.positions import LedgerId
from logstore.units import between_units

if TYPE_CHECKING:
    import pyarrow as pa

_READ_BACK: Final = 8 << 20  # bytes at a time


_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What storage was seen to hold."""

    uuid: str
    entries: int
    size_bytes: int  # of the data object
    sha256: str  # of the data object, hexadecimal
    index_bytes: int  # of the index object


def prove_published(buckets: Buckets, copy: Published) -> Evidence:
    """Read the copy's index and ask for its data: both there, of this very ledger, attempt, length and content.

    The content is that which was read back when it was published if the store's mark of it is the same one; of a copy
    that was published without it, or bears another mark, all is read and its digest compared.

    Raises:
        MissingData: One of them is not in storage.
        CorruptData: One of them is not what the catalog says, or its context does not say where to look.
        StoreUnavailable: Storage did not answer.
    """
    return read_twice(lambda: _prove_published(buckets, copy))


def _prove_published(buckets: Buckets, copy: Published) -> Evidence:
    ledger_id = copy.statement.ledger_id
    uuid, location = location_of(ledger_id, copy.context)
    objects, key, index_name = buckets(location), data_key(uuid, ledger_id), index_key(uuid, ledger_id)
    stored, data = objects.get(index_name), objects.head(key)
    if stored is None or data is None:
        raise MissingData(f"ledger {ledger_id}: its tiered copy {uuid} is LIVE and not in storage")
    index = TieredIndex.from_json(stored.body, name=index_name)
    expected = (copy.statement, uuid, copy.entries)
    found = (index.statement, index.uuid, index.entries)
    if found != expected:
        raise CorruptData(f"{index_name}: expected {expected}, found {found}")
    if data[0].size_bytes != index.size_bytes:
        raise CorruptData(f"{key}: expected {index.size_bytes} bytes, found {data[0].size_bytes}")
    if data[1] != copy.statement.to_metadata():
        raise CorruptData(f"{key}: expected {copy.statement.to_metadata()}, found {dict(data[1])}")
    if not index.etag or data[0].etag != index.etag:
        digest = stored_digest(objects, key, index.size_bytes)
        if digest != index.sha256:
            raise CorruptData(f"{key}: expected SHA-256 {index.sha256}, found {digest} in an object of the same length")
    return _evidence(index, index_bytes=len(stored.body))


def stored_digest(
    objects: ObjectStore, key: str, size_bytes: int, *, on_part: Callable[[int], None] = lambda _: None
) -> str:
    """SHA-256 of what the store holds now, hexadecimal, read in parts; of less where it holds less.

    `on_part` is called with the bytes of each part.
    """
    digest, at = hashlib.sha256(), 0
    while at < size_bytes and (part := objects.get_range(key, at, _READ_BACK)):
        between_units()
        digest.update(part)
        at += len(part)
        on_part(len(part))
    return digest.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Uploaded:
    """What an attempt came to. BEGUN: its copy is stored and proved, and waits to be published."""

    answer: OffloadAnswer
    evidence: Evidence | None = None  # None: the ledger is gone


class Offloader:
    """Uploads tiered copies. Threads share one."""

    def __init__(
        self,
        *,
        offloads: Offloads,
        ledgers: Ledgers,
        primary: ObjectStore,
        buckets: Buckets,
        driver_metadata: Mapping[str, str],
        folder: Path,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Copy from the primary bucket to the one that `driver_metadata` names.

        Args:
            offloads: The catalog's tiered copies.
            ledgers: The catalog's ledgers.
            primary: The primary bucket.
            buckets: Tiered buckets by location.
            driver_metadata: Kept in each offload context: `driver`, `bucket`, and `endpoint` and `region` where known.
            folder: For one file as large as a ledger at a time; made if need be. Not in memory.
            monotonic_s: For tests.
        """
        self._offloads = offloads
        self._ledgers = ledgers
        self._primary = primary
        self._buckets = buckets
        self._driver_metadata = dict(driver_metadata)
        self._folder = folder
        self._monotonic_s = monotonic_s

    def upload(self, ledger_id: LedgerId, uuid: str, *, timeout_s: float, topic: str | None = None) -> Uploaded:
        """Write and prove the ledger's tiered copy under a new uuid; `Offloads.publish` is what makes it one.

        Args:
            ledger_id: Which ledger.
            uuid: Names the attempt; never used before.
            timeout_s: Afterwards nothing more is sent.
            topic: The encoded name that the ledger's topic should bear; None: any.

        Raises:
            UploadTimedOut, UploadUnproven, StoreUnavailable, CatalogBusy, OutcomeUnknown: A new attempt may succeed.
            InvalidInput: The ledger is of another topic.
            PreconditionFailed: The ledger cannot be offloaded.
            MissingData, CorruptData: The primary copy lacks something; or a published copy is not in storage.
        """
        deadline = self._monotonic_s() + timeout_s  # before the catalog sets the end by its own clock
        begun = self._offloads.begin(
            ledger_id, uuid=uuid, driver_metadata=self._driver_metadata, timeout_s=timeout_s, topic=topic
        )
        if begun.answer is OffloadAnswer.GONE:
            return Uploaded(answer=OffloadAnswer.GONE)
        if begun.answer is OffloadAnswer.ALREADY:
            assert begun.statement is not None
            copy = Published(statement=begun.statement, entries=begun.entries, context=begun.context)
            return Uploaded(answer=OffloadAnswer.ALREADY, evidence=self.prove(copy))
        try:
            return Uploaded(answer=OffloadAnswer.BEGUN, evidence=self._write(begun, uuid, self._until(uuid, deadline)))
        except SegmentGone as gone:
            self._give_up(ledger_id, uuid)
            if self._offloads.copies(ledger_id) is None:
                return Uploaded(answer=OffloadAnswer.GONE)
            raise MissingData(f"ledger {ledger_id}: {gone} is listed and not in storage") from gone
        except Exception:
            self._give_up(ledger_id, uuid)
            raise

    def prove(self, copy: Published) -> Evidence:
        """Ask storage for a published copy, now; raises as `prove_published`."""
        return prove_published(self._buckets, copy)

    def _until(self, uuid: str, deadline: float) -> Callable[[], None]:
        def proceed() -> None:
            between_units()
            if self._monotonic_s() >= deadline:
                raise UploadTimedOut(f"upload {uuid}: its time is over; nothing more is sent")

        return proceed

    def _give_up(self, ledger_id: LedgerId, uuid: str) -> None:
        """Best effort: an attempt that cannot say so is taken away once its time is over."""
        try:
            self._offloads.abandon(ledger_id, uuid)
        except SextonError as error:
            _LOG.warning("ledger %s: upload %s failed and was not given up: %s", ledger_id, uuid, error)

    def _write(self, begun: Offload, uuid: str, proceed: Callable[[], None]) -> Evidence:
        assert begun.statement is not None
        ledger_id = begun.statement.ledger_id
        objects = self._buckets(location_of(ledger_id, begun.context)[1])
        metadata = begun.statement.to_metadata()
        self._folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=self._folder) as file:
            index = self._build(file, begun.statement, uuid, begun.entries, proceed)
            key = data_key(uuid, ledger_id)
            with effect("offload.put_data"):
                objects.put_file_if_absent(key, file, metadata=metadata, proceed=proceed)
        etag = _prove(objects, key, metadata, size_bytes=index.size_bytes, sha256=index.sha256)
        index = replace(index, etag=etag)
        key, body = index_key(uuid, ledger_id), index.to_json()
        with effect("offload.put_index"):
            objects.put_file_if_absent(key, io.BytesIO(body), metadata=metadata, proceed=proceed)
        _prove(objects, key, metadata, size_bytes=len(body), sha256=digest_of(body))
        return _evidence(index, index_bytes=len(body))

    def _build(
        self, file: BinaryIO, statement: LedgerStatement, uuid: str, entries: int, proceed: Callable[[], None]
    ) -> TieredIndex:
        groups = write_copy(file, self._tables(statement, proceed))
        reached = sum(group.entries for group in groups)
        if reached != entries:
            raise CorruptData(f"ledger {statement.ledger_id}: expected {entries} entries, found {reached} in segments")
        size_bytes = file.seek(0, io.SEEK_END)
        file.seek(0)
        return TieredIndex(
            statement=statement,
            uuid=uuid,
            entries=entries,
            size_bytes=size_bytes,
            sha256=hashlib.file_digest(cast("io.BufferedIOBase", file), "sha256").hexdigest(),
            row_groups=groups,
            footer=str(mark_footer(file)),
            chunks=_chunk_digests(file),
        )

    def _tables(self, statement: LedgerStatement, proceed: Callable[[], None]) -> "Iterator[pa.Table]":
        ledger_id, reached = statement.ledger_id, 0
        for segment in self._ledgers.segments(ledger_id):
            proceed()
            if segment.first_entry != reached:
                raise CorruptData(f"ledger {ledger_id}: expected a segment at {reached}, found {segment.first_entry}")
            reached += segment.entries
            try:
                table = read_columns(self._primary, segment, COLUMNS)
            except CorruptData as error:
                raise describe_damage(f"topic {statement.owner.topic}", segment, error) from error
            yield table


def _chunk_digests(file: BinaryIO) -> tuple[str, ...]:
    import pyarrow.parquet as pq  # noqa: PLC0415 - start-up time

    file.seek(0)
    footer = pq.read_metadata(file)

    def read(start: int, length: int) -> bytes:
        file.seek(start)
        return file.read(length)

    return tuple(digest_chunks(read, column_chunks(footer, group)) for group in range(footer.num_row_groups))


def _evidence(index: TieredIndex, *, index_bytes: int) -> Evidence:
    return Evidence(
        uuid=index.uuid,
        entries=index.entries,
        size_bytes=index.size_bytes,
        sha256=index.sha256,
        index_bytes=index_bytes,
    )


def _prove(objects: ObjectStore, key: str, metadata: Mapping[str, str], *, size_bytes: int, sha256: str) -> str:
    """Ask the store what it holds, and read it back; returns its own mark of that content, empty if it has none.

    Raises:
        UploadUnproven: Nothing, or something else.
    """
    stored = require_stored(objects, key, size_bytes=size_bytes, metadata=metadata)
    digest = stored_digest(objects, key, size_bytes)
    if digest != sha256:
        raise UploadUnproven(f"{key}: expected SHA-256 {sha256}, found {digest}")
    return stored.etag or ""
