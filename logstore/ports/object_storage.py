"""Ports of storage: the object store, and the copies of ledgers that phase two removes from the object store."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, Protocol

from logstore.deletion.intents import DeletionIntent, StoredCopy
from logstore.errors import SextonError
from logstore.offload.tiered_copy import CopyLocation


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """Metadata of an object from a listing or a HEAD."""

    key: str
    size_bytes: int
    modified_us: int | None  # microseconds since 1970 by the store's clock; None: unknown
    etag: str | None = None  # only from HEAD, not from a listing


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenUpload:
    """Multipart upload that was neither completed nor aborted."""

    key: str
    started_us: int | None  # microseconds since 1970 by the store's clock; None: unknown


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
    unanswered: frozenset[str] = frozenset()  # failed keys for which the store gave no answer


class ObjectStore(Protocol):
    """Bucket of an object store.

    A key has 1 to 1,024 UTF-8 bytes and no backslash. No part between slashes is empty, `.` or `..`, because some
    stores keep keys as file paths.

    Every method may raise `StoreUnavailable`. A put or a delete may then have landed. A method that sends several
    requests calls `raise_if_stopped` between them.
    """

    def put_if_absent(self, key: str, body: bytes, *, metadata: Mapping[str, str]) -> None:
        """Store the object unless the key is taken. An equal object is accepted as if this call had stored it.

        Equal means the same body and metadata.

        Raises:
            AlreadyExists: The key holds another object. Nothing changed.
        """

    def put_file_if_absent(
        self, key: str, file: BinaryIO, *, metadata: Mapping[str, str], proceed: Callable[[], None]
    ) -> None:
        """Store a seekable file like `put_if_absent`. A large file is sent in parts and appears as a whole.

        `proceed` is called before every request that sends data, including retries. If `proceed` raises, the upload
        ends. A failed upload is aborted if the store answers. If the process dies, `open_uploads` shows the upload.

        Raises:
            AlreadyExists: The key holds another object. Nothing changed.
        """

    def list_open_uploads(self, prefix: str) -> list[OpenUpload]:
        """Return multipart uploads to keys with the prefix, ascending by key. A key may have several.

        Their parts take space, and no listing shows these parts.
        """

    def abort_uploads(self, key: str) -> None:
        """Abort every multipart upload to exactly this key, if any. The store then refuses later parts."""

    def get(self, key: str) -> StoredObject | None:
        """Return the object, or `None` if the store confirms that it does not exist."""

    def get_range(
        self, key: str, start: int, length: int, *, expected_metadata: Mapping[str, str] | None = None
    ) -> bytes | None:
        """Return `length` bytes from `start`, or `None` if the object does not exist. At the end there may be fewer.

        Raises:
            CorruptData: The object's metadata lacks an entry of `expected_metadata`. It is another object, which the
                digest of a part could not show.
        """

    def head(self, key: str) -> tuple[ObjectInfo, Mapping[str, str]] | None:
        """Return the object's info and user metadata, or `None` if it does not exist."""

    def list(self, prefix: str, *, start_after: str = "", first_page: int = 1_000) -> Iterator[ObjectInfo]:
        """Yield objects with the prefix and keys after `start_after`, ascending by UTF-8 bytes, page by page.

        The first page has at most `first_page` objects (1 to 1,000). If the listing cannot be completed, the iterator
        raises.
        """

    def list_folder(self, prefix: str) -> Iterator[str | ObjectInfo]:
        """Yield objects and folders directly below `prefix`, unordered, page by page.

        A folder is a string that ends with the first "/" after `prefix`. Each folder is yielded once. Some stores show
        empty folders. If the listing cannot be completed, the iterator raises.
        """

    def delete(self, keys: Sequence[str]) -> DeleteReport:
        """Delete any number of keys, in pages. An absent key counts as deleted.

        A temporary error of a key is retried. An error that remains is reported in `failed`. The method raises only if
        no request could be sent.
        """


def object_keys(objects: Iterable[ObjectInfo]) -> list[str]:
    """Return the keys of the objects, in the given order."""
    return [info.key for info in objects]


class OwnedStore(ObjectStore, Protocol):
    """Bucket of a catalog. Any method raises `CatalogMismatch` if the bucket belongs to another catalog or to none."""

    def require_ownership(self) -> None:
        """Check that the bucket belongs to this catalog. After one success the check is not repeated."""

    def confirm_ownership(self) -> None:
        """Check now that the bucket has this catalog's marker. Call this before relying on the absence of an object."""

    def begin_removal(self) -> ObjectStore:
        """Check the bucket now. Return it without further checks, for the requests of one removal.

        Raises:
            CatalogOutdated: Another catalog has replaced this one.
        """


BucketAtLocation = Callable[[CopyLocation], OwnedStore]
"""Function that returns the bucket at a location of tiered copies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRemovalResult:
    """Confirmed result of removing one copy."""

    objects: int = 0
    size_bytes: int = 0
    error: str | None = None  # None: nothing is left
    answered: bool = True  # whether storage answered for every key


class CopyStorage(Protocol):
    """Storage of one kind of copies of ledgers."""

    def inspect_copy(self, intent: DeletionIntent) -> StoredCopy:
        """Return the stored objects of the copy and the owner that they state.

        Raises:
            StoreUnavailable: Storage did not answer, or contradicts itself.
        """

    def prepare_inspection(self, intents: Sequence[DeletionIntent]) -> Callable[[DeletionIntent], StoredCopy]:
        """Return a function like `inspect` that shares requests between these intents. Call it once for each intent.

        `ABSENT` is proved only after `check_absence`.
        """

    def prove_absence(self, absent: Sequence[DeletionIntent]) -> Mapping[int, SextonError]:
        """Prove that `ABSENT` copies do not exist, by a second listing and by the names of their objects.

        At the end each store is checked once, because an empty answer of a wrong store proves nothing.

        Returns:
            Reason why the copy may still exist, by `row_id`. A row without a reason is proved absent.
        """

    def read_statement(self, intent: DeletionIntent) -> Mapping[str, str] | None:
        """Return the owner that the copy's content states, for display, or `None`.

        The fields are those of `LedgerStatement.to_metadata`. If another program wrote the copy, they may be any
        others.

        Raises:
            StoreUnavailable: Storage did not answer.
        """

    def remove_copies(
        self, copies: Mapping[int, StoredCopy], *, on_progress: Callable[[int], None]
    ) -> Mapping[int, CopyRemovalResult]:
        """Remove `OWN` copies: data in shared pages, then each ledger's statement. Storage confirms each key.

        `on_progress` receives the number of objects confirmed since the last call.

        Returns:
            Result of each row by `row_id`.
        """


StorageByCopyKind = Mapping[str, CopyStorage]  # by value of `CopyKind`
