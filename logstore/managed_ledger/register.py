"""Registering an uploaded segment, and finding out whether that happened when nobody can say.

Repeating a registration is safe: a number registers once. So a refusal that follows a try of unknown outcome may
be that try's own success, and the segments are read before it is believed. A number that is refused and not
among them can never land any more: it needs an open ledger and a number above all others.
"""

from logstore.errors import (
    AlreadyExists,
    CatalogBusy,
    LedgerFenced,
    OutcomeUnknown,
    ProducerFenced,
    RetryableError,
    StaleCatalog,
)
from logstore.failpoints import effect
from logstore.group_commit import GroupCommitter
from logstore.managed_ledger.clock import Clock
from logstore.ports.catalog import Ledgers, Registered, RegisterSegment, Segment


class Registrar:
    """Registers segments through the group commit."""

    def __init__(self, *, ledgers: Ledgers, committer: GroupCommitter, clock: Clock) -> None:
        """Write through `committer`, re-read from `ledgers`."""
        self._ledgers = ledgers
        self._committer = committer
        self._clock = clock

    def register(self, write: RegisterSegment, *, deadline_s: float) -> Registered | Segment:
        """Register the segment; the row itself when it was found registered by an earlier try.

        Args:
            write: Of an object that only this caller has uploaded.
            deadline_s: On the clock's `monotonic_s`; not tried after it.

        Raises:
            AlreadyExists, LedgerFenced, ProducerFenced, StaleCatalog: Refused; this number will never land.
            UnknownObject, PreconditionFailed: The topic does not exist or is not ACTIVE.
            StoreUnavailable, CatalogBusy: Not registered; bounded retries were not enough.
            OutcomeUnknown: Perhaps registered, and the catalog could not be asked.
        """
        doubts: list[Exception] = []
        try:
            return self._clock.patiently(lambda: self._try(write, doubts, deadline_s), deadline_s=deadline_s)
        except RetryableError as error:
            if any(isinstance(doubt, OutcomeUnknown) for doubt in doubts):
                raise OutcomeUnknown(f"ledger {write.ledger_id}, segment {write.number}: {doubts[0]}") from error
            raise

    def _try(self, write: RegisterSegment, doubts: list[Exception], deadline_s: float) -> Registered | Segment:
        try:
            return self._commit(write, deadline_s)
        except (OutcomeUnknown, RetryableError) as error:
            doubts.append(error)
            found = self._registered(write)
            if found is None:
                raise
        except (AlreadyExists, LedgerFenced, ProducerFenced, StaleCatalog):
            found = self._registered(write) if doubts else None
            if found is None:
                raise
        return found

    def _commit(self, write: RegisterSegment, deadline_s: float) -> Registered:
        left_s = deadline_s - self._clock.monotonic_s()
        if left_s <= 0:
            raise CatalogBusy(f"ledger {write.ledger_id}, segment {write.number}: not registered in time, giving up")
        with effect("append.register"):
            return self._committer.write(write, timeout_s=left_s)

    def _registered(self, write: RegisterSegment) -> Segment | None:
        rows = self._ledgers.segments(write.ledger_id)
        own = (write.number, write.entries, write.size_bytes, write.sha256)
        return next((row for row in rows if (row.number, row.entries, row.size_bytes, row.sha256) == own), None)
