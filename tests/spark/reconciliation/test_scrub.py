"""Scrubs over real servers: what was flipped is found, whatever is sound is not, and the rate is of the whole job."""

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self, cast

import pyarrow as pa
import pytest

from logstore.log.ledger_object_keys import segment_key
from logstore.offload.tiered_copy import data_key
from logstore.positions import LedgerId
from logstore.rate_limiter import RateLimiter
from logstore.reconciliation.bulk_job_inputs_and_results import BulkJobSummary, CutScrubIntoPagesJob, ScrubPageJob
from logstore.reconciliation.finding_files import FindingFiles
from logstore.reconciliation.findings import Finding, FindingKind
from spark.job_mains import catalog_job_mains
from spark.job_runner import SparkBulkJobs
from spark.published_output import PublishedOutputs
from spark.reconciliation import scrub_ledgers
from spark.sources.store_addresses import CatalogAddresses
from spark.warm_session import WarmSession
from tests.spark.reconciliation.conftest import Plan
from tests.spark.reconciliation.damage import Damaged
from workers.assembly.log_store_from_settings import executor_catalog_and_bucket_addresses

_K = FindingKind
Scrub = Callable[..., list[Finding]]


@pytest.fixture
def scrubbed(store: Damaged, warm: WarmSession, tmp_path: Path) -> Scrub:
    """All pages of a scrub of the test's store; each call is another run."""
    runs, publication = iter(range(99)), PublishedOutputs(tmp_path / "bulk")

    def run(
        *, topics: tuple[int, ...] = (), rate: int = 1 << 30, before: Callable[[int], None] = lambda _: None
    ) -> list[Finding]:
        jobs, run_id = (
            SparkBulkJobs(
                warm, publication, lambda: catalog_job_mains(executor_catalog_and_bucket_addresses(store.settings))
            ),
            next(runs),
        )
        ((next_id,),) = store.sql("SELECT next_ledger_id FROM catalog")
        cut = jobs.run_job(
            CutScrubIntoPagesJob(run_id=f"scrub-{run_id}", topics=topics, next_ledger_id=next_id), lambda _: None
        )
        found: list[Finding] = []
        read: list[BulkJobSummary] = []
        for page in range(cut.counts["pages"]):
            before(page)
            job = ScrubPageJob(run_id=f"scrub-{run_id}", page=page, bytes_per_s=rate)
            read.append(jobs.run_job(job, lambda _: None))
            found += [finding for _, finding in FindingFiles(Path(read[-1].folder)).iterate_findings()]
        run_counts.append((cut.counts, read))
        return found

    run_counts: list[tuple[dict[str, int], list[BulkJobSummary]]] = []
    run.counts = run_counts  # type: ignore[attr-defined]
    return run


