"""What travels to and from the activities of a rebuild."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildStep:
    """One step of one rebuild."""

    rebuild: str  # its id
    skip_unreadable: bool = False  # blocks that cannot be read are left out, and named
    master: str = ""  # of the Spark cluster; empty: that of the settings


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildBegun:
    """From what the catalog is rebuilt."""

    loaded: bool  # an earlier run of the command got so far
    flushed_us: int  # the moment of the lost catalog that the manifest shows
    blocks: int
    versions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuiltRows:
    """What the blocks came to."""

    records: int
    tombstones: int
    skipped: list[str] = field(default_factory=list)  # `key: why` of blocks that were left out, capped
    skipped_blocks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptShardsInput:
    """Some shards of the primary bucket."""

    first: int  # inclusive
    end: int  # exclusive


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptedShards:
    """What they held."""

    objects: int
    staged: int  # ledgers of which storage holds something else than the catalog says


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildAdopted:
    """What adoption came to."""

    adopted_ledgers: int = 0
    adopted_segments: int = 0
    detached: int = 0
    revived: int = 0
    revived_ledgers: list[int] = field(default_factory=list)  # a sample
    missing_data: int = 0
    missing_ledgers: list[int] = field(default_factory=list)  # a sample


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedManifest:
    """The manifest of the new epoch."""

    manifest: int
