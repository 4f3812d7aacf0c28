"""`cut-scrub` and `scrub-page`: every stored segment and tiered copy is read at a bounded rate, and compared.

The lanes of a page are as many tasks as can run at once, and share the rate evenly: no more tasks ever run, so that
the whole job keeps it. A task holds one segment in memory, or one part of a tiered copy.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import pyarrow.parquet as pq

from infra.catalog.engine.adbc import ArrowReader, open_arrow_reader
from infra.catalog.engine.dialects import parse_context_or_empty
from infra.catalog.reconciliation import facts as sql
from logstore.errors import CorruptData
from logstore.log.ledgers import CopyKind, segment_key
from logstore.offload.tiered import data_key, parse_copy_location
from logstore.ports.catalog import Segment
from logstore.ports.objects import ObjectStore
from logstore.positions import LedgerId
from logstore.reconciliation.files import PAGE, SCHEMA, as_table
from logstore.reconciliation.findings import Finding
from logstore.reconciliation.jobs import LEFT_OUT, BulkSummary, CutScrub, ScrubPage
from logstore.reconciliation.services.scrubbing import Damage, check_copy, check_segment, find_damage
from logstore.whole_files import replace_atomically
from spark.reconciliation.pace import Pace
from spark.runner import JobRun
from spark.sources.objects import NativeAddresses

_PAGE_BYTES: Final = 8 << 30
_PAGE_S: Final = 300
_PAGE_OBJECTS: Final = 20_000
"""Of a page: what is lost of a scrub that dies is less than one. A ledger is on one page, however large it is.

