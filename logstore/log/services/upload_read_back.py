"""Second requests, because one answer of a store may be wrong: proof of an upload, and another read of corrupt data.

A store, or a cache in front of it, may answer a PUT and store nothing. An object is therefore read back before a
transaction or a manifest refers to it. Segments of appends are not read back, because this would double the requests.

Source: apache/pulsar#22839 (an offload that was reported as done and stored nothing).
"""

from collections.abc import Callable, Mapping
from typing import TypeVar

from logstore.errors import CorruptData, UploadUnproven
from logstore.ports.object_storage import ObjectInfo, ObjectStore

Content = TypeVar("Content")


def reread_if_corrupt(read: Callable[[], Content]) -> Content:
    """Call `read`. If the data is corrupt, call `read` once more. A gateway may have cut off the first answer."""
    try:
        return read()
    except CorruptData:
        return read()


def put_and_read_back(objects: ObjectStore, key: str, body: bytes, *, metadata: Mapping[str, str]) -> None:
    """Store an object, then call `require_stored_object`. Raise `AlreadyExists` if the key is taken."""
    objects.put_if_absent(key, body, metadata=metadata)
    require_stored_object(objects, key, size_bytes=len(body), metadata=metadata)


def require_stored_object(
    objects: ObjectStore, key: str, *, size_bytes: int, metadata: Mapping[str, str]
) -> ObjectInfo:
    """Prove by a HEAD request that an object is stored, and return its info. Additional metadata is accepted.

    Raises:
        UploadUnproven: The object is missing, has another length, or lacks an entry of the metadata.
        StoreUnavailable: The store did not answer.
    """
    stored_object = objects.head(key)
    if stored_object is None:
        raise UploadUnproven(f"{key}: the upload was answered and the object is not there")
    info, stored_metadata = stored_object
    if info.size_bytes != size_bytes or not metadata.items() <= stored_metadata.items():
        expected = f"{size_bytes} bytes of {dict(metadata)}"
        stored = f"{info.size_bytes} bytes of {dict(stored_metadata)}"
        raise UploadUnproven(f"{key}: expected {expected}, found {stored}")
    return info
