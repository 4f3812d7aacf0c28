"""A register of names that is read without a listing, for what a listing may hide.

Entries are numbered objects without a gap: `{folder}{n:06d}` holds a name, and `{folder}{n:06d}-ended` says that it is
over. Whoever reads asks for one number after the other until there is none, so that no listing can hide an entry.
Nothing is overwritten or removed: a name that comes again gets a new number. What is entered here must be rare.

Dying anywhere is harmless, and so is repeating: a name that stands is not entered again. Two that enter the same name
at once may enter it twice, and both entries end together. An entry carries the digest of its name, by which an answer
that was cut off is known.
"""

from collections.abc import Callable, Iterator
from typing import Final

from logstore.errors import AlreadyExists, CorruptData
from logstore.failpoints import effect
from logstore.log.ledgers import DIGEST_FIELD, sha256_hex
from logstore.log.services.read_back import put_and_require, read_twice
from logstore.ports.objects import ObjectStore
from logstore.units import raise_if_stopped

NO_CONTENT: Final = b"{}"
"""Content of an object whose key says all, as a pin or an acknowledgement."""


def put_record_object(objects: ObjectStore, key: str, body: bytes) -> None:
    """Store an object of the record log with the digest of its content, unless its key is taken, and require it.

    Raises:
        AlreadyExists: The key holds another object.
        UploadUnproven: The store answered the PUT, and does not show the object.
    """
    put_and_require(objects, key, body, metadata={} if body == NO_CONTENT else {DIGEST_FIELD: sha256_hex(body)})


class Registry:
    """The names of one folder. Threads share one."""

    def __init__(self, objects: ObjectStore, folder: str) -> None:
        """Keep names in this folder, which ends with a slash."""
        self._objects, self._folder = objects, folder
        self._over = 0  # all entries below this number have ended, for good

    def enter(self, name: str) -> None:
        """Let a name stand, unless it does.

        Raises:
            StoreUnavailable: The store did not answer.
            CorruptData: An entry is not what was entered.
        """
        number = self._over
        for number, entered in self._standing():  # noqa: B007 - the last one is where to go on
            if entered == name:
                return
        while True:
            raise_if_stopped()
            key = self._key(number)
            if self._objects.get(key) is None:
                try:
                    with effect("records.enter"):
                        put_record_object(self._objects, key, name.encode())
                except AlreadyExists:
                    pass  # by another one
                else:
                    return
            number += 1

    def end(self, should_end: Callable[[str], bool]) -> None:
        """End the entries of some names. If none is found, look once more: an answer may deny an entry.

        Raises as `enter`.
        """
        for _ in range(2):
            numbers = [number for number, name in self._standing() if should_end(name)]
            for number in numbers:
                with effect("records.end_entry"):
                    put_record_object(self._objects, f"{self._key(number)}-ended", NO_CONTENT)
            if numbers:
                return

    def standing(self) -> frozenset[str]:
        """Names that were entered and have not ended. Raises as `enter`."""
        return frozenset(name for _, name in self._standing())

    def _standing(self) -> Iterator[tuple[int, str]]:
        number, all_over = self._over, True
        while (name := self._read(number)) is not None:
            raise_if_stopped()
            if self._objects.get(f"{self._key(number)}-ended") is None:
                all_over = False
                yield number, name
            number += 1
            if all_over:
                self._over = max(self._over, number)

    def _read(self, number: int) -> str | None:
        key = self._key(number)

        def read() -> str | None:
            entry = self._objects.get(key)
            if entry is None:
                return None
            expected, found = entry.metadata.get(DIGEST_FIELD), sha256_hex(entry.body)
            if expected != found:
                raise CorruptData(f"{key}: expected a name with the digest {expected}, found {found}")
            return entry.body.decode()

        return read_twice(read)

    def _key(self, number: int) -> str:
        return f"{self._folder}{number:06d}"
