"""Output of bulk jobs, published all or nothing: one folder per attempt, and a pointer to the first complete attempt.

    {root}/{run_id}/{job}.json            pointer with the job's summary, created once by a hard link
    {root}/{run_id}/attempts/{job}-{hex}  where one attempt writes
    {root}/{run_id}/outputs/{job}-{hex}   the same folder after the attempt has completed
    {root}/{run_id}/kept                  files that activities keep for the run

A complete folder is moved before a pointer names it, so a task that outlives its attempt cannot write to the folder.
The process may die between any two calls.

Files are not synced to disk, because a sync would cost as much as the computation. A file can therefore be lost. The
pointer has the length of every file, and output with a missing or shorter file is refused.
"""

import json
import os
import re
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final
from uuid import uuid4

from logstore.atomic_files import create_or_read_text
from logstore.errors import CorruptData, InvalidInput
from logstore.failpoints import effect
from logstore.reconciliation.bulk_job_inputs_and_results import BulkJobSummary

_RUN_ID: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,79}")


class PublishedOutputs:
    """Outputs of bulk jobs under one root folder. Every process that runs a job must see this folder."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def read_summary(self, run_id: str, name: str) -> BulkJobSummary | None:
        """Return the summary, or `None` if no attempt is published. Raise `CorruptData` if an output file is lost."""
        path = self._pointer_path(run_id, name)
        try:
            summary = BulkJobSummary(**json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise CorruptData(f"{path}: expected the summary of a bulk job ({error})") from error
        lengths = _file_lengths(Path(summary.folder))
        lost = [file for file, length in summary.files.items() if lengths.get(file) != length]
        if lost:
            raise CorruptData(
                f"{summary.folder}: expected {summary.files[lost[0]]} bytes of {lost[0]}, which were lost"
            )
        return summary

    def create_attempt_folder(self, run_id: str, name: str) -> Path:
        folder = self._run_folder(run_id) / "attempts" / f"{name}-{uuid4().hex[:12]}"
        folder.mkdir(parents=True)
        return folder

    def publish(self, run_id: str, name: str, attempt_folder: Path, summary: BulkJobSummary) -> BulkJobSummary:
        """Publish the attempt unless another attempt is published. Return the summary of the published attempt."""
        folder = self._run_folder(run_id) / "outputs" / attempt_folder.name
        folder.parent.mkdir(exist_ok=True)
        attempt_folder.rename(folder)
        complete_summary = replace(summary, folder=str(folder), files=_file_lengths(folder))
        text = json.dumps(asdict(complete_summary), sort_keys=True)
        with effect("bulk.publish"):
            if create_or_read_text(self._pointer_path(run_id, name), text) != text:
                shutil.rmtree(folder, ignore_errors=True)
        return self.read_summary(run_id, name) or complete_summary

    def create_kept_folder(self, run_id: str) -> Path:
        folder = self._run_folder(run_id) / "kept"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def remove_run_outputs(self, run_id: str) -> None:
        """Remove the run's outputs, pointers first, so that no process reads an incomplete output."""
        folder = self._run_folder(run_id)
        for pointer in folder.glob("*.json"):
            pointer.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)

    def list_runs(self) -> list[str]:
        if not self._root.is_dir():
            return []
        return sorted(path.name for path in self._root.iterdir() if path.is_dir() and _RUN_ID.fullmatch(path.name))

    def _pointer_path(self, run_id: str, name: str) -> Path:
        return self._run_folder(run_id) / f"{name}.json"

    def _run_folder(self, run_id: str) -> Path:
        if not _RUN_ID.fullmatch(run_id):
            raise InvalidInput("run_id", expected="1 to 80 of a-z, 0-9 and -", found=run_id)
        return self._root / run_id


def _file_lengths(folder: Path) -> dict[str, int]:
    if not folder.is_dir():
        return {}
    with os.scandir(folder) as entries:
        return {entry.name: entry.stat().st_size for entry in entries if not entry.name.startswith(".")}
