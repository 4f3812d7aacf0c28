"""Ports of storage: the object store, and the copies of ledgers that two-phase deletion removes from it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, Protocol

from logstore.deletion.intents import DeletionIntent, StoredCopy
from logstore.errors import SextonError
from logstore.offload.tiered import CopyLocation


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """Metadata of an object from a listing or a HEAD."""

    key: str
    size_bytes: int
    modified_us: int | None  # microseconds since 1970 by the store's clock; None if the store has no time
    etag: str | None = None  # from HEAD only; a listing has none


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenUpload:
    """Multipart upload that was neither completed nor aborted."""

    key: str
    started_us: int | None  # microseconds since 1970 by the store's clock; None if the store has no time


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    """Content of an object with its user metadata. Metadata names are ASCII in lower case."""

    key: str
    body: bytes
    metadata: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteReport:
    """Result of a delete. Each requested key is in exactly one of `deleted` and `failed`."""

    deleted: frozenset[str] = frozenset()  # absent now, whether or not they existed before
    failed: Mapping[str, str] = field(default_factory=dict)  # key -> error code and message
    unanswered: frozenset[str] = frozenset()  # failed keys without an answer


class ObjectStore(Protocol):
    """Bucket of an object store.

    A key has 1 to 1,024 UTF-8 bytes and no backslash. No part between slashes is empty, `.` or `..`, because some
    stores keep keys as file paths. Every method may raise `StoreUnavailable`; then a put or a delete may have landed. A
    method that sends several requests calls `raise_if_stopped` between them.
    """

    def put_if_absent(self, key: str, body: bytes, *, metadata: Mapping[str, str]) -> None:
        """Store the object unless the key is taken. Equal body and metadata count as stored by this call.

        Raises:
            AlreadyExists: The key holds another object; nothing changed.
        """

    def put_file_if_absent(
        self, key: str, file: BinaryIO, *, metadata: Mapping[str, str], proceed: Callable[[], None]
    ) -> None:
        """Store a seekable file like `put_if_absent`. A large file is sent in parts and appears as a whole.

        `proceed` is called before every request that sends data, including retries. An exception of it ends the upload.
        A failed upload is aborted if the store answers. If the process dies, `open_uploads` shows the upload.

        Raises:
            AlreadyExists: The key holds another object; nothing changed.
        """

    def open_uploads(self, prefix: str) -> list[OpenUpload]:
        """Return multipart uploads of keys with the prefix, ascending by key. A key may have several.

        Their parts take space, and no listing shows them.
        """

    def abort_uploads(self, key: str) -> None:
        """Abort every multipart upload of exactly this key, if any. Later parts of them are refused."""

    def get(self, key: str) -> StoredObject | None:
        """Return the object, or `None` if the store confirms that it does not exist."""

    def get_range(
        self, key: str, start: int, length: int, *, expected_metadata: Mapping[str, str] | None = None
    ) -> bytes | None:
        """Return `length` bytes from `start`, fewer at the end of the object, or `None` without such an object.

        Raises:
            CorruptData: The object's metadata lacks an entry of `expected_metadata`: it is another object, which no
                digest of a part could show.
        """

    def head(self, key: str) -> tuple[ObjectInfo, Mapping[str, str]] | None:
        """Return the object's info and user metadata, or `None` if it does not exist."""

    def list(self, prefix: str, *, start_after: str = "", first_page: int = 1_000) -> Iterator[ObjectInfo]:
        """Yield objects with the prefix and keys after `start_after`, ascending by UTF-8 bytes, page by page.

        The first page has up to `first_page` objects, 1 to 1,000. A listing that cannot be completed raises.
        """

    def list_folder(self, prefix: str) -> Iterator[str | ObjectInfo]:
        """Yield objects and folders directly below `prefix`, unordered, page by page.

        A folder is a string that ends with the first "/" after `prefix`. It is yielded once, and some stores show empty
        folders. A listing that cannot be completed raises.
        """

    def delete(self, keys: Sequence[str]) -> DeleteReport:
        """Delete any number of keys, in pages. An absent key counts as deleted.

        An error of one key is retried if temporary, then reported in `failed`. The method raises only if no request
        could be sent.
        """


def object_keys(objects: Iterable[ObjectInfo]) -> list[str]:
    """Return the keys in the given order."""
    return [info.key for info in objects]


class OwnedStore(ObjectStore, Protocol):
    """Bucket of a catalog. Any method raises `CatalogMismatch` if the bucket belongs to another catalog or to none."""

    def require(self) -> None:
        """Check that the bucket belongs to this catalog. After one success the check is not repeated."""

    def confirm(self) -> None:
        """Check now that the bucket has this catalog's marker. Required before the absence of an object counts."""

    def begin_removal(self) -> ObjectStore:
        """Check the bucket now and return it without further checks, for the requests of one removal.

        Raises:
            CatalogOutdated: Another catalog has replaced this one.
        """


Buckets = Callable[[CopyLocation], OwnedStore]
"""Function that returns the bucket at the location of a tiered copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovalResult:
    """Confirmed result of removing one copy."""

    objects: int = 0
    size_bytes: int = 0
    error: str | None = None  # None if nothing is left
    answered: bool = True  # False if storage did not answer for every key


class CopyStorage(Protocol):
    """Storage of one kind of ledger copies."""

    def inspect(self, intent: DeletionIntent) -> StoredCopy:
        """Return the stored objects of the copy and their stated owner.

        Raises:
            StoreUnavailable: Storage did not answer, or contradicts itself.
        """

    def prepare_inspection(self, intents: Sequence[DeletionIntent]) -> Callable[[DeletionIntent], StoredCopy]:
        """Return a function like `inspect` that shares requests between these intents. Call it once for each.

        `ABSENT` counts only after `check_absence`.
        """

    def check_absence(self, absent: Sequence[DeletionIntent]) -> Mapping[int, SextonError]:
        """Prove that `ABSENT` copies do not exist, by a second listing and by the names of their objects.

        Each store is checked once at the end, because an empty answer of a wrong store proves nothing.

        Returns:
            By `row_id`, why the copy may still exist. A row without an entry is proved absent.
        """

    def statement(self, intent: DeletionIntent) -> Mapping[str, str] | None:
        """Return the owner that the copy's content states, for display, or `None`.

        The fields are those of `LedgerStatement.to_metadata`, or any others if another program wrote them.

        Raises:
            StoreUnavailable: Storage did not answer.
        """

    def remove(
        self, copies: Mapping[int, StoredCopy], *, on_progress: Callable[[int], None]
    ) -> Mapping[int, RemovalResult]:
        """Remove `OWN` copies by `row_id`: data in shared pages, each ledger's statement last, confirmed per key.

        Args:
            copies: Copies by `row_id`.
            on_progress: Receives the number of objects confirmed since the last call.

        Returns:
            One entry for each row.
        """


Storages = Mapping[str, CopyStorage]  # by `CopyKind` value
