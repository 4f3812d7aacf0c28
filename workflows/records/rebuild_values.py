"""What travels to and from `rebuild-catalog`, and by which name and id programs know it."""

from dataclasses import dataclass, field

from activities.records.rebuild_values import RebuildAdopted
from logstore.deletion.intents import Refusal
from workflows.jobs import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildCatalogInput:
    """A rebuild from one manifest into one database."""

    rebuild: str  # its id, as `logstore.records.rebuilding.RebuildId` writes it
    skip_unreadable: bool = False
    master: str = ""  # the Spark cluster; empty: that of the settings

    def details(self) -> str:
        """What the job will do, and the command that shows how far it is; its *static details*."""
        return (
            "Rebuilds a lost catalog from its record log and from what storage holds. The command `sexton records"
            " rebuild` hosts its worker: run it again where it ended, and the job goes on."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildCatalogProgress:
    """Where a rebuild is."""

    step: str = "beginning"  # then: finding rows, loading, publishing, adopting, settling, letting go, ended
    shards: int = 0  # of 256 that were adopted
    versions: int = 0  # in the blocks of the manifest
    records: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildCatalogResult:
    """What a rebuild came to, or why it was refused."""

    rebuild: str
    manifest: int = 0  # of the new epoch
    records: int = 0
    tombstones: int = 0
    adopted: RebuildAdopted = field(default_factory=RebuildAdopted)
    skipped: list[str] = field(default_factory=list)
    skipped_blocks: int = 0
    flushed_us: int = 0  # changes since then and before the loss come back as far as storage tells of them
    begun_us: int = 0
    refused: Refusal | None = None


REBUILD_CATALOG = Job("rebuild-catalog", RebuildCatalogInput, RebuildCatalogResult, keys=("{rebuild}",))
