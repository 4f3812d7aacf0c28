"""Results of jobs on the record log and of their activities. They travel through Temporal by the names of fields."""

from dataclasses import dataclass, field, fields, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushedRecords:
    """Result of flushes."""

    manifest: int = 0  # newest number; 0: none yet
    flushes: int = 0  # flushes that stored a manifest
    records: int = 0  # versions, including tombstones
    tombstones: int = 0
    blocks: int = 0
    bytes: int = 0  # of these blocks
    left: int = 0  # changes in no block at the end
    named: int = 0  # blocks in the newest manifest; 0: not read
    held: bool = False  # another job had the record log until this one gave up
    refused: int = 0  # records that no block can hold; their changes stay
    refusal: str = ""  # reason for one of them

    def plus(self, later: "FlushedRecords") -> "FlushedRecords":
        """Return the sum of two results. Facts about the end are those of `later`."""
        sums = {name: getattr(self, name) + getattr(later, name) for name in _SUMMED_FLUSH_FIELDS}
        return replace(later, **sums, manifest=max(self.manifest, later.manifest), named=later.named or self.named)


_SUMMED_FLUSH_FIELDS = ("flushes", "records", "tombstones", "blocks", "bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class DefragmentedBlocks:
    """Result of one pass over all blocks."""

    manifest: int = 0  # newest number; 0: none
    rewritten: int = 0  # old blocks
    written: int = 0  # new blocks
    dropped: int = 0  # versions that are no longer needed
    bytes_before: int = 0  # of the old blocks
    bytes_after: int = 0  # of the new blocks
    manifests: int = 0  # deleted old manifests
    unlinked: int = 0  # deleted blocks that no manifest named
    unlinked_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LaggingReplica:
    """Replica that keeps a raid from removing tombstones."""

    replica: str  # bucket; of a database `bucket/word`
    manifest: int = 0  # it has applied this manifest and all before; 0: none yet
    tombstones: int = 0  # kept for it; several replicas may lack the same tombstone


@dataclass(frozen=True, slots=True, kw_only=True)
class RaidedTombstones:
    """Result of a raid."""

    candidates: int = 0
    kept: int = 0
    removed: int = 0
    blocks: int = 0  # blocks read
    versions: int = 0  # versions in these blocks
    seconds: float = 0.0
    held_by: list[LaggingReplica] = field(default_factory=list)  # ascending by name


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedBlocks:
    """Result of a shipment to one replica bucket."""

    replica: str  # its bucket
    manifest: int = 0  # newest number in the replica
    blocks: int = 0  # copied blocks
    bytes: int = 0  # of these blocks
    records: int = 0  # versions in these blocks, including tombstones
    tombstones: int = 0
    error: str = ""  # why the replica could not be reached; empty: it is complete


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedRecords:
    """Result of steps of a replica database."""

    replica: str  # `bucket/word`
    manifest: int = 0  # newest applied number; 0: none yet
    steps: int = 0  # transactions
    seeded: int = 0  # steps that seeded the database
    records: int = 0  # rows written
    tombstones: int = 0
    removed: int = 0  # topics and ledgers

    def plus(self, later: "FollowedRecords") -> "FollowedRecords":
        """Return the sum of two results."""
        sums = {name: getattr(self, name) + getattr(later, name) for name in _SUMMED_STEP_FIELDS}
        return replace(later, **sums, manifest=max(self.manifest, later.manifest))


_SUMMED_STEP_FIELDS = ("steps", "seeded", "records", "tombstones", "removed")


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionPosition:
    """Start of a page of a selection: a ledger of a topic, or the next one if the ledger is gone."""

    topic_id: int = 0
    ledger_id: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildAdopted:
    """Result of an adoption."""

    adopted_ledgers: int = 0
    adopted_segments: int = 0
    detached: int = 0
    revived: int = 0
    revived_ledgers: list[int] = field(default_factory=list)  # a sample
    missing_data: int = 0
    missing_ledgers: list[int] = field(default_factory=list)  # a sample
    schemas_left_out: int = 0  # schema versions without a ledger
    schemas_left_out_of: list[str] = field(default_factory=list)  # topics, a sample


def integer_fields(value: object) -> dict[str, int]:
    """Return the integer fields of one of these results, by name."""
    values = {field.name: getattr(value, field.name) for field in fields(value)}  # type: ignore[arg-type]
    return {name: number for name, number in values.items() if type(number) is int}