def _flip(store: Damaged, key: str, *, tiered: bool = False) -> None:
    """One bit of an object, which keeps its length and its metadata."""
    bucket = store.settings.tiered_bucket if tiered else store.settings.primary_bucket
    found = store.s3.get_object(Bucket=bucket, Key=key)
    body = bytearray(found["Body"].read())
    body[len(body) // 2] ^= 1
    store.s3.put_object(Bucket=bucket, Key=key, Body=bytes(body), Metadata=found["Metadata"])


def _swap(store: Damaged, first: str, second: str, *, metadata: bool) -> None:
    """Exchange the bytes of two segments of equal length, with or without their metadata."""
    bucket = store.settings.primary_bucket
    before = [store.s3.get_object(Bucket=bucket, Key=key) for key in (first, second)]
    bodies = [answer["Body"].read() for answer in before]
    assert len(bodies[0]) == len(bodies[1])
    assert bodies[0] != bodies[1]
    for own, other, key in ((0, 1, first), (1, 0, second)):
        stated = before[other if metadata else own]["Metadata"]
        store.s3.put_object(Bucket=bucket, Key=key, Body=bodies[other], Metadata=stated)


def _said(findings: list[Finding]) -> set[tuple[Any, ...]]:
    said = {(one.kind, one.ledger_id, one.copy, one.key) for one in findings}
    assert len(said) == len(findings)
    return said


@pytest.mark.external_service
def test_flipped_bits_are_found_and_nothing_else(store: Damaged, scrubbed: Scrub) -> None:
    """In segments and in tiered copies, on any page; of the topics that were asked for, and of all."""
    first, ledgers = store.topic("first", ledgers=4)
    second, others = store.topic("second", ledgers=3)
    store.offload(ledgers[0], "0a-sound")
    store.offload(ledgers[1], "0b-flipped")
    assert scrubbed() == []
    ((cut, read),) = scrubbed.counts  # type: ignore[attr-defined]
    assert sum(one.counts["objects"] for one in read) == cut["objects"] == 14 + 2

    _flip(store, segment_key(ledgers[0], 1))
    _flip(store, segment_key(others[2], 0))
    _flip(store, data_key("0b-flipped", ledgers[1]), tiered=True)
    store.remove(segment_key(others[0], 1))
    of_first = {
        (_K.CORRUPT_DATA, ledgers[0], "LEDGER", segment_key(ledgers[0], 1)),
        (_K.CORRUPT_DATA, ledgers[1], "OFFLOADED_LEDGER", data_key("0b-flipped", ledgers[1])),
    }
    of_second = {
        (_K.CORRUPT_DATA, others[2], "LEDGER", segment_key(others[2], 0)),
        (_K.MISSING_DATA, others[0], "LEDGER", segment_key(others[0], 1)),
    }
    found = scrubbed()
    assert _said(found) == of_first | of_second
    assert {one.topic for one in found} == {first.name, second.name}
    assert _said(scrubbed(topics=(first.topic_id,))) == of_first
    assert _said(scrubbed(topics=(second.topic_id,))) == of_second


@pytest.mark.external_service
@pytest.mark.parametrize("metadata", [False, True], ids=["bytes", "objects"])
def test_segments_of_equal_length_that_changed_places_are_found_by_a_scrub_alone(
    metadata: bool, store: Damaged, scrubbed: Scrub, plan: Plan
) -> None:
    """A plan compares lengths, and knows no digest of what a listing shows (ADR 29)."""
    _, ledgers = store.topic("swapped", ledgers=16)
    size_by_key = {stored.key: stored.size_bytes for stored in store.log.objects.list("ledgers/")}
    pairs = {ledger_id: (segment_key(ledger_id, 0), segment_key(ledger_id, 1)) for ledger_id in ledgers}
    # Compression makes the lengths of some pairs differ by a byte.
    ledger_id = next(one for one, pair in pairs.items() if size_by_key[pair[0]] == size_by_key[pair[1]])
    _swap(store, *pairs[ledger_id], metadata=metadata)
    assert plan() == []
    assert _said(scrubbed()) == {(_K.CORRUPT_DATA, ledger_id, "LEDGER", key) for key in pairs[ledger_id]}


@pytest.mark.external_service
def test_pages_together_are_all_ledgers_and_none_twice(
    store: Damaged, scrubbed: Scrub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ledger is on one page, with all of its copies; what is deleted before its page is read is no finding."""
    monkeypatch.setattr(scrub_ledgers, "_MAX_PAGE_OBJECTS", 3)
    _, ledgers = store.topic("many", ledgers=5)
    store.offload(ledgers[0], "0a")
    for ledger_id in ledgers:
        _flip(store, segment_key(ledger_id, 0))

    def trim(page: int) -> None:
        if page == 1:
            store.sql("DELETE FROM segment WHERE ledger_id = ?", ledgers[-1])
            store.remove(segment_key(ledgers[-1], 0))

    found = scrubbed(before=trim)
    assert [one.ledger_id for one in found] == ledgers[:-1]
    ((cut, read),) = scrubbed.counts  # type: ignore[attr-defined]
    assert cut["ledgers"] == len(ledgers)
    assert cut["pages"] == len(read) > 2


def test_lanes_share_the_rate_of_the_job() -> None:
    """As many tasks as can run at once, and no more: together they keep it."""
    lanes = list(scrub_ledgers._make_lanes(scrub_ledgers._LedgerIdRange(0, 9, ()), bytes_per_s=1_000, parallel_tasks=4))
    assert sum(one.bytes_per_s for one in lanes) == 1_000
    assert [(one.number, one.lanes) for one in lanes] == [(at, 4) for at in range(4)]
    assert (
        len(
            list(
                scrub_ledgers._make_lanes(scrub_ledgers._LedgerIdRange(0, 9, ()), bytes_per_s=1_000, parallel_tasks=500)
            )
        )
        == 16
    )


@pytest.mark.parametrize("lanes", [1, 3, 16])
def test_rows_that_go_between_the_reads_of_two_lanes_hide_no_object(
    lanes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each lane asks the catalog by itself: the first rows of a page are trimmed from one answer to the next."""
    trimmed = 0
    read: list[tuple[str, int, int]] = []

    class Catalog:
        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None: ...

        def table(self, query: str) -> pa.Table:
            numbers = range(8) if query == "segments" else (0,)
            rows = [{"ledger_id": ledger, "number": number} for ledger in range(trimmed, 99) for number in numbers]
            return pa.Table.from_pylist(rows)

    class Reader:
        rate_limiter = RateLimiter(1)

        def __init__(self, *_: object) -> None: ...

        def check_segment(self, row: dict[str, int]) -> None:
            read.append(("segment", row["ledger_id"], row["number"]))

        def find_readable_tiered_store(self, _: dict[str, int]) -> tuple[str]:
            return ("bucket",)

        def check_copy(self, row: dict[str, int], _: str) -> None:
            read.append(("copy", row["ledger_id"], 0))

    monkeypatch.setattr(scrub_ledgers, "open_arrow_reader", lambda _: Catalog())
    monkeypatch.setattr(scrub_ledgers, "_ObjectReader", Reader)
    monkeypatch.setattr(
        "spark.reconciliation.scrub_ledgers.bulk_queries.select_segments_to_scrub", lambda *_: "segments"
    )
    monkeypatch.setattr(
        "spark.reconciliation.scrub_ledgers.bulk_queries.select_tiered_copies_to_scrub", lambda *_: "copies"
    )
    addresses = cast("CatalogAddresses", SimpleNamespace(database_url=""))
    page = scrub_ledgers._LedgerIdRange(0, 99, ())
    per_lane = list[int]()
    for lane in scrub_ledgers._make_lanes(page, bytes_per_s=1_000, parallel_tasks=lanes):
        per_lane.append(scrub_ledgers._scrub_lane(addresses, tmp_path, lane)["objects"])
        trimmed += 1
    standing = {("segment", ledger, number) for ledger in range(trimmed, 99) for number in range(8)}
    standing |= {("copy", ledger, 0) for ledger in range(trimmed, 99)}
    assert standing <= set(read)
    assert len(read) == len(set(read)) == sum(per_lane)
    assert max(per_lane) < 2 * min(per_lane)


def test_findings_of_a_task_that_ran_twice_are_those_of_its_last_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark takes the counts of the second run: a file of the first would say something else."""
    damaged = {3, 5}

    class Reader:
        rate_limiter = RateLimiter(1)

        def __init__(self, *_: object) -> None: ...

        def check_segment(self, row: dict[str, int]) -> Finding | None:
            is_damaged = row["ledger_id"] in damaged
            return Finding(kind=_K.CORRUPT_DATA, ledger_id=LedgerId(row["ledger_id"])) if is_damaged else None

    class Catalog:
        def table(self, query: str) -> pa.Table:
            return pa.Table.from_pylist([{"ledger_id": ledger} for ledger in range(9 if query == "segments" else 0)])

    monkeypatch.setattr(scrub_ledgers, "open_arrow_reader", lambda _: nullcontext(Catalog()))
    monkeypatch.setattr(scrub_ledgers, "_ObjectReader", Reader)
    monkeypatch.setattr(
        "spark.reconciliation.scrub_ledgers.bulk_queries.select_segments_to_scrub", lambda *_: "segments"
    )
    monkeypatch.setattr(
        "spark.reconciliation.scrub_ledgers.bulk_queries.select_tiered_copies_to_scrub", lambda *_: "copies"
    )
    addresses = cast("CatalogAddresses", SimpleNamespace(database_url=""))
    (lane,) = scrub_ledgers._make_lanes(scrub_ledgers._LedgerIdRange(0, 9, ()), bytes_per_s=1_000, parallel_tasks=1)
    for still_damaged in ({3, 5}, {5}, set[int]()):
        damaged &= still_damaged
        assert scrub_ledgers._scrub_lane(addresses, tmp_path, lane)["findings"] == len(still_damaged)
        found = {finding.ledger_id for _, finding in FindingFiles(tmp_path).iterate_findings()}
        assert found == still_damaged


@pytest.mark.parametrize(("rate", "pages"), [(1 << 20, 25), (4 << 20, 6), (1 << 40, 1)])
def test_page_is_some_minutes_of_the_rate(
    rate: int, pages: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of 8 GiB at 1 MiB/s would hold the only lane of its worker for two hours."""
    ledgers = [(ledger_id, 64 << 20, 8) for ledger_id in range(100)]
    monkeypatch.setattr(scrub_ledgers, "open_arrow_reader", lambda _: nullcontext())
    monkeypatch.setattr(scrub_ledgers, "_read_ledger_sizes", lambda *_: iter(ledgers))
    job = CutScrubIntoPagesJob(run_id="scrub-1", topics=(), next_ledger_id=100, bytes_per_s=rate)
    counts = scrub_ledgers._cut_into_pages("", tmp_path, job, max_objects=20_000)
    cut = json.loads((tmp_path / "pages.json").read_text())["pages"]
    assert counts == {"ledgers": 100, "objects": 800, "size_bytes": 100 * (64 << 20), "pages": pages}
    assert [ledger_id for first, end in cut for ledger_id in range(first, end)] == list(range(100))
    assert all((end - first) * (64 << 20) <= max(rate * 300, 64 << 20) for first, end in cut)
