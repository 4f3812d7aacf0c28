"""Tiered copy of a ledger: its location, one Parquet file with all entries, and an index with the file's digests.

The offload context states the location. Readers and deletions use this location, not the current settings. A deletion
at a wrong location would wrongly report the copy as deleted (apache/pulsar#16687).

The names of both objects contain the uuid of the attempt that wrote them, so attempts never conflict. The data is
written and deleted before the index. Except during a deletion, an index therefore proves that its data exists.

Source: Pulsar's tiered storage (`{uuid}-ledger-{id}` and its `-index`).
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, BinaryIO, Final

from logstore.errors import CorruptData, PreconditionFailed
from logstore.log.ledgers import CopyState, LedgerState, LedgerStatement
from logstore.log.segment_format import PARQUET_OPTIONS, entry_schema
from logstore.positions import LedgerId

if TYPE_CHECKING:
    import pyarrow as pa

DRIVER: Final = "aws-s3"

_UUID_FORM: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")
_FORM_BY_FIELD: Final = {
    "bucket": (re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}"), "the name of a bucket"),
    "endpoint": (re.compile(r"https?://[A-Za-z0-9.:\[\]_-]+(?:/[A-Za-z0-9._~/-]*)?"), "a URL of http or https"),
    "region": (re.compile(r"[A-Za-z0-9-]{1,64}"), "the name of a region"),
}


@dataclass(frozen=True, slots=True, order=True)
class CopyLocation:
    bucket: str
    endpoint: str = ""  # URL; empty: the store of the settings
    region: str = ""  # empty: the region of the settings


def parse_uuid_and_location(ledger_id: int, context: Mapping[str, str]) -> tuple[str, CopyLocation]:
    """Return the attempt's uuid and the copy's location from an offload context.

    Raise `CorruptData` if the context has no uuid or no bucket, or a field is invalid.
    """
    uuid, bucket = context.get("uuid"), context.get("bucket")
    if not uuid or not bucket:
        raise CorruptData(f"ledger {ledger_id}: expected uuid and bucket in its offload context, found neither or one")
    problem = find_context_problem(context)
    if problem:
        raise CorruptData(f"ledger {ledger_id}: offload context: {problem}")
    return uuid, CopyLocation(bucket, str(context.get("endpoint") or "").rstrip("/"), str(context.get("region") or ""))


def find_context_problem(context: Mapping[str, str]) -> str | None:
    """Return the problem of the first invalid field of an offload context, or `None`. Absent fields are accepted."""
    driver = context.get("driver")
    if driver and driver != DRIVER:
        return f"driver: expected {DRIVER}, found {driver!r}"
    if context.get("uuid") and not _UUID_FORM.fullmatch(str(context["uuid"])):
        return f"uuid: expected letters, digits, '.', '_' and '-', found {context['uuid']!r}"
    return next(
        (
            f"{name}: expected {rule}, found {context[name]!r}"
            for name, (form, rule) in _FORM_BY_FIELD.items()
            if context.get(name) and not form.fullmatch(str(context[name]))
        ),
        None,
    )


UPLOAD_GRACE_S = 120
"""Seconds for which a request of an upload may still be on its way after the upload has ended.

One request may take 5 s to connect, the time to send one part, and 60 s until its answer.
"""

_UPLOAD_END_FIELD = "until_us"
_DATA_BYTES_FIELD, _INDEX_BYTES_FIELD = "data_bytes", "index_bytes"
_NUMBER_FORM: Final = re.compile("[0-9]{1,18}", re.ASCII)


def data_key(uuid: str, ledger_id: LedgerId) -> str:
    return f"{uuid}-ledger-{ledger_id}"


def index_key(uuid: str, ledger_id: LedgerId) -> str:
    return f"{data_key(uuid, ledger_id)}-index"


class UploadStart(StrEnum):
    """State of a ledger's tiered copy when an attempt to offload the ledger begins."""

    ALREADY = "ALREADY"  # the copy is LIVE
    AGAIN = "AGAIN"  # the copy belongs to an earlier call of this attempt
    ANEW = "ANEW"  # there is no copy, or this attempt replaces the copy of another attempt


def decide_upload_start(
    ledger_id: int,
    uuid: str,
    *,
    tiered: tuple[str, Mapping[str, str]] | None,
    ledger_state: str,
    read_primary_state: Callable[[], str | None],
) -> UploadStart:
    """Decide how an attempt to offload a ledger begins.

    `tiered` is state and offload context of the ledger's tiered copy, or `None`. `read_primary_state` returns the state
    of the primary copy.

    Raises:
        PreconditionFailed: A new upload would begin, but the ledger is not CLOSED or has no LIVE primary copy.
    """
    if tiered and tiered[0] == CopyState.LIVE:
        return UploadStart.ALREADY
    if tiered and tiered[1].get("uuid") == uuid:
        return UploadStart.AGAIN
    if ledger_state != LedgerState.CLOSED:
        raise PreconditionFailed(f"ledger {ledger_id}: expected state CLOSED, found {ledger_state}")
    primary_state = read_primary_state()
    if primary_state != CopyState.LIVE:
        raise PreconditionFailed(f"ledger {ledger_id}: expected a LIVE primary copy, found {primary_state or 'none'}")
    return UploadStart.ANEW


