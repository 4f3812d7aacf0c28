"""A program that writes and acknowledges, as a process that may be killed.

Usage: `python -m tests.faults.writer_process MEMORY`.
"""

import os
import pickle
import sys
from pathlib import Path

from logstore import failpoints
from tests.faults.real_world import WRITER_PLANS, RealWorld
from tests.faults.writing_programs import WritingPrograms
from workers.settings import load_settings


class PersistentWritingPrograms(WritingPrograms[RealWorld]):
    """Programs that keep in a file which calls were answered."""

    def __init__(self, world: RealWorld, memory: Path) -> None:
        super().__init__(world, WRITER_PLANS)
        self._file = memory
        if memory.exists():
            self.memory = pickle.loads(memory.read_bytes())  # noqa: S301 - this program's own file

    def remember(self) -> None:
        """Whole or not at all."""
        new_file = self._file.with_suffix(".new")
        new_file.write_bytes(pickle.dumps(self.memory))
        new_file.replace(self._file)


if __name__ == "__main__":
    failpoints.arm_from_environment(os.environ.get(failpoints.ENVIRONMENT_VARIABLE))
    programs = PersistentWritingPrograms(
        RealWorld(load_settings({}, os.environ, Path.cwd()).settings), Path(sys.argv[1])
    )
    programs.drive(programs.write)
