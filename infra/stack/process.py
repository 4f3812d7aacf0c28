"""One server process that outlives the command that started it, known by its pid file."""

import json
import os
import re
import signal
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread

import psutil

from infra.stack.home import StackHome
from logstore.errors import ServiceFailed

_MARK = "SEXTON_PROCESS"  # in the server's environment: tells it from a later process with the same pid
_LOG_LIMIT_BYTES = 20 * 1024 * 1024
_TELLING = re.compile(r"fatal|panic|error|exception|in use|denied|no space|cannot|failed", re.IGNORECASE)
_KILL_WAIT_S = 10.0  # SIGKILL is obeyed once the kernel has given back the memory


class ServiceProcess:
    """A detached process of one home. Instances hold no state: any process may look after any other's."""

    def __init__(self, name: str, home: StackHome) -> None:
        """Name the process; its pid file and its log carry that name."""
        self.name = name
        self.home = home
        self.pid_file = home.pids / f"{name}.json"
        self.log_file = home.logs / f"{name}.log"

    def running(self) -> psutil.Process | None:
        """The live process that the pid file means, or None.

        A pid file outlives a crash and its pid may belong to a stranger by now: only a process with the start
        time or the mark that was written down counts.
        """
        record = self._record()
        if record is None:
            return None
        pid = int(str(record["pid"]))
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            process = psutil.Process(pid)
            if process.status() != psutil.STATUS_ZOMBIE and _is_same(process, record):
                return process
        return None

    def start(self, argv: Sequence[str], *, cwd: Path, env: Mapping[str, str]) -> int:
        """Start the process in a session of its own, its output appended to the log, and write the pid file.

        Returns:
            The size of the log before the start: what this run says comes after it.

        Raises:
            ServiceFailed: The program cannot be run, or the home cannot be written.
        """
        mark = uuid.uuid4().hex
        with self.home.disk_faults():
            log_start = self._make_room_in_log()
            with self.log_file.open("ab") as log:
                child = self._spawn(argv, cwd=cwd, env={**env, _MARK: mark}, log_fd=log.fileno())
        # Reaps a server that dies while its starter lives. As a daemon it lets the starter leave first.
        Thread(target=child.wait, name=f"reap-{self.name}", daemon=True).start()
        try:
            self._write_record(child.pid, mark)
        except BaseException:
            _signal_group(child.pid, signal.SIGKILL)
            raise
        return log_start

    def stop(self, timeout_s: float) -> bool:
        """Ask the process to end, and end it by force when it has not obeyed in time.

        Returns:
            Whether there was a process to stop.
        """
        process = self.running()
        if process is not None:
            try:
                with suppress(psutil.NoSuchProcess):
                    process.terminate()
                    process.wait(timeout_s)
            except psutil.TimeoutExpired:
                self._end_by_force(process)
            except psutil.AccessDenied:
                raise self._not_ours(process) from None
        self.pid_file.unlink(missing_ok=True)
        return process is not None

    def kill(self) -> bool:
        """End the process at once; its data stays as a power cut would leave it.

        Returns:
            Whether there was a process to kill.
        """
        process = self.running()
        if process is not None:
            self._end_by_force(process)
        self.pid_file.unlink(missing_ok=True)
        return process is not None

    def last_words(self, since: int = 0) -> str:
        """The log's words about the end, in one line: the telling ones of its last lines."""
        try:
            with self.log_file.open("rb") as log:
                size = log.seek(0, os.SEEK_END)
                log.seek(max(since, size - 8192))
                lines = log.read().decode("utf-8", "replace").splitlines()
        except OSError:
            return "it left no log"
        said = [" ".join(line.split()) for line in lines if line.strip()]
        telling = [line for line in said if _TELLING.search(line) and not line.startswith("at ")]
        words = " | ".join((telling or said)[-2:])
        return words[:400] if words else "it said nothing"

    def _spawn(self, argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], log_fd: int) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                argv,
                cwd=cwd,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=log_fd,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as fault:
            problem = f"{argv[0]} cannot be run ({fault.strerror})"
            raise ServiceFailed(self.name, problem, advice="install the project's dependencies again") from fault

    def _record(self) -> dict[str, object] | None:
        """The pid file's content; what is not whole counts as absent, because it proves no process."""
        try:
            record = json.loads(self.pid_file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        whole = isinstance(record, dict) and isinstance(record.get("pid"), int) and "started" in record
        return record if whole else None

    def _write_record(self, pid: int, mark: str) -> None:
        try:
            started = psutil.Process(pid).create_time()
        except psutil.NoSuchProcess:
            started = 0.0  # it died at once; the caller's health check will say so
        self.home.write(self.pid_file, json.dumps({"pid": pid, "started": started, "mark": mark}))

    def _make_room_in_log(self) -> int:
        size = self.log_file.stat().st_size if self.log_file.exists() else 0
        if size <= _LOG_LIMIT_BYTES:
            return size
        self.log_file.replace(self.log_file.with_suffix(".log.1"))
        return 0

    def _end_by_force(self, process: psutil.Process) -> None:
        """End it with all that it started: the Java of a worker's Spark has processes in groups of their own."""
        started: list[psutil.Process] = []
        with suppress(psutil.Error):
            started = process.children(recursive=True)
        try:
            _signal_group(process.pid, signal.SIGKILL)
            for one in started:
                with suppress(psutil.NoSuchProcess):
                    one.kill()
            with suppress(psutil.NoSuchProcess):
                process.wait(_KILL_WAIT_S)
            psutil.wait_procs(started, timeout=_KILL_WAIT_S)
        except (PermissionError, psutil.TimeoutExpired):
            raise self._not_ours(process) from None

    def _not_ours(self, process: psutil.Process) -> ServiceFailed:
        return ServiceFailed(
            self.name, f"process {process.pid} does not let itself be stopped", advice="stop it as its owner or as root"
        )


def _is_same(process: psutil.Process, record: Mapping[str, object]) -> bool:
    """Whether the process is the one written down.

    The start time settles it unless the system clock was set since, which moves every start time that the
    system reports; the mark survives that.
    """
    if abs(process.create_time() - float(str(record["started"]))) < 0.5:
        return True
    return bool(record.get("mark")) and process.environ().get(_MARK) == record["mark"]


def _signal_group(pid: int, number: signal.Signals) -> None:
    """Signal the process and what it started: it leads a group of its own."""
    with suppress(ProcessLookupError):
        os.killpg(pid, number)
