"""Reads that do not believe one answer: of an object that was just uploaded, and of one that came back corrupt.

A store, or a cache in front of it, may answer a PUT and keep nothing. What becomes current by a transaction or by the
name of a manifest is read back first: by one HEAD, which tells its length and the digest in its metadata. Appends are
not read back: that would double the requests of each.

Source: apache/pulsar#22839 (an offload that was reported as done and stored nothing).
"""

from collections.abc import Callable, Mapping
from typing import TypeVar

from logstore.errors import CorruptData, UploadUnproven
from logstore.ports.objects import ObjectInfo, ObjectStore

Content = TypeVar("Content")


def read_twice(read: Callable[[], Content]) -> Content:
    """Read once more what is corrupt: a gateway may have cut the answer off, and `CorruptData` ends a job for good.

    Raises:
        CorruptData: It is corrupt both times.
    """
    try:
        return read()
    except CorruptData:
        return read()


def put_and_require(objects: ObjectStore, key: str, body: bytes, *, metadata: Mapping[str, str]) -> None:
    """Store an object unless its key is taken, and require it as `require_stored` does.

    Raises:
        AlreadyExists: The key holds another object.
        UploadUnproven, StoreUnavailable: As `require_stored`.
    """
    objects.put_if_absent(key, body, metadata=metadata)
    require_stored(objects, key, size_bytes=len(body), metadata=metadata)


def require_stored(objects: ObjectStore, key: str, *, size_bytes: int, metadata: Mapping[str, str]) -> ObjectInfo:
    """Require the object that was uploaded, as a HEAD shows it now. A gateway may have added entries to its metadata.

    Raises:
        UploadUnproven: The store has no such object, or one of another length or without an entry of the metadata.
        StoreUnavailable: The store did not answer.
    """
    found = objects.head(key)
    if found is None:
        raise UploadUnproven(f"{key}: the upload was answered and the object is not there")
    info, stored_metadata = found
    if info.size_bytes != size_bytes or not metadata.items() <= stored_metadata.items():
        expected = f"{size_bytes} bytes of {dict(metadata)}"
        stored = f"{info.size_bytes} bytes of {dict(stored_metadata)}"
        raise UploadUnproven(f"{key}: expected {expected}, found {stored}")
    return info
