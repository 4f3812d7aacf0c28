"""Flushes that deletions wait for before they delete objects. The threads of a process share these flushes.

The record log must have the tombstone or intent before objects are deleted. Otherwise a rebuilt catalog would list a
ledger that lacks objects. A thread needs a flush that begins after its request. All waiting threads share this flush
and its failure. So threads do not wait for one failing flush after another.
"""

from collections.abc import Sequence
from threading import Condition
from typing import Protocol

from logstore.catalog.records.outbox import RecordOutbox
from logstore.errors import CatalogBusy, SextonError, StoreUnavailable


class ChangeFlusher(Protocol):
    def flush(self) -> object:
        """Write all changes that were committed before the call."""


class SharedFlushes:
    def __init__(self, records: RecordOutbox, flusher: ChangeFlusher) -> None:
        self._records, self._flusher = records, flusher
        self._changed = Condition()
        self._started = self._ended = self._last_success = 0  # flush numbers, from 1
        self._is_running = False
        self._failure: SextonError | None = None  # error of the last finished flush

    def flush_deletions(self, ledger_ids: Sequence[int]) -> dict[int, SextonError]:
        """Flush the deletions of these ledgers. Return a `StoreUnavailable` for each ledger that is not flushed.

        If the catalog does not answer, the result has every ledger.
        """
        unflushed = frozenset(ledger_ids)
        try:
            unflushed = self._records.find_unflushed_ledgers(ledger_ids)
            if unflushed:
                self.wait_until_flushed(sorted(unflushed))
        except SextonError as error:
            return dict.fromkeys(
                unflushed, StoreUnavailable(f"the record log must know of the deletion first: {error}")
            )
        return {}

    def wait_until_flushed(self, ledger_ids: Sequence[int]) -> None:
        """Wait until the record log has the tombstones and intents of these ledgers. Idempotent.

        Raises:
            CatalogBusy: Some ledgers are not flushed, because of other writers. The call may be repeated.
            RetryableError, TerminalError: The flush failed.
        """
        if not self._records.find_unflushed_ledgers(ledger_ids):
            return
        self._join_flush()
        unflushed = self._records.find_unflushed_ledgers(ledger_ids)
        if unflushed:
            raise CatalogBusy(
                f"record log: a flush left {len(unflushed)} of {len(ledger_ids)} ledgers, as {min(unflushed)}"
            )

    def _join_flush(self) -> None:
        with self._changed:
            needed = self._started + 1  # a running flush may have read the catalog before this request
            while self._is_running and self._ended < needed:
                self._changed.wait()
            if self._last_success >= needed:
                return
            if self._ended >= needed and self._failure is not None:
                raise StoreUnavailable(f"a flush of the record log failed: {self._failure}") from self._failure
            self._is_running, self._started = True, self._started + 1
            number = self._started
        failure: SextonError | None = None
        success = 0
        try:
            self._flusher.flush()
            success = number
        except SextonError as error:
            failure = error
            raise
        finally:
            with self._changed:
                self._is_running, self._ended, self._failure = False, number, failure
                self._last_success = max(self._last_success, success)
                self._changed.notify_all()
