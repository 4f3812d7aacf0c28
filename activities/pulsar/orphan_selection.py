"""Selection of the orphan ledgers that an apply of a plan of a Pulsar cluster deletes."""

import heapq
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from activities.reconciliation import finding_fates
from logstore.pulsar.cluster_findings import is_confirmed
from logstore.reconciliation.finding_files import FateFiles, FateOfFinding, FindingFiles
from logstore.reconciliation.findings import Finding, FindingKind, FindingPosition, PlanOrScrubResult
from logstore.stop_checks import raise_if_stopped

_UNCONFIRMED: Final = "only a broker could rule a reference out"


def select_orphans(
    findings: Mapping[int, Finding],
    fates: Mapping[int, FateOfFinding],
    plan: PlanOrScrubResult,
    *,
    include_unconfirmed: bool,
    last: FindingPosition | None = None,
) -> tuple[dict[int, Finding], dict[int, FateOfFinding]]:
    """Return the orphan ledgers to delete, and the fates of those that are not confirmed, if they are not included.

    `fates` are the fates that are stored. Those of unconfirmed ledgers are not: a later apply may include them. `last`
    is the youngest ledger to delete.
    """
    orphans: dict[int, Finding] = {}
    unconfirmed: dict[int, FateOfFinding] = {}
    for number, finding in findings.items():
        if finding.kind is not FindingKind.ORPHAN_LEDGER or number in fates:
            continue
        if not include_unconfirmed and not is_confirmed(finding, plan):
            unconfirmed[number] = finding_fates.kept_fate(number, _UNCONFIRMED)
        elif last is None or get_position(number, finding) <= last:
            orphans[number] = finding
    return orphans, unconfirmed


def count_unconfirmed(findings: Iterable[Finding], plan: PlanOrScrubResult) -> int:
    return sum(not is_confirmed(finding, plan) for finding in findings)


def iterate_orphans_to_delete(
    files: FindingFiles, fate_files: FateFiles | None, plan: PlanOrScrubResult, *, include_unconfirmed: bool
) -> Iterator[tuple[int, Finding]]:
    """Yield what is left to delete. `fate_files` are those of earlier applies of the plan."""
    for page in range(files.pages):
        raise_if_stopped()
        fates = (fate_files.read_page(page) if fate_files else None) or {}
        orphans, _ = select_orphans(files.read_page(page), fates, plan, include_unconfirmed=include_unconfirmed)
        yield from orphans.items()


def select_oldest(orphans: Iterable[tuple[int, Finding]], limit: int) -> list[tuple[int, Finding]]:
    """Return the `limit` oldest ledgers, oldest first. Memory holds only these."""
    return heapq.nsmallest(limit, orphans, key=lambda orphan: get_position(*orphan))


def get_position(number: int, finding: Finding) -> FindingPosition:
    return FindingPosition(newest_us=finding.newest_us or 0, number=number)
