"""Fates of a page's findings: how an apply derives and counts them."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from logstore.deletion.intents import Outcome
from logstore.ports.catalog.reconciliation import FiledCopyRow
from logstore.reconciliation.finding_files import FateFiles
from logstore.reconciliation.findings import (
    ApplyCounts,
    FateOfFinding,
    Finding,
    FindingFate,
    FindingKind,
    limit_samples,
)

GONE: Final = "it does not exist any more"
"""Reason for a finding of a Pulsar cluster that somebody else has removed since the plan."""

_TAKEN_OVER: Final = "another batch took its deletion over: look there for how it ends"
_SUBJECT: Final = re.compile(r"((segment \d+ of )?(ledger|deletion) \d+: )+")
_MAX_REASON_CHARS: Final = 200


def kept_fate(number: int, reason: str) -> FateOfFinding:
    return FateOfFinding(number=number, fate=FindingFate.KEPT, reason=reason)


def deleted_fate(number: int, finding: Finding) -> FateOfFinding:
    return FateOfFinding(
        number=number, fate=FindingFate.DELETED, objects=finding.objects, size_bytes=finding.size_bytes
    )


def page_fate_files(folder: Path) -> FateFiles:
    """Return the files of fates of an apply in a Pulsar cluster, or in the own store by an earlier build."""
    return FateFiles(folder / "fates")


def derive_fates_from_rows(
    filed_findings: Mapping[int, Finding], filed_rows: Sequence[FiledCopyRow], *, filed_row_count: int
) -> list[FateOfFinding]:
    """Return the fate of each finding that was filed.

    `filed_row_count` is the number of rows that were filed for the page. `filed_rows` may lack rows that a sweep took
    over. If a finding has no row, a sweep has taken over the finding's row.
    """
    rows_by_finding = _group_rows_by_finding(filed_findings, filed_rows)
    is_complete = len(filed_rows) >= filed_row_count
    return [
        _fate_from_rows(number, finding, rows_by_finding[number], is_complete=is_complete)
        if number in rows_by_finding
        else FateOfFinding(number=number, fate=FindingFate.STARTED, reason=_TAKEN_OVER)
        for number, finding in filed_findings.items()
    ]


def _group_rows_by_finding(
    findings: Mapping[int, Finding], filed_rows: Sequence[FiledCopyRow]
) -> dict[int, list[FiledCopyRow]]:
    """Group the rows of a batch by finding. The finding of an unreferenced ledger gets all rows of this ledger."""
    number_by_key: dict[object, int] = {}
    for number, finding in findings.items():
        number_by_key.setdefault(_finding_key(finding), number)
    rows_by_finding: dict[int, list[FiledCopyRow]] = defaultdict(list)
    for row in filed_rows:
        for key in (row.row_id, (row.ledger_id, row.copy, row.uuid), (row.ledger_id,)):
            if key in number_by_key:
                rows_by_finding[number_by_key[key]].append(row)
                break
    return rows_by_finding


def _finding_key(finding: Finding) -> object:
    if finding.kind is FindingKind.STALLED_DELETION:
        return finding.row_id
    if finding.kind is FindingKind.UNREFERENCED_LEDGER:
        return (finding.ledger_id,)
    return (finding.ledger_id, finding.copy, finding.uuid)


def _fate_from_rows(number: int, finding: Finding, rows: Sequence[FiledCopyRow], *, is_complete: bool) -> FateOfFinding:
    """Return the fate of a finding, derived from `rows`. `is_complete` means that no row has left the batch."""
    fate, reason = _worst_fate_of_rows(rows, is_stalled=finding.kind is FindingKind.STALLED_DELETION)
    if fate is FindingFate.DELETED and finding.kind is FindingKind.UNREFERENCED_LEDGER and not is_complete:
        fate, reason = FindingFate.STARTED, _TAKEN_OVER  # the row of the ledger's other copy may have left the batch
    return FateOfFinding(
        number=number,
        fate=fate,
        reason=reason,
        objects=sum(row.objects for row in rows),
        size_bytes=sum(row.size_bytes for row in rows),
    )


def _worst_fate_of_rows(rows: Sequence[FiledCopyRow], *, is_stalled: bool) -> tuple[FindingFate, str]:
    """Return the worst fate of the rows.

    A row that was handed over has the fate FAILED, or STARTED if `is_stalled` is set.
    """
    failed = [row for row in rows if row.outcome is None or not row.outcome.is_success]
    if not failed:
        return FindingFate.DELETED, ""
    dead = [row for row in failed if row.outcome not in {None, Outcome.RETRYING}]
    if dead:
        outcome = dead[0].outcome or Outcome.DEAD_LETTERED
        return FindingFate.FAILED, f"{outcome.value}: {dead[0].error}" if dead[0].error else outcome.value
    if is_stalled:
        return FindingFate.STARTED, ""
    error = failed[0].error
    return FindingFate.FAILED, f"{Outcome.RETRYING.value}: {error}" if error else Outcome.RETRYING.value


def _strip_subject(reason: str) -> str:
    subject = _SUBJECT.match(reason)
    return reason[subject.end() if subject else 0 :][:_MAX_REASON_CHARS]


def count_fates(findings: Mapping[int, Finding], applied: Mapping[int, FateOfFinding]) -> ApplyCounts:
    applied_by_kind: dict[str, int] = defaultdict(int)
    kept_by_reason: dict[str, int] = defaultdict(int)
    failures: dict[str, str] = {}
    for number, result in sorted(applied.items()):
        if result.fate is FindingFate.KEPT:
            kept_by_reason[_strip_subject(result.reason)] += 1
        elif result.fate is FindingFate.FAILED:
            failures[str(number)] = result.reason[:_MAX_REASON_CHARS]
        else:
            applied_by_kind[findings[number].kind.value] += 1
    return limit_samples(
        ApplyCounts(
            applied=dict(applied_by_kind),
            skipped=dict(kept_by_reason),
            failed=len(failures),
            objects=sum(result.objects for result in applied.values()),
            size_bytes=sum(result.size_bytes for result in applied.values()),
            failures=failures,
        )
    )
