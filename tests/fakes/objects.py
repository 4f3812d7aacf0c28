"""An object store in memory, with its own clock and faults on demand."""

import hashlib
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import BinaryIO, TypeVar

from infra.objects.key_rules import (
    find_violated_rule,
    require_possible_key,
    require_supported_metadata,
    require_writable_key,
)
from logstore.errors import AlreadyExists, CorruptData, InvalidInput, SextonError, StoreUnavailable
from logstore.ports.object_storage import DeleteReport, ObjectInfo, OpenUpload, StoredObject
from logstore.stop_checks import raise_if_stopped

V = TypeVar("V")


class Operation(StrEnum):
    """The port's methods, as a fault names them."""

    PUT = "put"
    PART = "part"  # of a file; that it becomes an object is a PUT
    GET = "get"
    GET_RANGE = "get_range"
    HEAD = "head"
    LIST = "list"
    DELETE = "delete"
    UPLOADS = "uploads"
    ABORT = "abort"


class FaultKind(StrEnum):
    """What goes wrong."""

    BEFORE = (
        "before"  # raises, nothing done; a delete reports its remaining keys as failed, or raises if it is the first
    )
    AFTER = "after"  # done, but reported as failed
    KEY_ERROR = "key_error"  # delete: the key is kept and reported under `failed`
    LOST = "lost"  # delete: reported as deleted, and kept; put: reported as stored, and lost
    ABSENT = "absent"  # get, head: the answer says that the object is not there
    CUT = "cut"  # get, get_range: the answer lacks its last byte, and looks whole
    MIDWAY = "midway"  # list: raises after `after_objects` objects
    CALL = "call"  # runs `action` before the effect, for a race at an exact place


@dataclass(kw_only=True)
class Fault:
    """One planned misfortune; used up after `times` calls."""

    operation: Operation
    kind: FaultKind
    times: int = 1
    matches: Callable[[str], bool] = field(default=lambda _key: True)  # the key, or a listing's prefix
    error: Callable[[], Exception] = field(default=lambda: StoreUnavailable("planned fault: 503 SlowDown"))
    key_error: str = "InternalError: planned fault"
    after_objects: int = 0
    action: Callable[[], None] = field(default=lambda: None)


@dataclass(frozen=True, slots=True)
class _Held:
    body: bytes
    metadata: dict[str, str]
    modified_us: int


