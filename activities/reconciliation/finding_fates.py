"""The fates of a page's findings, that is, what became of each; a folder keeps them in three files.

`kept` has the copies that were not filed, `objects` the fates of single objects. Both are joined into `fates`, which
has the fate of every finding. Each file is written as a whole.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from logstore.deletion.intents import Outcome
from logstore.ports.catalog import FiledCopy
from logstore.reconciliation.files import Ended, FateFiles
from logstore.reconciliation.findings import ApplyCounts, Fate, Finding, FindingKind, capped
from logstore.reconciliation.services.orphans import is_object

NOT_FILED: Final = "nothing was filed for it"
"""The reason given for a finding that was not acted upon because something else failed."""

_SUBJECT: Final = re.compile(r"((segment \d+ of )?(ledger|deletion) \d+: )+")
_TOLD: Final = 200  # characters of each
_TAKEN_OVER: Final = "another batch took its deletion over: look there for how it ends"


def kept_files(folder: Path) -> FateFiles:
    """Copies of each page that were not filed, and why."""
    return FateFiles(folder / "kept")


def object_files(folder: Path) -> FateFiles:
    """What became of the single objects of each page."""
    return FateFiles(folder / "objects")


def fate_files(folder: Path) -> FateFiles:
    """What became of all findings of each page that apply acts upon."""
    return FateFiles(folder / "fates")


def joined(
    found: Mapping[int, Finding], filed: Sequence[FiledCopy], *, intents: int, folder: Path, page: int
) -> dict[int, Ended]:
    """What became of each finding of a page that apply acts upon, ascending.

    What was filed counts before what was kept: an attempt that came late may have found nothing in storage any more.
    A finding that was neither kept nor has a row was filed, and a sweep took its row over, because the page's own batch
    began late or ended early.

    Args:
        found: Findings of the page by number.
        filed: Rows of the page's batch, as they stand now.
        intents: Rows that were filed for it.
        folder: Of the plan's run.
        page: Its number.
    """
    copies, objects = kept_files(folder).page(page), object_files(folder).page(page) or {}
    kept, rows, whole = copies or {}, _by_finding(found, filed), len(filed) >= intents
    ended: dict[int, Ended] = {}
    for at, one in sorted(found.items()):
        if not one.kind.applied:
            continue
        unfiled = Ended(number=at, fate=Fate.KEPT, reason=NOT_FILED)
        taken = Ended(number=at, fate=Fate.STARTED, reason=_TAKEN_OVER)
        if is_object(one):
            ended[at] = objects.get(at, unfiled)
        elif at in rows:
            ended[at] = _ended(at, one, rows[at], whole=whole)
        else:
            ended[at] = kept.get(at, unfiled if copies is None else taken)
    return ended


def _by_finding(found: Mapping[int, Finding], filed: Sequence[FiledCopy]) -> dict[int, list[FiledCopy]]:
    """Rows of a batch by the number of the finding for which each was filed, so that no row counts twice.

    A row of an unreferenced ledger is known by its ledger alone, hence only what no other finding names is such a one.
    """
    numbers: dict[object, int] = {}
    for at, one in found.items():
        numbers.setdefault(_key_of(one), at)
    rows: dict[int, list[FiledCopy]] = defaultdict(list)
    for row in filed:
        for key in (row.row_id, (row.ledger_id, row.copy, row.uuid), (row.ledger_id,)):
            if key in numbers:
                rows[numbers[key]].append(row)
                break
    return rows


def _key_of(finding: Finding) -> object:
    if finding.kind is FindingKind.STALLED_DELETION:
        return finding.row_id
    if finding.kind is FindingKind.UNREFERENCED_LEDGER:
        return (finding.ledger_id,)
    return (finding.ledger_id, finding.copy, finding.uuid)


def _ended(number: int, finding: Finding, rows: Sequence[FiledCopy], *, whole: bool) -> Ended:
    """What became of the rows of a finding; whole: no row has left the batch."""
    fate, reason = _fate(rows, stalled=finding.kind is FindingKind.STALLED_DELETION)
    if fate is Fate.DELETED and finding.kind is FindingKind.UNREFERENCED_LEDGER and not whole:
        fate, reason = Fate.STARTED, _TAKEN_OVER  # the row of its other copy may be one of those that left
    return Ended(
        number=number,
        fate=fate,
        reason=reason,
        objects=sum(one.objects for one in rows),
        size_bytes=sum(one.size_bytes for one in rows),
    )


def _fate(rows: Sequence[FiledCopy], *, stalled: bool) -> tuple[Fate, str]:
    """Of several rows the worst; what is tried again by a workflow of its own has failed so far, but was started."""
    failed = [one for one in rows if one.outcome is None or not one.outcome.is_success]
    if not failed:
        return Fate.DELETED, ""
    dead = [one for one in failed if one.outcome not in {None, Outcome.RETRYING}]
    if dead:
        outcome = dead[0].outcome or Outcome.DEAD_LETTERED
        return Fate.FAILED, f"{outcome.value}: {dead[0].error}" if dead[0].error else outcome.value
    if stalled:
        return Fate.STARTED, ""
    error = failed[0].error
    return Fate.FAILED, f"{Outcome.RETRYING.value}: {error}" if error else Outcome.RETRYING.value


def _kind_of(reason: str) -> str:
    """A reason without the ledger, segment or deletion that it begins with, so that equal ones count together."""
    subject = _SUBJECT.match(reason)
    return reason[subject.end() if subject else 0 :][:_TOLD]


def counted(found: Mapping[int, Finding], ended: Mapping[int, Ended]) -> ApplyCounts:
    """A page by kind and reason."""
    applied: dict[str, int] = defaultdict(int)
    skipped: dict[str, int] = defaultdict(int)
    failures: dict[str, str] = {}
    for at, one in sorted(ended.items()):
        if one.fate is Fate.KEPT:
            skipped[_kind_of(one.reason)] += 1
        elif one.fate is Fate.FAILED:
            failures[str(at)] = one.reason[:_TOLD]
        else:
            applied[found[at].kind.value] += 1
    return capped(
        ApplyCounts(
            applied=dict(applied),
            skipped=dict(skipped),
            failed=len(failures),
            objects=sum(one.objects for one in ended.values()),
            size_bytes=sum(one.size_bytes for one in ended.values()),
            failures=failures,
        )
    )
