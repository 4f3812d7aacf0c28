"""Results of jobs on the record log, and of their activities."""

from dataclasses import dataclass, field, fields, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushedRecords:
    """What flushes wrote."""

    manifest: int = 0  # number of the newest one; 0: none yet
    flushes: int = 0  # that put a manifest
    records: int = 0  # versions, tombstones among them
    tombstones: int = 0
    blocks: int = 0
    bytes: int = 0  # of these blocks
    left: int = 0  # changes that were in no block when it ended
    named: int = 0  # blocks that the newest manifest names, where that was looked at
    held: bool = False  # another job was at work on the record log for as long as this one waited
    refused: int = 0  # records that no block can hold: their changes are left, and the others were flushed
    refusal: str = ""  # why one of them is

    def plus(self, later: "FlushedRecords") -> "FlushedRecords":
        """Both together; what can be said of the end alone is the later's."""
        sums = {name: getattr(self, name) + getattr(later, name) for name in _SUMS}
        return replace(later, **sums, manifest=max(self.manifest, later.manifest), named=later.named or self.named)


_SUMS = ("flushes", "records", "tombstones", "blocks", "bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class DefragmentedBlocks:
    """What one pass over all blocks came to."""

    manifest: int = 0  # number of the newest one; 0: there is none
    rewritten: int = 0  # blocks that the manifest names no more
    written: int = 0  # blocks in their place
    dropped: int = 0  # versions that nothing needs any more
    bytes_before: int = 0  # of blocks that were rewritten
    bytes_after: int = 0  # of those in their place
    manifests: int = 0  # old ones that were deleted
    unlinked: int = 0  # blocks that nothing names any more, and were deleted
    unlinked_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LaggingReplica:
    """A replica that holds a raid up: it lacks tombstones that nothing else needs."""

    replica: str  # a bucket, or a bucket, a slash and a word for a database
    manifest: int = 0  # it has applied this one and all before; 0: none yet
    tombstones: int = 0  # that were kept for it; several replicas may lack the same one


@dataclass(frozen=True, slots=True, kw_only=True)
class RaidedTombstones:
    """What a raid came to."""

    candidates: int = 0
    kept: int = 0  # of the candidates
    removed: int = 0
    blocks: int = 0  # that were read
    versions: int = 0  # in them
    seconds: float = 0.0
    held_by: list[LaggingReplica] = field(default_factory=list)  # ascending by name; empty: no replica held it up


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedBlocks:
    """What one replica was sent."""

    replica: str  # its bucket
    manifest: int = 0  # number of the one that it has now
    blocks: int = 0  # that it lacked
    bytes: int = 0  # of these
    records: int = 0  # versions in these, tombstones among them
    tombstones: int = 0
    error: str = ""  # why it could not be reached; empty: it has all


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedRecords:
    """What a replica's database was given."""

    replica: str  # the bucket that it follows, a slash, and a word of its own
    manifest: int = 0  # number of the one that it has now; 0: there is none yet
    steps: int = 0  # transactions
    seeded: int = 0  # of these, those that began with an empty database
    records: int = 0  # rows of records that were written
    tombstones: int = 0
    removed: int = 0  # topics and ledgers that went

    def plus(self, later: "FollowedRecords") -> "FollowedRecords":
        """Both together."""
        sums = {name: getattr(self, name) + getattr(later, name) for name in _STEPS}
        return replace(later, **sums, manifest=max(self.manifest, later.manifest))


_STEPS = ("steps", "seeded", "records", "tombstones", "removed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a page of a selection begins: at this ledger of this topic, or behind it if it is gone."""

    topic_id: int = 0
    ledger_id: int = 0


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
    schemas_left_out: int = 0  # versions that came back without their ledgers
    schemas_left_out_of: list[str] = field(default_factory=list)  # topics, a sample


def counts(value: object) -> dict[str, int]:
    """The numbers of one of these values, by name."""
    return {one.name: found for one in fields(value) if type(found := getattr(value, one.name)) is int}  # type: ignore[arg-type]
