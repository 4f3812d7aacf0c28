"""`cut-scrub` and `scrub-page`: read every stored segment and tiered copy at a bounded rate, and compare digests.

A page is split into lanes, one for each parallel task. The lanes share the rate evenly. A finding means data loss. So
an object that differs is read a second time. The object is reported only if the catalog still names it, because its
ledger may have been trimmed meanwhile.

Source: the scrubs of ZFS and Ceph.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final
from zlib import crc32

from logstore.atomic_files import replace_atomically
from logstore.catalog.engine.arrow_bulk import ArrowReader, open_arrow_reader
from logstore.catalog.engine.dialect_sql import parse_offload_context_or_empty
from logstore.catalog.reconciliation import bulk_queries
from logstore.errors import CorruptData
from logstore.log.ledger_object_keys import segment_key
from logstore.log.ledgers import CopyKind
from logstore.log.services.segment_reader import SegmentGone, verify_segment_body
from logstore.offload.services.tiered_copy_upload import compute_stored_digest
from logstore.offload.tiered_copy import TieredIndex, data_key, index_key, parse_uuid_and_location
from logstore.ports.catalog.log import Segment
from logstore.ports.object_storage import ObjectStore
from logstore.positions import LedgerId
from logstore.rate_limiter import RateLimiter
from logstore.reconciliation.bulk_job_inputs_and_results import (
    LEFT_OUT,
    BulkJobSummary,
    CutScrubIntoPagesJob,
    ScrubPageJob,
)
from logstore.reconciliation.finding_files import write_finding_file
from logstore.reconciliation.findings import Finding, FindingKind
from spark.job_runner import JobContext
from spark.sources.store_addresses import CatalogAddresses

SpendBytes = Callable[[int], None]
"""Function that counts the bytes of each read, and may wait to keep a rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectDamage:
    kind: FindingKind  # MISSING_DATA or CORRUPT_DATA
    detail: str


def find_damage(check: Callable[[], None], is_named: Callable[[], bool]) -> ObjectDamage | None:
    """Return the damage of an object, or `None`.

    `check` raises `SegmentGone` or `CorruptData` for damage. Any other error of `check` is raised here, because it says
    nothing about the data. `is_named` returns whether the catalog still names the object.
    """
    problem: ObjectDamage | None = None
    for _ in range(2):  # one bad read may be the network's
        try:
            check()
        except SegmentGone as gone:
            problem = ObjectDamage(kind=FindingKind.MISSING_DATA, detail=f"{gone}: absent, asked twice")
        except CorruptData as corrupt:
            problem = ObjectDamage(kind=FindingKind.CORRUPT_DATA, detail=f"{corrupt}; read twice")
        else:
            return None
    return problem if is_named() else None


def require_undamaged_segment(objects: ObjectStore, segment: Segment, spend_bytes: SpendBytes) -> None:
    """Read a whole segment, and compare length and digest with the segment's row.

    If the row has no digest, compare only the length. Raise `SegmentGone` or `CorruptData` for damage.
    """
    key = segment_key(segment.ledger_id, segment.number)
    stored = objects.get(key)
    if stored is None:
        raise SegmentGone(segment.ledger_id, key)
    spend_bytes(len(stored.body))
    verify_segment_body(segment, stored)


def require_undamaged_copy(objects: ObjectStore, uuid: str, ledger_id: LedgerId, spend_bytes: SpendBytes) -> None:
    """Read the data of a tiered copy in parts, and compare length and digest with the index.

    Raise `SegmentGone` or `CorruptData` for damage, also if the index belongs to another copy.
    """
    key, name = data_key(uuid, ledger_id), index_key(uuid, ledger_id)
    stored_index, data = objects.get(name), objects.head(key)
    if stored_index is None or data is None:
        raise SegmentGone(ledger_id, name if stored_index is None else key)
    spend_bytes(len(stored_index.body))
    index = TieredIndex.from_json(stored_index.body, name=name)
    if (index.uuid, index.statement.ledger_id) != (uuid, ledger_id):
        other = f"{index.uuid} of ledger {index.statement.ledger_id}"
        raise CorruptData(f"{name}: expected the index of copy {uuid} of ledger {ledger_id}, found that of {other}")
    if data[0].size_bytes != index.size_bytes:
        raise CorruptData(f"{key}: expected {index.size_bytes} bytes, found {data[0].size_bytes}")
    digest = compute_stored_digest(objects, key, index.size_bytes, on_part=spend_bytes)
    if digest != index.sha256:
        raise CorruptData(f"{key}: expected SHA-256 {index.sha256}, found {digest}")


