"""Storage as Sexton needs it: the object store, and the copies of ledgers that two-phase deletion finds there.

Of the object store: conditional writes, ordered listings, deletes confirmed per key.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, Protocol

from logstore.deletion.intents import DeletionIntent, StoredCopy
from logstore.errors import SextonError
from logstore.offload.tiered import CopyLocation


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """One object as a listing or a HEAD shows it."""

    key: str
    size_bytes: int
    modified_us: int | None  # microseconds since 1970 by the store's own clock; None when it tells none
    etag: str | None = None  # the store's own mark of this very content, as HEAD tells it; a listing tells none


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenUpload:
    """An upload in parts that was neither finished nor aborted."""

    key: str
    started_us: int | None  # microseconds since 1970 by the store's own clock; None when it tells none


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    """An object's content with its user metadata (names in lower case, ASCII)."""

    key: str
    body: bytes
    metadata: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteReport:
    """What the store said of each key. Every key asked for is in exactly one of the two."""

    deleted: frozenset[str] = frozenset()  # gone now, whether or not it was there
    failed: Mapping[str, str] = field(default_factory=dict)  # key -> the store's error code and message, or what
    # else went wrong
    unanswered: frozenset[str] = frozenset()  # of those that failed, those of which the store said nothing: it went
    # away, or refuses our credentials now


class ObjectStore(Protocol):
    """One bucket.

    Keys are text of 1 to 1,024 UTF-8 bytes, no part between slashes empty, `.` or `..`, no backslash, and come
    back as they went in: some stores keep keys as file paths and would take others for another key.
    Every method may raise `StoreUnavailable` (nothing is known to have happened, except that a put or a delete
    may have landed). One that makes several requests asks `raise_if_stopped`, and ends with what that raises.
    """

    def put_if_absent(self, key: str, body: bytes, *, metadata: Mapping[str, str]) -> None:
        """Store the object unless the key is taken.

        An upload that the store refuses because of an earlier attempt of the same call counts as done
        only if body and metadata are the same ones.

        Raises:
            AlreadyExists: The key holds another object; nothing changed.
        """

    def put_file_if_absent(
        self, key: str, file: BinaryIO, *, metadata: Mapping[str, str], proceed: Callable[[], None]
    ) -> None:
        """As `put_if_absent` with all of a seekable file; a large one goes in parts and appears as a whole.

        `proceed` is called before every request that sends data, also before one that is repeated; what it raises
        ends the upload and is raised here. Of an upload that ends with an error no part is left, unless the store
        did not answer to that either; one whose process died leaves parts, which `open_uploads` shows.

        Raises:
            AlreadyExists: The key holds another object; nothing changed.
        """

    def open_uploads(self, prefix: str) -> list[OpenUpload]:
        """Uploads in parts of keys that begin with `prefix`, neither finished nor aborted, ascending by key.

        Such parts take room, and no listing shows them. A key may have several.
        """

    def abort_uploads(self, key: str) -> None:
        """End every upload in parts of exactly this key and free its parts: what is sent to them later is refused.

        A key without one is no error.
        """

    def get(self, key: str) -> StoredObject | None:
        """The whole object, or None when the store says definitely that there is none."""

    def get_range(
        self, key: str, start: int, length: int, *, expected_metadata: Mapping[str, str] | None = None
    ) -> bytes | None:
        """`length` bytes from `start` (fewer at the end), or None when there is no such object.

        Raises:
            CorruptData: The metadata of the object that answered lacks one of the entries of `expected_metadata`, so these are
                the bytes of another one; no digest could tell that of a part.
        """

    def head(self, key: str) -> tuple[ObjectInfo, Mapping[str, str]] | None:
        """The object's facts and its user metadata, or None when there is none."""

    def list(self, prefix: str, *, start_after: str = "", first_page: int = 1_000) -> Iterator[ObjectInfo]:
        """Objects whose keys begin with `prefix` and sort after `start_after`, ascending by UTF-8 bytes.

        Pages are fetched as the iterator is drawn; the first has up to `first_page` objects (1 to 1,000), as few as are
        wanted of many, and those behind it as many as the store gives. A listing that cannot be completed raises; it
        never ends early as if it were complete.
        """

    def list_folder(self, prefix: str) -> Iterator[str | ObjectInfo]:
        """What stands directly at `prefix`, in no order: objects, and a prefix for all that lie in one folder.

        A folder begins with `prefix` and ends with its first "/" behind it; it is told of once. Nothing below it is
        listed, and a store that keeps folders may show one that holds nothing any more. Pages are fetched as the
        iterator is drawn, and a listing that cannot be completed raises, as with `list`.
        """

    def delete(self, keys: Sequence[str]) -> DeleteReport:
        """Delete any number of keys, in pages; an absent key counts as deleted.

        An error for one key inside a 200 answer is an error of that key: retried while the store calls it
        temporary, then reported under `failed`. Raises only when nothing at all could be asked.
        """


