"""Ports of the queue of phase two, and of the upkeep of this queue."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from logstore.deletion.intents import DeletionIntent, DeletionState
from logstore.log.ledgers import CopyKind
from logstore.ownership import Lease
from logstore.ports.catalog.claims_and_deletion_results import (
    AuditCause,
    Claim,
    DetachedBatch,
    IntentResult,
    IntentRowRange,
    IntentTally,
    UndeletedCopyCounts,
)
from logstore.positions import LedgerId, TopicId


class PhaseTwoQueue(Protocol):
    """Queue of phase two. Under an outdated lease, each method that writes raises `NotOwner` and changes nothing."""

    def with_lease(self, lease: Lease | None) -> Self:
        """Return this port with a lease. Each write then requires that the lease is the newest lease of its bundle.

        No worker can raise the fence between this check and the commit. With `None`, writes check no fence.
        """

    def list_unfinished_ranges(self, batch_id: str, *, after: int, rows: int, limit: int) -> list[IntentRowRange]:
        """Return up to `limit` ranges of unfinished intents of the batch, with row ids above `after`.

        A range has at most `rows` intents. No intent in a range is finished or has a workflow of its own.
        """

    def list_intents_in_range(self, batch_id: str, row_range: IntentRowRange) -> list[DeletionIntent]:
        """Return all intents of the batch in the range, ascending by row id. Fill in `referenced`."""

    def renew_batch_claim(self, batch_id: str, claim: Claim) -> None:
        """Claim the batch for `claim.ttl_s` from now. A workflow run never shortens its own claim.

        Claims are long while a batch is paused. A released batch cannot be claimed again, because a late renewal by a
        dead workflow would hide the batch from sweeps.

        Raises:
            UnknownObject: The batch does not exist.
            ClaimHeld: The batch is finished, was released, or is claimed by another workflow.
        """

    def pause_batch(self, batch_id: str) -> None:
        """Pause the batch until it is resumed or released. Rows that have a workflow of their own continue.

        No workflow takes over rows of a paused batch, even after the batch's claim has expired.

        Idempotency: a second pause keeps the time of the first pause.

        Raises:
            UnknownObject: The batch does not exist.
            PreconditionFailed: The batch is finished or was released.
        """

    def resume_batch(self, batch_id: str) -> None:
        """End the pause of the batch. If the batch's claim has expired, the next sweep takes over the rows.

        Raises:
            UnknownObject, PreconditionFailed: The batch does not exist or is finished.
        """

    def release_paused_batch(self, batch_id: str) -> bool:
        """End the claim of a paused batch whose workflow is gone. The next sweep then takes over the rows of the batch.

        Only a person may request a release. If the batch is finished or not paused, change nothing and return `False`.
        """

    def record_outcomes(self, results: Sequence[IntentResult], *, holder: str) -> frozenset[int]:
        """Record the outcomes of PENDING rows of the holder. Return the ids of the rows that this call finished.

        Other rows do not change. A row that moved to another batch stays unfinished, even if storage confirmed that
        nothing is left. The creator of a newborn ledger may have stored `meta.json` after this confirmation. So
        the other batch checks storage again.

        If a row had a workflow of its own, the audit log gets a row `delete-ledger` with the batch's actor and reason.

        `holder` is the id of the workflow that has claimed the rows, or of the batch of the rows. With a batch id, the
        call also finishes rows that an overlapping attempt of the chunk has moved to workflows of their own.
        """

    def move_to_own_workflows(
        self, workflow_id_by_row: Mapping[int, str], *, batch_id: str, error_by_row: Mapping[int, str], ttl_s: float
    ) -> frozenset[int]:
        """Move the claims of PENDING rows of the batch to the given workflows. Return the ids of the moved rows.

        The move counts as the first attempt of each row. Rows that an earlier call moved, or that another batch has
        taken over, do not change.
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
        """Claim one row. With `counts_attempt`, count an attempt. Return the intent, with `referenced` filled in.

        A finished row is returned unchanged. `topic` is the encoded name that the row must have. If `topic` is `None`
        or the row is damaged, the name is not checked.

        Raises:
            StaleCatalog: `epoch` is not the catalog's epoch. Nothing changed.
            InvalidInput: The row has another topic. Nothing changed.
            UnknownObject: The row was never filed, or was removed.
            ClaimHeld: Another workflow has claimed the row.
        """

    def record_attempt_and_extend_claim(
        self, row_id: int, claim: Claim, *, error: str | None = None, keys_left: int | None = None
    ) -> int:
        """Claim the row for `claim.ttl_s` from now, and store the error of an attempt. A finished row does not change.

        `keys_left` is the number of keys that storage kept, or `None` if storage did not answer for all keys. Return
        the number of consecutive attempts that left `keys_left` keys, including this attempt. Attempts in which storage
        did not answer for all keys are ignored. If `keys_left` is `None`, the result is 0.

        Raise `ClaimHeld` if another workflow has claimed the row.
        """

    def tally_batch(self, batch_id: str) -> IntentTally: ...

    def close_batch(self, batch_id: str, cause: AuditCause) -> IntentTally:
        """Return the tally of the batch. The first call closes the batch and writes the audit row."""

    def count_undeleted_copies(self) -> UndeletedCopyCounts: ...

    def list_intents(
        self,
        state: DeletionState | None,
        *,
        topic: str | None = None,
        ledger_id: LedgerId | None = None,
        limit: int,
    ) -> list[DeletionIntent]:
        """Return intents in `state`, newest first. `None` selects all states. Fill in `paused`.

        `topic` is an encoded name, which selects the rows of all topics that ever had this name.
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

        A filter that is `None` selects all intents. `ledger_ids` has at most 10,000 ids.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedRowCounts:
    rows: int = 0  # intents in state DELETED
    runs: int = 0  # batches without intents


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepBacklogCounts:
    stalled: int
    newborn: int  # ledgers that are older than the registration timeout and were never attached
    uploads: int  # unfinished tiered copies whose upload deadline has passed
    rows: int  # finished intents to be removed
    runs: int  # empty batches to be removed; the removal of `rows` may empty further batches


class PhaseTwoQueueUpkeep(Protocol):
    """Upkeep of the queue of phase two.

    A schedule calls `move_abandoned_work_to_batch` and `remove_finished_rows` every minute. If there is no work, each
    of these calls is one small read.
    """

    def move_abandoned_work_to_batch(self, *, batch_id: str, claim: Claim, limit: int) -> DetachedBatch:
        """Move up to `limit` stalled intents into a new batch. Add intents for abandoned ledgers and uploads.

        In this batch, intents replace up to `limit` newborn ledgers that are older than the registration timeout. They
        also replace unfinished tiered copies whose upload deadline has passed, of up to `limit` topics. The ledgers of
        these copies stay.

        `claim` is for the workflow that does phase two. If two calls run at once, each row goes to exactly one batch.

        Idempotency: keyed by `batch_id`; a repeated call returns the first result. A call without results is not
        recorded, so a repeated call may find something.
        """

    def count_sweep_backlog(self, *, older_than_s: float) -> SweepBacklogCounts:
        """Count the rows that `move_abandoned_work_to_batch` or `remove_finished_rows` would move or remove now."""

    def remove_finished_rows(self, *, older_than_s: float, limit: int, cause: AuditCause) -> RemovedRowCounts:
        """Remove up to `limit` rows that were DELETED over `older_than_s` ago, and up to `limit` empty batches.

        Dead letters stay. Rows of a batch whose workflow is running also stay, because the batch certificate counts
        these rows. Later queries about a removed row return UNKNOWN. A call that removes rows writes an audit row.

        Idempotency: a repeated call continues with the next rows.
        """

    def count_redrivable_dead_letters(self, row_ids: Sequence[int] | None) -> int:
        """Count the rows that `redrive_dead_letters` would redrive now. Raise the errors of `redrive_dead_letters`."""

    def redrive_dead_letters(
        self, row_ids: Sequence[int] | None, *, batch_id: str, claim: Claim, cause: AuditCause
    ) -> DetachedBatch:
        """Turn dead letters into pending intents of a new batch, in one transaction. `None` selects all dead letters.

        Either all given ids are redriven or none. Attempts are counted from zero again. The last error stays until
        another attempt fails. A row in an unknown state counts as a dead letter. The call writes an audit row. If the
        caller dies before it starts the batch's workflow, a sweep takes over the rows.

        Idempotency: keyed by `batch_id`; a repeated call returns the first result. A call without results is not
        recorded.

        Raises:
            InvalidInput: `row_ids` is empty, or has more than 10,000 ids.
            UnknownObject: Some rows do not exist, and all other given rows are dead letters.
            PreconditionFailed: A row is pending or deleted. The message names up to ten wrong rows with their states.
        """