_MAX_PAGE_S: Final = 300  # a page occupies its worker, and a pause takes effect only after the page
_MAX_PAGE_BYTES: Final = 8 << 30
_MAX_PAGE_OBJECTS: Final = 20_000
"""Bounds of a page, which limit the memory of a task and the work that is repeated after a crash.

A ledger is never split between pages, even if the ledger exceeds the bounds.
"""
_MAX_LANES: Final = 16
_PAGES_FILE: Final = "pages.json"


@dataclass(frozen=True, slots=True)
class _LedgerIdRange:
    """Range of ledger ids from `first` (inclusive) to `end` (exclusive). Empty `topics` means every topic."""

    first: int
    end: int
    topics: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _ScrubLane:
    number: int
    lanes: int
    page: _LedgerIdRange
    bytes_per_s: float

    def is_object_of_lane(self, row: Mapping[str, Any]) -> bool:
        """Return whether the task of this lane reads the object of the row.

        The checksum of the row's key decides. The position of the row cannot decide, because each task queries the
        catalog separately and rows may change between the queries.
        """
        key = f"{row['ledger_id']}/{row.get('number', '')}"
        return crc32(key.encode()) % self.lanes == self.number


def cut_scrub(addresses: CatalogAddresses, context: JobContext, job: CutScrubIntoPagesJob) -> BulkJobSummary:
    cut = partial(_cut_into_pages, addresses.database_url, context.folder, max_objects=_MAX_PAGE_OBJECTS)
    (counts,) = context.run_in_executors("cut ledgers into pages", [job], cut)
    return BulkJobSummary(counts=counts)


def _cut_into_pages(database_url: str, folder: Path, job: CutScrubIntoPagesJob, *, max_objects: int) -> dict[str, int]:
    pages: list[tuple[int, int]] = []
    counts, page = Counter[str](), Counter[str]()
    max_bytes = min(_MAX_PAGE_BYTES, _MAX_PAGE_S * job.bytes_per_s)
    first = last = -1
    with open_arrow_reader(database_url) as catalog:
        for ledger_id, size_bytes, objects in _read_ledger_sizes(catalog, job):
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


def _read_ledger_sizes(catalog: ArrowReader, job: CutScrubIntoPagesJob) -> Iterator[tuple[int, int, int]]:
    for batch in catalog.batches(bulk_queries.select_copy_sizes_to_scrub(0, job.next_ledger_id, job.topics)):
        columns = (batch.column(name).to_pylist() for name in ("ledger_id", "size_bytes", "objects"))
        yield from zip(*columns, strict=True)


def scrub_page(addresses: CatalogAddresses, context: JobContext, job: ScrubPageJob) -> BulkJobSummary:
    cut = json.loads(
        (Path(context.get_published_summary(CutScrubIntoPagesJob.name).folder) / _PAGES_FILE).read_text(
            encoding="utf-8"
        )
    )
    first, end = cut["pages"][job.page]
    page = _LedgerIdRange(first, end, tuple(cut["topics"]))
    lanes = _make_lanes(page, bytes_per_s=job.bytes_per_s, parallel_tasks=context.spark.sparkContext.defaultParallelism)
    counts_by_lane = context.run_in_executors(
        "read and compare", lanes, partial(_scrub_lane, addresses, context.folder)
    )
    names = ("objects", "size_bytes", "findings", "elsewhere")
    totals = {name: sum(counts[name] for counts in counts_by_lane) for name in names}
    facts = {}
    if totals["elsewhere"]:
        facts[f"{LEFT_OUT}copies"] = (
            "tiered copies in buckets that are not the catalog's, or with an unreadable context"
        )
    return BulkJobSummary(counts=totals, facts=facts)


def _make_lanes(page: _LedgerIdRange, *, bytes_per_s: int, parallel_tasks: int) -> list[_ScrubLane]:
    lanes = min(_MAX_LANES, max(1, parallel_tasks))
    return [_ScrubLane(number, lanes, page, bytes_per_s / lanes) for number in range(lanes)]


