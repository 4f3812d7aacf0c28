"""One bucket of S3, or of a store compatible with it, as an `ObjectStore`."""

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, BinaryIO

from botocore.exceptions import ClientError

from infra.objects.answers import code_of, is_throttle, status_of, translated
from infra.objects.bulk_delete import BulkDelete
from infra.objects.keys import check_key, check_metadata, check_written_key
from infra.objects.listing import Listing, micros
from infra.objects.parts import PART_BYTES, PartedUploads
from infra.objects.retries import DeleteRate, Retries
from logstore.errors import AlreadyExists, CorruptData, InvalidInput, StoreUnavailable
from logstore.ports.objects import DeleteReport, ObjectInfo, OpenUpload, StoredObject

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


class S3ObjectStore:
    """`ObjectStore` over one bucket; any number of threads may use one instance.

    Every request is retried with jittered waits within the bounds of `retries`: botocore's own retries are off, so
    that the attempts are ours to see. Keys that some supported store confuses with others are neither
    written nor deleted (see `infra.objects.keys`).
    """

    def __init__(
        self,
        client: "S3Client",
        bucket: str,
        *,
        retries: Retries | None = None,
        rate: DeleteRate | None = None,
        part_bytes: int = PART_BYTES,
    ) -> None:
        self._client, self.bucket = client, bucket
        self._retries = retries or Retries()
        self._part_bytes = part_bytes
        self._parted = PartedUploads(client, bucket, retries=self._retries, part_bytes=part_bytes)
        self._deletes = BulkDelete(client, bucket, retries=self._retries, rate=rate or DeleteRate())

    @property
    def client(self) -> "S3Client":
        """The connections, which its other buckets share."""
        return self._client

    @property
    def retries(self) -> Retries:
        """How often and how long it retries."""
        return self._retries

    @property
    def endpoint(self) -> str:
        """The URL of the store."""
        return self._client.meta.endpoint_url

    @property
    def region(self) -> str:
        """The region that signatures name."""
        return self._client.meta.region_name

    def for_bucket(self, bucket: str) -> "S3ObjectStore":
        """Another bucket of the same store, over the same connections, with a pace of its own."""
        return S3ObjectStore(self._client, bucket, retries=self._retries)

    def put_if_absent(self, key: str, body: bytes, *, metadata: Mapping[str, str]) -> None:
        """Store the object unless the key is taken; done, too, when the key holds these very bytes and metadata.

        Raises:
            AlreadyExists: The key holds another object; nothing changed.
            InvalidInput: A key or metadata that would not come back as it went in.
            StoreUnavailable: Nothing is known of the outcome; or the store calls the key taken, yet shows
                no object there, time and again (SeaweedFS, where the key is a folder of others).
        """
        check_written_key(key)
        check_metadata(metadata)
        if not self._retries.ask(lambda: self._put(key, body, metadata)):
            raise self._taken(key)

    def put_file_if_absent(
        self, key: str, file: BinaryIO, *, metadata: Mapping[str, str], proceed: Callable[[], None]
    ) -> None:
        """Store a file unless the key is taken: by one PUT, or from `part_bytes` on in parts, one in memory at a time.

        Raises:
            AlreadyExists, InvalidInput, StoreUnavailable: As `put_if_absent`.
        """
        check_written_key(key)
        check_metadata(metadata)
        if file.seek(0, io.SEEK_END) <= self._part_bytes:
            file.seek(0)
            body = file.read()

            def put() -> bool:
                proceed()
                return self._put(key, body, metadata)

            stored = self._retries.ask(put)
        else:
            stored = self._parted.put(key, file, metadata, proceed) or self._holds_file(key, file, metadata)
        if not stored:
            raise self._taken(key)

    def open_uploads(self, prefix: str) -> list[OpenUpload]:
        """Unfinished uploads in parts of keys with the prefix, ascending by key."""
        return sorted((found for found, _ in self._parted.unfinished(prefix)), key=lambda one: one.key)

    def abort_uploads(self, key: str) -> None:
        """Abort every unfinished upload in parts of the key."""
        for found, upload_id in list(self._parted.unfinished(key)):
            if found.key == key:
                self._parted.abort(key, upload_id)

    def get(self, key: str) -> StoredObject | None:
        """The whole object, or None when the store says NoSuchKey (and no other kind of 404)."""
        check_key(key)
        return self._retries.ask(lambda: self._get(key))

    def get_range(self, key: str, start: int, length: int, *, stating: Mapping[str, str] | None = None) -> bytes | None:
        """`length` bytes from `start`, fewer at the end and none behind it; None when there is no object.

        Raises:
            InvalidInput: A negative start, or a length below 1.
            CorruptData: The object's metadata lacks an entry of `stating`.
        """
        check_key(key)
        if start < 0 or length < 1:
            raise InvalidInput("range", expected="start of at least 0, length of at least 1", found=(start, length))
        return self._retries.ask(lambda: self._get_range(key, start, length, stating or {}))

    def head(self, key: str) -> tuple[ObjectInfo, Mapping[str, str]] | None:
        """The object's facts and its user metadata, or None when the store says NoSuchKey."""
        check_key(key)
        return self._retries.ask(lambda: self._head(key))

    def list(self, prefix: str, *, start_after: str = "", first_page: int = 1_000) -> Iterator[ObjectInfo]:
        """Objects with the prefix that sort after `start_after`, ascending by UTF-8 bytes, in pages.

        The first of them has up to `first_page` objects, 1 to 1,000.

        Raises:
            StoreUnavailable: A page could not be had; the listing is not complete.
            Unsupported: The store's order differs from that of the keys over more than a page.
        """
        listing = Listing(self._client, self.bucket, self._retries, prefix=prefix, start_after=start_after)
        return listing.objects(first_page)

    def level(self, prefix: str) -> Iterator[str | ObjectInfo]:
        """Objects and folders directly at the prefix, in pages.

        Raises:
            StoreUnavailable: A page could not be had; the listing is not complete.
        """
        return Listing(self._client, self.bucket, self._retries, prefix=prefix, start_after="").level()

    def delete(self, keys: Sequence[str]) -> DeleteReport:
        """Delete the keys in pages that adapt to the store's pace; an absent key counts as deleted.

        Raises:
            StoreUnavailable: The store answered for no key at all.
            ServiceRefused: The store refuses every delete here.
        """
        return self._deletes.delete(keys)

    def _what(self, verb: str, key: str) -> str:
        return f"{verb} {self.bucket}/{key}"

    def _put(self, key: str, body: bytes, metadata: Mapping[str, str]) -> bool:
        """Whether the key now holds this object."""
        with translated(self._what("put", key)):
            try:
                self._client.put_object(
                    Bucket=self.bucket, Key=key, Body=body, Metadata=dict(metadata), IfNoneMatch="*"
                )
            except ClientError as error:
                if status_of(error) != 412:
                    raise
            else:
                return True
        return self._holds(key, body, metadata)

    def _holds(self, key: str, body: bytes, metadata: Mapping[str, str]) -> bool:
        """Whether a key that the store calls taken holds this very object: an attempt of ours had landed."""
        found = self._head(key)
        if found is None:  # deleted since, or (SeaweedFS) a folder of this name
            raise StoreUnavailable(f"{self._what('put', key)}: refused as taken, yet no object is there")
        info, its_metadata = found
        if info.size_bytes != len(body) or its_metadata != metadata:
            return False
        stored = self._get(key)
        return stored is not None and stored.body == body

    def _holds_file(self, key: str, file: BinaryIO, metadata: Mapping[str, str]) -> bool:
        """As `_holds`, without holding the content in memory."""
        found = self.head(key)
        if found is None:
            raise StoreUnavailable(f"{self._what('put', key)}: refused as taken, yet no object is there")
        if found[0].size_bytes != file.seek(0, io.SEEK_END) or found[1] != metadata:
            return False
        file.seek(0)
        at = 0
        while part := file.read(PART_BYTES):
            if self.get_range(key, at, len(part)) != part:
                return False
            at += len(part)
        return True

    def _taken(self, key: str) -> AlreadyExists:
        return AlreadyExists(f"{self._what('put', key)}: the key holds another object")

    def _get(self, key: str) -> StoredObject | None:
        with translated(self._what("get", key)):
            try:
                answer = self._client.get_object(Bucket=self.bucket, Key=key)
                return StoredObject(key=key, body=answer["Body"].read(), metadata=answer["Metadata"])
            except ClientError as error:
                _check_absent(error)
                return None

    def _get_range(self, key: str, start: int, length: int, stating: Mapping[str, str]) -> bytes | None:
        with translated(self._what("get", key)):
            try:
                answer = self._client.get_object(
                    Bucket=self.bucket, Key=key, Range=f"bytes={start}-{start + length - 1}"
                )
                body = answer["Body"].read()
            except ClientError as error:
                if code_of(error) == "InvalidRange":
                    return b""
                _check_absent(error)
                return None
        if not stating.items() <= answer["Metadata"].items():
            found = {name: answer["Metadata"].get(name) for name in stating}
            raise CorruptData(f"{self.bucket}/{key}: expected an object of {dict(stating)}, found {found}")
        if answer["ResponseMetadata"]["HTTPStatusCode"] != 206:
            return body[start : start + length]  # a store may ignore the range and send everything
        if not answer["ContentRange"].startswith(f"bytes {start}-"):
            told = answer["ContentRange"]
            raise StoreUnavailable(f"{self._what('get', key)}: expected the bytes from {start} on, found {told!r}")
        return body

    def _head(self, key: str) -> tuple[ObjectInfo, Mapping[str, str]] | None:
        with translated(self._what("head", key)):
            try:
                found = self._client.head_object(Bucket=self.bucket, Key=key)
            except ClientError as error:
                if is_throttle(error) or status_of(error) >= 500:
                    raise
            else:
                info = ObjectInfo(
                    key=key,
                    size_bytes=found["ContentLength"],
                    modified_us=micros(found.get("LastModified")),
                    etag=found["ETag"],
                )
                return info, found["Metadata"]
        # a HEAD has no body to say which 404 it means, or why it was refused: a GET of one byte has
        if self._get_range(key, 0, 1, {}) is not None:
            raise StoreUnavailable(f"{self._what('head', key)}: refused, and yet the object can be read")
        return None


def _check_absent(error: ClientError) -> None:
    """Let pass only the answer that says definitely that there is no such object."""
    if code_of(error) != "NoSuchKey":
        raise error
