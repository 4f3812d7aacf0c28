"""Register of names that is read without a listing, because a listing may hide objects.

Entries are numbered without a gap. The content of the object `{folder}{n:06d}` is the name of entry n. The object
`{folder}{n:06d}-ended` says that the entry has ended. A reader requests entries in order until none is found. Entries
are never overwritten or removed, so names should be entered rarely. A name that is entered again gets a new number.

Every call may be repeated. If two writers enter a name at once, the name has two entries, which end together. Each
entry has the digest of its name. A truncated response does not match the digest.
"""

from collections.abc import Callable, Iterator
from typing import Final

from logstore.errors import AlreadyExists, CorruptData
from logstore.failpoints import effect
from logstore.log.segment_format import DIGEST_FIELD, sha256_hex
from logstore.log.services.upload_read_back import put_and_read_back, reread_if_corrupt
from logstore.ports.object_storage import ObjectStore
from logstore.stop_checks import raise_if_stopped

NO_CONTENT: Final = b"{}"
"""Content of an object whose key has all information, such as a pin."""


def put_record_object(objects: ObjectStore, key: str, body: bytes) -> None:
    """Store an object with its digest if the key is free, and read the object back.

    Raises:
        AlreadyExists: Another object has the key.
        UploadUnproven: The store accepted the PUT but does not show the object.
    """
    put_and_read_back(objects, key, body, metadata={} if body == NO_CONTENT else {DIGEST_FIELD: sha256_hex(body)})


class NameRegister:
    """Register of the names in one folder. `folder` ends with a slash. Thread-safe."""

    def __init__(self, objects: ObjectStore, folder: str) -> None:
        self._objects, self._folder = objects, folder
        self._first_active = 0  # all entries with lower numbers have ended

    def enter_name(self, name: str) -> None:
        """Add an entry with this name, unless the name has an entry that has not ended.

        Raise `CorruptData` if an entry is damaged.
        """
        number = self._first_active
        for number, entered_name in self._active_entries():  # noqa: B007 - the search continues at the last number
            if entered_name == name:
                return
        while True:
            raise_if_stopped()
            key = self._key(number)
            if self._objects.get(key) is None:
                try:
                    with effect("records.enter"):
                        put_record_object(self._objects, key, name.encode())
                except AlreadyExists:
                    pass  # another writer took the number
                else:
                    return
            number += 1

    def end_names(self, should_end: Callable[[str], bool]) -> None:
        """End the active entries for whose name `should_end` returns true. Raise the errors of `enter_name`.

        If no entry is found, the register is read a second time, because one response may lack an entry.
        """
        for _ in range(2):
            numbers = [number for number, name in self._active_entries() if should_end(name)]
            for number in numbers:
                with effect("records.end_entry"):
                    put_record_object(self._objects, f"{self._key(number)}-ended", NO_CONTENT)
            if numbers:
                return

    def active_names(self) -> frozenset[str]:
        """Return the names of the entries that have not ended. Raise the errors of `enter_name`."""
        return frozenset(name for _, name in self._active_entries())

    def _active_entries(self) -> Iterator[tuple[int, str]]:
        number, has_only_ended = self._first_active, True
        while (name := self._read_entered_name(number)) is not None:
            raise_if_stopped()
            if self._objects.get(f"{self._key(number)}-ended") is None:
                has_only_ended = False
                yield number, name
            number += 1
            if has_only_ended:
                self._first_active = max(self._first_active, number)

    def _read_entered_name(self, number: int) -> str | None:
        key = self._key(number)

        def read() -> str | None:
            entry = self._objects.get(key)
            if entry is None:
                return None
            expected, found = entry.metadata.get(DIGEST_FIELD), sha256_hex(entry.body)
            if expected != found:
                raise CorruptData(f"{key}: expected a name with the digest {expected}, found {found}")
            return entry.body.decode()

        return reread_if_corrupt(read)

    def _key(self, number: int) -> str:
        return f"{self._folder}{number:06d}"
