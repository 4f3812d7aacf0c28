"""Verification of candidates, page by page: each task writes the findings that are still true into one file."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from logstore.reconciliation.finding_files import FindingFiles, write_finding_file
from logstore.reconciliation.findings import Finding
from spark.job_runner import JobContext

DROPPED: Final = "dropped"
"""Key of the number of candidates that are no longer true."""

_PAGES_PER_TASK: Final = 8

Verifier = Callable[[Sequence[Finding]], list[Finding]]
"""Function that returns the candidates that are still true."""


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
) -> Counter[str]:
    """Verify the candidates in `folders`, in executors. Return the number of findings by kind, and `DROPPED`.

    Each task calls `open_verifier`, which can be pickled.
    """
    tasks = [_VerifyTask(number, folder, pages) for number, (folder, pages) in enumerate(_cut_into_parts(folders))]
    verify = partial(_write_verified_findings, folder=context.folder, open_verifier=open_verifier)
    return sum(context.run_in_executors(description, tasks, verify), Counter[str]())


def _cut_into_parts(folders: Sequence[Path]) -> Iterator[tuple[Path, tuple[int, ...]]]:
    for folder in folders:
        pages = range(FindingFiles(folder).pages)
        for start in range(0, len(pages), _PAGES_PER_TASK):
            yield folder, tuple(pages[start : start + _PAGES_PER_TASK])


def _write_verified_findings(
    task: _VerifyTask, *, folder: Path, open_verifier: Callable[[], AbstractContextManager[Verifier]]
) -> Counter[str]:
    """Write the true findings of some pages into one file, in an executor. Two runs of a task may overlap."""
    files, counts = FindingFiles(task.candidates), Counter[str]()
    with open_verifier() as verify:

        def verify_page(page: int) -> list[Finding]:
            candidates = list(files.read_page(page).values())
            findings = verify(candidates)
            counts.update(finding.kind.value for finding in findings)
            counts[DROPPED] += len(candidates) - len(findings)
            return findings

        write_finding_file(folder / f"findings-{task.number:06d}.parquet", map(verify_page, task.pages))
    return counts