class FakeObjectStore:
    """An `ObjectStore` that keeps everything in a dict; any number of threads may use it.

    Faults hold for calls of the port, not for requests below it: what the real adapter retries itself is
    seen here as its final outcome.
    """

    def __init__(self, *, now_us: int = 1_750_000_000_000_000) -> None:
        self.now_us = now_us  # the store's own clock; stands still until moved
        self.calls: list[tuple[Operation, str]] = []  # one per key; a listing by its prefix
        self.part_bytes = 16 << 20  # a larger file goes in parts
        self.unfinished: set[str] = set()  # keys with parts that nobody finished or aborted
        self.begun_us: dict[str, int] = {}  # when the parts of a key were begun; one that is not here tells no time
        self.refusal: SextonError | None = None  # what `confirm` raises: the bucket is not the catalog's
        self.unlisted: dict[
            str, int
        ] = {}  # by prefix of keys: so many listings answer without them; GET and HEAD do not
        self._held: dict[str, _Held] = {}
        self._faults: list[Fault] = []
        self._lock = threading.RLock()

    def require_ownership_once(self) -> None:
        """As `confirm`."""
        self.require_ownership_now()

    def begin_removal(self) -> "FakeObjectStore":
        """See `OwnedStore.begin_removal`."""
        return self

    def require_ownership_now(self) -> None:
        """See `OwnedStore`; it is the catalog's unless a test says otherwise."""
        if self.refusal:
            raise self.refusal

    def plan(self, *faults: Fault) -> None:
        """Add faults; of those that match a call, the earliest planned one happens."""
        with self._lock:
            self._faults.extend(faults)

    def advance(self, *, seconds: float) -> None:
        """Move the store's clock."""
        self.now_us += round(seconds * 1_000_000)

    @property
    def keys(self) -> list[str]:
        """What is held, ascending."""
        with self._lock:
            return sorted(self._held)

    def put_if_absent(self, key: str, body: bytes, *, metadata: Mapping[str, str]) -> None:
        require_writable_key(key)
        require_supported_metadata(metadata)
        fault = self._meet(Operation.PUT, key)
        if _is(fault, FaultKind.LOST):
            return
        with self._lock:
            held = self._held.get(key)
            if held is not None and (held.body, held.metadata) != (body, dict(metadata)):
                raise AlreadyExists(f"put {key}: the key holds another object")
            if held is None:
                self._held[key] = _Held(bytes(body), dict(metadata), self.now_us)
        _raise_after(fault)

    def put_file_if_absent(
        self, key: str, file: BinaryIO, *, metadata: Mapping[str, str], require_may_proceed: Callable[[], None]
    ) -> None:
        """See the port; an upload in parts whose process dies is left."""
        require_writable_key(key)
        require_supported_metadata(metadata)
        file.seek(0)
        parts = list(iter(lambda: file.read(self.part_bytes), b""))
        if len(parts) < 2:
            require_may_proceed()
            self.put_if_absent(key, b"".join(parts), metadata=metadata)
            return
        self.unfinished.add(key)
        self.begun_us[key] = self.now_us
        try:
            for _ in parts:
                require_may_proceed()
                self._meet(Operation.PART, key)
            require_may_proceed()
            self.put_if_absent(key, b"".join(parts), metadata=metadata)
        except Exception:
            self.unfinished.discard(key)
            raise
        self.unfinished.discard(key)

    def list_open_uploads(self, prefix: str) -> list[OpenUpload]:
        self._meet(Operation.UPLOADS, prefix)
        found = sorted(key for key in self.unfinished if key.startswith(prefix))
        return [OpenUpload(key=key, started_us=self.begun_us.get(key)) for key in found]

    def abort_uploads(self, key: str) -> None:
        fault = self._meet(Operation.ABORT, key)
        self.unfinished.discard(key)
        _raise_after(fault)

    def get(self, key: str) -> StoredObject | None:
        require_possible_key(key)
        fault = self._meet(Operation.GET, key)
        held = self._held.get(key)
        if held is None or _is(fault, FaultKind.ABSENT):
            return None
        return StoredObject(key=key, body=_cut(fault, held.body), metadata=dict(held.metadata))

    def get_range(
        self, key: str, start: int, length: int, *, expected_metadata: Mapping[str, str] | None = None
    ) -> bytes | None:
        require_possible_key(key)
        if start < 0 or length < 1:
            raise InvalidInput("range", expected="start of at least 0, length of at least 1", found=(start, length))
        fault = self._meet(Operation.GET_RANGE, key)
        held = self._held.get(key)
        if held is not None and not (expected_metadata or {}).items() <= held.metadata.items():
            raise CorruptData(f"{key}: expected an object of {expected_metadata}, found one of {held.metadata}")
        return None if held is None else _cut(fault, held.body[start : start + length])

    def head(self, key: str) -> tuple[ObjectInfo, Mapping[str, str]] | None:
        require_possible_key(key)
        fault = self._meet(Operation.HEAD, key)
        held = self._held.get(key)
        if held is None or _is(fault, FaultKind.ABSENT):
            return None
        return replace(_info(key, held), etag=hashlib.md5(held.body).hexdigest()), dict(held.metadata)  # noqa: S324 - as S3

    def list(self, prefix: str, *, start_after: str = "", first_page: int = 1_000) -> Iterator[ObjectInfo]:
        fault = self._meet(Operation.LIST, prefix)
        with self._lock:
            keys = sorted(self._held)
            hidden = self._hidden_from(prefix)
            found = [
                _info(key, self._held[key])
                for key in keys[max(bisect_left(keys, prefix), bisect_right(keys, start_after)) :]
                if key.startswith(prefix) and not key.startswith(hidden)
            ]
        yield from _until(fault, found)

    def _hidden_from(self, prefix: str) -> tuple[str, ...]:
        """Return the prefixes of keys that this listing does not show, and count it."""
        hidden = [one for one in self.unlisted if one.startswith(prefix) or prefix.startswith(one)]
        for one in hidden:
            self.unlisted[one] -= 1
            if not self.unlisted[one]:
                del self.unlisted[one]
        return tuple(hidden)

    def list_folder(self, prefix: str) -> Iterator[str | ObjectInfo]:
        fault = self._meet(Operation.LIST, prefix)
        with self._lock:
            hidden = self._hidden_from(prefix)
            shown = [key for key in sorted(self._held) if key.startswith(prefix) and not key.startswith(hidden)]
            here = [(key, key[len(prefix) :].find("/")) for key in shown]
            objects = [_info(key, self._held[key]) for key, slash in here if slash < 0]
        folders = sorted({key[: len(prefix) + slash + 1] for key, slash in here if slash >= 0})
        found: list[str | ObjectInfo] = [*folders, *objects]
        yield from _until(fault, found)

    def delete(self, keys: Sequence[str]) -> DeleteReport:
        asked = {key: find_violated_rule(key) for key in keys}
        failed = {key: f"InvalidKey: expected {why}" for key, why in asked.items() if why}
        todo = [key for key, why in asked.items() if not why]
        deleted: set[str] = set()
        rest: list[str] = []
        try:
            for key in todo:
                raise_if_stopped()
                self._delete_one(key, deleted, failed)
        except StoreUnavailable as error:
            if not deleted and not failed:
                raise
            rest = [key for key in todo if key not in deleted and key not in failed]
            failed.update(dict.fromkeys(rest, f"StoreUnavailable: {error}"))
        return DeleteReport(deleted=frozenset(deleted), failed=failed, unanswered=frozenset(rest))

    def _delete_one(self, key: str, deleted: set[str], failed: dict[str, str]) -> None:
        fault = self._meet(Operation.DELETE, key)
        if fault is not None and fault.kind is FaultKind.KEY_ERROR:
            failed[key] = fault.key_error
            return
        if not _is(fault, FaultKind.LOST):
            with self._lock:
                self._held.pop(key, None)
        _raise_after(fault)
        deleted.add(key)

    def _meet(self, operation: Operation, name: str) -> Fault | None:
        """Record the call, and let the fault planned for it happen as far as it comes before the effect."""
        with self._lock:
            self.calls.append((operation, name))
            fault = next((f for f in self._faults if f.operation == operation and f.matches(name)), None)
            if fault is None:
                return None
            fault.times -= 1
            if not fault.times:
                self._faults.remove(fault)
        if fault.kind is FaultKind.BEFORE:
            raise fault.error()
        if fault.kind is FaultKind.CALL:
            fault.action()
        return fault


def _is(fault: Fault | None, kind: FaultKind) -> bool:
    return fault is not None and fault.kind is kind


def _cut(fault: Fault | None, body: bytes) -> bytes:
    return body[:-1] if _is(fault, FaultKind.CUT) else body


def _until(fault: Fault | None, found: Sequence[V]) -> Iterator[V]:
    """What is found, as far as the fault lets a listing get."""
    if not _is(fault, FaultKind.MIDWAY):
        yield from found
        return
    assert fault
    yield from found[: fault.after_objects]
    raise fault.error()


def _raise_after(fault: Fault | None) -> None:
    if fault is not None and fault.kind is FaultKind.AFTER:
        raise fault.error()


def _info(key: str, held: _Held) -> ObjectInfo:
    return ObjectInfo(key=key, size_bytes=len(held.body), modified_us=held.modified_us)
