"""Dead letters that a person wants tried again."""

from collections.abc import Sequence
from typing import Protocol

from logstore.ports.catalog.batches import Cause, Claim, Detached


class Redrives(Protocol):
    """Back from the dead letters to the queue of phase two."""

    def preview(self, row_ids: Sequence[int] | None) -> int:
        """How many rows `redrive` would start now. Changes nothing.

        Raises:
            InvalidInput, UnknownObject, PreconditionFailed: As `redrive`.
        """

    def redrive(self, row_ids: Sequence[int] | None, *, batch_id: str, claim: Claim, cause: Cause) -> Detached:
        """Turn dead letters into pending intents of a new batch, in one transaction; None: all there are.

        Attempts count from none again, the last error stays until there is another. A state that nobody knows is a
        dead letter too, and is mended by this. All or nothing for given ids. Leaves a row in the audit log. Who dies
        before its workflow is started leaves stalled rows, which a sweep takes up.

        Idempotency: keyed by `batch_id`; a repeated call returns what the first one did. One that found none leaves
        no trace.

        Raises:
            InvalidInput: No ids, or more than 10,000.
            UnknownObject: Ids that are no deletion's, and none that is wrong otherwise.
            PreconditionFailed: Some are pending, or deleted; names each with its state.
        """
