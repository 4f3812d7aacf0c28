"""The queue of phase two in the catalog: its port, and the port of its upkeep across all topics."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from logstore.deletion.intents import DeletionIntent, DeletionState
from logstore.log.ledgers import CopyKind
from logstore.ownership import Lease
from logstore.ports.catalog.claims import Cause, Claim, DetachedBatch, Inflight, IntentResult, RowRange, Tally
from logstore.positions import LedgerId, TopicId


class Deletions(Protocol):
    """The queue of phase two: intents are read by range, claimed, ended, counted.

    Every method that writes raises `NotOwner`, and changes nothing, where the port is `under` a lease that was
    overtaken.
    """

    def under(self, lease: Lease | None) -> Self:
        """The same port for the owner of a bundle; None: for any worker, whose writes look at no fence.

        Each write requires the lease to be its bundle's last before it reads what it is about, and no worker raises the
        fence before the write is committed.
        """

    def ranges(self, batch_id: str, *, after: int, rows: int, limit: int) -> list[RowRange]:
        """Up to `limit` ranges of about `rows` unfinished intents of the batch, beyond row id `after`.

        No other intent of the batch lies in them: one that ended, or has a workflow, was counted when it was met.
        """

    def intents(self, batch_id: str, chunk: RowRange) -> list[DeletionIntent]:
        """The batch's intents in the range, finished or not, ascending by row id; says which are referenced now."""

    def renew(self, batch_id: str, claim: Claim) -> None:
        """Hold the batch until `ttl_s` from now, or longer: one run of a workflow never shortens its own claim.

        So a chunk that still works while its batch is paused does not take away what the pause has claimed. A batch
        that was released stays so: a late renewal by its workflow, which is gone, would hide its rows from the sweep.

        Raises:
            UnknownObject: No such batch.
            ClaimHeld: Another workflow holds it, or it is finished or was released.
        """

    def pause(self, batch_id: str) -> None:
        """Hold the batch until it is resumed or released, whatever becomes of its claim: no workflow takes up its rows.

        Rows that have a workflow of their own go on.

        Idempotency: paused twice is paused once, since the first time.

        Raises:
            UnknownObject: No such batch.
            PreconditionFailed: It is finished; or it was released, so that a call that comes late holds no rows.
        """

    def resume(self, batch_id: str) -> None:
        """Hold the batch by its claim alone again; raises as `pause`."""

    def release(self, batch_id: str) -> bool:
        """Resume a batch whose workflow is gone: with its claim ended, the next sweep takes up its rows.

        To be called only if a person asked for it. Returns whether it was paused and unfinished; otherwise nothing
        changes.
        """

    def finish(self, ended: Sequence[IntentResult], *, holder: str) -> frozenset[int]:
        """Record outcomes of rows that are still PENDING and still the holder's; others keep what they have.

        Args:
            ended: How each row ended.
            holder: The workflow that claimed the rows, or the batch that they are in. A batch may end what it has
                handed over: of two attempts of a chunk, the one that is heard may be the one that succeeded.

        A row that a sweep, a trim or a redrive gave to another batch since is left to that one, even where storage
        confirmed that all of it was gone: that was true when storage was asked, but the creator of a newborn ledger
        may have put its `meta.json` since, and its row was opened again for that. Who has the row now asks anew, and
        at the worst finds nothing: an outcome as good, of which only the count of objects is lost.

        A row that the workflow of its own ended leaves an audit row `delete-ledger`, with its batch's actor and reason.

        Returns:
            Row ids of those that this very call ended.
        """

    def hand_over(
        self, row_ids: Mapping[int, str], *, batch_id: str, errors: Mapping[int, str], ttl_s: float
    ) -> frozenset[int]:
        """Move claims of PENDING rows of the batch to the workflows named; counts as their first attempt.

        Rows already handed over keep their claim, and rows that another batch took up since are left to it.

        Returns:
            Row ids of those that this very call moved.
        """

    def take(
        self,
        ledger_id: LedgerId,
        copy: CopyKind,
        generation: int,
        claim: Claim,
        *,
        epoch: int | None = None,
        attempt: bool = True,
        topic: str | None = None,
    ) -> DeletionIntent:
        """Claim one row and count an attempt unless told otherwise; says whether it is referenced now.

        A finished row is returned as it is. `topic` is the encoded name that the row should bear; None: any, and a
        damaged row may bear any. One transaction, because it is most of what a single deletion waits for.

        Raises:
            StaleCatalog: `epoch` is given and not the catalog's; nothing changed.
            InvalidInput: The row bears another topic; nothing changed.
            UnknownObject: No such row: it was never filed, or has been removed.
            ClaimHeld: Another workflow holds it.
        """

    def hold(self, row_id: int, claim: Claim, *, error: str | None = None, keys_left: int | None = None) -> int:
        """Keep the row claimed until `ttl_s` from now, and the error of an attempt if there was one.

        A row that ended is left alone.

        Args:
            row_id: The row.
            claim: Its holder's.
            error: Of the attempt.
            keys_left: How many keys storage has kept, where it answered for all of them.

        Returns:
            How many attempts in a row have left `keys_left` keys, this one included; attempts without an answer neither
            count nor interrupt. 0 where `keys_left` is None.

        Raises:
            ClaimHeld: Another workflow holds it.
        """

    def tally(self, batch_id: str) -> Tally:
        """Count the batch by outcome."""

    def close(self, batch_id: str, cause: Cause) -> Tally:
        """Count the batch by outcome, mark its run finished and write the outcome to the audit log, once."""

    def inflight(self) -> Inflight:
        """Unfinished and dead-lettered intents."""

    def list(
        self,
        state: DeletionState | None,
        *,
        topic: str | None = None,
        ledger_id: LedgerId | None = None,
        limit: int,
    ) -> list[DeletionIntent]:
        """Intents, newest first; says which of them wait for their batch to be resumed.

        Args:
            state: Only those in it.
            topic: Only those of topics of this encoded name, the present one and those that were.
            ledger_id: Only those of this ledger.
            limit: How many at most.
        """

    def failures(
        self,
        *,
        topic_id: TopicId | None = None,
        batch_id: str | None = None,
        ledger_ids: Sequence[LedgerId] | None = None,
        limit: int,
    ) -> Sequence[DeletionIntent]:
        """Dead letters, and intents that failed in their batch and have a workflow of their own, newest first.

        Args:
            topic_id: Only those of this topic.
            batch_id: Only those of this batch.
            ledger_ids: Only those of these ledgers, at most 10,000.
            limit: How many at most.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgottenCounts:
    """What was removed from the catalog's memory."""

    rows: int = 0  # intents that had ended with nothing left in storage
    runs: int = 0  # batches without a row left


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepBacklog:
    """What a sweep would find now."""

    stalled: int  # intents that no workflow works on
    newborn: int  # ledgers that were never attached, and are old enough to be given up
    uploads: int  # copies of uploads that died
    rows: int  # intents to be forgotten
    runs: int  # batches to be forgotten, those that the rows empty not counted


