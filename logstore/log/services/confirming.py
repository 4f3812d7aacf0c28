"""Confirming in storage where a segment was registered, for the day on which the catalog is lost (ADR 19).

A segment with the number that follows the last registered one begins where its own metadata says, or it was refused.
One that leaves numbers free may have others registered below it, until its own registration refuses them; so behind
that, and before it is answered, a *confirmation* is uploaded: a segment without entries, which is never registered and
is there for what its metadata says. Reconciliation removes it once the ledger is closed.
"""

import random
from typing import Final

from logstore.clock import Clock
from logstore.errors import AlreadyExists, OutcomeUnknown, SextonError, StoreUnavailable
from logstore.failpoints import effect
from logstore.log.entries import encode_segment
from logstore.log.ledgers import LedgerStatement, digest_of, segment_key
from logstore.log.services.segment_file import vouching
from logstore.log.uploads import BEHIND, Behind
from logstore.ports.objects import ObjectStore

_NEAREST: Final = 1 << 16
FARTHEST: Final = 2 * _NEAREST
"""So far above its segment a confirmation stands at most, and half as far at least: more segments than a ledger has, so
that it takes nobody's number."""


def confirm(objects: ObjectStore, statement: LedgerStatement, said: Behind, *, clock: Clock, deadline_s: float) -> None:
    """Upload a confirmation. A crash before it costs nothing: the append was not answered.

    Args:
        objects: The primary bucket.
        statement: Of the ledger.
        said: The segment, and the entries of the ledger up to its end.
        clock: For pauses between tries.
        deadline_s: On the clock's `monotonic_s`.

    Raises:
        OutcomeUnknown: It could not be uploaded: the segment is registered, and a loss of the catalog may move it.
    """
    content = encode_segment([], publish_ms=0)
    metadata = statement.to_metadata() | {BEHIND: str(said)} | vouching(content, digest_of(content))

    def put() -> None:
        number = said.last_segment + random.randint(_NEAREST + 1, FARTHEST)  # noqa: S311 - spreads writers
        key = segment_key(statement.ledger_id, number)
        try:
            with effect("append.put_confirmation"):
                objects.put_if_absent(key, content, metadata=metadata)
        except AlreadyExists as taken:
            raise StoreUnavailable(f"{key}: expected a free number for a confirmation") from taken

    try:
        clock.patiently(put, deadline_s=deadline_s)
    except SextonError as error:
        at = f"ledger {statement.ledger_id}, segment {said.last_segment}"
        raise OutcomeUnknown(f"{at}: registered, and storage was not told: {error}") from error
