"""A program that writes and acknowledges, as a process that may be killed: `python -m tests.faults.writer MEMORY`."""

import os
import pickle
import sys
from pathlib import Path

from logstore import failpoints
from tests.faults.programs import Programs
from tests.faults.real import WRITTEN, RealWorld
from workers.settings import load_settings


class Remembering(Programs[RealWorld]):
    """Programs that keep in a file which calls were answered."""

    def __init__(self, world: RealWorld, memory: Path) -> None:
        super().__init__(world, WRITTEN)
        self._file = memory
        if memory.exists():
            self.memory = pickle.loads(memory.read_bytes())  # noqa: S301 - this program's own file

    def remember(self) -> None:
        """Whole or not at all."""
        whole = self._file.with_suffix(".new")
        whole.write_bytes(pickle.dumps(self.memory))
        whole.replace(self._file)


if __name__ == "__main__":
    failpoints.arm_from_environment(os.environ.get(failpoints.ENVIRONMENT_VARIABLE))
    programs = Remembering(RealWorld(load_settings({}, os.environ, Path.cwd()).settings), Path(sys.argv[1]))
    programs.drive(programs.write)
