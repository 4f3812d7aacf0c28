"""A shell with a home of its own, and a look at what it leaves behind."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import chdir
from pathlib import Path
from typing import Any, Final, Self

import psutil
from typer.testing import CliRunner

from workers.cli import app

ROOT: Final = Path(__file__).resolve().parents[2]
SEXTON: Final = Path(sys.executable).with_name("sexton")
_WITHIN_S: Final = 900.0  # on a machine that is busy with other work


class Shell:
    """Runs `sexton` in a directory where temporary files go too."""

    def __init__(self, folder: Path, **environ: str) -> None:
        """Keep everything in `folder`, whose path is short for unix sockets."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("SEXTON_")}
        self.folder = folder
        self.environ: Mapping[str, str] = {**inherited, "TMPDIR": str(folder), **environ}

    def but(self, **environ: str) -> Self:
        """The same shell with other variables beside its own."""
        return type(self)(self.folder, **{**self.environ, **environ})

    def run(self, *args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run one command."""
        return self._ended([str(SEXTON), *args], stdin)

    def python(self, program: str) -> subprocess.CompletedProcess[str]:
        """Run a program of Python that is in the folder."""
        return self._ended([sys.executable, program], "")

    def _ended(self, command: list[str], stdin: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self.folder,
            env=self.environ,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=_WITHIN_S,
            check=False,
        )

    def start(self, *args: str) -> subprocess.Popen[bytes]:
        """Start one command and let it run; its output goes where this process's goes."""
        return subprocess.Popen([str(SEXTON), *args], cwd=self.folder, env=self.environ)

    def json(self, *args: str, code: int = 0, stdin: str = "") -> Any:
        """The document of a command with `--json` that ends with this code; without the trace of one that is done."""
        ended = self.run(*args, "--json", stdin=stdin)
        assert ended.returncode == code, (
            f"sexton {' '.join(args)}: exit {ended.returncode}\n{ended.stdout}{ended.stderr}"
        )
        told = json.loads(ended.stdout)
        if code == 0 and isinstance(told, dict):
            told.pop("trace_id", None)
        return told

    def left_running(self) -> list[str]:
        """Processes that were started from here, or speak of here."""
        found = []
        for process in psutil.process_iter():
            try:
                known = [*process.cmdline(), process.environ().get("TMPDIR", ""), process.cwd()]
            except psutil.Error:
                continue
            if any(str(self.folder) in part for part in known):
                found.append(f"{process.pid} {' '.join(process.cmdline())[:120]}")
        return found

    def left_on_disk(self) -> list[str]:
        """Names in the folder."""
        return sorted(path.name for path in self.folder.iterdir())


class Inside(Shell):
    """Runs commands in this process, which has imported everything; those that start others, in one of their own."""

    def run(self, *args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run one command; stdout and stderr are the interpreter's own."""
        if args[0] in {"up", "down", "worker"}:
            return super().run(*args, stdin=stdin)
        none = {name: None for name in os.environ if name.startswith("SEXTON_")}
        with chdir(self.folder):
            done = CliRunner().invoke(app, list(args), input=stdin, env={**none, **self.environ})
        return subprocess.CompletedProcess(args, done.exit_code, done.stdout, done.stderr)
