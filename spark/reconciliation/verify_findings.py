"""`verify-findings`: check each candidate again, first in storage and then in the catalog, and keep the true findings.

An absence is reported only if a HEAD finds nothing and the row still names the object. An orphan is reported only if
storage states a ledger owner.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

from logstore.catalog.engine.arrow_bulk import ArrowReader, open_arrow_reader
from logstore.catalog.engine.dialect_sql import parse_offload_context_or_empty
from logstore.catalog.reconciliation import bulk_queries
from logstore.catalog.reconciliation.rows_naming_ledgers import read_rows_naming_ledgers
from logstore.log.ledger_object_keys import ledger_prefix, owner_digest_from_key, segment_key, segment_number_from_key
from logstore.log.ledgers import CopyKind, LedgerStatement
from logstore.log.segment_format import is_confirmation
from logstore.ports.object_storage import ObjectStore
from logstore.positions import LedgerId
from logstore.reconciliation.bulk_job_inputs_and_results import BulkJobSummary, VerifyFindingsJob
from logstore.reconciliation.finding_files import FindingFiles, write_finding_file
from logstore.reconciliation.findings import STORE_KINDS, Finding, FindingKind
from logstore.reconciliation.orphan_doubts_from_rows import (
    LedgerRows,
    describe_lost_ledger,
    describe_lost_segments,
    doubt_orphan,
    doubt_removal_of_unreferenced,
    doubt_segment,
)
from logstore.reconciliation.services.orphan_inspection import (
    NOT_SHOWN,
    OTHER_APPLICATION,
    UNSTATED,
    YOUNG,
    OrphanDoubt,
    doubt_upload,
    inspect_orphan,
    is_copy,
    is_single_object,
    judge_orphan,
)
from spark.job_runner import JobContext
from spark.sources.store_addresses import CatalogAddresses

DROPPED: Final = "dropped"
"""Key of the number of candidates that are no longer true."""

_PAGES_PER_TASK: Final = 8


@dataclass(frozen=True, slots=True)
class Verification:
    """Candidates that are still true, and what could not be read: a sentence by its subject."""

    findings: list[Finding]
    problems: Mapping[str, str] = field(default_factory=dict)


Verifier = Callable[[Sequence[Finding]], Verification]


@dataclass(frozen=True, slots=True)
class VerificationTotals:
    """Number of findings by kind, and of `DROPPED` candidates. `problems` is as in `Verification`."""

    counts: Counter[str]
    problems: dict[str, str]


@dataclass(frozen=True, slots=True)
class _VerifyTask:
    number: int
    candidates: Path  # a folder
    pages: tuple[int, ...]


def verify_candidate_pages(
    context: JobContext,
    description: str,
    folders: Sequence[Path],
    open_verifier: Callable[[], AbstractContextManager[Verifier]],
) -> VerificationTotals:
    """Verify the candidates in `folders`, in executors. Each task calls `open_verifier`, which can be pickled."""
    tasks = [_VerifyTask(number, folder, pages) for number, (folder, pages) in enumerate(_cut_into_parts(folders))]
    verify = partial(_write_verified_findings, folder=context.folder, open_verifier=open_verifier)
    totals = VerificationTotals(Counter(), {})
    for result in context.run_in_executors(description, tasks, verify):
        totals.counts.update(result.counts)
        totals.problems.update(result.problems)
    return totals


def _cut_into_parts(folders: Sequence[Path]) -> Iterator[tuple[Path, tuple[int, ...]]]:
    for folder in folders:
        pages = range(FindingFiles(folder).pages)
        for start in range(0, len(pages), _PAGES_PER_TASK):
            yield folder, tuple(pages[start : start + _PAGES_PER_TASK])


def _write_verified_findings(
    task: _VerifyTask, *, folder: Path, open_verifier: Callable[[], AbstractContextManager[Verifier]]
) -> VerificationTotals:
    """Write the true findings of some pages into one file, in an executor. Two runs of a task may overlap."""
    files, totals = FindingFiles(task.candidates), VerificationTotals(Counter(), {})
    with open_verifier() as verify:

        def verify_page(page: int) -> list[Finding]:
            candidates = list(files.read_page(page).values())
            verification = verify(candidates)
            totals.counts.update(finding.kind.value for finding in verification.findings)
            totals.counts[DROPPED] += len(candidates) - len(verification.findings)
            totals.problems.update(verification.problems)
            return verification.findings

        write_finding_file(folder / f"findings-{task.number:06d}.parquet", map(verify_page, task.pages))
    return totals


_PARALLEL_REQUESTS: Final = 16  # requests of one task
_CONFIRMATION_DETAIL: Final = "it says where a segment was registered, and goes with its ledger"


def verify_findings(addresses: CatalogAddresses, context: JobContext, job: VerifyFindingsJob) -> BulkJobSummary:
    folder = Path(context.get_published_summary("compare-sides").folder)
    open_verifier = partial(_open_verifier, addresses=addresses, before_us=job.before_us)
    totals = verify_candidate_pages(context, "ask storage and catalog again", [folder], open_verifier)
    return BulkJobSummary(counts={kind.value: totals.counts[kind.value] for kind in STORE_KINDS})


@contextmanager
def _open_verifier(*, addresses: CatalogAddresses, before_us: int) -> Iterator[Verifier]:
    stores = {address.bucket: address.store() for address in addresses.stores}
    with open_arrow_reader(addresses.database_url) as catalog:
        yield lambda candidates: Verification(
            verify_candidates(candidates, stores, catalog, before_us, addresses.application)
        )


def verify_candidates(
    candidates: Sequence[Finding],
    stores: Mapping[str, ObjectStore],
    catalog: ArrowReader,
    before_us: int,
    application: str,
) -> list[Finding]:
    """Return the candidates that are still true, in unchanged order, with the statements in storage."""
    keys_by_ledger = _read_keys_of_missing_ledgers(candidates, catalog)

    def recheck_in_storage(candidate: Finding) -> Finding | None:
        if _is_stated_orphan(candidate):
            return _recheck_orphan(candidate, stores[candidate.bucket], before_us, application)
        if is_single_object(candidate):  # an unfinished upload has no statement
            return None if doubt_upload(stores[candidate.bucket], candidate.key, before_us) else candidate
        if candidate.kind is FindingKind.MISSING_DATA and not _is_lost_row(candidate):
            names = keys_by_ledger.get(candidate.ledger_id, ())
            return candidate if _is_still_missing(candidate, stores[candidate.bucket], names) else None
        return candidate

    with ThreadPoolExecutor(_PARALLEL_REQUESTS, thread_name_prefix="verify") as threads:
        rechecked = list(filter(None, threads.map(recheck_in_storage, candidates)))
    check_by_kind = _make_missing_data_check(rechecked, catalog) | _make_row_checks(rechecked, catalog)
    named_findings = [
        finding for finding in rechecked if finding.kind not in check_by_kind or check_by_kind[finding.kind](finding)
    ]
    return list(filter(None, _judge_by_catalog(named_findings, catalog)))


def _recheck_orphan(candidate: Finding, store: ObjectStore, before_us: int, application: str) -> Finding | None:
    """Return an orphan with the statement in storage, or `None` if the orphan is absent or young.

    The statement may change the finding's kind to FOREIGN, MISMATCH or CONFIRMATION.
    """
    orphan = inspect_orphan(store, candidate)
    judged = judge_orphan(candidate, orphan, before_us=before_us, application=application)
    if isinstance(judged, OrphanDoubt) and judged.reason in {NOT_SHOWN, YOUNG}:
        return None
    finding = replace(
        candidate,
        objects=len(orphan.objects),
        size_bytes=orphan.size_bytes,
        newest_us=max(stored.modified_us or 0 for stored in orphan.objects),
        statement=dict(next(iter(orphan.metadata.values()), {})),
    )
    if isinstance(judged, OrphanDoubt):
        is_foreign = judged.reason in {UNSTATED, OTHER_APPLICATION}
        kind = FindingKind.FOREIGN if is_foreign else FindingKind.MISMATCH
        return replace(finding, kind=kind, detail=f"{judged.key}: {judged.reason}")
    finding = replace(finding, topic=judged.owner.topic)
    is_segment = finding.kind is FindingKind.ORPHAN_SEGMENT
    if is_segment and is_confirmation(segment_number_from_key(finding.key) or 0, finding.statement):
        return replace(finding, kind=FindingKind.CONFIRMATION, detail=_CONFIRMATION_DETAIL)
    return finding


def _read_keys_of_missing_ledgers(candidates: Sequence[Finding], catalog: ArrowReader) -> dict[int | None, list[str]]:
    absent = [
        candidate
        for candidate in candidates
        if candidate.kind is FindingKind.MISSING_DATA and candidate.key.endswith("/")
    ]
    ids = sorted({candidate.ledger_id for candidate in absent if candidate.ledger_id is not None})
    keys_by_ledger: dict[int | None, list[str]] = {ledger_id: [] for ledger_id in ids}
    if not ids:
        return keys_by_ledger
    rows_by_ledger = read_rows_naming_ledgers(lambda query: catalog.table(query).to_pylist(), ids)
    for ledger_id in ids:
        digests = {owner.digest for owner in rows_by_ledger[ledger_id].owners}
        keys_by_ledger[ledger_id] += [f"{ledger_prefix(ledger_id)}{digest}.meta.json" for digest in sorted(digests)]
    for row in catalog.table(bulk_queries.select_segments(ids)).to_pylist():
        keys_by_ledger[row["ledger_id"]].append(segment_key(LedgerId(row["ledger_id"]), row["number"]))
    return keys_by_ledger


def _is_still_missing(candidate: Finding, store: ObjectStore, expected_keys: Sequence[str]) -> bool:
    """Return whether a second read also finds that the data is absent or too short.

    For a whole ledger, another listing and a HEAD of each of `expected_keys` must find nothing.
    """
    if candidate.key.endswith("/"):
        own = (
            owner_digest_from_key(stored.key) or segment_number_from_key(stored.key) is not None
            for stored in store.list(candidate.key)
        )
        return not any(own) and not any(map(store.head, expected_keys))
    head = store.head(candidate.key)
    return head is None or (candidate.objects > 0 and head[0].size_bytes == candidate.size_bytes)


def _make_row_checks(findings: Sequence[Finding], catalog: ArrowReader) -> dict[FindingKind, Callable[[Finding], bool]]:
    ledger_ids = [
        finding.ledger_id for finding in findings if _is_unreferenced(finding) and finding.ledger_id is not None
    ]
    row_ids = [
        finding.row_id
        for finding in findings
        if finding.kind is FindingKind.STALLED_DELETION and finding.row_id is not None
    ]
    unreferenced, stalled = set[int](), set[int]()
    if ledger_ids:
        unreferenced |= set(
            catalog.table(bulk_queries.select_unreferenced_ledgers(ledger_ids))["ledger_id"].to_pylist()
        )
    if row_ids:
        stalled |= set(catalog.table(bulk_queries.select_stalled_intents(row_ids))["row_id"].to_pylist())
    return {
        FindingKind.UNREFERENCED_LEDGER: lambda finding: finding.ledger_id in unreferenced,
        FindingKind.STALLED_DELETION: lambda finding: finding.row_id in stalled,
    }


def _make_missing_data_check(
    findings: Sequence[Finding], catalog: ArrowReader
) -> dict[FindingKind, Callable[[Finding], bool]]:
    """Return a check that the catalog still names the missing data. Absent data of a detached ledger is no loss."""
    ledger_ids = sorted(
        {
            finding.ledger_id
            for finding in findings
            if finding.kind is FindingKind.MISSING_DATA and not _is_lost_row(finding) and finding.ledger_id is not None
        }
    )
    copies, segments = set[tuple[int, str]](), set[tuple[int, int]]()
    for start in range(0, len(ledger_ids), bulk_queries.MAX_LEDGERS_PER_QUERY):
        ids = ledger_ids[start : start + bulk_queries.MAX_LEDGERS_PER_QUERY]
        for row in catalog.table(bulk_queries.select_copies_with_context(ids)).to_pylist():
            copies.add((row["ledger_id"], row["kind"] + parse_offload_context_or_empty(row["context"]).get("uuid", "")))
        rows = catalog.table(bulk_queries.select_segments(ids)).to_pylist()
        segments |= {(row["ledger_id"], row["number"]) for row in rows}

    def is_named(finding: Finding) -> bool:
        if _is_lost_row(finding):
            return True
        ledger_id, number = finding.ledger_id or 0, segment_number_from_key(finding.key)
        has_copy = (ledger_id, finding.copy + finding.uuid) in copies
        return has_copy and (number is None or (ledger_id, number) in segments)

    return {FindingKind.MISSING_DATA: is_named}


def _judge_by_catalog(findings: Sequence[Finding], catalog: ArrowReader) -> Iterator[Finding | None]:
    """Judge orphans and lost rows by other rows of the catalog. Yield `None` if a finding is no longer true."""
    judges = (
        (_is_stated_orphan, _judge_orphan),
        (_is_lost_row, _judge_lost_rows),
        (_is_unreferenced, _judge_unreferenced),
    )
    judge_by_finding = [
        next((judge for is_its_kind, judge in judges if is_its_kind(finding)), None) for finding in findings
    ]
    ids = {
        finding.ledger_id
        for finding, judge in zip(findings, judge_by_finding, strict=True)
        if judge is not None and finding.ledger_id is not None
    }
    rows = read_rows_naming_ledgers(lambda query: catalog.table(query).to_pylist(), ids) if ids else {}
    for finding, judge in zip(findings, judge_by_finding, strict=True):
        if judge is None or finding.ledger_id is None:
            yield finding
        else:
            yield judge(finding, rows[finding.ledger_id])


def _judge_lost_rows(finding: Finding, rows: LedgerRows) -> Finding | None:
    """Return the finding with a sentence about the lost rows, or `None` if no row is lost."""
    if not rows.has_row:
        reason = describe_lost_ledger(rows)
        return replace(finding, detail=reason) if reason else None
    if not rows.copies:
        return finding
    reason = describe_lost_segments(rows.counted, rows.summed)
    return replace(finding, detail=f"{reason}; repair the catalog by hand") if reason else None


def _judge_unreferenced(finding: Finding, rows: LedgerRows) -> Finding | None:
    """Return the finding, a finding of lost data instead, or `None` if the ledger has no row any more."""
    if not rows.has_row:
        return None
    doubt = doubt_removal_of_unreferenced(rows)
    return replace(finding, kind=doubt.kind, detail=doubt.reason) if doubt and doubt.kind else finding


def _judge_orphan(finding: Finding, rows: LedgerRows) -> Finding | None:
    """Return the orphan, a finding of another kind instead, or `None` if a row names this copy."""
    statement = LedgerStatement.from_metadata(finding.statement)
    if finding.kind is FindingKind.ORPHAN_SEGMENT:
        doubt = doubt_segment(statement, rows)
    else:
        doubt = doubt_orphan(statement, CopyKind(finding.copy), finding.uuid, rows)
    if doubt is None:
        return finding
    return None if doubt.kind is None else replace(finding, kind=doubt.kind, detail=doubt.reason)


def _is_stated_orphan(finding: Finding) -> bool:
    """Return whether the finding is an orphan with a statement in storage. Unfinished uploads have no statement."""
    return is_copy(finding) or finding.kind is FindingKind.ORPHAN_SEGMENT


def _is_unreferenced(finding: Finding) -> bool:
    return finding.kind is FindingKind.UNREFERENCED_LEDGER


def _is_lost_row(finding: Finding) -> bool:
    """Return whether the finding says that the row of a ledger, or rows of copies or segments, are lost."""
    return finding.kind is FindingKind.MISSING_DATA and not finding.copy
