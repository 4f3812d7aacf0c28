"""Upkeep of the queue of phase two, across all topics, and its port."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from logstore.ports.catalog.claims import Cause, Claim, Detached


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgotten:
    """What was removed from the catalog's memory."""

    rows: int = 0  # intents that had ended with nothing left in storage
    runs: int = 0  # batches without a row left


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
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

    def adopt(self, *, batch_id: str, claim: Claim, limit: int) -> Detached:
        """Take up to `limit` stalled intents of any topic, and as many newborn ledgers, into a batch of its own.

        With them go copies of uploads that died, of up to `limit` topics: their ledgers stay.

        Stalled: unfinished and without a live claim, of any holder: a batch, a workflow of their own, a
        redrive, a topic that is gone. Newborn: never attached to a list and older than the registration timeout;
        each is replaced by an intent. The batch's claim is the caller's for the workflow that does phase two.

        Idempotency: keyed by `batch_id`; a repeated call returns what the first one did. One that found nothing
        leaves no trace, and may find something when it is repeated. Of two calls at once, each row goes to one.
        """

    def due(self, *, older_than_s: float) -> Due:
        """Count what `adopt` would take now, and what `forget` would remove of what ended before that; reads only."""

    def forget(self, *, older_than_s: float, limit: int, cause: Cause) -> Forgotten:
        """Remove up to `limit` rows that ended in state DELETED before that long, and as many batches without rows.

        Dead letters stay, and so do rows of a batch that somebody is at work on, because its certificate counts them.
        A later question about such a row is answered UNKNOWN. Leaves a row in the audit log where it removed any.

        Idempotency: what is gone is not met again; a repeated call goes on with the next rows.
        """

    def redrivable(self, row_ids: Sequence[int] | None) -> int:
        """How many rows `redrive` would start now. Changes nothing.

        Raises:
            InvalidInput, UnknownObject, PreconditionFailed: As `redrive`.
        """

    def redrive(self, row_ids: Sequence[int] | None, *, batch_id: str, claim: Claim, cause: Cause) -> Detached:
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