Some minutes at the rate of the scrub: a page holds the only lane of its worker for so long, and acts on a pause at its
end. The other two bound the memory and the repeated work of fast scrubs.
"""
_MAX_LANES: Final = 16
_PAGES_FILE: Final = "pages.json"


@dataclass(frozen=True, slots=True)
class _Range:
    """Ids of ledgers from `first` (inclusive) to `end` (exclusive), of these topics; none: of every topic."""

    first: int
    end: int
    topics: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Lane:
    """The part of a page that one task reads."""

    number: int
    lanes: int
    page: _Range
    bytes_per_s: float

    def takes(self, row: Mapping[str, Any]) -> bool:
        """Return whether the task reads the object of the row.

        The row's own key decides, not its position: each task asks the catalog by itself, and rows come and go between
        two answers. A checksum spreads also ledgers whose ids have equal remainders.
        """
        key = f"{row['ledger_id']}/{row.get('number', '')}"
        return crc32(key.encode()) % self.lanes == self.number


def cut_scrub(addresses: NativeAddresses, run: JobRun, job: CutScrub) -> BulkSummary:
    """The main of the job.

    Raises:
        StoreUnavailable: The database did not answer.
    """
    cut = partial(_cut, addresses.database_url, run.folder, max_objects=_PAGE_OBJECTS)
    (counts,) = run.spread("cut ledgers into pages", [job], cut)
    return BulkSummary(counts=counts)


def _cut(database_url: str, folder: Path, job: CutScrub, *, max_objects: int) -> dict[str, int]:
    """In an executor: the pages into one file."""
    pages: list[tuple[int, int]] = []
    counts, page = Counter[str](), Counter[str]()
    max_bytes = min(_PAGE_BYTES, _PAGE_S * job.bytes_per_s)
    first = last = -1
    with open_arrow_reader(database_url) as catalog:
        for ledger_id, size_bytes, objects in _copies(catalog, job):
            is_full = page["size_bytes"] + size_bytes > max_bytes or page["objects"] + objects > max_objects
            if ledger_id != last:
                counts["ledgers"] += 1
                if page and is_full:
                    pages.append((first, last + 1))
                    page.clear()
                first = first if page else ledger_id
            last = ledger_id
            for counter in (counts, page):
                counter.update(size_bytes=size_bytes, objects=objects)
    if page:
        pages.append((first, last + 1))
    with replace_atomically(folder / _PAGES_FILE) as new:
        new.write_text(json.dumps({"topics": job.topics, "pages": pages}), encoding="utf-8")
    return {name: counts[name] for name in ("ledgers", "objects", "size_bytes")} | {"pages": len(pages)}


def _copies(catalog: ArrowReader, job: CutScrub) -> Iterator[tuple[int, int, int]]:
    for batch in catalog.batches(sql.scrubbed_ledgers(0, job.next_ledger_id, job.topics)):
        columns = (batch.column(name).to_pylist() for name in ("ledger_id", "size_bytes", "objects"))
        yield from zip(*columns, strict=True)


def scrub_page(addresses: NativeAddresses, run: JobRun, job: ScrubPage) -> BulkSummary:
    """The main of the job.

    Raises:
        StoreUnavailable: Storage or database did not answer: nothing is said of the data.
    """
    cut = json.loads((Path(run.inputs(CutScrub.name).folder) / _PAGES_FILE).read_text(encoding="utf-8"))
    first, end = cut["pages"][job.page]
    page = _Range(first, end, tuple(cut["topics"]))
    tasks = _lanes(page, bytes_per_s=job.bytes_per_s, at_once=run.spark.sparkContext.defaultParallelism)
    read = run.spread("read and compare", tasks, partial(_read, addresses, run.folder))
    counts = {name: sum(one[name] for one in read) for name in ("objects", "size_bytes", "findings", "elsewhere")}
    facts = {}
    if counts["elsewhere"]:
        facts[f"{LEFT_OUT}copies"] = (
            "tiered copies in buckets that are not the catalog's, or with an unreadable context"
        )
    return BulkSummary(counts=counts, facts=facts)


def _lanes(page: _Range, *, bytes_per_s: int, at_once: int) -> list[_Lane]:
    lanes = min(_MAX_LANES, max(1, at_once))
    return [_Lane(number, lanes, page, bytes_per_s / lanes) for number in range(lanes)]


def _read(addresses: NativeAddresses, folder: Path, lane: _Lane) -> Counter[str]:
    """In an executor: the objects of one lane; findings into one file. A task may run twice."""
    page, counts = lane.page, Counter[str]()
    with open_arrow_reader(addresses.database_url) as catalog:
        segments = catalog.table(sql.scrubbed_segments(page.first, page.end, page.topics)).to_pylist()
        copies = catalog.table(sql.scrubbed_copies(page.first, page.end, page.topics)).to_pylist()
    reader = _Reader(addresses, Pace(lane.bytes_per_s))
    found: list[Finding] = []
    for row in filter(lane.takes, segments):
        counts["objects"] += 1
        found += filter(None, [reader.segment(row)])
    for row in filter(lane.takes, copies):
        target = reader.target(row)
        counts["elsewhere" if target is None else "objects"] += 1
        found += filter(None, [reader.copy(row, *target)] if target else [])
    target_file = folder / f"findings-{lane.number:06d}.parquet"
    if found:
        with replace_atomically(target_file) as new, pq.ParquetWriter(new, SCHEMA) as writer:
            writer.write_table(as_table(found), row_group_size=PAGE)
    else:
        target_file.unlink(missing_ok=True)  # of an earlier run of this task, whose findings do not count
    counts.update(findings=len(found), size_bytes=reader.pace.spent)
    return counts


class _Reader:
    """Reads objects of one lane, one after the other."""

    def __init__(self, addresses: NativeAddresses, pace: Pace) -> None:
        self._addresses, self.pace = addresses, pace

    def segment(self, row: Mapping[str, Any]) -> Finding | None:
        segment = _segment(row)
        store = self._addresses.primary.store()
        damage = find_damage(
            partial(check_segment, store, segment, self.pace.spend), partial(self._names_segment, segment)
        )
        key = segment_key(segment.ledger_id, segment.number)
        return _finding(damage, row, CopyKind.LEDGER, self._addresses.primary.bucket, key) if damage else None

    def target(self, row: Mapping[str, Any]) -> tuple[ObjectStore, str, str] | None:
        """Where a tiered copy stands: the store, the bucket and the uuid; None where tasks do not read."""
        try:
            uuid, location = parse_copy_location(row["ledger_id"], parse_context_or_empty(row["context"]))
        except CorruptData:  # of the catalog: a plan reports it
            return None
        known = (one for one in self._addresses.tiered if one.bucket == location.bucket)
        here = (one for one in known if location.endpoint in {"", one.endpoint.rstrip("/")})
        address = next(here, None)
        return (address.store(), address.bucket, uuid) if address else None

    def copy(self, row: Mapping[str, Any], store: ObjectStore, bucket: str, uuid: str) -> Finding | None:
        ledger_id = LedgerId(row["ledger_id"])
        check = partial(check_copy, store, uuid, ledger_id, self.pace.spend)
        damage = find_damage(check, partial(self._names_copy, ledger_id, uuid))
        key = data_key(uuid, ledger_id)
        return _finding(damage, row, CopyKind.OFFLOADED_LEDGER, bucket, key, uuid=uuid) if damage else None

    def _names_segment(self, segment: Segment) -> bool:
        with open_arrow_reader(self._addresses.database_url) as catalog:
            rows = catalog.table(sql.scrubbed_segments(segment.ledger_id, segment.ledger_id + 1, ())).to_pylist()
        return segment in map(_segment, rows)

    def _names_copy(self, ledger_id: LedgerId, uuid: str) -> bool:
        with open_arrow_reader(self._addresses.database_url) as catalog:
            rows = catalog.table(sql.scrubbed_copies(ledger_id, ledger_id + 1, ())).to_pylist()
        return any(parse_context_or_empty(row["context"]).get("uuid") == uuid for row in rows)


def _segment(row: Mapping[str, Any]) -> Segment:
    return Segment(
        ledger_id=LedgerId(row["ledger_id"]),
        number=row["number"],
        first_entry=row["first_entry"],
        entries=row["entries"],
        size_bytes=row["size_bytes"],
        sha256=row["sha256"] or None,
    )


def _finding(
    damage: Damage, row: Mapping[str, Any], copy: CopyKind, bucket: str, key: str, *, uuid: str = ""
) -> Finding:
    return Finding(
        kind=damage.kind,
        ledger_id=LedgerId(row["ledger_id"]),
        copy=copy.value,
        bucket=bucket,
        key=key,
        uuid=uuid,
        topic=row["topic"],
        objects=1,
        size_bytes=row["size_bytes"],
        detail=damage.detail,
    )
