"""Server process that outlives the command that started it. A pid file identifies the process."""

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

from infra.stack.stack_home import StackHome
from logstore.errors import ServiceFailed

# Environment variable of the server. Its value distinguishes the server from a later process with the same pid.
_MARK_VARIABLE = "SEXTON_PROCESS"
_MAX_LOG_BYTES = 20 * 1024 * 1024
_FAILURE_WORDS = re.compile(r"fatal|panic|error|exception|in use|denied|no space|cannot|failed", re.IGNORECASE)
_KILL_WAIT_S = 10.0  # a killed process ends only after the kernel has freed its memory


class ServiceProcess:
    """Detached process of a stack home. All state is in the pid file, so that any command can manage the process."""

    def __init__(self, name: str, home: StackHome) -> None:
        self.name = name
        self.home = home
        self.pid_file = home.pids / f"{name}.json"
        self.log_file = home.logs / f"{name}.log"

    def find_process(self) -> psutil.Process | None:
        """Return the live process of the pid file. A process that only has the same pid is ignored."""
        record = self._read_record()
        if record is None:
            return None
        pid = int(str(record["pid"]))
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            process = psutil.Process(pid)
            if process.status() != psutil.STATUS_ZOMBIE and _is_recorded_process(process, record):
                return process
        return None

    def start(self, argv: Sequence[str], *, cwd: Path, env: Mapping[str, str]) -> int:
        """Start the process in a new POSIX session, and write the pid file. Return the log's earlier size in bytes."""
        mark = uuid.uuid4().hex
        with self.home.translate_disk_errors():
            log_start = self._rotate_large_log()
            with self.log_file.open("ab") as log:
                child = self._spawn(argv, cwd=cwd, env={**env, _MARK_VARIABLE: mark}, log_fd=log.fileno())
        # Reaps a server that dies before its starter. A daemon thread does not keep the starter alive.
        Thread(target=child.wait, name=f"reap-{self.name}", daemon=True).start()
        try:
            self._write_record(child.pid, mark)
        except BaseException:
            _signal_group(child.pid, signal.SIGKILL)
            raise
        return log_start

    def stop(self, timeout_s: float) -> bool:
        """Send SIGTERM, then SIGKILL after `timeout_s`. Return whether a process ran."""
        process = self.find_process()
        if process is not None:
            try:
                with suppress(psutil.NoSuchProcess):
                    process.terminate()
                    process.wait(timeout_s)
            except psutil.TimeoutExpired:
                self._kill_tree(process)
            except psutil.AccessDenied:
                raise self._unstoppable_process_error(process) from None
        self.pid_file.unlink(missing_ok=True)
        return process is not None

    def kill(self) -> bool:
        """Send SIGKILL, which leaves the data as after a power cut. Return whether a process ran."""
        process = self.find_process()
        if process is not None:
            self._kill_tree(process)
        self.pid_file.unlink(missing_ok=True)
        return process is not None

    def summarize_last_failure_lines(self, start_byte: int = 0) -> str:
        """Return the last two log lines after `start_byte`, preferably of failures, in at most 400 characters."""
        try:
            with self.log_file.open("rb") as log:
                size = log.seek(0, os.SEEK_END)
                log.seek(max(start_byte, size - 8192))
                lines = log.read().decode("utf-8", "replace").splitlines()
        except OSError:
            return "it left no log"
        lines = [" ".join(line.split()) for line in lines if line.strip()]
        failure_lines = [line for line in lines if _FAILURE_WORDS.search(line) and not line.startswith("at ")]
        summary = " | ".join((failure_lines or lines)[-2:])
        return summary[:400] if summary else "it wrote no log line"

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

    def _read_record(self) -> dict[str, object] | None:
        try:
            record = json.loads(self.pid_file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        is_complete = isinstance(record, dict) and isinstance(record.get("pid"), int) and "started" in record
        return record if is_complete else None

    def _write_record(self, pid: int, mark: str) -> None:
        try:
            started = psutil.Process(pid).create_time()
        except psutil.NoSuchProcess:
            started = 0.0  # the process died at once, which the caller's health check reports
        self.home.write_file(self.pid_file, json.dumps({"pid": pid, "started": started, "mark": mark}))

    def _rotate_large_log(self) -> int:
        size = self.log_file.stat().st_size if self.log_file.exists() else 0
        if size <= _MAX_LOG_BYTES:
            return size
        self.log_file.replace(self.log_file.with_suffix(".log.1"))
        return 0

    def _kill_tree(self, process: psutil.Process) -> None:
        """Kill the process and its descendants, also in other process groups, such as the Java of a worker's Spark."""
        descendants: list[psutil.Process] = []
        with suppress(psutil.Error):
            descendants = process.children(recursive=True)
        try:
            _signal_group(process.pid, signal.SIGKILL)
            for descendant in descendants:
                with suppress(psutil.NoSuchProcess):
                    descendant.kill()
            with suppress(psutil.NoSuchProcess):
                process.wait(_KILL_WAIT_S)
            psutil.wait_procs(descendants, timeout=_KILL_WAIT_S)
        except (PermissionError, psutil.TimeoutExpired):
            raise self._unstoppable_process_error(process) from None

    def _unstoppable_process_error(self, process: psutil.Process) -> ServiceFailed:
        return ServiceFailed(
            self.name, f"process {process.pid} cannot be stopped", advice="stop it as its owner or as root"
        )


def _is_recorded_process(process: psutil.Process, record: Mapping[str, object]) -> bool:
    """Return whether start time or mark is as recorded. The start time differs after a change of the system clock."""
    if abs(process.create_time() - float(str(record["started"]))) < 0.5:
        return True
    return bool(record.get("mark")) and process.environ().get(_MARK_VARIABLE) == record["mark"]


def _signal_group(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, number)
