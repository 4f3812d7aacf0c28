"""Second check of one page of findings in storage, for an apply or a preview."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Final, TypeVar

from logstore.ports.catalog.reconciliation import FindingsToFile, OrphanCopy, SingleObjectAnswers
from logstore.positions import LedgerId
from logstore.reconciliation.findings import Finding, FindingKind
from logstore.reconciliation.services.orphan_inspection import ABSENT, OrphanInspector, is_copy, is_single_object
from logstore.stop_checks import raise_if_stopped

_PARALLEL_COPIES: Final = 8
_ROW_KINDS: Final = frozenset({FindingKind.UNREFERENCED_LEDGER, FindingKind.STALLED_DELETION})
R = TypeVar("R")


def has_rows_to_file(page: Mapping[int, Finding]) -> bool:
    return any(is_copy(finding) or finding.kind in _ROW_KINDS for finding in page.values())


def select_single_objects(page: Mapping[int, Finding]) -> dict[int, Finding]:
    return {number: finding for number, finding in page.items() if is_single_object(finding)}


def inspect_copies(
    inspector: OrphanInspector, page: Mapping[int, Finding], before_us: int
) -> dict[int, OrphanCopy | str]:
    copies = {number: finding for number, finding in page.items() if is_copy(finding)}

    def ask(number: int, finding: Finding) -> OrphanCopy | str:
        raise_if_stopped()
        return inspector.inspect_copy(number, finding, before_us=before_us)

    answers = _run_parallel([partial(ask, number, finding) for number, finding in copies.items()])
    if ABSENT.intersection(answer for answer in answers if isinstance(answer, str)):
        inspector.require_own_buckets(may_mark=False)  # absence counts only if the buckets are still the catalog's
    return dict(zip(copies, answers, strict=True))


def inspect_single_objects(
    inspector: OrphanInspector,
    objects: Mapping[int, Finding],
    before_us: int,
    proceed: Callable[[], None] = raise_if_stopped,
) -> SingleObjectAnswers:
    """Inspect segments and uploads in storage, one by one. `proceed` is called before each segment and upload."""
    segments, uploads, reason_by_number = dict[int, tuple[LedgerId, int]](), set[int](), dict[int, str]()
    for number, finding in objects.items():
        proceed()
        if finding.kind is FindingKind.ORPHAN_SEGMENT:
            segment = inspector.inspect_segment(finding, before_us=before_us)
            if isinstance(segment, str):
                reason_by_number[number] = segment
            else:
                segments[number] = segment
        elif isinstance(reason := inspector.inspect_upload(finding, before_us=before_us), str):
            reason_by_number[number] = reason
        else:
            uploads.add(number)
    if ABSENT.intersection(reason_by_number.values()):
        inspector.require_own_buckets(may_mark=False)  # absence counts only if the buckets are still the catalog's
    return SingleObjectAnswers(segments=segments, uploads=frozenset(uploads), kept=reason_by_number)


def select_findings_to_file(
    page: Mapping[int, Finding], copies: Mapping[int, OrphanCopy | str], batch_id: str
) -> FindingsToFile:
    rows = page.items()
    return FindingsToFile(
        batch_id=batch_id,
        orphans=[copy for copy in copies.values() if isinstance(copy, OrphanCopy)],
        unreferenced={
            number: finding.ledger_id
            for number, finding in rows
            if finding.kind is FindingKind.UNREFERENCED_LEDGER and finding.ledger_id is not None
        },
        stalled={
            number: finding.row_id
            for number, finding in rows
            if finding.kind is FindingKind.STALLED_DELETION and finding.row_id is not None
        },
    )


def _run_parallel(calls: Sequence[Callable[[], R]]) -> list[R]:
    """Run `calls` in parallel. Return the results in the order of `calls`. No call begins after the first error."""
    with ThreadPoolExecutor(_PARALLEL_COPIES, thread_name_prefix="look") as threads:
        futures = [threads.submit(copy_context().run, call) for call in calls]
        try:
            return [future.result() for future in futures]
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise
