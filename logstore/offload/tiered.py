"""The tiered copy of a ledger: where it is stored, one Parquet file of its entries, and an index that vouches for it.

Its offload context states where it is stored, and readers and deletions ask there: a deletion that asks where the
settings of the day point finds nothing, and says gone (apache/pulsar#16687).

Both objects are named after the attempt that wrote them: an attempt that died can never be taken for the one that was
published, and never stands in its way. The data is written first and the index last, and deleted in the same order,
so that an index vouches for data that is there.

Source: Pulsar's tiered storage (`{uuid}-ledger-{id}` and its `-index`).
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, BinaryIO, Final

from logstore.errors import CorruptData, PreconditionFailed
from logstore.log.entries import FORMAT, schema
from logstore.log.ledgers import CopyState, LedgerState, LedgerStatement
from logstore.positions import LedgerId

if TYPE_CHECKING:
    import pyarrow as pa

DRIVER: Final = "aws-s3"

_UUID: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")
_FIELDS: Final = {
    "bucket": (re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}"), "the name of a bucket"),
    "endpoint": (re.compile(r"https?://[A-Za-z0-9.:\[\]_-]+(?:/[A-Za-z0-9._~/-]*)?"), "a URL of http or https"),
    "region": (re.compile(r"[A-Za-z0-9-]{1,64}"), "the name of a region"),
}


@dataclass(frozen=True, slots=True, order=True)
class CopyLocation:
    """The bucket in which a tiered copy is stored, and the store that has it."""

    bucket: str
    endpoint: str = ""  # URL; empty: the store of the settings
    region: str = ""  # empty: that of the settings


def location_of(ledger_id: int, context: Mapping[str, str]) -> tuple[str, CopyLocation]:
    """The uuid of the attempt that wrote a tiered copy, and the location of the copy.

    Raises:
        CorruptData: The context does not say where to look, or states what cannot be a bucket, an endpoint or a region.
    """
    uuid, bucket = context.get("uuid"), context.get("bucket")
    if not uuid or not bucket:
        raise CorruptData(f"ledger {ledger_id}: expected uuid and bucket in its offload context, found neither or one")
    problem = location_problem(context)
    if problem:
        raise CorruptData(f"ledger {ledger_id}: offload context: {problem}")
    return uuid, CopyLocation(bucket, str(context.get("endpoint") or "").rstrip("/"), str(context.get("region") or ""))


def location_problem(context: Mapping[str, str]) -> str | None:
    """What is wrong with the first bad field of an offload context, or None; absent fields are not judged."""
    driver = context.get("driver")
    if driver and driver != DRIVER:
        return f"driver: expected {DRIVER}, found {driver!r}"
    if context.get("uuid") and not _UUID.fullmatch(str(context["uuid"])):
        return f"uuid: expected letters, digits, '.', '_' and '-', found {context['uuid']!r}"
    return next(
        (
            f"{name}: expected {rule}, found {context[name]!r}"
            for name, (form, rule) in _FIELDS.items()
            if context.get(name) and not form.fullmatch(str(context[name]))
        ),
        None,
    )


UPLOAD_GRACE_S = 120
"""After the time by which an upload has sent its last request: until then that request may still land.

