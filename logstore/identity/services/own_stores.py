"""Buckets that are used only once their marker was seen to name this catalog.

Of a log's own buckets the catalog itself is asked, too, whether it is still the one: another database may have been
rebuilt from its record log while this process lives on with the old one. It is asked before the first use, before
whatever removes, and at any other use once the last answer is old.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import BinaryIO, Final

from logstore.deletion.intents import DeletionState, find_ownership_problem
from logstore.errors import AlreadyExists, CatalogMismatch, RetryableError, StoreUnavailable
from logstore.failpoints import effect
from logstore.identity.markers import (
    MARKER_KEY,
    MarkerState,
    NamedBucket,
    Role,
    describe_owner,
    is_marker,
    judge,
    marker_content,
    refusal,
)
from logstore.log.ledgers import CopyState, meta_key, segment_key
from logstore.log.services.read_back import put_and_require
from logstore.offload.tiered import data_key, index_key, was_published
from logstore.ports.catalog import Identities, InspectedCopy
from logstore.ports.objects import DeleteReport, ObjectInfo, ObjectStore, OpenUpload, StoredObject
from logstore.positions import LedgerId
from logstore.records.manifest import BEGUN_KEY, manifest_key

_SAMPLE: Final = 16  # copies that are looked for; one that is there, and none that contradicts, is evidence
_LOOKED_AT: Final = 1_000  # keys of a bucket in which no copy of ours is expected: one page of a listing
_LISTINGS: Final = 2  # of such a bucket
_FIRST_KEYS: Final = {
    Role.PRIMARY: (segment_key(LedgerId(0), 0),),
    Role.RECORDS: (BEGUN_KEY, manifest_key(1)),  # sweeps remove the manifest; earlier builds put no mark
}
"""Keys that a catalog puts first, by the role of a bucket."""
_MARKER_READS: Final = 3  # of a marker of which GET and HEAD say different things: an answer may have been cut off
ASKED_EVERY_S: Final = 30.0
"""How often a process that only writes and reads asks whether its catalog is still the one, in seconds."""
MAX_UNANSWERED_S: Final = 60.0
"""How long after the last question that was answered a process still writes. A rebuild waits for so long."""


class OwnStores:
    """Compares markers with the catalog's id, and puts them where none was ever recorded. Threads share one."""

    def __init__(self, identities: Identities) -> None:
        """Ask this catalog."""
        self._identities = identities

    def own(
        self,
        named: NamedBucket,
        connect: Callable[[], ObjectStore],
        still_current: Callable[[], None] | None = None,
        *,
        now_s: Callable[[], float] = time.monotonic,
    ) -> "OwnStore":
        """The bucket, to be connected and compared before its first use.

        Args:
            named: The bucket.
            connect: Makes the client, once.
            still_current: Raises where the catalog is not the one any more, which refuses the bucket; None: not asked.
            now_s: A clock that never goes back, in seconds.
        """
        return OwnStore(self, named, connect, still_current, now_s)

    def look(self, named: NamedBucket, store: ObjectStore) -> MarkerState:
        """How the bucket stands to the catalog; looking changes nothing.

        Raises:
            CatalogMismatch: It is another catalog's, or not the one that this catalog has marked.
            StoreUnavailable: The store did not answer.
            ServiceRefused: It refuses us: no such bucket, no permission.
        """
        found = _marker(store)
        catalog_id, marked = self._identities.catalog_id(), self._identities.marked_buckets()
        standing = judge(found, catalog_id=catalog_id, named=named, marked=marked)
        refused = refusal(standing, found, catalog_id=catalog_id, named=named, marked=marked)
        if refused:
            raise refused
        return standing

    def require(self, named: NamedBucket, store: ObjectStore) -> None:
        """See that the bucket is this catalog's; one without a marker becomes so, once, if the evidence allows it.

        The marker is put before it is recorded: a process that dies in between leaves a bucket that names its catalog.
        Repeating it is harmless, and of several catalogs that try at once one wins.

        Raises:
            CatalogMismatch, StoreUnavailable, ServiceRefused: As `look`; or without a marker it holds what this
                catalog did not write, or lacks all that this catalog wrote.
        """
        standing = self.look(named, store)
        if standing is MarkerState.UNMARKED:
            self._adopt(named, store)
        if (named.role, named.bucket) not in self._identities.marked_buckets():
            with effect("identity.record_marker"):
                self._identities.record_marker(named.role, named.bucket)

    def confirm(self, named: NamedBucket, store: ObjectStore) -> None:
        """Read the marker again, whatever was seen before: by one request.

        Raises:
            CatalogMismatch: It is not there, or not this catalog's.
            StoreUnavailable, ServiceRefused: The store did not answer, or refuses us.
        """
        found, catalog_id = _marker(store), self._identities.catalog_id()
        standing = MarkerState.LOST if found is None else judge(found, catalog_id=catalog_id, named=named, marked=())
        refused = refusal(standing, found, catalog_id=catalog_id, named=named, marked=())
        if refused:
            raise refused

    def _adopt(self, named: NamedBucket, store: ObjectStore) -> None:
        """Mark it, if the evidence allows it; what does not may have been written since, once it was marked."""
        try:
            self._check_evidence(named, store)
        except CatalogMismatch:
            if self.look(named, store) is MarkerState.UNMARKED:
                raise
        else:
            try:
                marker = marker_content(self._identities.catalog_id())
                with effect("identity.put_marker"):
                    put_and_require(store, MARKER_KEY, marker, metadata={})
            except AlreadyExists:  # of another catalog, or with another content: what it says counts
                self.confirm(named, store)

    def _check_evidence(self, named: NamedBucket, store: ObjectStore) -> None:
        """A catalog takes a bucket without a marker if it holds what the catalog wrote; a new one, if it holds nothing.

        Source: the statement that every object carries (PIP-186: nothing is deleted on a mere name).
        """
        expected = self._identities.known_copies(named.role, named.bucket, limit=_SAMPLE)
        if sum(_is_stated(named, store, copy) for copy in expected):  # all are looked at: none may contradict
            return
        certain = sum(map(_is_certain, expected))
        if certain:
            raise _not_ours(named, f"one of {certain} ledgers that this catalog has there", "none of them")
        strange = _strange_key(named.role, store)
        if strange:
            raise _not_ours(named, "nothing yet, because this catalog has no ledger there", repr(strange))


