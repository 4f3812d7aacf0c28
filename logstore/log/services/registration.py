"""Registering an uploaded segment, finding out whether it happened, confirming it in storage, giving an upload up.

For the day on which the catalog is lost, storage must tell where a segment was registered (ADR 19). One with the number
that follows the last registered one begins where its own metadata says, or it was refused. One that leaves numbers free
may have others registered below it, until its own registration refuses them; so behind that, and before it is answered,
a *confirmation* is uploaded: a segment without entries, which is never registered and is there for what its metadata
says. It is deleted with its ledger.
"""

import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from logstore.clock import Clock
from logstore.errors import (
    AlreadyExists,
    CatalogBusy,
    LedgerFenced,
    OutcomeUnknown,
    ProducerFenced,
    RetryableError,
    SextonError,
    StaleCatalog,
    StoreUnavailable,
    TerminalError,
    TransactionNotOpen,
)
from logstore.failpoints import effect
from logstore.log.entries import encode_segment
from logstore.log.ledgers import (
    EXTENT_FIELD,
    MAX_CONFIRMATION_GAP,
    MIN_CONFIRMATION_GAP,
    LedgerStatement,
    RegisteredExtent,
    segment_key,
    sha256_hex,
)
from logstore.log.services.group_commit import GroupCommitter
from logstore.log.services.segment_file import digest_metadata
from logstore.ports.catalog import Ledgers, RegisterSegment, RegisterSegmentResult, Segment
from logstore.ports.objects import ObjectStore
from logstore.positions import LedgerId

_PATIENCE_S: Final = 5.0
"""As long as tries with pauses last at the most. The caller is waiting for an error that it could have already."""

_LOG: Final = logging.getLogger(__name__)


@contextmanager
def report_abandoned_upload(ledgers: Ledgers, ledger_id: LedgerId, *, epoch: int, clock: Clock) -> Iterator[None]:
    """Surround an upload and the transaction that makes it exist; what they raise is raised.

    A terminal error needs no telling: it is storage that took nothing, or the catalog's own answer.

    Args:
        ledgers: The catalog.
        ledger_id: What is uploaded to.
        epoch: Of the catalog that the ledger is of.
        clock: For pauses between tries.
    """
    try:
        yield
    except TerminalError:
        raise
    except Exception:
        deadline_s = clock.monotonic_s() + _PATIENCE_S
        try:  # best effort: where the catalog does not hear it either, reconciliation finds what is left
            clock.retry(lambda: ledgers.abandon_upload(ledger_id, epoch=epoch), deadline_s=deadline_s)
        except Exception as error:  # noqa: BLE001 - the reason for giving up must not be hidden
            _LOG.warning("ledger %s: an upload was given up, and the catalog was not told: %s", ledger_id, error)
        raise


class Registrar:
    """Registers segments through the group commit."""

    def __init__(self, *, ledgers: Ledgers, committer: GroupCommitter, clock: Clock) -> None:
        """Write through `committer`, re-read from `ledgers`."""
        self._ledgers = ledgers
        self._committer = committer
        self._clock = clock

    def register(self, write: RegisterSegment, *, deadline_s: float) -> RegisterSegmentResult | Segment:
        """Register the segment; the row itself when it was found registered by an earlier try.

        Args:
            write: Of an object that only this caller has uploaded.
            deadline_s: On the clock's `monotonic_s`; not tried after it.

        Raises:
            AlreadyExists, LedgerFenced, ProducerFenced, StaleCatalog, TransactionNotOpen: Refused; this number will
                never land.
            UnknownObject, PreconditionFailed: The topic does not exist or is not ACTIVE.
            StoreUnavailable, CatalogBusy: Not registered; bounded retries were not enough.
            OutcomeUnknown: Perhaps registered, and the catalog could not be asked.
        """
        doubts: list[Exception] = []
        try:
            return self._clock.retry(lambda: self._try(write, doubts, deadline_s), deadline_s=deadline_s)
        except RetryableError as error:
            if any(isinstance(doubt, OutcomeUnknown) for doubt in doubts):
                raise OutcomeUnknown(f"ledger {write.ledger_id}, segment {write.number}: {doubts[0]}") from error
            raise

    def _try(
        self, write: RegisterSegment, doubts: list[Exception], deadline_s: float
    ) -> RegisterSegmentResult | Segment:
        try:
            return self._commit(write, deadline_s)
        except (OutcomeUnknown, RetryableError) as error:
            doubts.append(error)
            found = self._registered(write)
            if found is None:
                raise
        except (AlreadyExists, LedgerFenced, ProducerFenced, StaleCatalog, TransactionNotOpen):
            found = self._registered(write) if doubts else None
            if found is None:
                raise
        return found

    def _commit(self, write: RegisterSegment, deadline_s: float) -> RegisterSegmentResult:
        left_s = deadline_s - self._clock.monotonic_s()
        if left_s <= 0:
            raise CatalogBusy(f"ledger {write.ledger_id}, segment {write.number}: not registered in time, giving up")
        with effect("append.register"):
            return self._committer.write(write, timeout_s=left_s)

    def _registered(self, write: RegisterSegment) -> Segment | None:
        rows = self._ledgers.segments(write.ledger_id)
        own = (write.number, write.entries, write.size_bytes, write.sha256)
        return next((row for row in rows if (row.number, row.entries, row.size_bytes, row.sha256) == own), None)


def upload_confirmation(
    objects: ObjectStore, statement: LedgerStatement, said: RegisteredExtent, *, clock: Clock, deadline_s: float
) -> None:
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
    metadata = statement.to_metadata() | {EXTENT_FIELD: str(said)} | digest_metadata(content, sha256_hex(content))

    def put() -> None:
        number = said.last_segment + random.randint(MIN_CONFIRMATION_GAP, MAX_CONFIRMATION_GAP)  # noqa: S311 - spreads writers
        key = segment_key(statement.ledger_id, number)
        try:
            with effect("append.put_confirmation"):
                objects.put_if_absent(key, content, metadata=metadata)
        except AlreadyExists as taken:
            raise StoreUnavailable(f"{key}: expected a free number for a confirmation") from taken

    try:
        clock.retry(put, deadline_s=deadline_s)
    except SextonError as error:
        at = f"ledger {statement.ledger_id}, segment {said.last_segment}"
        raise OutcomeUnknown(f"{at}: registered, and storage was not told: {error}") from error