def _scrub_lane(addresses: CatalogAddresses, folder: Path, lane: _ScrubLane) -> Counter[str]:
    page, counts = lane.page, Counter[str]()
    with open_arrow_reader(addresses.database_url) as catalog:
        segments = catalog.table(bulk_queries.select_segments_to_scrub(page.first, page.end, page.topics)).to_pylist()
        copies = catalog.table(
            bulk_queries.select_tiered_copies_to_scrub(page.first, page.end, page.topics)
        ).to_pylist()
    reader = _ObjectReader(addresses, RateLimiter(lane.bytes_per_s))
    answers: list[Finding | None] = []
    for row in filter(lane.is_object_of_lane, segments):
        counts["objects"] += 1
        answers.append(reader.check_segment(row))
    for row in filter(lane.is_object_of_lane, copies):
        target = reader.find_readable_tiered_store(row)
        counts["elsewhere" if target is None else "objects"] += 1
        if target:
            answers.append(reader.check_copy(row, *target))
    findings = [finding for finding in answers if finding]
    path = folder / f"findings-{lane.number:06d}.parquet"
    if findings:
        write_finding_file(path, [findings])
    else:
        path.unlink(missing_ok=True)  # file of an earlier run of this task, whose findings no longer count
    counts.update(findings=len(findings), size_bytes=reader.rate_limiter.used_units)
    return counts


class _ObjectReader:
    def __init__(self, addresses: CatalogAddresses, rate_limiter: RateLimiter) -> None:
        self._addresses, self.rate_limiter = addresses, rate_limiter

    def check_segment(self, row: Mapping[str, Any]) -> Finding | None:
        segment = _to_segment(row)
        store = self._addresses.primary.store()
        damage = find_damage(
            partial(require_undamaged_segment, store, segment, self.rate_limiter.wait_after_use),
            partial(self._is_segment_named, segment),
        )
        key = segment_key(segment.ledger_id, segment.number)
        return _to_finding(damage, row, CopyKind.LEDGER, self._addresses.primary.bucket, key) if damage else None

    def find_readable_tiered_store(self, row: Mapping[str, Any]) -> tuple[ObjectStore, str, str] | None:
        """Return store, bucket and uuid of a tiered copy, or `None` if tasks cannot read the copy."""
        try:
            uuid, location = parse_uuid_and_location(row["ledger_id"], parse_offload_context_or_empty(row["context"]))
        except CorruptData:  # the context is damaged; a plan reports that
            return None
        for address in self._addresses.tiered:
            if address.bucket == location.bucket and location.endpoint in {"", address.endpoint.rstrip("/")}:
                return address.store(), address.bucket, uuid
        return None

    def check_copy(self, row: Mapping[str, Any], store: ObjectStore, bucket: str, uuid: str) -> Finding | None:
        ledger_id = LedgerId(row["ledger_id"])
        check = partial(require_undamaged_copy, store, uuid, ledger_id, self.rate_limiter.wait_after_use)
        damage = find_damage(check, partial(self._is_copy_named, ledger_id, uuid))
        key = data_key(uuid, ledger_id)
        return _to_finding(damage, row, CopyKind.OFFLOADED_LEDGER, bucket, key, uuid=uuid) if damage else None

    def _is_segment_named(self, segment: Segment) -> bool:
        with open_arrow_reader(self._addresses.database_url) as catalog:
            rows = catalog.table(
                bulk_queries.select_segments_to_scrub(segment.ledger_id, segment.ledger_id + 1, ())
            ).to_pylist()
        return segment in map(_to_segment, rows)

    def _is_copy_named(self, ledger_id: LedgerId, uuid: str) -> bool:
        with open_arrow_reader(self._addresses.database_url) as catalog:
            rows = catalog.table(bulk_queries.select_tiered_copies_to_scrub(ledger_id, ledger_id + 1, ())).to_pylist()
        return any(parse_offload_context_or_empty(row["context"]).get("uuid") == uuid for row in rows)


def _to_segment(row: Mapping[str, Any]) -> Segment:
    return Segment(
        ledger_id=LedgerId(row["ledger_id"]),
        number=row["number"],
        first_entry=row["first_entry"],
        entries=row["entries"],
        size_bytes=row["size_bytes"],
        sha256=row["sha256"] or None,
    )


def _to_finding(
    damage: ObjectDamage, row: Mapping[str, Any], copy: CopyKind, bucket: str, key: str, *, uuid: str = ""
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
