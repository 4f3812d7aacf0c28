"""Verification of candidates, page by page: each task writes the findings that are still true into one file."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from logstore.reconciliation.finding_files import FindingFiles, write_finding_file
from logstore.reconciliation.findings import Finding
from spark.job_runner import JobContext

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