class OwnStore:
    """An `OwnedStore`: no request is sent before its bucket was seen to be the catalog's, once in a process."""

    def __init__(
        self,
        stores: OwnStores,
        named: NamedBucket,
        connect: Callable[[], ObjectStore],
        still_current: Callable[[], None] | None,
        now_s: Callable[[], float],
    ) -> None:
        """Ask nothing yet; see `OwnStores.own`."""
        self._stores, self._named = stores, named
        self._still_current, self._now_s = still_current, now_s
        self._connected = cache(connect)
        self._lock = threading.Lock()
        self._seen = False
        self._ask_at_s = self._answered_s = 0.0  # the second: when the last question that was answered was asked
        self._failed_questions, self._last_failure = 0, ""

    def confirm(self) -> None:
        """See `OwnedStore.confirm`."""
        self._stores.confirm(self._named, self._connected())

    def look(self) -> MarkerState:
        """See `OwnStores.look`."""
        return self._stores.look(self._named, self._connected())

    def require(self) -> None:
        """Compare now, as the first use would; a comparison that failed is made again at the next use.

        Raises:
            CatalogMismatch, StoreUnavailable, ServiceRefused: See `OwnStores.require`.
            CatalogOutdated: The database is older than its record log, where that is asked with this bucket.
        """
        self._compared_now()

    def _compared_now(self) -> bool:
        """See that it is ours; whether this very call compared it, and asked whether the catalog is still the one."""
        if not self._seen:
            with self._lock:
                if not self._seen:
                    self._stores.require(self._named, self._connected())
                    self._require_current()
                    self._seen = True
                    return True
        return False

    def _require_current(self) -> None:
        if self._still_current is not None:
            asked_s = self._now_s()
            try:
                self._still_current()
            except RetryableError as error:
                self._failed_questions, self._last_failure = self._failed_questions + 1, str(error)
                raise
            self._answered_s, self._ask_at_s = asked_s, asked_s + ASKED_EVERY_S

    def _ask_again(self) -> None:
        """Refuse where the catalog is known not to be the one; a record log that does not answer says nothing.

        One thread asks, and the others go on meanwhile. What must not go on needs an answer: in `begin_removal` one
        of its own, in `_writing` a recent one, for which all uploads ask once.
        """
        if self._still_current is None or self._now_s() < self._ask_at_s or not self._lock.acquire(blocking=False):
            return
        try:
            self._require_current()
        except RetryableError:
            self._ask_at_s = self._now_s() + ASKED_EVERY_S
        finally:
            self._lock.release()

    def _own(self) -> ObjectStore:
        self.require()
        self._ask_again()
        return self._connected()

    def _writing(self) -> ObjectStore:
        """Return the store for an upload. Require an answer that is not too old.

        Behind a store that does not answer this one question a process of an old catalog would append for ever. What it
        appends once a rebuild has looked at storage is lost.
        """
        failed_questions = self._failed_questions
        store = self._own()
        if self._needs_answer():
            self._require_answer(failed_questions)
        return store

    def _needs_answer(self) -> bool:
        return self._still_current is not None and self._now_s() - self._answered_s >= MAX_UNANSWERED_S

    def _require_answer(self, failed_questions: int) -> None:
        """Ask once on behalf of all uploads that wait here. They share the answer, and the lack of one.

        Args:
            failed_questions: How many questions had failed when the upload began.

        Raises:
            StoreUnavailable: A question has failed since.
        """
        with self._lock:
            if not self._needs_answer():
                return
            if self._failed_questions > failed_questions:
                raise StoreUnavailable(f"the record log gave no answer: {self._last_failure}")
            self._require_current()

    def begin_removal(self) -> ObjectStore:
        """Return the bucket for one removal. The catalog's identity must be confirmed now, as a removal is final."""
        if not self._compared_now():
            self._require_current()
        return self._connected()

    def put_if_absent(self, key: str, body: bytes, *, metadata: Mapping[str, str]) -> None:
        """See `ObjectStore`."""
        self._writing().put_if_absent(key, body, metadata=metadata)

    def put_file_if_absent(
        self, key: str, file: BinaryIO, *, metadata: Mapping[str, str], proceed: Callable[[], None]
    ) -> None:
        """See `ObjectStore`."""
        self._writing().put_file_if_absent(key, file, metadata=metadata, proceed=proceed)

    def open_uploads(self, prefix: str) -> list[OpenUpload]:
        """See `ObjectStore`."""
        return self._own().open_uploads(prefix)

    def abort_uploads(self, key: str) -> None:
        """See `ObjectStore`."""
        self.begin_removal().abort_uploads(key)

    def get(self, key: str) -> StoredObject | None:
        """See `ObjectStore`."""
        return self._own().get(key)

    def get_range(
        self, key: str, start: int, length: int, *, expected_metadata: Mapping[str, str] | None = None
    ) -> bytes | None:
        """See `ObjectStore`."""
        return self._own().get_range(key, start, length, expected_metadata=expected_metadata)

    def head(self, key: str) -> tuple[ObjectInfo, Mapping[str, str]] | None:
        """See `ObjectStore`."""
        return self._own().head(key)

    def list(self, prefix: str, *, start_after: str = "", first_page: int = 1_000) -> Iterator[ObjectInfo]:
        """See `ObjectStore`."""
        return self._own().list(prefix, start_after=start_after, first_page=first_page)

    def list_folder(self, prefix: str) -> Iterator[str | ObjectInfo]:
        """See `ObjectStore`."""
        return self._own().list_folder(prefix)

    def delete(self, keys: Sequence[str]) -> DeleteReport:
        """See `ObjectStore`."""
        return self.begin_removal().delete(keys)


