"""Selection of the orphans that an apply of a plan of a Pulsar cluster removes."""

import heapq
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from activities.reconciliation import finding_fates
from logstore.pulsar.cluster_findings import is_confirmed
from logstore.reconciliation.finding_files import FateFiles, FindingFiles
from logstore.reconciliation.findings import FateOfFinding, Finding, FindingKind, FindingPosition, PlanOrScrubResult
from logstore.stop_checks import raise_if_stopped

IRREVERSIBLE_KINDS: Final = (
    FindingKind.ORPHAN_OFFLOAD,
    FindingKind.ABANDONED_UPLOAD,
    FindingKind.ORPHAN_MANAGED_LEDGER,
)
"""Kinds whose removals no undo puts back, in the order in which an apply removes those of a page."""

_UNCONFIRMED: Final = "only a broker could rule a reference out"
_UNCONFIRMED_UPLOAD: Final = "it does not state its cluster; --include-unconfirmed aborts it"
_IRREVERSIBLE: Final = "no undo puts it back; --include-irreversible removes it"
_NO_BUCKET: Final = "the setting pulsar_offload_bucket is empty"
_SHARED_BUCKET: Final = "the setting pulsar_offload_bucket_exclusive is false"
_NO_ADMIN_API: Final = "the setting pulsar_admin_url is empty"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovalScope:
    """Which orphans an operator lets an apply remove, and which ones the settings can reach."""

    include_unconfirmed: bool = False
    include_irreversible: bool = False
    has_offload_bucket: bool = False
    is_offload_bucket_exclusive: bool = False
    has_admin_api: bool = False

    @property
    def kinds(self) -> tuple[FindingKind, ...]:
        return (FindingKind.ORPHAN_LEDGER, *(IRREVERSIBLE_KINDS if self.include_irreversible else ()))

    def find_reason_to_keep(self, finding: Finding, plan: PlanOrScrubResult) -> str:
        """Return why this apply keeps an orphan, or "". A later apply may remove the orphan."""
        if finding.kind not in self.kinds:
            return _IRREVERSIBLE
        if finding.kind is FindingKind.ORPHAN_MANAGED_LEDGER and not self.has_admin_api:
            return _NO_ADMIN_API
        if finding.kind in {FindingKind.ORPHAN_OFFLOAD, FindingKind.ABANDONED_UPLOAD}:
            if not self.has_offload_bucket:
                return _NO_BUCKET
            if not self.is_offload_bucket_exclusive:
                return _SHARED_BUCKET
        if self.include_unconfirmed or is_confirmed(finding, plan):
            return ""
        return _UNCONFIRMED_UPLOAD if finding.kind is FindingKind.ABANDONED_UPLOAD else _UNCONFIRMED


def select_orphans(
    findings: Mapping[int, Finding],
    fates: Mapping[int, FateOfFinding],
    plan: PlanOrScrubResult,
    scope: RemovalScope,
    *,
    last: FindingPosition | None = None,
) -> tuple[dict[int, Finding], dict[int, FateOfFinding]]:
    """Return the orphans to remove, and the fates of those that this apply keeps.

    `fates` are the fates that are stored. Those of kept orphans are not: a later apply may include them. `last` is the
    youngest orphan to remove.
    """
    orphans: dict[int, Finding] = {}
    kept: dict[int, FateOfFinding] = {}
    for number, finding in findings.items():
        if finding.kind not in {FindingKind.ORPHAN_LEDGER, *IRREVERSIBLE_KINDS} or number in fates:
            continue
        if reason := scope.find_reason_to_keep(finding, plan):
            kept[number] = finding_fates.kept_fate(number, reason)
        elif last is None or get_position(number, finding) <= last:
            orphans[number] = finding
    return orphans, kept


def count_held_back(findings: Iterable[Finding], plan: PlanOrScrubResult) -> int:
    """Return the number of orphans that an apply without options keeps."""
    return sum(bool(RemovalScope().find_reason_to_keep(finding, plan)) for finding in findings)


def iterate_orphans_to_remove(
    files: FindingFiles, fate_files: FateFiles | None, plan: PlanOrScrubResult, scope: RemovalScope
) -> Iterator[tuple[int, Finding]]:
    """Yield what is left to remove. `fate_files` are those of earlier applies of the plan."""
    for page in range(files.pages):
        raise_if_stopped()
        fates = (fate_files.read_page(page) if fate_files else None) or {}
        orphans, _ = select_orphans(files.read_page(page), fates, plan, scope)
        yield from orphans.items()


def select_oldest(orphans: Iterable[tuple[int, Finding]], limit: int) -> list[tuple[int, Finding]]:
    """Return the `limit` oldest orphans, oldest first. Memory holds only these."""
    return heapq.nsmallest(limit, orphans, key=lambda orphan: get_position(*orphan))


def get_position(number: int, finding: Finding) -> FindingPosition:
    return FindingPosition(newest_us=finding.newest_us or 0, number=number)