class Upkeep(Protocol):
    """Stalled intents, rows that ended long ago, and dead letters that a person wants tried again.

    A schedule asks for the first two every minute: where there is nothing to do, each is one small read.
    """

    def adopt(self, *, batch_id: str, claim: Claim, limit: int) -> DetachedBatch:
        """Take up to `limit` stalled intents of any topic, and as many newborn ledgers, into a batch of its own.

        With them go copies of uploads that died, of up to `limit` topics: their ledgers stay.

        Stalled: unfinished and without a live claim, of any holder: a batch, a workflow of their own, a
        redrive, a topic that is gone. Newborn: never attached to a list and older than the registration timeout;
        each is replaced by an intent. The batch's claim is the caller's for the workflow that does phase two.

        Idempotency: keyed by `batch_id`; a repeated call returns what the first one did. One that found nothing
        leaves no trace, and may find something when it is repeated. Of two calls at once, each row goes to one.
        """

    def count_backlog(self, *, older_than_s: float) -> SweepBacklog:
        """Count what `adopt` would take now, and what `forget` would remove of what ended before that; reads only."""

    def forget(self, *, older_than_s: float, limit: int, cause: Cause) -> ForgottenCounts:
        """Remove up to `limit` rows that ended in state DELETED before that long, and as many batches without rows.

        Dead letters stay, and so do rows of a batch that a workflow is at work on, because its certificate counts them.
        A later question about such a row is answered UNKNOWN. Leaves a row in the audit log where it removed any.

        Idempotency: what is gone is not met again; a repeated call goes on with the next rows.
        """

    def count_redrivable(self, row_ids: Sequence[int] | None) -> int:
        """How many rows `redrive` would start now. Changes nothing.

        Raises:
            InvalidInput, UnknownObject, PreconditionFailed: As `redrive`.
        """

    def redrive(self, row_ids: Sequence[int] | None, *, batch_id: str, claim: Claim, cause: Cause) -> DetachedBatch:
        """Turn dead letters into pending intents of a new batch, in one transaction; None: all there are.

        Attempts count from none again, the last error stays until there is another. An unknown state is a
        dead letter too, and is mended by this. All or nothing for given ids. Leaves a row in the audit log. Who dies
        before its workflow is started leaves stalled rows, which a sweep takes up.

        Idempotency: keyed by `batch_id`; a repeated call returns what the first one did. One that found none leaves
        no trace.

        Raises:
            InvalidInput: No ids, or more than 10,000.
            UnknownObject: Ids that are no deletion's, and none that is wrong otherwise.
            PreconditionFailed: Some are pending, or deleted; names each with its state.
        """
