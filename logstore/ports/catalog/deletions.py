"""The queue of phase two in the catalog, and its port."""

from collections.abc import Mapping, Sequence
from typing import Protocol, Self

from logstore.deletion.intents import DeletionIntent, DeletionState
from logstore.log.ledgers import CopyKind
from logstore.ownership import Lease
from logstore.ports.catalog.claims import Cause, Claim, Ended, Inflight, RowRange, Tally
from logstore.positions import LedgerId, TopicId


class Deletions(Protocol):
    """The queue of phase two: intents are read by range, claimed, ended, counted.

    Every method that writes raises `NotOwner`, and changes nothing, where the port is `under` a lease that was
    overtaken.
    """

    def under(self, lease: Lease | None) -> Self:
        """The same port for the owner of a bundle; None: for anybody, whose writes look at no fence.

        Each write requires the lease to be its bundle's last before it reads what it is about, and nobody raises the
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

    def finish(self, ended: Sequence[Ended], *, holder: str) -> frozenset[int]:
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
