"""Buckets that are used only after their marker was compared with this catalog.

Some buckets also need a check by the record log that this database is still the catalog, because the catalog may have
been rebuilt in another database. The check runs before the first use, before each removal, and at intervals.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import BinaryIO, Final

from logstore.deletion.intents import DeletionState, find_ownership_problem
from logstore.errors import AlreadyExists, CatalogMismatch, RetryableError, StoreUnavailable
from logstore.failpoints import effect
from logstore.identity.bucket_markers import (
    MARKER_KEY,
    BucketRole,
    MarkerState,
    NamedBucket,
    compare_marker,
    describe_named_catalog,
    is_marker,
    marker_content,
    mismatch_error,
)
from logstore.log.ledger_object_keys import meta_key, segment_key
from logstore.log.ledgers import CopyState
from logstore.log.services.upload_read_back import put_and_read_back
from logstore.offload.tiered_copy import data_key, index_key, was_published
from logstore.ports.catalog.identity import CatalogIdentity
from logstore.ports.catalog.inspection import InspectedCopy
from logstore.ports.object_storage import DeleteReport, ObjectInfo, ObjectStore, OpenUpload, StoredObject
from logstore.positions import LedgerId
from logstore.records.manifest import BEGUN_KEY, manifest_key

_MAX_EVIDENCE_COPIES: Final = 16  # as evidence one existing copy is enough, if no copy contradicts the catalog
_KEYS_PER_LISTING: Final = 1_000  # one page
_MIN_EMPTY_LISTINGS: Final = 2  # listings before a bucket counts as empty
_FIRST_KEYS: Final = {
    BucketRole.PRIMARY: (segment_key(LedgerId(0), 0),),
    # a sweep removes the manifest, and an earlier build stored no BEGUN_KEY
    BucketRole.RECORDS: (BEGUN_KEY, manifest_key(1)),
}
"""Keys that a catalog writes first, by role of the bucket."""
_MAX_MARKER_READS: Final = 3  # reads while GET and HEAD disagree, because a response may be truncated
_CHECK_INTERVAL_S: Final = 30.0  # between checks of a process that only reads and writes
MAX_UNANSWERED_S: Final = 60.0
"""Maximum age of the last answered database check at an upload. A rebuild waits longer before it reads storage."""


class MarkerCheckedBucket:
    """`OwnedStore` that compares the bucket's marker with the catalog once in each process, before the first use.

    The first use also writes a missing marker. `connect` is called once. `require_current` raises if the database is
    no longer the catalog. Thread-safe.
    """

    def __init__(
        self,
        identity: CatalogIdentity,
        bucket: NamedBucket,
        connect: Callable[[], ObjectStore],
        require_current: Callable[[], None] | None = None,
        *,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._identity, self._bucket = identity, bucket
        self._require_current, self._now_s = require_current, now_s
        self._connect = cache(connect)
        self._lock = threading.Lock()
        self._is_checked = False
        self._next_check_s = self._answered_s = 0.0  # the second: start of the last check that was answered
        self._failed_checks, self._last_failure = 0, ""

    def require_ours_or_unmarked(self) -> MarkerState:
        """Return the state of the bucket's marker. Change nothing.

        Raises:
            CatalogMismatch: The bucket belongs to another catalog, or this catalog has marked another bucket.
            StoreUnavailable: The object store did not answer.
            ServiceRefused: The bucket does not exist, or the permission to read it is missing.
        """
        return self._require_matching_marker()

    def _require_or_mark(self) -> None:
        """Require that the bucket belongs to this catalog. Mark a bucket that has no marker, if its objects allow this.

        Idempotent. The marker is stored before the catalog records it. If several catalogs mark a bucket at once, one
        of them succeeds. Raise the errors of `require_ours_or_unmarked`, and `CatalogMismatch` if the objects of a
        bucket without a marker do not show that the bucket belongs to this catalog.
        """
        if self.require_ours_or_unmarked() is MarkerState.UNMARKED:
            self._mark_with_evidence()
        if (self._bucket.role, self._bucket.bucket) not in self._identity.list_marked_buckets():
            with effect("identity.record_marker"):
                self._identity.record_marker(self._bucket.role, self._bucket.bucket)

    def require_ownership_now(self) -> None:
        """Read the marker again. Raise `CatalogMismatch` if the marker is missing or names another catalog."""
        self._require_matching_marker([(self._bucket.role, self._bucket.bucket)])

    def _require_matching_marker(self, marked_buckets: Collection[tuple[BucketRole, str]] | None = None) -> MarkerState:
        """Read and compare the marker. `marked_buckets` of `None` means the buckets that the catalog has recorded."""
        content = read_marker(self._connect())
        named_catalog = None if content is None else describe_named_catalog(content)
        catalog_id, bucket = self._identity.catalog_id(), self._bucket
        marked = self._identity.list_marked_buckets() if marked_buckets is None else marked_buckets
        state = compare_marker(named_catalog, catalog_id=catalog_id, bucket=bucket, marked_buckets=marked)
        if error := mismatch_error(state, named_catalog, catalog_id=catalog_id, bucket=bucket, marked_buckets=marked):
            raise error
        return state

    def _mark_with_evidence(self) -> None:
        try:
            self._require_evidence()
        except CatalogMismatch:
            # Another process may have marked the bucket meanwhile, and written into it.
            if self.require_ours_or_unmarked() is MarkerState.UNMARKED:
                raise
        else:
            try:
                marker = marker_content(self._identity.catalog_id())
                with effect("identity.put_marker"):
                    put_and_read_back(self._connect(), MARKER_KEY, marker, metadata={})
            except AlreadyExists:  # another process stored a marker, and its content counts
                self.require_ownership_now()

    def _require_evidence(self) -> None:
        """Require an object of this catalog. If the catalog has certainly stored none, require an empty bucket.

        The evidence is the statement in an object's metadata. A key alone is no evidence.
        """
        bucket, store = self._bucket, self._connect()
        expected = self._identity.list_expected_copies(bucket.role, bucket.bucket, limit=_MAX_EVIDENCE_COPIES)
        # Each copy is checked, because any copy may raise the error.
        if sum(_has_own_statement(bucket, store, copy) for copy in expected):
            return
        certain = sum(map(_was_certainly_stored, expected))
        if certain:
            raise _evidence_error(bucket, f"one of {certain} ledgers that this catalog has there", "none of them")
        foreign_key = _find_key_of_role(bucket.role, store)
        if foreign_key:
            raise _evidence_error(bucket, "nothing yet, because this catalog has no ledger there", repr(foreign_key))

    def require_ownership_once(self) -> None:
        self._check_if_first_use()

    def _check_if_first_use(self) -> bool:
        """Return whether this call checked the marker and the database."""
        if not self._is_checked:
            with self._lock:
                if not self._is_checked:
                    self._require_or_mark()
                    self._require_current_catalog()
                    self._is_checked = True
                    return True
        return False

    def _require_current_catalog(self) -> None:
        if self._require_current is not None:
            begun_s = self._now_s()
            try:
                self._require_current()
            except RetryableError as error:
                self._failed_checks, self._last_failure = self._failed_checks + 1, str(error)
                raise
            self._answered_s, self._next_check_s = begun_s, begun_s + _CHECK_INTERVAL_S

    def _require_current_catalog_if_due(self) -> None:
        """Check the database if a check is due and no other thread checks. Ignore a record log that does not answer."""
        if (
            self._require_current is None
            or self._now_s() < self._next_check_s
            or not self._lock.acquire(blocking=False)
        ):
            return
        try:
            self._require_current_catalog()
        except RetryableError:
            self._next_check_s = self._now_s() + _CHECK_INTERVAL_S
        finally:
            self._lock.release()

    def _connect_for_read(self) -> ObjectStore:
        self.require_ownership_once()
        self._require_current_catalog_if_due()
        return self._connect()

    def _connect_after_recent_check(self) -> ObjectStore:
        """Require that the last answered check is at most `MAX_UNANSWERED_S` old.

        Without this limit, a process of a replaced catalog could append for as long as the record log does not answer.
        A rebuild that has already read storage would lose these entries.
        """
        failed_checks = self._failed_checks
        store = self._connect_for_read()
        if self._needs_recent_check():
            self._recheck_once_for_waiting_uploads(failed_checks)
        return store

    def _needs_recent_check(self) -> bool:
        return self._require_current is not None and self._now_s() - self._answered_s >= MAX_UNANSWERED_S

    def _recheck_once_for_waiting_uploads(self, failed_checks_before: int) -> None:
        """Check the database once for all waiting uploads. If the check fails, all these uploads fail."""
        with self._lock:
            if not self._needs_recent_check():
                return
            if self._failed_checks > failed_checks_before:
                raise StoreUnavailable(f"the record log gave no answer: {self._last_failure}")
            self._require_current_catalog()

    def begin_removal(self) -> ObjectStore:
        if not self._check_if_first_use():
            self._require_current_catalog()
        return self._connect()

    def put_if_absent(self, key: str, body: bytes, *, metadata: Mapping[str, str]) -> None:
        self._connect_after_recent_check().put_if_absent(key, body, metadata=metadata)

    def put_file_if_absent(
        self, key: str, file: BinaryIO, *, metadata: Mapping[str, str], require_may_proceed: Callable[[], None]
    ) -> None:
        self._connect_after_recent_check().put_file_if_absent(
            key, file, metadata=metadata, require_may_proceed=require_may_proceed
        )

    def list_open_uploads(self, prefix: str) -> list[OpenUpload]:
        return self._connect_for_read().list_open_uploads(prefix)

    def abort_uploads(self, key: str) -> None:
        self.begin_removal().abort_uploads(key)

    def get(self, key: str) -> StoredObject | None:
        return self._connect_for_read().get(key)

    def get_range(
        self, key: str, start: int, length: int, *, expected_metadata: Mapping[str, str] | None = None
    ) -> bytes | None:
        return self._connect_for_read().get_range(key, start, length, expected_metadata=expected_metadata)

    def head(self, key: str) -> tuple[ObjectInfo, Mapping[str, str]] | None:
        return self._connect_for_read().head(key)

    def list(self, prefix: str, *, start_after: str = "", first_page: int = 1_000) -> Iterator[ObjectInfo]:
        return self._connect_for_read().list(prefix, start_after=start_after, first_page=first_page)

    def list_folder(self, prefix: str) -> Iterator[str | ObjectInfo]:
        return self._connect_for_read().list_folder(prefix)

    def delete(self, keys: Sequence[str]) -> DeleteReport:
        return self.begin_removal().delete(keys)


def read_marker(store: ObjectStore) -> bytes | None:
    """Return the content of a bucket's marker, or `None`.

    GET and HEAD must agree. A single truncated or missing response would otherwise cause a terminal error. Raise
    `StoreUnavailable` if GET and HEAD disagree in `_MAX_MARKER_READS` reads.
    """
    contradiction = ""
    for _ in range(_MAX_MARKER_READS):
        stored = store.get(MARKER_KEY)
        if stored is not None and is_marker(stored.body):
            return stored.body
        head = store.head(MARKER_KEY)
        get_bytes, head_bytes = (None if stored is None else len(stored.body)), (head[0].size_bytes if head else None)
        if get_bytes == head_bytes:
            return None if stored is None else stored.body
        contradiction = f"GET found {get_bytes} bytes of it, HEAD {head_bytes}"
    raise StoreUnavailable(f"{MARKER_KEY}: expected answers that agree; {contradiction}")


def _has_own_statement(bucket: NamedBucket, store: ObjectStore, copy: InspectedCopy) -> bool:
    """Return whether an object states the copy's ledger. If a LIVE copy's object does not, raise `CatalogMismatch`."""
    intent, uuid = copy.intent, copy.intent.context.get("uuid")
    keys = (
        (index_key(uuid, intent.ledger_id), data_key(uuid, intent.ledger_id))
        if uuid
        else (meta_key(intent.ledger_id, intent.owner),)
    )
    for key in keys:
        head = store.head(key)
        problem = find_ownership_problem(intent, key, head[1]) if head else None
        if problem and copy.state == CopyState.LIVE.value:
            raise _evidence_error(bucket, "what this catalog wrote", f"that {problem}")
        if head and not problem:
            return True
    return False


def _find_key_of_role(role: BucketRole, store: ObjectStore) -> str | None:
    """Return a key that matches the role, or `None` if two listings and `_FIRST_KEYS` give no such key."""
    for _ in range(_MIN_EMPTY_LISTINGS):
        keys = (item.key for item in islice(store.list(role.prefix), _KEYS_PER_LISTING))
        if matching := next((key for key in keys if role.matches_key(key)), None):
            return matching
    return next((key for key in _FIRST_KEYS.get(role, ()) if store.head(key)), None)


def _was_certainly_stored(copy: InspectedCopy) -> bool:
    """Return whether this catalog certainly stored the copy. Newborn ledgers and dead letters are not certain."""
    is_pending = copy.state == DeletionState.PENDING.value
    has_objects = copy.intent.segments > 0 and was_published(copy.intent.context)
    return copy.state == CopyState.LIVE.value or (is_pending and has_objects)


def _evidence_error(bucket: NamedBucket, expected: str, found: str) -> CatalogMismatch:
    advice = "it has no marker, and is taken only with evidence: check bucket, endpoint and database"
    return CatalogMismatch(str(bucket), expected=expected, found=found, advice=advice)


class LostCatalogIdentity:
    """`CatalogIdentity` without a database. A bucket in `marked` is refused if its marker is missing."""

    def __init__(self, catalog_id: str, marked: Iterable[tuple[BucketRole, str]] = ()) -> None:
        self._catalog_id, self._marked = catalog_id, frozenset(marked)

    @classmethod
    def read_from_bucket(cls, bucket: NamedBucket, store: ObjectStore) -> "LostCatalogIdentity":
        """Return the identity of the catalog whose record log is in a bucket.

        Raises:
            CatalogMismatch: The bucket has no readable marker.
            StoreUnavailable: The object store did not answer, or its answers contradict each other.
        """
        content = read_marker(store)
        if content is None or not is_marker(content):
            advice = "check bucket and endpoint: a catalog with a record log has put one there"
            found = "none" if content is None else describe_named_catalog(content)
            raise CatalogMismatch(str(bucket), expected="the marker of a catalog", found=found, advice=advice)
        return cls(describe_named_catalog(content), [(bucket.role, bucket.bucket)])

    def catalog_id(self) -> str:
        return self._catalog_id

    def list_marked_buckets(self) -> frozenset[tuple[BucketRole, str]]:
        return self._marked

    def record_marker(self, role: BucketRole, bucket: str) -> None:
        """Do nothing, because there is no catalog yet."""

    def list_expected_copies(self, role: BucketRole, bucket: str, *, limit: int) -> Sequence[InspectedCopy]:  # noqa: ARG002 - of the port
        return []

    def get_checked_bucket(self, bucket: NamedBucket, store: ObjectStore) -> MarkerCheckedBucket:
        """Return a bucket that must have the marker of this catalog. The marker is read before the first use."""
        identity = LostCatalogIdentity(self._catalog_id, [*self._marked, (bucket.role, bucket.bucket)])
        return MarkerCheckedBucket(identity, bucket, lambda: store)

    def has_marker(self, bucket: NamedBucket, store: ObjectStore) -> bool:
        """Return whether the bucket is marked. Raise the errors of `MarkerCheckedBucket.require_ours_or_unmarked`."""
        identity = LostCatalogIdentity(self._catalog_id)
        return MarkerCheckedBucket(identity, bucket, lambda: store).require_ours_or_unmarked() is MarkerState.OURS
