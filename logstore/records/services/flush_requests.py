"""Waiting until what a delete left in the catalog is in the record log, too: only then may objects be deleted.

A catalog that is rebuilt from its record log would otherwise list a ledger whose objects are gone, all or some. Threads
that ask at the same time share a flush: each needs one that begins after it asked, and of those it takes the first.
They share its failure, too: while the record log is away, each would otherwise hold its thread for as long as all
flushes before its own take to fail, and deletes that wait for no flush would get none.
"""

from collections.abc import Sequence
from threading import Condition
from typing import Protocol

from logstore.errors import CatalogBusy, SextonError, StoreUnavailable
from logstore.ports.catalog import Records


class FlushNow(Protocol):
    """What writes all changes of the catalog to its record log; see `Flusher`."""

    def flush(self) -> object:
        """Write everything that was committed before the call."""


class FlushRequests:
    """The flushes that the threads of one process ask for."""

    def __init__(self, records: Records, flusher: FlushNow) -> None:
        """Ask the catalog what is not flushed, and the flusher to flush it."""
        self._records, self._flusher = records, flusher
        self._changed = Condition()
        self._begun = self._ended = self._done = 0  # flushes, counted; the last one that was done is one that ended
        self._running = False
        self._failure: SextonError | None = None  # of the last flush that ended, unless it was done

    def failures(self, ledger_ids: Sequence[int]) -> dict[int, SextonError]:
        """Have the record log told of the deletion of these ledgers: of each of which it does not know now, why.

        Whatever the error is, no ledger is to blame: each gets a `StoreUnavailable`, all of them where the catalog does
        not answer.
        """
        waiting = frozenset(ledger_ids)
        try:
            waiting = self._records.unflushed(ledger_ids)
            if waiting:
                self.until_flushed(sorted(waiting))
        except SextonError as error:
            return dict.fromkeys(waiting, StoreUnavailable(f"the record log must know of the deletion first: {error}"))
        return {}

    def until_flushed(self, ledger_ids: Sequence[int]) -> None:
        """Return once the tombstones and the intents of these ledgers are in the record log.

        Idempotency: what is in it already needs no flush.

        Raises:
            CatalogBusy: A flush went by, and left some of them: others were at it. Repeating is fine.
            RetryableError, TerminalError: As the flush.
        """
        if not self._records.unflushed(ledger_ids):
            return
        self._flush()
        left = self._records.unflushed(ledger_ids)
        if left:
            raise CatalogBusy(f"record log: a flush left {len(left)} of {len(ledger_ids)} ledgers, as {min(left)}")

    def _flush(self) -> None:
        with self._changed:
            needed = self._begun + 1  # one that runs now may have read the catalog before
            while self._running and self._ended < needed:
                self._changed.wait()
            if self._done >= needed:
                return
            if self._ended >= needed and self._failure is not None:
                raise StoreUnavailable(f"a flush of the record log failed: {self._failure}") from self._failure
            self._running, self._begun = True, self._begun + 1
            mine = self._begun
        failure: SextonError | None = None
        done = 0
        try:
            self._flusher.flush()
            done = mine
        except SextonError as error:
            failure = error
            raise
        finally:
            with self._changed:
                self._running, self._ended, self._failure = False, mine, failure
                self._done = max(self._done, done)
                self._changed.notify_all()
