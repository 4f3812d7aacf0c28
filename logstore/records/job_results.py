"""Results of jobs and activities on the record log. Temporal stores the fields under their names."""

from dataclasses import dataclass, field, fields, replace
from typing import Self

from logstore.field_bounds import CatalogNumber
from logstore.subjects import HasLedgers


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushedRecords:
    """Sum of the results of one or more flushes."""

    manifest: int = 0  # newest manifest number; 0: none yet
    flushes: int = 0  # flushes that stored a manifest
    records: int = 0  # record versions, including tombstones
    tombstones: int = 0
    blocks: int = 0
    bytes: int = 0  # size of these blocks
    left: int = 0  # changes that were in no block when the last flush ended
    named: int = 0  # blocks in the newest manifest; 0: this manifest was not read
    held: bool = False  # another job claimed the record log until this job gave up
    refused: int = 0  # records with a value that does not fit into a block; their changes stay in the outbox
    refusal: str = ""  # why one of these records was refused

    def plus(self, later: "FlushedRecords") -> "FlushedRecords":
        """Return the sum of two results. `left`, `held`, `refused` and `refusal` are taken from `later`."""
        sums = {name: getattr(self, name) + getattr(later, name) for name in _SUMMED_FLUSH_FIELDS}
        return replace(later, **sums, manifest=max(self.manifest, later.manifest), named=later.named or self.named)


_SUMMED_FLUSH_FIELDS = ("flushes", "records", "tombstones", "blocks", "bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class DefragmentedBlocks:
    """Result of one defragmentation of all kinds of records, and of the later removal of old manifests and blocks."""

    manifest: int = 0  # newest manifest number; 0: none
    rewritten: int = 0  # old blocks
    written: int = 0  # new blocks
    dropped: int = 0  # record versions that are no longer needed
    bytes_before: int = 0  # size of the old blocks
    bytes_after: int = 0  # size of the new blocks
    manifests: int = 0  # deleted old manifests
    unlinked: int = 0  # deleted blocks that no manifest named
    unlinked_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaAwaitedByRaid:
    """Replica for which a raid keeps tombstones."""

    replica: str  # `bucket`, or `bucket/word` for a database
    manifest: int = 0  # the replica has applied this manifest and all earlier ones; 0: none yet
    tombstones: int = 0  # tombstones kept for this replica; one tombstone may be kept for several replicas


@dataclass(frozen=True, slots=True, kw_only=True)
class RaidedTombstones:
    """Result of a raid."""

    candidates: int = 0  # tombstones that were old enough
    kept: int = 0
    removed: int = 0
    blocks: int = 0  # blocks read
    versions: int = 0  # record versions in these blocks
    seconds: float = 0.0
    held_by: list[ReplicaAwaitedByRaid] = field(default_factory=list)  # replicas that lack tombstones, by name


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedBlocks:
    """Result of a shipment to one replica bucket."""

    replica: str  # replica bucket
    manifest: int = 0  # newest manifest number in the replica bucket
    blocks: int = 0  # copied blocks
    bytes: int = 0  # size of the copied blocks
    records: int = 0  # record versions in the copied blocks, including tombstones
    tombstones: int = 0
    error: str = ""  # why the replica bucket could not be reached; empty: the shipment is complete


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedRecords:
    """Sum of the changes that were applied to a replica database."""

    replica: str  # `bucket/word`
    manifest: int = 0  # newest applied manifest number; 0: none yet
    steps: int = 0  # transactions
    seeded: int = 0  # steps that seeded the database
    records: int = 0  # rows written
    tombstones: int = 0
    removed: int = 0  # removed topics and ledgers

    def plus(self, later: "FollowedRecords") -> "FollowedRecords":
        sums = {name: getattr(self, name) + getattr(later, name) for name in _SUMMED_STEP_FIELDS}
        return replace(later, **sums, manifest=max(self.manifest, later.manifest))


_SUMMED_STEP_FIELDS = ("steps", "seeded", "records", "tombstones", "removed")


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionPageStart:
    """First ledger of a page of selected ledgers. If the ledger does not exist, the page starts at the next ledger."""

    topic_id: CatalogNumber = 0
    ledger_id: CatalogNumber = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedRecords(HasLedgers):
    """Counts and samples of ledgers that a record function selected."""

    records: int = 0  # closed ledgers for which the function was called
    ended: int = 0  # detached ledgers; in a dry run: ledgers that would be detached
    kept: int = 0  # ledgers that the function selected but that stay
    ledger_ids: list[int] = field(default_factory=list)  # sample of the detached ledgers
    because: list[str] = field(default_factory=list)  # sample of reasons why selected ledgers stay

    def plus(self, later: "EndedRecords", *, max_sample: int) -> Self:
        """Return the sum. Fields of subclasses stay as they are."""
        return replace(
            self,
            records=self.records + later.records,
            ended=self.ended + later.ended,
            kept=self.kept + later.kept,
            ledger_ids=[*self.ledger_ids, *later.ledger_ids][:max_sample],
            because=[*self.because, *later.because][:max_sample],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildAdoptionResult:
    """Counts of an adoption, and samples of at most 100 ids or names, ascending."""

    adopted_ledgers: int = 0
    adopted_segments: int = 0
    detached: int = 0
    revived: int = 0
    revived_ledgers: list[int] = field(default_factory=list)  # a sample of the ids
    missing_data: int = 0
    missing_ledgers: list[int] = field(default_factory=list)  # a sample of the ids
    schemas_left_out: int = 0  # schema versions without a ledger
    schemas_left_out_of: list[str] = field(default_factory=list)  # a sample of the topics' names


def integer_fields(value: object) -> dict[str, int]:
    values = {field.name: getattr(value, field.name) for field in fields(value)}  # type: ignore[arg-type]
    return {name: number for name, number in values.items() if type(number) is int}