def object_keys(objects: Iterable[ObjectInfo]) -> list[str]:
    """The keys, in the order given."""
    return [found.key for found in objects]


class OwnedStore(ObjectStore, Protocol):
    """A bucket of a catalog. Any method may raise `CatalogMismatch`: it is refused where it is not the catalog's."""

    def require(self) -> None:
        """See that the bucket is the catalog's, as the first use would; seen once, it is not asked again.

        Raises:
            CatalogMismatch: It is not.
        """

    def confirm(self) -> None:
        """See that the bucket is the catalog's now, whatever was seen before.

        To be asked before anything is judged by what the bucket does not hold.

        Raises:
            CatalogMismatch: It does not carry this catalog's marker.
        """

    def begin_removal(self) -> ObjectStore:
        """The bucket for one removal that begins now, in however many requests: before each, nothing is asked again.

        Raises:
            CatalogMismatch: It is not the catalog's.
            CatalogOutdated: The catalog is not the one any more, where that is asked with this bucket.
        """


Buckets = Callable[[CopyLocation], OwnedStore]
"""A bucket by its location: an offload context says in which one its copy stands, and of which store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovalResult:
    """What storage confirmed of one copy's removal."""

    objects: int = 0
    size_bytes: int = 0
    error: str | None = None  # None: nothing of it is left
    answered: bool = True  # False: storage went away before it had answered for every key


class CopyStorage(Protocol):
    """One kind of copy of ledgers: the primary bucket, the tiered bucket, BookKeeper."""

    def inspect(self, intent: DeletionIntent) -> StoredCopy:
        """Look at what storage holds of the copy, and whose it says it is.

        Raises:
            StoreUnavailable: Storage did not answer, or contradicts itself.
        """

    def prepare_inspection(self, intents: Sequence[DeletionIntent]) -> Callable[[DeletionIntent], StoredCopy]:
        """`inspect` for these, each to be asked for once; what one request tells of several is asked with the first.

        One that it finds `ABSENT` is gone only once `check_absence` has proved it.
        """

    def check_absence(self, absent: Sequence[DeletionIntent]) -> Mapping[int, SextonError]:
        """Prove that copies are gone which `prepare_inspection` found `ABSENT`, by names and by a second listing, together.

        Each store is asked at the end whether it is the catalog's, once: an empty answer of another store says nothing.

        Returns:
            By `row_id`, why the copy may stand all the same, here or elsewhere; a row that is not named is gone.
        """

    def statement(self, intent: DeletionIntent) -> Mapping[str, str] | None:
        """What storage itself says of whose the copy is, read from content, or None when it says nothing.

        For people: `inspect` judges. The fields are those of `LedgerStatement.to_metadata` where we wrote it, and
        anything at all where another program did.

        Raises:
            StoreUnavailable: Storage did not answer.
        """

    def remove(
        self, copies: Mapping[int, StoredCopy], *, on_progress: Callable[[int], None]
    ) -> Mapping[int, RemovalResult]:
        """Remove copies found `OWN`: data in pages, each ledger's own statement last, confirmed per key.

        Args:
            copies: By `row_id`; removed together, so that small ledgers share pages.
            on_progress: Called with the number of objects confirmed since the last call.

        Returns:
            One entry for every row asked for.
        """


Storages = Mapping[str, CopyStorage]
"""`CopyStorage` by `CopyKind` value."""
