"""Ports of the queue of phase two, and of the upkeep of this queue for all topics."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from logstore.deletion.intents import DeletionIntent, DeletionState
from logstore.log.ledgers import CopyKind
from logstore.ownership import Lease
from logstore.ports.catalog.claims_and_batches import (
    AuditCause,
    Claim,
    DetachedBatch,
    IntentResult,
    IntentRowRange,
    IntentTally,
    UnfinishedIntentCounts,
)
from logstore.positions import LedgerId, TopicId


class PhaseTwoQueue(Protocol):
    """Queue of phase two.

    If a newer lease exists, every method that writes raises `NotOwner` and changes nothing.
    """

    def with_lease(self, lease: Lease | None) -> Self:
        """Return the port for the bundle owner with this lease. With `None`, writes check no fence.

        Each write first requires that the lease is the newest of its bundle. No worker raises the fence before the
        write is committed.
        """

    def list_unfinished_ranges(self, batch_id: str, *, after: int, rows: int, limit: int) -> list[IntentRowRange]:
        """Return up to `limit` ranges of about `rows` unfinished intents of the batch, after row id `after`.

        A range contains no intent that is finished or has a workflow of its own.
        """

    def list_intents_in_range(self, batch_id: str, row_range: IntentRowRange) -> list[DeletionIntent]:
        """Return the batch's intents in the range, finished or not, ascending by row id, with `referenced` set."""

    def renew_batch_claim(self, batch_id: str, claim: Claim) -> None:
        """Claim the batch for `ttl_s` from now. A run of a workflow never shortens its own claim.

        So a chunk that still works on a paused batch keeps the longer claim of the pause. A released batch cannot be
        claimed again. Otherwise a late renewal by a workflow that is gone would hide the rows from the sweep.

        Raises:
            UnknownObject: The batch does not exist.
            ClaimHeld: Another workflow holds the batch, or the batch is finished or was released.
        """

    def pause_batch(self, batch_id: str) -> None:
        """Hold the batch until it is resumed or released, even after its claim lapsed. No workflow takes its rows.

        Rows that have a workflow of their own continue.

        Idempotency: a second pause keeps the time of the first.

        Raises:
            UnknownObject: The batch does not exist.
            PreconditionFailed: The batch is finished or was released.
        """

    def resume_batch(self, batch_id: str) -> None:
        """End the pause of the batch. Then only its claim holds it.

        Raises:
            UnknownObject: The batch does not exist.
            PreconditionFailed: The batch is finished.
        """

    def release_paused_batch(self, batch_id: str) -> bool:
        """End the claim of a paused batch whose workflow is gone. The next sweep takes its rows.

        Call this only if a person asked for it. Return whether the batch was paused and unfinished. Otherwise nothing
        changes.
        """

    def record_outcomes(self, results: Sequence[IntentResult], *, holder: str) -> frozenset[int]:
        """Record outcomes of rows that are PENDING and belong to the holder. Other rows do not change.

        A row that moved to another batch stays in that batch, even if storage confirmed that nothing is left. Since
        then the creator of a newborn ledger may have stored its `meta.json`. The new holder asks storage again.

        If a row had a workflow of its own, the audit log gets a row `delete-ledger` with the actor and the reason of
        the batch.

        `holder` is the workflow that claimed the rows, or their batch. A batch may also finish rows that it handed
        over, because two attempts of a chunk can overlap.

        Returns:
            Ids of the rows that this call finished.
        """

    def move_to_own_workflows(
        self, workflow_id_by_row: Mapping[int, str], *, batch_id: str, error_by_row: Mapping[int, str], ttl_s: float
    ) -> frozenset[int]:
        """Move the claims of PENDING rows of the batch to the given workflows. This counts as their first attempt.

        Rows that were handed over before, or that another batch took, do not change.

        Returns:
            Ids of the rows that this call moved.
        """

    def claim_intent(
        self,
        ledger_id: LedgerId,
        copy: CopyKind,
        generation: int,
        claim: Claim,
        *,
        epoch: int | None = None,
        counts_attempt: bool = True,
        topic: str | None = None,
    ) -> DeletionIntent:
        """Claim one row, and count an attempt if `attempt` is set. Return the intent with `referenced` set.

        A finished row is returned unchanged. `topic` is the encoded name that the row must have. The check is skipped
        for `None` and for damaged rows. All of this is one transaction, because a single deletion mostly waits for
        transactions.

        Raises:
            StaleCatalog: `epoch` is not the catalog's epoch. Nothing changed.
            InvalidInput: The row has another topic. Nothing changed.
            UnknownObject: The row was never filed, or was removed.
            ClaimHeld: Another workflow holds the row.
        """

    def extend_claim_after_attempt(
        self, row_id: int, claim: Claim, *, error: str | None = None, keys_left: int | None = None
    ) -> int:
        """Claim the row for `ttl_s` from now, and store the error of an attempt. A finished row does not change.

        `keys_left` is the number of keys that storage kept, if it answered for all of them.

        Returns:
            Number of consecutive attempts that left `keys_left` keys, including this one. Attempts without an answer
            neither count nor interrupt. If `keys_left` is `None`, the number is 0.

        Raises:
            ClaimHeld: Another workflow holds the row.
        """

    def tally_batch(self, batch_id: str) -> IntentTally: ...

    def close_batch(self, batch_id: str, cause: AuditCause) -> IntentTally:
        """Count the batch by outcome. The first call closes the batch and writes the audit row."""

    def count_unfinished_intents(self) -> UnfinishedIntentCounts: ...

    def list_intents(
        self,
        state: DeletionState | None,
        *,
        topic: str | None = None,
        ledger_id: LedgerId | None = None,
        limit: int,
    ) -> list[DeletionIntent]:
        """Return intents in the state, newest first, with `paused` set. `None` means any state.

        `topic` is an encoded name. It selects rows of all topics that ever had this name.
        """

    def list_failed_intents(
        self,
        *,
        topic_id: TopicId | None = None,
        batch_id: str | None = None,
        ledger_ids: Sequence[LedgerId] | None = None,
        limit: int,
    ) -> Sequence[DeletionIntent]:
        """Return dead letters and intents that have a workflow of their own, newest first.

        `ledger_ids` are at most 10,000. `None` means any.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedRowCounts:
    """Counts of removed rows of the catalog."""

    rows: int = 0  # intents in state DELETED
    runs: int = 0  # batches without intents


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepBacklogCounts:
    """Counts of the work that a sweep would find now."""

    stalled: int
    newborn: int  # ledgers that were never attached, older than the registration timeout
    uploads: int  # copies whose upload died
    rows: int  # finished intents to be removed
    runs: int  # batches to be removed, except those that become empty when `rows` are removed


class PhaseTwoQueueUpkeep(Protocol):
    """Upkeep of the queue: takes up stalled intents, removes rows that finished long ago, redrives dead letters.

    A schedule calls `adopt` and `forget` every minute. If there is nothing to do, each is one small read.
    """

    def move_stalled_to_batch(self, *, batch_id: str, claim: Claim, limit: int) -> DetachedBatch:
        """Move up to `limit` stalled intents of any topic, and as many newborn ledgers, into a new batch.

        - Stalled intents are unfinished and have no live claim.
        - Newborn ledgers that were never attached and are older than the registration timeout are replaced by intents.
        - Copies whose upload died, of up to `limit` topics, are also replaced by intents. Their ledgers stay.

        The caller claims the batch for the workflow that does phase two. If two calls run at once, each row goes to
        exactly one of them.

        Idempotency: keyed by `batch_id`; a repeated call returns the first result. A call that found nothing leaves no
        trace, and may find something when it is repeated.
        """

    def count_sweep_backlog(self, *, older_than_s: float) -> SweepBacklogCounts:
        """Count what `adopt` would take now, and what `forget` would remove."""

    def remove_finished_rows(self, *, older_than_s: float, limit: int, cause: AuditCause) -> RemovedRowCounts:
        """Remove up to `limit` DELETED rows that finished earlier than `older_than_s` ago, and as many empty batches.

        Dead letters stay. Rows of a batch with a working workflow also stay, because the batch certificate counts them.
        A later question about a removed row is answered UNKNOWN. A call that removed rows writes an audit row.

        Idempotency: a repeated call continues with the next rows.
        """

    def count_redrivable(self, row_ids: Sequence[int] | None) -> int:
        """Count the rows that `redrive` would start now. Raise its errors. Nothing changes."""

    def redrive_dead_letters(
        self, row_ids: Sequence[int] | None, *, batch_id: str, claim: Claim, cause: AuditCause
    ) -> DetachedBatch:
        """Turn dead letters into pending intents of a new batch, in one transaction. `None` means all dead letters.

        Attempts start at zero again. The last error stays until there is another. A row in an unknown state counts as a
        dead letter and gets a known state. Either all given ids are redriven or none. The call writes an audit row. If
        the caller dies before it starts the batch's workflow, a sweep takes the rows.

        Idempotency: keyed by `batch_id`; a repeated call returns the first result. A call that found no rows leaves no
        trace.

        Raises:
            InvalidInput: `row_ids` is empty, or has more than 10,000 ids.
            UnknownObject: Some ids are no dead letters, and none of these exists.
            PreconditionFailed: Some ids are pending or deleted. The message names each with its state.
        """
