"""Home directory of a stack: all state that a start, a stop or a restart needs, and records of its workers."""

import errno
import fcntl
import json
import logging
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import psutil

from logstore.atomic_files import replace_atomically
from logstore.errors import ServiceFailed

_MIN_FREE_BYTES = 200 * 1024 * 1024  # below this SeaweedFS turns its volumes read-only and Temporal's database stalls
_LOCK_WAIT_S = 180.0  # longer than the slowest `up`, which starts three slow servers under the lock
_DISK_FULL_ERRNOS = {errno.ENOSPC, errno.EDQUOT}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCredentials:
    access_key: str
    secret_key: str = field(repr=False)


class _HomePath:
    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, home: "StackHome", _: type | None = None) -> Path:
        return home.root / self._name


@dataclass(frozen=True, slots=True)
class StackHome:
    """Layout of one SEXTON_HOME. `root` is absolute, because each server has another working directory."""

    root: Path

    @classmethod
    def at(cls, path: Path | str) -> "StackHome":
        return cls(Path(path).expanduser().absolute())

    objects = _HomePath("objects")  # SeaweedFS data: volumes, filer index, master state
    zookeeper = _HomePath("zookeeper")  # ZooKeeper's configuration and data
    temporal_db = _HomePath("temporal.db")  # Temporal's SQLite database, absent when it runs in memory
    logs = _HomePath("logs")  # one log file per service
    traces = _HomePath("traces")  # span files
    pids = _HomePath("pids")  # one pid file per running process
    workers = _HomePath("workers")  # one `WorkerRecord` per running worker
    scratch = _HomePath("tmp")  # temporary files and unix sockets of the servers
    ports_file = _HomePath("ports.json")  # the ports chosen at the last start
    credentials_file = _HomePath("credentials.json")  # the object store's key pair, mode 0600

    def create_directories_and_check_space(self) -> None:
        """Create the directories with mode 0700, and check the free disk space."""
        directories = (self.objects, self.zookeeper, self.logs, self.traces, self.pids, self.scratch)
        with self.translate_disk_errors():
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            for directory in directories:
                directory.mkdir(mode=0o700, exist_ok=True)
            free_bytes = shutil.disk_usage(self.root).free
        if free_bytes < _MIN_FREE_BYTES:
            raise self._disk_full_error(
                f"only {free_bytes >> 20} MiB are free on the disk of {self.root}, 200 are needed"
            )

    def write_file(self, path: Path, text: str) -> None:
        """Replace a file of this home atomically and durably. The file has mode 0600."""
        with self.translate_disk_errors(), replace_atomically(path) as new:
            new.touch(mode=0o600, exist_ok=False)
            with new.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())

    def read_json_if_exists(self, path: Path) -> dict[str, object] | None:
        try:
            with self.translate_disk_errors():
                content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
        except ValueError:
            content = path
        if content is None or isinstance(content, dict):
            return content
        raise _damaged_file_error(path)

    def read_credentials(self) -> StoreCredentials | None:
        stored = self.read_json_if_exists(self.credentials_file)
        if stored is None:
            return None
        if not (stored.get("access_key") and stored.get("secret_key")):
            raise _damaged_file_error(self.credentials_file)
        return StoreCredentials(access_key=str(stored["access_key"]), secret_key=str(stored["secret_key"]))

    def ensure_credentials(self) -> StoreCredentials:
        credentials = self.read_credentials()
        if credentials is None:
            credentials = StoreCredentials(
                access_key=secrets.token_hex(10).upper(), secret_key=secrets.token_urlsafe(30)
            )
            self.write_file(self.credentials_file, json.dumps(asdict(credentials), indent=1))
        return credentials

    @contextmanager
    def hold_lock(self) -> Iterator[None]:
        """Hold the home's lock, so that only one `up` or `down` of the home runs at a time."""
        with self.translate_disk_errors():
            handle = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            self._wait_for_lock(handle)
            yield
        finally:
            os.close(handle)

    def _wait_for_lock(self, handle: int) -> None:
        deadline = time.monotonic() + _LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    problem = f"another up or down has held {self.root / 'lock'} for three minutes"
                    raise ServiceFailed("home", problem, advice="end that process, then try again") from None
                time.sleep(0.05)
            else:
                return

    @contextmanager
    def translate_disk_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as fault:
            if fault.errno in _DISK_FULL_ERRNOS:
                raise self._disk_full_error(f"the disk of {self.root} is full") from fault
            problem = f"cannot use {fault.filename or self.root} ({fault.strerror or fault})"
            raise ServiceFailed(
                "home", problem, advice="make it writable or set SEXTON_HOME to another directory"
            ) from fault

    def _disk_full_error(self, problem: str) -> ServiceFailed:
        return ServiceFailed(
            "home", problem, advice="free some space or set SEXTON_HOME to a directory on another disk"
        )


def _damaged_file_error(path: Path) -> ServiceFailed:
    return ServiceFailed("home", f"{path} is damaged", advice="stop the stack's servers, then remove that file")


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
