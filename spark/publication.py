"""Output that is there as a whole or not at all: one folder an attempt, and one pointer to the first complete one.

    {root}/{run_id}/{job}.json            the pointer, with the job's summary; made once, by a hard link
    {root}/{run_id}/attempts/{job}-{hex}  where one attempt writes
    {root}/{run_id}/outputs/{job}-{hex}   the same folder, once it is whole
    {root}/{run_id}/kept                  what others keep of the run, file by file

An attempt that died leaves a folder that no pointer names; overlapping ones never see each other's files. A whole
folder is moved before it is named, so that a task that Spark gave up, and which lives on, finds no place to write to.
Between any two calls here the process may die: until the link is made nothing is published, afterwards all of it is.
Should the whole machine die, files may be lost that the pointer names, because waiting until a disk has millions of
facts would cost as much as to find them: so a pointer names its files with their lengths, and output that lacks one is
refused.
"""

import json
import os
import re
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final
from uuid import uuid4

from logstore.errors import CorruptData, InvalidInput
from logstore.failpoints import effect
from logstore.reconciliation.jobs import BulkSummary
from logstore.whole_files import put_first

_RUN_ID: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,79}")
_ATTEMPTS: Final = "attempts"
_OUTPUTS: Final = "outputs"


class Publication:
    """The outputs of bulk jobs under one folder, which every process that runs one must see."""

    def __init__(self, root: Path) -> None:
        """Use this folder; it is made when something is published."""
        self._root = root

    def summary(self, run_id: str, name: str) -> BulkSummary | None:
        """The summary that was published, or None.

        Raises:
            InvalidInput: A run id that is none.
            CorruptData: The pointer is not ours, or output that it names has been lost.
        """
        path = self._pointer(run_id, name)
        try:
            found = BulkSummary(**json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise CorruptData(f"{path}: expected the summary of a bulk job ({error})") from error
        lengths = _lengths(Path(found.folder))
        lost = [file for file, length in found.files.items() if lengths.get(file) != length]
        if lost:
            raise CorruptData(f"{found.folder}: expected {found.files[lost[0]]} bytes of {lost[0]}, which were lost")
        return found

    def attempt(self, run_id: str, name: str) -> Path:
        """A new folder for one attempt."""
        folder = self._of(run_id) / _ATTEMPTS / f"{name}-{uuid4().hex[:12]}"
        folder.mkdir(parents=True)
        return folder

    def publish(self, run_id: str, name: str, attempt: Path, summary: BulkSummary) -> BulkSummary:
        """Make the attempt the job's output, unless another one is; the summary of the one that is."""
        folder = self._of(run_id) / _OUTPUTS / attempt.name
        folder.parent.mkdir(exist_ok=True)
        attempt.rename(folder)
        whole = replace(summary, folder=str(folder), files=_lengths(folder))
        pointer = self._pointer(run_id, name)
        told = json.dumps(asdict(whole), sort_keys=True)
        with effect("bulk.publish"):
            if put_first(pointer, told) != told:
                shutil.rmtree(folder, ignore_errors=True)
        return self.summary(run_id, name) or whole

    def beside(self, run_id: str) -> Path:
        """The run's folder for what is no job's output, made if absent."""
        folder = self._of(run_id) / "kept"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def forget(self, run_id: str) -> None:
        """Remove the run's outputs, pointers first, so that no process reads half of one."""
        folder = self._of(run_id)
        for pointer in folder.glob("*.json"):
            pointer.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)

    def runs(self) -> list[str]:
        """Ids of the runs that have a folder, ascending."""
        if not self._root.is_dir():
            return []
        return sorted(path.name for path in self._root.iterdir() if path.is_dir() and _RUN_ID.fullmatch(path.name))

    def _pointer(self, run_id: str, name: str) -> Path:
        return self._of(run_id) / f"{name}.json"

    def _of(self, run_id: str) -> Path:
        if not _RUN_ID.fullmatch(run_id):
            raise InvalidInput("run_id", expected="1 to 80 of a-z, 0-9 and -", found=run_id)
        return self._root / run_id


def _lengths(folder: Path) -> dict[str, int]:
    if not folder.is_dir():
        return {}
    with os.scandir(folder) as found:
        return {one.name: one.stat().st_size for one in found if not one.name.startswith(".")}
