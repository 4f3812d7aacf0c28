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


class StoreOperation(StrEnum):
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
    REPORT_KEY_FAILED = "key_error"  # delete: the key is kept and reported under `failed`
    LOST = "lost"  # delete: reported as deleted, and kept; put: reported as stored, and lost
    ABSENT = "absent"  # get, head: the answer says that the object is not there
    CUT = "cut"  # get, get_range: the answer lacks its last byte, and looks whole
    MIDWAY = "midway"  # list: raises after `after_objects` objects
    CALL = "call"  # runs `action` before the effect, for a race at an exact place


@dataclass(kw_only=True)
class Fault:
    """One planned misfortune; used up after `times` calls."""

    operation: StoreOperation
    kind: FaultKind
    times: int = 1
    matches: Callable[[str], bool] = field(default=lambda _key: True)  # the key, or a listing's prefix
    error: Callable[[], Exception] = field(default=lambda: StoreUnavailable("planned fault: 503 SlowDown"))
    failed_key_message: str = "InternalError: planned fault"
    after_objects: int = 0
    action: Callable[[], None] = field(default=lambda: None)


@dataclass(frozen=True, slots=True)
class _HeldObject:
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
        self.calls: list[tuple[StoreOperation, str]] = []  # one per key; a listing by its prefix
        self.part_bytes = 16 << 20  # a larger file goes in parts
        self.unfinished: set[str] = set()  # keys with parts that nobody finished or aborted
        self.begun_us: dict[str, int] = {}  # when the parts of a key were begun; one that is not here tells no time
        self.refusal: SextonError | None = None  # what `confirm` raises: the bucket is not the catalog's
        self.unlisted: dict[
            str, int
        ] = {}  # by prefix of keys: so many listings answer without them; GET and HEAD do not
        self._held: dict[str, _HeldObject] = {}
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
        fault = self._meet(StoreOperation.PUT, key)
        if _is_of_kind(fault, FaultKind.LOST):
            return
        with self._lock:
            existing = self._held.get(key)
            if existing is not None and (existing.body, existing.metadata) != (body, dict(metadata)):
                raise AlreadyExists(f"put {key}: the key holds another object")
            if existing is None:
                self._held[key] = _HeldObject(bytes(body), dict(metadata), self.now_us)
        _raise_after_effect(fault)

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
                self._meet(StoreOperation.PART, key)
            require_may_proceed()
            self.put_if_absent(key, b"".join(parts), metadata=metadata)
        except Exception:
            self.unfinished.discard(key)
            raise
        self.unfinished.discard(key)

    def list_open_uploads(self, prefix: str) -> list[OpenUpload]:
        self._meet(StoreOperation.UPLOADS, prefix)
        upload_keys = sorted(key for key in self.unfinished if key.startswith(prefix))
        return [OpenUpload(key=key, started_us=self.begun_us.get(key)) for key in upload_keys]

    def abort_uploads(self, key: str) -> None:
        fault = self._meet(StoreOperation.ABORT, key)
        self.unfinished.discard(key)
        _raise_after_effect(fault)

    def get(self, key: str) -> StoredObject | None:
        require_possible_key(key)
        fault = self._meet(StoreOperation.GET, key)
        stored = self._held.get(key)
        if stored is None or _is_of_kind(fault, FaultKind.ABSENT):
            return None
        return StoredObject(key=key, body=_truncate_if_planned(fault, stored.body), metadata=dict(stored.metadata))

    def get_range(
        self, key: str, start: int, length: int, *, expected_metadata: Mapping[str, str] | None = None
    ) -> bytes | None:
        require_possible_key(key)
        if start < 0 or length < 1:
            raise InvalidInput("range", expected="start of at least 0, length of at least 1", found=(start, length))
        fault = self._meet(StoreOperation.GET_RANGE, key)
        stored = self._held.get(key)
        if stored is not None and not (expected_metadata or {}).items() <= stored.metadata.items():
            raise CorruptData(f"{key}: expected an object of {expected_metadata}, found one of {stored.metadata}")
        return None if stored is None else _truncate_if_planned(fault, stored.body[start : start + length])

    def head(self, key: str) -> tuple[ObjectInfo, Mapping[str, str]] | None:
        require_possible_key(key)
        fault = self._meet(StoreOperation.HEAD, key)
        stored = self._held.get(key)
        if stored is None or _is_of_kind(fault, FaultKind.ABSENT):
            return None
        return replace(_object_info(key, stored), etag=hashlib.md5(stored.body).hexdigest()), dict(stored.metadata)  # noqa: S324 - as S3

    def list(self, prefix: str, *, start_after: str = "", first_page: int = 1_000) -> Iterator[ObjectInfo]:
        fault = self._meet(StoreOperation.LIST, prefix)
        with self._lock:
            keys = sorted(self._held)
            hidden = self._take_hidden_prefixes(prefix)
            listed_objects = [
                _object_info(key, self._held[key])
                for key in keys[max(bisect_left(keys, prefix), bisect_right(keys, start_after)) :]
                if key.startswith(prefix) and not key.startswith(hidden)
            ]
        yield from _yield_until_fault(fault, listed_objects)

    def _take_hidden_prefixes(self, prefix: str) -> tuple[str, ...]:
        """Return the prefixes of keys that this listing does not show, and count it."""
        hidden_prefixes = [
            hidden_prefix
            for hidden_prefix in self.unlisted
            if hidden_prefix.startswith(prefix) or prefix.startswith(hidden_prefix)
        ]
        for hidden_prefix in hidden_prefixes:
            self.unlisted[hidden_prefix] -= 1
            if not self.unlisted[hidden_prefix]:
                del self.unlisted[hidden_prefix]
        return tuple(hidden_prefixes)

    def list_folder(self, prefix: str) -> Iterator[str | ObjectInfo]:
        fault = self._meet(StoreOperation.LIST, prefix)
        with self._lock:
            hidden_prefixes = self._take_hidden_prefixes(prefix)
            visible_keys = [
                key for key in sorted(self._held) if key.startswith(prefix) and not key.startswith(hidden_prefixes)
            ]
            key_slashes = [(key, key[len(prefix) :].find("/")) for key in visible_keys]
            objects = [_object_info(key, self._held[key]) for key, slash in key_slashes if slash < 0]
        folders = sorted({key[: len(prefix) + slash + 1] for key, slash in key_slashes if slash >= 0})
        folders_and_objects: list[str | ObjectInfo] = [*folders, *objects]
        yield from _yield_until_fault(fault, folders_and_objects)

    def delete(self, keys: Sequence[str]) -> DeleteReport:
        violated_rule_by_key = {key: find_violated_rule(key) for key in keys}
        failed = {key: f"InvalidKey: expected {why}" for key, why in violated_rule_by_key.items() if why}
        valid_keys = [key for key, why in violated_rule_by_key.items() if not why]
        deleted: set[str] = set()
        unanswered_keys: list[str] = []
        try:
            for key in valid_keys:
                raise_if_stopped()
                self._delete_key(key, deleted, failed)
        except StoreUnavailable as error:
            if not deleted and not failed:
                raise
            unanswered_keys = [key for key in valid_keys if key not in deleted and key not in failed]
            failed.update(dict.fromkeys(unanswered_keys, f"StoreUnavailable: {error}"))
        return DeleteReport(deleted=set(deleted), failed=failed, unanswered=set(unanswered_keys))

    def _delete_key(self, key: str, deleted: set[str], failed: dict[str, str]) -> None:
        fault = self._meet(StoreOperation.DELETE, key)
        if fault is not None and fault.kind is FaultKind.REPORT_KEY_FAILED:
            failed[key] = fault.failed_key_message
            return
        if not _is_of_kind(fault, FaultKind.LOST):
            with self._lock:
                self._held.pop(key, None)
        _raise_after_effect(fault)
        deleted.add(key)

    def _meet(self, operation: StoreOperation, name: str) -> Fault | None:
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


def _is_of_kind(fault: Fault | None, kind: FaultKind) -> bool:
    return fault is not None and fault.kind is kind


def _truncate_if_planned(fault: Fault | None, body: bytes) -> bytes:
    return body[:-1] if _is_of_kind(fault, FaultKind.CUT) else body


def _yield_until_fault(fault: Fault | None, listed_items: Sequence[V]) -> Iterator[V]:
    """What is found, as far as the fault lets a listing get."""
    if not _is_of_kind(fault, FaultKind.MIDWAY):
        yield from listed_items
        return
    assert fault
    yield from listed_items[: fault.after_objects]
    raise fault.error()


def _raise_after_effect(fault: Fault | None) -> None:
    if fault is not None and fault.kind is FaultKind.AFTER:
        raise fault.error()


def _object_info(key: str, held_object: _HeldObject) -> ObjectInfo:
    return ObjectInfo(key=key, size_bytes=len(held_object.body), modified_us=held_object.modified_us)
