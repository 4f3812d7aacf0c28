"""Records of a home's worker processes, with the addresses of their HTTP pages and metrics."""

import json
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import psutil

from infra.stack.stack_home import StackHome
from logstore.errors import ServiceFailed

_log = logging.getLogger(__name__)

_POLLER_RETENTION_S = 300.0  # Temporal lists a poller for five minutes after its last poll


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRecord:
    """Record of one worker process, stored as JSON in the home. Times are in seconds since 1970."""

    worker_id: str
    pid: int
    started: float  # as the system reports it; distinguishes the worker from a later process with the same pid
    metrics_url: str = ""  # empty: the worker does not listen
    http_url: str = ""  # empty: the worker does not listen
    found_dead: float = 0.0  # when another worker first found the process dead; 0: never


@contextmanager
def keep_worker_record(home: StackHome, worker_id: str, *, metrics_url: str = "", http_url: str = "") -> Iterator[None]:
    """Keep a record of this process in the home while the block runs. If the home is not writable, log a warning.

    The record outlives a crash. Later workers remove it once Temporal has forgotten the crashed worker.
    """
    own = psutil.Process()
    record = WorkerRecord(
        worker_id=worker_id, pid=os.getpid(), started=own.create_time(), metrics_url=metrics_url, http_url=http_url
    )
    path = home.workers / f"{record.pid}.json"
    try:
        with home.translate_disk_errors():
            home.workers.mkdir(mode=0o700, parents=True, exist_ok=True)
        _mark_or_remove_dead_records(home)
        home.write_file(path, json.dumps(asdict(record)))
    except ServiceFailed as error:
        urls = ", ".join(filter(None, (http_url, metrics_url))) or "no address"
        _log.warning("worker %s is at %s, but `sexton status` will not say so: %s", worker_id, urls, error)
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def read_live_workers(home: StackHome) -> list[WorkerRecord]:
    """Return the running workers of the home, ascending by worker id."""
    records = (record for record in _read_records(home) if _is_alive(record))
    return sorted(records, key=lambda record: (record.worker_id, record.pid))


def find_crashed_worker_ids(home: StackHome) -> set[str]:
    """Return the worker ids of records whose process does not run, without the ids of running workers."""
    records = _read_records(home)
    live_ids = {record.worker_id for record in records if _is_alive(record)}
    return {record.worker_id for record in records} - live_ids


def _mark_or_remove_dead_records(home: StackHome) -> None:
    now_s = time.time()
    for path in home.workers.glob("*.json"):
        record = _read_record(path)
        if record and (_is_alive(record) or 0 < now_s - record.found_dead < _POLLER_RETENTION_S):
            continue
        if record and not record.found_dead:
            home.write_file(path, json.dumps(asdict(replace(record, found_dead=now_s))))
        else:
            path.unlink(missing_ok=True)


def _read_records(home: StackHome) -> list[WorkerRecord]:
    return [record for path in home.workers.glob("*.json") if (record := _read_record(path))]


def _read_record(path: Path) -> WorkerRecord | None:
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        return WorkerRecord(**{name: value for name, value in stored.items() if name in WorkerRecord.__slots__})
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def _is_alive(record: WorkerRecord) -> bool:
    try:
        process = psutil.Process(record.pid)
        return process.status() != psutil.STATUS_ZOMBIE and abs(process.create_time() - record.started) < 0.5
    except psutil.Error:
        return False
