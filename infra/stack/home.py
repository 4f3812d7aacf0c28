"""Where a stack keeps its state: one directory with everything a start, a stop or a restart needs."""

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

_LEAST_FREE_BYTES = 200 * 1024 * 1024  # below this SeaweedFS turns its volumes read-only and Temporal's database stalls
_LOCK_WAIT_S = 180.0  # the longest `up` waits for three slow servers; another `up` must outwait it
_DISK_FULL = {errno.ENOSPC, errno.EDQUOT}


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """The key pair of the embedded object store, generated once for each home."""

    access_key: str
    secret_key: str = field(repr=False)


class _Inside:
    """A path inside the home."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, home: "StackHome", _: type | None = None) -> Path:
        return home.root / self._name


@dataclass(frozen=True, slots=True)
class StackHome:
    """The layout of one SEXTON_HOME. `root` is absolute: servers run in working directories of their own."""

    root: Path

    @classmethod
    def at(cls, path: Path | str) -> "StackHome":
        """The home at `path`, which may be relative or start with `~`."""
        return cls(Path(path).expanduser().absolute())

    objects = _Inside("objects")  # SeaweedFS data: volumes, filer index, master state
    zookeeper = _Inside("zookeeper")  # ZooKeeper's configuration and data
    temporal_db = _Inside("temporal.db")  # Temporal's SQLite database, absent when it runs in memory
    logs = _Inside("logs")  # one log file a service
    traces = _Inside("traces")  # span files
    pids = _Inside("pids")  # one pid file a running process
    workers = _Inside("workers")  # one file a running worker: its name and where it shows its metrics
    scratch = _Inside("tmp")  # temporary files and unix sockets of the servers
    ports_file = _Inside("ports.json")  # the ports chosen at the last start
    credentials_file = _Inside("credentials.json")  # the object store's key pair, mode 0600

    def prepare(self) -> None:
        """Create the directories, mode 0700, and see that there is room to work.

        Raises:
            ServiceFailed: The home cannot be written, or its disk is nearly full.
        """
        rooms = (self.objects, self.zookeeper, self.logs, self.traces, self.pids, self.scratch)
        with self.disk_faults():
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            for room in rooms:
                room.mkdir(mode=0o700, exist_ok=True)
            free_bytes = shutil.disk_usage(self.root).free
        if free_bytes < _LEAST_FREE_BYTES:
            raise self._full(f"only {free_bytes >> 20} MiB are free on the disk of {self.root}, 200 are needed")

    def write(self, path: Path, text: str, *, mode: int = 0o600) -> None:
        """Replace a file of this home at once: a reader sees the old content or the new, never a part.

        Raises:
            ServiceFailed: The home cannot be written, or its disk is full.
        """
        with self.disk_faults():
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

    def read_json(self, path: Path) -> dict[str, object] | None:
        """The JSON object in a file of this home, or None when there is no such file.

        Raises:
            ServiceFailed: The file cannot be read or is no JSON object.
        """
        try:
            with self.disk_faults():
                content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
        except ValueError:
            content = path
        if content is None or isinstance(content, dict):
            return content
        raise _damaged(path)

    def credentials(self) -> Credentials | None:
        """The object store's key pair, or None when none was generated yet."""
        stored = self.read_json(self.credentials_file)
        if stored is None:
            return None
        if not (stored.get("access_key") and stored.get("secret_key")):
            raise _damaged(self.credentials_file)
        return Credentials(access_key=str(stored["access_key"]), secret_key=str(stored["secret_key"]))

    def ensure_credentials(self) -> Credentials:
        """The object store's key pair, generated the first time. Call it under the lock."""
        found = self.credentials()
        if found is None:
            found = Credentials(access_key=secrets.token_hex(10).upper(), secret_key=secrets.token_urlsafe(30))
            self.write(self.credentials_file, json.dumps(asdict(found), indent=1))
        return found

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the home's lock: ups and downs of one home happen one after another.

        Raises:
            ServiceFailed: Another process held the lock for three minutes.
        """
        with self.disk_faults():
            handle = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            self._take(handle)
            yield
        finally:
            os.close(handle)

    def _take(self, handle: int) -> None:
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
    def disk_faults(self) -> Iterator[None]:
        """Turn the system's complaints about this home into one clear sentence."""
        try:
            yield
        except OSError as fault:
            if fault.errno in _DISK_FULL:
                raise self._full(f"the disk of {self.root} is full") from fault
            problem = f"cannot use {fault.filename or self.root} ({fault.strerror or fault})"
            raise ServiceFailed(
                "home", problem, advice="make it writable or set SEXTON_HOME to another directory"
            ) from fault

    def _full(self, problem: str) -> ServiceFailed:
        return ServiceFailed(
            "home", problem, advice="free some space or set SEXTON_HOME to a directory on another disk"
        )


def _damaged(path: Path) -> ServiceFailed:
    return ServiceFailed("home", f"{path} is damaged", advice="stop the stack's servers, then remove that file")
