"""A cold start: the record log becomes a catalog again. Its bulk job, its output as files, and the id that it has.

Source: Aerospike, which builds its index from storage when a node starts cold.
"""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from logstore.errors import InvalidInput

LOAD_ORDER: Final = (
    "topic",
    "ledger_list",
    "ledger",
    "ledger_copy",
    "segment",
    "cursor",
    "schema_version",
    "producer_sequence",
    "pending_deletion",
    "transaction",
    "transaction_participant",
    "buffer_range",
    "buffer_hidden",
    "transaction_snapshot",
    "delayed_index",
    "delayed_bucket",
    "tombstone",
)
"""Tables of the catalog that are rebuilt, in the order in which they are loaded."""

SKIPPED: Final = "skipped: "
"""How the name of a fact begins that says of a block, by its key, why it could not be read."""

_ID: Final = re.compile(r"([0-9a-f-]{36})-(\d{1,12})-([0-9a-f]{8})")
_FILE: Final = re.compile(r"([a-z_]+)-(\d{6})\.arrow")


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildRecords:
    """Find the winning version of every record, and write them as rows of the catalog's tables.

    Its summary counts `records`, `tombstones`, `version` (the highest there was) and the rows of each table; its
    facts name blocks that were left out. Its folder holds the rows as `LoadFiles` reads them.
    """

    run_id: str
    catalog_id: str  # whose marker the records bucket must carry
    manifest: int  # number
    skip_unreadable: bool = False  # blocks that are corrupt or gone are left out, and named

    name = "rebuild-records"


@dataclass(frozen=True, slots=True)
class RebuildId:
    """Which rebuild: of which catalog, from which manifest, and into which database with which options."""

    catalog_id: str
    manifest: int
    target: str  # 8 hexadecimal digits

    @classmethod
    def of(cls, catalog_id: str, manifest: int, *, database_url: str, skip_unreadable: bool) -> "RebuildId":
        """The id that every run of the same command comes to; the URL cannot be read out of it."""
        told = f"{database_url}\n{skip_unreadable}"
        return cls(catalog_id, manifest, hashlib.sha256(told.encode()).hexdigest()[:8])

    @classmethod
    def parse(cls, text: str) -> "RebuildId":
        """Read what `str` has written.

        Raises:
            InvalidInput: It is no such id.
        """
        found = _ID.fullmatch(text)
        if not found:
            raise InvalidInput("rebuild", expected="CATALOG_ID-MANIFEST-TARGET", found=text)
        return cls(found[1], int(found[2]), found[3])

    def __str__(self) -> str:
        return f"{self.catalog_id}-{self.manifest}-{self.target}"


class LoadFiles:
    """Rows of tables as Arrow files in one folder, those of one table in the order of their ids."""

    def __init__(self, folder: Path) -> None:
        """Of a folder that is there."""
        self._folder = folder

    def path(self, table: str, part: int) -> Path:
        """Where a part of a table's rows is; parts are loaded in the order of their numbers."""
        return self._folder / f"{table}-{part:06d}.arrow"

    def of(self, table: str) -> list[Path]:
        """The parts of a table that were written."""
        return sorted(path for path in self._folder.glob(f"{table}-*.arrow") if _table(path) == table)

    def listed(self) -> Path:
        """Ids of all ledgers that their lists name, ascending: an array of numpy's."""
        return self._folder / "listed.npy"

    def topics(self) -> Path:
        """Ids of all topics, ascending."""
        return self._folder / "topics.npy"


def _table(path: Path) -> str:
    found = _FILE.fullmatch(path.name)
    return found[1] if found else ""
