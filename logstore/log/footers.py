"""The footer of a Parquet file: compared with its digest before it is parsed.

It has no checksum of its own, and Arrow trusts what it says: with one flipped bit a column is read at another's place,
or the whole process ends.
"""

import hashlib
import io
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Final

from logstore.errors import CorruptData

if TYPE_CHECKING:
    import pyarrow.parquet as pq


FOOTER: Final = "footer"
"""Name under which a segment's own metadata holds the mark of its footer."""

_TAIL: Final = 8  # the length of what comes before, and the magic number
_MARK: Final = re.compile(r"(?P<size>[1-9][0-9]{0,8})-(?P<sha256>[0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class FooterMark:
    """The length and the digest of a footer."""

    size_bytes: int  # with its own length and the magic number: the last bytes of the file
    sha256: str  # hexadecimal

    def __str__(self) -> str:
        """As metadata holds it."""
        return f"{self.size_bytes}-{self.sha256}"

    @staticmethod
    def parse(text: str | None, *, name: str) -> "FooterMark":
        """Read back `str(mark)`; `name` is what to call the object in an error.

        Raises:
            CorruptData: It is none.
        """
        found = _MARK.fullmatch(text or "")
        if not found:
            raise CorruptData(f"{name}: expected length and digest of its footer, found {text!r}")
        return FooterMark(int(found["size"]), found["sha256"])

    def check(self, footer: bytes, *, name: str) -> "pq.FileMetaData":
        """The footer, parsed.

        Raises:
            CorruptData: It is another one.
        """
        found = hashlib.sha256(footer).hexdigest()
        if found != self.sha256:
            raise CorruptData(f"{name}: expected a footer of digest {self.sha256}, found {found}")
        import pyarrow.parquet as pq  # noqa: PLC0415 - start-up time

        return pq.read_metadata(io.BytesIO(footer))


def mark_footer(file: BinaryIO) -> FooterMark:
    """The mark of a whole file that was just written; the file is left at its end."""
    file.seek(-_TAIL, io.SEEK_END)
    size_bytes = int.from_bytes(file.read(_TAIL)[:4], "little") + _TAIL
    file.seek(-size_bytes, io.SEEK_END)
    return FooterMark(size_bytes, hashlib.sha256(file.read(size_bytes)).hexdigest())
