"""Home directory of a stack: all state that a start, a stop or a restart needs."""

import errno
import fcntl
import json
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

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

    def write_file(self, path: Path, text: str, *, mode: int = 0o600) -> None:
        """Replace a file of this home atomically and durably."""
        with self.translate_disk_errors():
            handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as file:
                    file.write(text)
                    file.flush()
                    os.fsync(file.fileno())
                Path(temporary).chmod(mode)
                Path(temporary).replace(path)
            except BaseException:
                with suppress(OSError):
                    Path(temporary).unlink()
                raise

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