def upload_requests_end_us(context: Mapping[str, str]) -> int | None:
    """Return until when requests of the upload may arrive, by the catalog's clock. `None`: all were answered."""
    end_us = context.get(_UPLOAD_END_FIELD)
    if end_us is None:
        return None
    if not _NUMBER_FORM.fullmatch(str(end_us)):
        raise CorruptData(f"offload context: expected microseconds in {_UPLOAD_END_FIELD}, found {end_us!r}")
    return int(end_us) + UPLOAD_GRACE_S * 1_000_000


def was_published(context: Mapping[str, str]) -> bool:
    """Return whether the copy was ever LIVE. A copy that was never LIVE may have no objects in storage."""
    return _UPLOAD_END_FIELD not in context


def context_after_upload(context: Mapping[str, str], until_us: int | None) -> dict[str, str]:
    """Return the offload context after an upload whose last request was at `until_us`, by the catalog's clock.

    `None` means that all requests were answered. If `context` already has an earlier time, the earlier time stays.
    """
    other_fields = {name: value for name, value in context.items() if name != _UPLOAD_END_FIELD}
    if until_us is None:
        return other_fields
    stored_end = context.get(_UPLOAD_END_FIELD)
    is_time = stored_end is not None and _NUMBER_FORM.fullmatch(str(stored_end))
    end_us = min(until_us, int(str(stored_end))) if is_time else until_us
    return other_fields | {_UPLOAD_END_FIELD: str(end_us)}


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyLengths:
    """Lengths of a tiered copy's objects. By these lengths, a plan finds truncated objects."""

    data_bytes: int
    index_bytes: int

    def to_context(self) -> dict[str, str]:
        return {_DATA_BYTES_FIELD: str(self.data_bytes), _INDEX_BYTES_FIELD: str(self.index_bytes)}


def parse_lengths(context: Mapping[str, str]) -> CopyLengths | None:
    """Return the lengths in an offload context, or `None` if a length is absent or invalid."""
    data, index = (str(context.get(name, "")) for name in (_DATA_BYTES_FIELD, _INDEX_BYTES_FIELD))
    if not (_NUMBER_FORM.fullmatch(data) and _NUMBER_FORM.fullmatch(index)):
        return None
    return CopyLengths(data_bytes=int(data), index_bytes=int(index))


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroupEntries:
    """Entries of one source segment: `first_entry` (inclusive) to `first_entry + entries` (exclusive)."""

    first_entry: int
    entries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TieredIndex:
    statement: LedgerStatement
    uuid: str
    entries: int
    size_bytes: int  # of the data object
    sha256: str  # SHA-256 of the data object, hexadecimal
    row_groups: tuple[RowGroupEntries, ...]  # in the order of the entries
    footer: str  # digest of the data object's footer
    chunks: tuple[str, ...]  # digests of column chunks, by row group
    etag: str = ""  # of the data object when it was read back; empty: the store has none

    def to_json(self) -> bytes:
        facts = {name: value for name, value in asdict(self).items() if name != "statement"}
        return json.dumps({**facts, "statement": self.statement.to_metadata()}, sort_keys=True).encode()

    @staticmethod
    def from_json(body: bytes, *, name: str) -> "TieredIndex":
        """Parse the content of the object `name`. Raise `CorruptData` if the content is not an index."""
        try:
            facts = json.loads(body)
            return TieredIndex(
                statement=LedgerStatement.from_metadata(facts["statement"]),
                uuid=facts["uuid"],
                entries=facts["entries"],
                size_bytes=facts["size_bytes"],
                sha256=facts["sha256"],
                row_groups=tuple(RowGroupEntries(**group) for group in facts["row_groups"]),
                etag=facts["etag"],
                footer=facts["footer"],
                chunks=tuple(str(digests) for digests in facts["chunks"]),
            )
        except (ValueError, KeyError, TypeError, CorruptData) as error:
            raise CorruptData(f"{name}: not the index of a tiered copy: {error!r}") from error


def write_tiered_data_file(sink: BinaryIO, segments: "Iterable[pa.Table]") -> tuple[RowGroupEntries, ...]:
    """Write one row group for each segment. `segments` must ascend from entry 0. One segment is in memory at a time."""
    import pyarrow.parquet as pq  # noqa: PLC0415 - start-up time

    schema = entry_schema()
    groups: list[RowGroupEntries] = []
    next_entry = 0
    with pq.ParquetWriter(sink, schema, **PARQUET_OPTIONS) as writer:
        for table in segments:
            writer.write_table(table.select(schema.names).cast(schema), row_group_size=table.num_rows)
            groups.append(RowGroupEntries(first_entry=next_entry, entries=table.num_rows))
            next_entry += table.num_rows
    return tuple(groups)