def read_marker(store: ObjectStore) -> bytes | None:
    """Content of a bucket's marker; None where there is none.

    One answer that was cut off, or that lacks the object, refuses no bucket: that would end a job for good.

    Raises:
        StoreUnavailable: The store did not answer, or its answers contradict each other.
    """
    contradiction = ""
    for _ in range(_MARKER_READS):
        stored = store.get(MARKER_KEY)
        if stored is not None and is_marker(stored.body):
            return stored.body
        seen = store.head(MARKER_KEY)
        got_bytes, stated_bytes = (None if stored is None else len(stored.body)), (seen[0].size_bytes if seen else None)
        if got_bytes == stated_bytes:
            return None if stored is None else stored.body
        contradiction = f"GET found {got_bytes} bytes of it, HEAD {stated_bytes}"
    raise StoreUnavailable(f"{MARKER_KEY}: expected answers that agree; {contradiction}")


def _marker(store: ObjectStore) -> str | None:
    content = read_marker(store)
    return None if content is None else describe_owner(content)


def _is_stated(named: NamedBucket, store: ObjectStore, copy: InspectedCopy) -> bool:
    """Whether the bucket holds the copy's statement, as the catalog has it.

    Raises:
        CatalogMismatch: It holds another one, of a copy that is LIVE.
    """
    intent, uuid = copy.intent, copy.intent.context.get("uuid")
    keys = (
        (index_key(uuid, intent.ledger_id), data_key(uuid, intent.ledger_id))
        if uuid
        else (meta_key(intent.ledger_id, intent.owner),)
    )
    for key in keys:
        seen = store.head(key)
        why = find_ownership_problem(intent, key, seen[1]) if seen else None
        if why and copy.state == CopyState.LIVE.value:
            raise _not_ours(named, "what this catalog wrote", f"that {why}")
        if seen and not why:
            return True
    return False


def _strange_key(role: Role, store: ObjectStore) -> str | None:
    """A key of the role's that a bucket holds; None: two listings show none, and what a catalog puts first is absent.

    One empty listing does not make a bucket empty.
    """
    for _ in range(_LISTINGS):
        keys = (item.key for item in islice(store.list(role.prefix), _LOOKED_AT))
        if strange := next((key for key in keys if role.holds(key)), None):
            return strange
    return next((key for key in _FIRST_KEYS.get(role, ()) if store.head(key)), None)


def _is_certain(copy: InspectedCopy) -> bool:
    """Whether something of the copy was stored, as far as the catalog knows.

    A newborn's creator may have died; of a dead letter storage may have said that it is another's.
    """
    going = copy.state == DeletionState.PENDING.value
    stored = copy.intent.segments > 0 and was_published(copy.intent.context)
    return copy.state == CopyState.LIVE.value or (going and stored)


def _not_ours(named: NamedBucket, expected: str, found: str) -> CatalogMismatch:
    advice = "it has no marker, and is taken only with evidence: check bucket, endpoint and database"
    return CatalogMismatch(str(named), expected=expected, found=found, advice=advice)