One request may take 5 s to connect, 60 s to be answered, and what it takes to send one part in between.
"""

_UNTIL = "until_us"
_TIME = re.compile("[0-9]{1,18}")
_DATA_BYTES, _INDEX_BYTES = "data_bytes", "index_bytes"
_BYTES: Final = re.compile("[0-9]{1,18}", re.ASCII)


def data_key(uuid: str, ledger_id: LedgerId) -> str:
    """Key of the one object with all entries."""
    return f"{uuid}-ledger-{ledger_id}"


def index_key(uuid: str, ledger_id: LedgerId) -> str:
    """Key of the index: written last, deleted last."""
    return f"{data_key(uuid, ledger_id)}-index"


class Begin(StrEnum):
    """What an attempt to offload a ledger finds of its tiered copy."""

    ALREADY = "ALREADY"  # one is LIVE
    AGAIN = "AGAIN"  # its own, from an earlier call of the same attempt
    ANEW = "ANEW"  # none, or that of another attempt, which it takes the place of


def begin(
    ledger_id: int,
    uuid: str,
    *,
    tiered: tuple[str, Mapping[str, str]] | None,
    state: str,
    primary: Callable[[], str | None],
) -> Begin:
    """Decide what an attempt does that begins now.

    Args:
        ledger_id: What it offloads.
        uuid: Its own.
        tiered: State and context of the tiered copy that there is.
        state: The ledger's.
        primary: Reads the state of the primary copy, None: there is none; asked only by an attempt that begins anew.

    Raises:
        PreconditionFailed: It begins anew, and the ledger is not CLOSED, or has no LIVE primary copy.
    """
    if tiered and tiered[0] == CopyState.LIVE:
        return Begin.ALREADY
    if tiered and tiered[1].get("uuid") == uuid:
        return Begin.AGAIN
    if state != LedgerState.CLOSED:
        raise PreconditionFailed(f"ledger {ledger_id}: expected state CLOSED, found {state}")
    found = primary()
    if found != CopyState.LIVE:
        raise PreconditionFailed(f"ledger {ledger_id}: expected a LIVE primary copy, found {found or 'none'}")
    return Begin.ANEW


def upload_ends_us(context: Mapping[str, str]) -> int | None:
    """From when on nothing more of the upload can land, by the catalog's clock; None: it is over.

    Raises:
        CorruptData: The context says something else than a time.
    """
    until = context.get(_UNTIL)
    if until is None:
        return None
    if not _TIME.fullmatch(str(until)):
        raise CorruptData(f"offload context: expected microseconds in {_UNTIL}, found {until!r}")
    return int(until) + UPLOAD_GRACE_S * 1_000_000


def was_published(context: Mapping[str, str]) -> bool:
    """Whether the copy was LIVE once; of one that was not, it is not known whether anything of it was stored."""
    return _UNTIL not in context


def upload_ended(context: Mapping[str, str], until_us: int | None) -> dict[str, str]:
    """The context once the upload sends nothing more; it never ends later than was said before, if that can be read.

    Args:
        context: Of the attempt.
        until_us: When its last request was sent; None: all of them were answered.
    """
    rest = {name: value for name, value in context.items() if name != _UNTIL}
    if until_us is None:
        return rest
    said = context.get(_UNTIL)
    ends_us = min(until_us, int(said)) if said is not None and _TIME.fullmatch(str(said)) else until_us
    return rest | {_UNTIL: str(ends_us)}


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyLengths:
    """Lengths in bytes of the two objects of a tiered copy, as its offload context states them.

    A listing shows a length without a read: a plan finds by it an object that was cut.
    """

    data: int
    index: int

    def to_context(self) -> dict[str, str]:
        """Return the fields of the offload context."""
        return {_DATA_BYTES: str(self.data), _INDEX_BYTES: str(self.index)}


def lengths_in(context: Mapping[str, str]) -> CopyLengths | None:
    """Return the lengths that a context states. `None`: it was published without them, or states no numbers."""
    data, index = (str(context.get(name, "")) for name in (_DATA_BYTES, _INDEX_BYTES))
    if not (_BYTES.fullmatch(data) and _BYTES.fullmatch(index)):
        return None
    return CopyLengths(data=int(data), index=int(index))


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroup:
    """Entries of one source segment: `first_entry` (inclusive) to `first_entry + entries` (exclusive)."""

    first_entry: int
    entries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TieredIndex:
    """What vouches for the data: whose it is, how long, its checksum, and where each segment went."""

    statement: LedgerStatement
    uuid: str
    entries: int
    size_bytes: int  # of the data object
    sha256: str  # of the data object, hexadecimal
    row_groups: tuple[RowGroup, ...]  # in the order of the file, which is that of the entries
    etag: str = ""  # of the data, as the store told it when all of it had been read back; empty: not kept then
    footer: str = ""  # mark of the data's footer; empty: written before footers were compared
    chunks: tuple[str, ...] = ()  # digests of column chunks by row group; empty: written before chunks had digests

    def to_json(self) -> bytes:
        """One JSON object; the same for the same copy."""
        facts = {name: value for name, value in asdict(self).items() if name != "statement"}
        return json.dumps({**facts, "statement": self.statement.to_metadata()}, sort_keys=True).encode()

    @staticmethod
    def from_json(body: bytes, *, name: str) -> "TieredIndex":
        """Read back `to_json`; `name` is what to call the object in an error.

        Raises:
            CorruptData: It is no index.
        """
        try:
            facts = json.loads(body)
            return TieredIndex(
                statement=LedgerStatement.from_metadata(facts["statement"]),
                uuid=facts["uuid"],
                entries=facts["entries"],
                size_bytes=facts["size_bytes"],
                sha256=facts["sha256"],
                row_groups=tuple(RowGroup(**group) for group in facts["row_groups"]),
                etag=facts.get("etag", ""),
                footer=facts.get("footer", ""),
                chunks=tuple(str(digests) for digests in facts.get("chunks", ())),
            )
        except (ValueError, KeyError, TypeError, CorruptData) as error:
            raise CorruptData(f"{name}: not the index of a tiered copy: {error!r}") from error


def write_copy(sink: BinaryIO, segments: "Iterable[pa.Table]") -> tuple[RowGroup, ...]:
    """Write segments as one file, one row group each, and say what stands where; one segment is in memory at a time.

    Args:
        sink: Written from its present offset on.
        segments: All of `COLUMNS`, in entry order, the first with entry 0.
    """
    import pyarrow.parquet as pq  # noqa: PLC0415 - start-up time

    whole = schema()
    groups: list[RowGroup] = []
    reached = 0
    with pq.ParquetWriter(sink, whole, **FORMAT) as writer:
        for table in segments:
            writer.write_table(table.select(whole.names).cast(whole), row_group_size=table.num_rows)
            groups.append(RowGroup(first_entry=reached, entries=table.num_rows))
            reached += table.num_rows
    return tuple(groups)
