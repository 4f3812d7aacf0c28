"""Bulk job of a rebuild, the output files of this job, and the id of a rebuild.

Source: Aerospike's cold start, which builds the index from storage.
"""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from logstore.errors import InvalidInput
from logstore.field_bounds import Share, SparkMasterOrNothing
from logstore.subjects import HasSubject

SKIPPED_BLOCK_PREFIX: Final = "skipped: "
"""Prefix of facts in the job's `BulkJobSummary` that name a skipped block. The block's key follows the prefix."""

_ID: Final = re.compile(r"([0-9a-f-]{36})-(\d{1,12})-([0-9a-f]{8})")
_FILE: Final = re.compile(r"([a-z_]+)-(\d{6})\.arrow")


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteCatalogRowsJob:
    """Bulk job that writes files with rows of the catalog's tables, from the newest record version of every record.

    Its `BulkJobSummary` counts `records`, `tombstones`, `skipped` blocks and the rows of each table. The count
    `version` is the highest manifest number of a record version. The summary's `facts` name skipped blocks.
    """

    run_id: str
    catalog_id: str  # the records bucket must have the marker of this catalog
    manifest: int  # manifest number
    skip_unreadable: bool = False  # skip corrupt and absent blocks

    name = "rebuild-records"


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildRequest(HasSubject):
    rebuild: str  # id of the rebuild, as text of `logstore.records.rebuild_job.RebuildId`
    skip_unreadable: bool = False  # skip and name unreadable blocks, except blocks that hide messages
    master: SparkMasterOrNothing = ""  # Spark cluster; empty: cluster of the settings
    max_absent_share: Share = 0.05  # allowed share of listed ledgers without objects, 0 to 1
    take_over: bool = False  # wait until processes of the old catalog, which may be alive, notice the new epoch


@dataclass(frozen=True, slots=True)
class RebuildId:
    """Identity of a rebuild. `target` is a digest of the database URL and the options."""

    catalog_id: str
    manifest: int
    target: str  # 8 hexadecimal digits

    @classmethod
    def for_command(cls, catalog_id: str, manifest: int, *, database_url: str, skip_unreadable: bool) -> "RebuildId":
        """Return the id. All runs of the same command have the same id. The id does not reveal the URL."""
        target = hashlib.sha256(f"{database_url}\n{skip_unreadable}".encode()).hexdigest()[:8]
        return cls(catalog_id, manifest, target)

    @classmethod
    def parse(cls, text: str) -> "RebuildId":
        match = _ID.fullmatch(text)
        if not match:
            raise InvalidInput("rebuild", expected="CATALOG_ID-MANIFEST-TARGET", found=text)
        return cls(match[1], int(match[2]), match[3])

    def __str__(self) -> str:
        return f"{self.catalog_id}-{self.manifest}-{self.target}"


class RowFilesFolder:
    """Folder of Arrow files with table rows. The rows of a table are split into parts, ascending by id."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def part_path(self, table: str, part: int) -> Path:
        return self._folder / f"{table}-{part:06d}.arrow"

    def part_paths(self, table: str) -> list[Path]:
        # The glob may also match files that are no parts.
        matches = ((path, _FILE.fullmatch(path.name)) for path in self._folder.glob(f"{table}-*.arrow"))
        return sorted(path for path, match in matches if match and match[1] == table)

    def listed_ledgers_path(self) -> Path:
        """Return the path of a numpy file with the ids of all listed ledgers, ascending."""
        return self._folder / "listed.npy"

    def topics_path(self) -> Path:
        """Return the path of a numpy file with the ids of all topics, ascending."""
        return self._folder / "topics.npy"
