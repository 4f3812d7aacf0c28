"""Verification of a cluster after an apply: missing ledgers, remaining orphans, and the space that bookies gave back.

References and ledgers are read in batches. Memory holds one batch, the first problems and references of each kind, and
the dangling references of the plan.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Final, Generic, TypeVar

from infra.pulsar.bookie_reads import BookieConnections, BookieDirectory
from infra.pulsar.cluster_references import scan_cluster_references, scan_references_again
from infra.pulsar.ledger_scan import find_existing_ledgers
from infra.pulsar.scan_facts import ScannedReference, ScanProblem
from infra.pulsar.stored_data import look_for_stored_data
from infra.pulsar.znode_reads import ZnodeReader
from logstore.ports.catalog.reconciliation import JournaledLedger
from logstore.ports.pulsar_cluster import StoredData
from logstore.pulsar.ledger_metadata import BookKeeperLedgerState, find_stated_owner, parse_ledger_metadata
from logstore.pulsar.znode_names import LOG_ROOTS
from logstore.rate_limiter import RateLimiter

T = TypeVar("T")

MAX_SAMPLES: Final = 1_000

_PER_BATCH: Final = 1_000

FindJournaled = Callable[[Collection[int]], Mapping[int, JournaledLedger]]
"""Function that returns those of some ledgers that the journal of the apply has, by id."""


class DeletedLedgerState(StrEnum):
    """State of a ledger of the journal in the cluster."""

    ABSENT = "absent"
    RESTORED = "restored"  # it exists, with the value of the journal
    REPLACED = "replaced"  # it exists, with another value


class SpaceState(StrEnum):
    """Whether bookies have given back the space of an absent ledger."""

    RECLAIMED = "reclaimed"  # no bookie of the ledger has it any more
    AWAITING = "awaiting_collection"  # a bookie has it, until its next garbage collection
    UNKNOWN = "unknown"  # a bookie does not answer, and no other one has it


@dataclass(slots=True)
class CountedSamples(Generic[T]):
    """First items of a sequence, at most `MAX_SAMPLES`, and the number of all."""

    count: int = 0
    samples: list[T] = field(default_factory=list)

    def add(self, item: T) -> None:
        self.count += 1
        if self.count <= MAX_SAMPLES:
            self.samples.append(item)


@dataclass(slots=True, kw_only=True)
class ApplyVerification:
    """Counts and samples of a cluster after an apply."""

    references: int = 0
    missing: CountedSamples[ScannedReference] = field(default_factory=CountedSamples)  # to ledgers of the journal
    planned_dangling: int = 0  # references to other absent ledgers that the plan has found
    new_dangling: CountedSamples[ScannedReference] = field(default_factory=CountedSamples)  # to other absent ledgers
    problems: CountedSamples[ScanProblem] = field(default_factory=CountedSamples)  # what may refer to any ledger
    ledgers: Counter[DeletedLedgerState] = field(default_factory=Counter)  # of the journal
    space_ledgers: Counter[SpaceState] = field(default_factory=Counter)  # absent ledgers
    space_bytes: Counter[SpaceState] = field(default_factory=Counter)  # of absent ledgers, as their metadata state them
    unstated_ledgers: int = 0  # absent ledgers that nobody has closed: their metadata state no bytes
    orphans_left: int | None = None  # None: not counted


_SPACE_BY_STORED_DATA: Final = {
    StoredData.STORED: SpaceState.AWAITING,
    StoredData.GONE: SpaceState.RECLAIMED,
    StoredData.UNKNOWN: SpaceState.UNKNOWN,
}


class ApplyVerifier:
    """Verification of one apply. `limiter` limits the reads from bookies."""

    def __init__(
        self, reader: ZnodeReader, ledgers_root: str, limiter: RateLimiter, *, log_roots: Sequence[str] = LOG_ROOTS
    ) -> None:
        self._reader, self._root, self._limiter, self._log_roots = reader, ledgers_root, limiter, log_roots
        self.result = ApplyVerification()

    def check_references(self, find_journaled: FindJournaled, planned_dangling: Collection[tuple[str, int]]) -> None:
        """Read every reference of the cluster. `planned_dangling` has paths and ledgers that the plan has found."""
        for batch in _split(self._scan_references()):
            ids = {reference.ledger_id for reference in batch}
            absent_ids = ids - find_existing_ledgers(self._reader, self._root, list(ids))
            missing = [reference for reference in batch if reference.ledger_id in absent_ids]
            if not missing:
                continue
            journaled = find_journaled(absent_ids)
            for reference in self._confirm_missing(missing):
                if ledger := journaled.get(reference.ledger_id):
                    if not _is_given_up_by_owner(reference, ledger):
                        self.result.missing.add(reference)
                elif (reference.path, reference.ledger_id) in planned_dangling:
                    self.result.planned_dangling += 1
                elif not reference.can_be_absent:
                    self.result.new_dangling.add(reference)

    def check_journal(self, ledgers: Iterable[JournaledLedger]) -> None:
        """Look which ledgers of the journal are back, and whether bookies have the others."""
        directory = BookieDirectory(self._reader, self._root)
        with BookieConnections(directory) as connections:
            for batch in _split(ledgers):
                self._count_space(connections, self._find_absent(batch))

    def count_orphans_left(self, ledger_ids: Iterable[int]) -> None:
        """Count those of the plan's orphan ledgers that exist."""
        self.result.orphans_left = sum(
            len(find_existing_ledgers(self._reader, self._root, batch)) for batch in _split(ledger_ids)
        )

    def _scan_references(self) -> Iterator[ScannedReference]:
        for fact in scan_cluster_references(self._reader, self._root, self._log_roots):
            if isinstance(fact, ScanProblem):
                self.result.problems.add(fact)
            elif isinstance(fact, ScannedReference):
                self.result.references += 1
                yield fact

    def _confirm_missing(self, references: Sequence[ScannedReference]) -> list[ScannedReference]:
        """Return the references that are still there. Pulsar removes a reference shortly before its ledger."""
        current: set[tuple[str, int]] = set()
        for fact in scan_references_again(self._reader, self._root, {each.path for each in references}):
            if isinstance(fact, ScanProblem):
                self.result.problems.add(fact)
            elif isinstance(fact, ScannedReference):
                current.add((fact.path, fact.ledger_id))
        return [each for each in references if (each.path, each.ledger_id) in current]

    def _find_absent(self, ledgers: Sequence[JournaledLedger]) -> list[JournaledLedger]:
        """Count ledgers of the journal by state, and return those that do not exist."""
        absent: list[JournaledLedger] = []
        znodes = self._reader.read([f"{self._root}/{ledger.path}" for ledger in ledgers])
        for ledger, (_, znode) in zip(ledgers, znodes, strict=True):
            if znode is None:
                absent.append(ledger)
                self.result.ledgers[DeletedLedgerState.ABSENT] += 1
            else:
                is_same = znode.data == ledger.data
                self.result.ledgers[DeletedLedgerState.RESTORED if is_same else DeletedLedgerState.REPLACED] += 1
        return absent

    def _count_space(self, connections: BookieConnections, absent: Sequence[JournaledLedger]) -> None:
        metadata_of_absent = [parse_ledger_metadata(ledger.data) for ledger in absent]
        self._limiter.wait_after_use(sum(len(metadata.bookie_ids) for metadata in metadata_of_absent))
        stored_data = look_for_stored_data(connections, absent)
        for metadata, stored in zip(metadata_of_absent, stored_data, strict=True):
            space = SpaceState.RECLAIMED if metadata.is_empty else _SPACE_BY_STORED_DATA[stored]
            self.result.space_ledgers[space] += 1
            self.result.space_bytes[space] += metadata.stored_bytes
            self.result.unstated_ledgers += metadata.state is not BookKeeperLedgerState.CLOSED


def _split(items: Iterable[T]) -> Iterator[list[T]]:
    remaining = iter(items)
    while batch := list(islice(remaining, _PER_BATCH)):
        yield batch


def _is_given_up_by_owner(reference: ScannedReference, ledger: JournaledLedger) -> bool:
    """Return whether the owner lists the ledger, and reads only the objects of its offload."""
    owner = find_stated_owner(parse_ledger_metadata(ledger.data))
    return reference.given_up and owner is not None and reference.path == owner.path
