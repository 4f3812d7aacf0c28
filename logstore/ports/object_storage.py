"""Ports of storage: the object store, and the copies of ledgers in it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, Protocol

from logstore.deletion.intents import DeletionIntent, StoredCopy
from logstore.errors import SextonError
from logstore.offload.tiered_copy import CopyLocation


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    key: str
    size_bytes: int
    modified_us: int | None  # microseconds since 1970 by the store's clock; None: unknown
    etag: str | None = None  # only from HEAD, not from a listing
    version_id: str | None = None  # only from HEAD; None: the bucket has never kept versions


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
    """Result of a delete, which the store fills. In the end, each key is in exactly one of `deleted` and `failed`."""

    deleted: set[str] = field(default_factory=set)  # keys that are absent now, whether or not they existed before
    failed: dict[str, str] = field(default_factory=dict)  # key -> error code and message
    unanswered: set[str] = field(default_factory=set)  # failed keys for which the store gave no answer


class ObjectStore(Protocol):
    """Bucket of an object store.

    A key has 1 to 1,024 UTF-8 bytes and no backslash. No part between slashes is empty, `.` or `..`, because some
    stores keep keys as file paths.

    Every method may raise `StoreUnavailable`. A put or a delete may have taken effect despite this error. A method that
    sends several requests calls `raise_if_stopped` between them.
    """

    def put_if_absent(self, key: str, body: bytes, *, metadata: Mapping[str, str]) -> None:
        """Store the object unless the key is taken. An object with equal body and metadata counts as success.

        Raises:
            AlreadyExists: The key holds another object. Nothing changed.
        """

    def put_file_if_absent(
        self, key: str, file: BinaryIO, *, metadata: Mapping[str, str], require_may_proceed: Callable[[], None]
    ) -> None:
        """Store a seekable file by the rule of `put_if_absent`. A large file is sent in parts and appears as a whole.

        `require_may_proceed` is called before every request that sends data, including retries. If
        `require_may_proceed` raises, the upload ends. A failed upload is aborted if the store answers. If the process
        dies, `list_open_uploads` shows the upload.
        """

    def list_open_uploads(self, prefix: str) -> list[OpenUpload]:
        """Return multipart uploads to keys with the prefix, ascending by key. A key may have several uploads.

        The parts of an open upload take space and are in no listing.
        """

    def abort_uploads(self, key: str) -> None:
        """Abort every multipart upload to exactly this key. The store then refuses further parts of these uploads."""

    def get(self, key: str) -> StoredObject | None:
        """Return the object, or `None` if the store confirms that it does not exist."""

    def get_range(
        self, key: str, start: int, length: int, *, expected_metadata: Mapping[str, str] | None = None
    ) -> bytes | None:
        """Return `length` bytes from `start`, fewer at the object's end, or `None` if the object does not exist.

        Raise `CorruptData` if the object's metadata lacks an entry of `expected_metadata`. The key then has another
        object, which the digest of a single part would not reveal.
        """

    def head(self, key: str) -> tuple[ObjectInfo, Mapping[str, str]] | None: ...

    def list(self, prefix: str, *, start_after: str = "", first_page: int = 1_000) -> Iterator[ObjectInfo]:
        """Yield objects with the prefix and with keys after `start_after`, ascending by UTF-8 bytes, page by page.

        The first page has at most `first_page` objects (1 to 1,000). The iterator raises if the listing cannot be
        completed.
        """

    def list_folder(self, prefix: str) -> Iterator[str | ObjectInfo]:
        """Yield objects and folders directly below `prefix`, unordered, page by page.

        A folder is a string that ends with the first "/" after `prefix`. Each folder is yielded once. Some stores show
        empty folders. The iterator raises if the listing cannot be completed.
        """

    def delete(self, keys: Sequence[str]) -> DeleteReport:
        """Delete any number of keys, in pages. An absent key counts as deleted.

        A temporary error of a key is retried. A remaining error is reported in `failed`. The method raises only if no
        request could be sent.
        """


def object_keys(objects: Iterable[ObjectInfo]) -> list[str]:
    return [info.key for info in objects]


class OwnedStore(ObjectStore, Protocol):
    """Bucket of a catalog. Any method raises `CatalogMismatch` if the bucket does not belong to this catalog."""

    def require_ownership_once(self) -> None:
        """Check that the bucket belongs to this catalog. After one success the check is not repeated."""

    def require_ownership_now(self) -> None:
        """Check now that the bucket has this catalog's marker. Do this before you conclude that an object is absent."""

    def begin_removal(self) -> ObjectStore:
        """Check the bucket now. Return the bucket without further checks, for the requests of one removal.

        Raise `CatalogOutdated` if another catalog has replaced this catalog.
        """


BucketAtLocation = Callable[[CopyLocation], OwnedStore]


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRemovalResult:
    objects: int = 0
    size_bytes: int = 0
    error: str | None = None  # None: nothing is left
    answered: bool = True  # whether storage answered for every key


class CopyStorage(Protocol):
    """Storage of one kind of copies of ledgers."""

    def inspect_copy(self, intent: DeletionIntent) -> StoredCopy:
        """Return the stored objects of the copy, and the ledger owner that these objects state.

        Raise `StoreUnavailable` if storage does not answer, or contradicts itself.
        """

    def prepare_inspection(self, intents: Sequence[DeletionIntent]) -> Callable[[DeletionIntent], StoredCopy]:
        """Return a function that has the result of `inspect_copy`, but shares requests between the intents.

        Call the function once for each intent. A result `ABSENT` is proved only after a call of `prove_absence`.
        """

    def prove_absence(self, absent: Sequence[DeletionIntent]) -> Mapping[int, SextonError]:
        """Prove that `ABSENT` copies do not exist, by a second listing and by reads of single keys.

        At the end each bucket's marker is checked once, because an empty answer of a foreign bucket proves nothing.
        Return the reasons why copies may still exist, by `row_id`. The copy of a row without a reason is proved absent.
        """

    def read_statement(self, intent: DeletionIntent) -> Mapping[str, str] | None:
        """Return the ledger owner that the copy's content states, for display, or `None`.

        The fields are those of `LedgerStatement.to_metadata`. A copy that another program wrote may have any other
        fields. Raise `StoreUnavailable` if storage does not answer.
        """

    def remove_copies(
        self, copies: Mapping[int, StoredCopy], *, on_progress: Callable[[int], None]
    ) -> Mapping[int, CopyRemovalResult]:
        """Remove copies with the verdict `OWN`. Return the results by `row_id`.

        Data is deleted first, with keys of several copies in one request, and statements last. Storage confirms each
        key. `on_progress` receives the number of objects confirmed since its previous call.
        """


StorageByCopyKind = Mapping[str, CopyStorage]  # by value of `CopyKind`
