"""Reads that do not trust one answer: of an object that was just uploaded, and of one that looks corrupt.

A store, or a cache in front of it, may answer a PUT and store nothing. So what becomes current by a transaction or by a
manifest is read back first, by one HEAD, which shows length and digest. Appends are not read back, because that would
double their requests.

Source: apache/pulsar#22839 (an offload that was reported as done and stored nothing).
"""

from collections.abc import Callable, Mapping
from typing import TypeVar

from logstore.errors import CorruptData, UploadUnproven
from logstore.ports.objects import ObjectInfo, ObjectStore

Content = TypeVar("Content")


def read_twice(read: Callable[[], Content]) -> Content:
    """Repeat a read that found corrupt data once. A gateway may have cut the answer off, and `CorruptData` ends a job.

    Raises:
        CorruptData: The data is corrupt both times.
    """
    try:
        return read()
    except CorruptData:
        return read()


def put_and_require(objects: ObjectStore, key: str, body: bytes, *, metadata: Mapping[str, str]) -> None:
    """Store an object unless its key is taken, and require it as `require_stored` does.

    Raises:
        AlreadyExists: The key holds another object.
    """
    objects.put_if_absent(key, body, metadata=metadata)
    require_stored(objects, key, size_bytes=len(body), metadata=metadata)


def require_stored(objects: ObjectStore, key: str, *, size_bytes: int, metadata: Mapping[str, str]) -> ObjectInfo:
    """Require an uploaded object by HEAD and return its info. A gateway may have added metadata.

    Raises:
        UploadUnproven: The object is missing, has another length, or lacks an entry of the metadata.
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
