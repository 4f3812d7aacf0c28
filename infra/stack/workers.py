"""Which workers of a home run, and where each of them can be looked at."""

import json
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import psutil

from infra.stack.home import StackHome
from logstore.errors import ServiceFailed

_log = logging.getLogger(__name__)

_REMEMBERED_S = 300.0  # so long Temporal tells of one that polled


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRecord:
    """A worker process as it wrote itself down."""

    worker_id: str
    pid: int
    started: float  # seconds since 1970, by the system: tells it from a later process with the same pid
    metrics_url: str = ""  # "": nothing listens
    http_url: str = ""  # the same
    found_dead: float = 0.0  # seconds since 1970; 0: not yet


@contextmanager
def recorded(home: StackHome, worker_id: str, *, metrics_url: str = "", http_url: str = "") -> Iterator[None]:
    """Write this process down while the block runs; a home that cannot be written does not disturb its work.

    A record outlives a crash: workers that begin in the home later remove it, once Temporal has forgotten its worker.
    """
    own = psutil.Process()
    record = WorkerRecord(
        worker_id=worker_id, pid=os.getpid(), started=own.create_time(), metrics_url=metrics_url, http_url=http_url
    )
    path = home.workers / f"{record.pid}.json"
    try:
        with home.disk_faults():
            home.workers.mkdir(mode=0o700, parents=True, exist_ok=True)
        _forget_dead(home)
        home.write(path, json.dumps(asdict(record)))
    except ServiceFailed as error:
        shown = ", ".join(filter(None, (http_url, metrics_url))) or "no address"
        _log.warning("worker %s is at %s, but `sexton status` will not say so: %s", worker_id, shown, error)
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def live_workers(home: StackHome) -> list[WorkerRecord]:
    """Workers of the home that run, ascending by worker id."""
    return sorted((one for one in _records(home) if _lives(one)), key=lambda one: (one.worker_id, one.pid))


def dead_workers(home: StackHome) -> set[str]:
    """The ids of those of whom it is known here that they ended without a word, and that no other took their id."""
    found = _records(home)
    live = {one.worker_id for one in found if _lives(one)}
    return {one.worker_id for one in found} - live


def _forget_dead(home: StackHome) -> None:
    now = time.time()
    for path in home.workers.glob("*.json"):
        found = _read(path)
        if found and (_lives(found) or 0 < now - found.found_dead < _REMEMBERED_S):
            continue
        if found and not found.found_dead:
            home.write(path, json.dumps(asdict(replace(found, found_dead=now))))
        else:
            path.unlink(missing_ok=True)


def _records(home: StackHome) -> list[WorkerRecord]:
    return [found for path in home.workers.glob("*.json") if (found := _read(path))]


def _read(path: Path) -> WorkerRecord | None:
    """The record, or None where what stands there is not whole: it proves no process.

    A newer build that serves beside this one may have written fields that are not known here.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return WorkerRecord(**{name: value for name, value in found.items() if name in WorkerRecord.__slots__})
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def _lives(record: WorkerRecord) -> bool:
    try:
        process = psutil.Process(record.pid)
        return process.status() != psutil.STATUS_ZOMBIE and abs(process.create_time() - record.started) < 0.5
    except psutil.Error:
        return False
