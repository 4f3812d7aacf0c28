"""Removals of one page that no undo puts back: last look, journal, removal, look.

An attempt may die between any two steps. Nothing of a finding is left and the journal has it: then it counts as
removed. Something is left: then all steps are done again, with what is left.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from activities.pulsar.journal_copies import JournalCopies
from activities.pulsar.orphan_selection import IRREVERSIBLE_KINDS
from activities.reconciliation import finding_fates
from logstore.catalog.reconciliation.cluster_journal import ClusterJournal
from logstore.errors import UnexpectedClusterState
from logstore.ports.catalog.reconciliation import JournaledRemoval, ReconciliationRun
from logstore.ports.pulsar_cluster import ClusterChanges, RemovalLook, RemovalResult
from logstore.rate_limiter import RateLimiter
from logstore.reconciliation.findings import FateOfFinding, Finding, FindingFate, FindingKind
from logstore.stop_checks import raise_if_stopped

_MAX_FINDINGS_PER_BATCH: Final[Mapping[FindingKind, int]] = {
    FindingKind.ORPHAN_OFFLOAD: 100,
    FindingKind.ABANDONED_UPLOAD: 100,
    FindingKind.ORPHAN_MANAGED_LEDGER: 1,  # a deletion takes a broker seconds, and each has a look right before
}


class IrreversibleRemovals:
    """Removals of one apply in one cluster."""

    def __init__(
        self,
        run: ReconciliationRun,
        journal: ClusterJournal,
        copies: JournalCopies,
        changes: ClusterChanges,
        *,
        removals_per_s: float,
    ) -> None:
        self._run, self._journal, self._copies, self._changes = run, journal, copies, changes
        self._removals_per_s = removals_per_s or math.inf

    def remove(self, orphans: Mapping[int, Finding]) -> tuple[dict[int, FateOfFinding], UnexpectedClusterState | None]:
        """Return the fates, and what stopped the removals. Then some findings have no fate."""
        fates: dict[int, FateOfFinding] = {}
        for kind, batch in self._iterate_batches(orphans):
            raise_if_stopped()
            try:
                fates |= self._remove_batch(kind, batch)
            except UnexpectedClusterState as error:
                return fates, error
        return fates, None

    def _iterate_batches(self, orphans: Mapping[int, Finding]) -> Iterator[tuple[FindingKind, dict[int, Finding]]]:
        limiter = RateLimiter(self._removals_per_s)
        for kind in IRREVERSIBLE_KINDS:
            numbers = [number for number, finding in orphans.items() if finding.kind is kind]
            for batch in limiter.iterate_batches(numbers, _MAX_FINDINGS_PER_BATCH[kind]):
                yield kind, {number: orphans[number] for number in batch}

    def _remove_batch(self, kind: FindingKind, batch: Mapping[int, Finding]) -> dict[int, FateOfFinding]:
        looks = dict(zip(batch, self._changes.look(kind, list(batch.values())), strict=True))
        self._store_in_journal(
            [_make_entry(number, batch[number], look) for number, look in looks.items() if look.parts]
        )
        journaled = self._journal.list_removals(self._run.run_id, after=-1, limit=len(batch), numbers=list(batch))
        numbers = [removal.number for removal in journaled]
        results = dict(zip(numbers, self._changes.remove(kind, [batch[number] for number in numbers]), strict=True))
        removed = [number for number, result in results.items() if result.fate is FindingFate.DELETED]
        self._journal.settle_removals(self._run.run_id, removed)  # others stay for an attempt that comes later
        fates = {number: _make_fate(number, batch[number], result) for number, result in results.items()}
        others = looks.keys() - fates.keys()
        kept = {number: looks[number].reason or finding_fates.GONE for number in others}
        return fates | {number: finding_fates.kept_fate(number, reason) for number, reason in kept.items()}

    def _store_in_journal(self, removals: Sequence[JournaledRemoval]) -> None:
        if removals:
            self._journal.add_removals(self._run.run_id, removals)
            self._copies.store_removals(self._run, removals)


def _make_entry(number: int, finding: Finding, look: RemovalLook) -> JournaledRemoval:
    return JournaledRemoval(
        number=number, kind=finding.kind.value, path=finding.key, bucket=finding.bucket, parts=list(look.parts)
    )


def _make_fate(number: int, finding: Finding, result: RemovalResult) -> FateOfFinding:
    if result.fate is FindingFate.DELETED:
        return finding_fates.deleted_fate(number, finding)
    return FateOfFinding(number=number, fate=result.fate, reason=result.reason)
