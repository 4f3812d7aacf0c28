"""Registration of an uploaded segment, its confirmation in storage, and the report of an abandoned upload.

If the catalog is lost, storage must show where a segment was registered (ADR 19). So the metadata of a segment states
the part of the ledger that was registered before the upload.

- If the segment has the next number after this part, the metadata suffices: a registered segment begins at the end of
  this part.
- If the segment skips numbers, segments with lower numbers may have been registered after the upload. So a confirmation
  is uploaded after the registration and before the append returns.
"""

import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from logstore.catalog.log.message_ledgers import MessageLedgers
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
from logstore.log.ledger_object_keys import segment_key
from logstore.log.ledgers import LedgerStatement
from logstore.log.segment_format import encode_segment
from logstore.log.segment_metadata import (
    EXTENT_FIELD,
    MAX_CONFIRMATION_GAP,
    MIN_CONFIRMATION_GAP,
    RegisteredLedgerExtent,
    sha256_hex,
)
from logstore.log.services.group_commit import GroupCommitter
from logstore.log.services.segment_reader import build_digest_metadata
from logstore.ports.catalog.log import RegisterSegmentResult, RegisterSegmentWrite, Segment
from logstore.ports.object_storage import ObjectStore
from logstore.positions import LedgerId
from logstore.retrying_clock import Clock

_MAX_REPORT_S: Final = 5.0
"""Maximum time for a report to the catalog. The time is short, because the report delays the caller's error."""

_LOG: Final = logging.getLogger(__name__)


@contextmanager
def report_abandoned_upload(
    ledgers: MessageLedgers, ledger_id: LedgerId, *, epoch: int, clock: Clock
) -> Iterator[None]:
    """If the `with` block raises, report to the catalog that an upload to the ledger was abandoned. Raise the error.

    After a terminal error nothing is reported: storage has stored nothing, or the catalog has refused the upload.
    """
    try:
        yield
    except TerminalError:
        raise
    except Exception:
        deadline_s = clock.monotonic_s() + _MAX_REPORT_S
        try:  # if the catalog does not answer, reconciliation finds the upload
            clock.retry(lambda: ledgers.record_abandoned_upload(ledger_id, epoch=epoch), deadline_s=deadline_s)
        except Exception as error:  # noqa: BLE001 - the first error must not be hidden
            _LOG.warning("ledger %s: an upload was given up, and the catalog was not told: %s", ledger_id, error)
        raise


class SegmentRegistrar:
    def __init__(self, *, ledgers: MessageLedgers, committer: GroupCommitter, clock: Clock) -> None:
        self._ledgers = ledgers
        self._committer = committer
        self._clock = clock

    def register_segment(self, write: RegisterSegmentWrite, *, deadline_s: float) -> RegisterSegmentResult | Segment:
        """Register a segment. The caller must be the only one that has uploaded an object with this segment number.

        If an earlier attempt has registered the segment, return the segment's row. No attempt starts after the
        monotonic time `deadline_s`.

        Raises:
            AlreadyExists, LedgerFenced, ProducerFenced, StaleCatalog, TransactionNotOpen: The registration was refused,
                and a retry cannot help.
            UnknownObject, PreconditionFailed: The topic does not exist or is not ACTIVE.
            StoreUnavailable, CatalogBusy: The segment was not registered, after several attempts.
            OutcomeUnknown: The catalog does not answer, and the segment may be registered.
        """
        unclear_errors: list[Exception] = []
        try:
            return self._clock.retry(
                lambda: self._try_to_register(write, unclear_errors, deadline_s), deadline_s=deadline_s
            )
        except RetryableError as error:
            if any(isinstance(unclear, OutcomeUnknown) for unclear in unclear_errors):
                raise OutcomeUnknown(
                    f"ledger {write.ledger_id}, segment {write.number}: {unclear_errors[0]}"
                ) from error
            raise

    def _try_to_register(
        self, write: RegisterSegmentWrite, unclear_errors: list[Exception], deadline_s: float
    ) -> RegisterSegmentResult | Segment:
        try:
            return self._commit_registration(write, deadline_s)
        except (OutcomeUnknown, RetryableError) as error:
            unclear_errors.append(error)
            registered = self._find_registered(write)
            if registered is None:
                raise
        except (AlreadyExists, LedgerFenced, ProducerFenced, StaleCatalog, TransactionNotOpen):
            registered = self._find_registered(write) if unclear_errors else None
            if registered is None:
                raise
        return registered

    def _commit_registration(self, write: RegisterSegmentWrite, deadline_s: float) -> RegisterSegmentResult:
        remaining_s = deadline_s - self._clock.monotonic_s()
        if remaining_s <= 0:
            raise CatalogBusy(f"ledger {write.ledger_id}, segment {write.number}: not registered in time, giving up")
        with effect("append.register"):
            return self._committer.commit_write(write, timeout_s=remaining_s)

    def _find_registered(self, write: RegisterSegmentWrite) -> Segment | None:
        rows = self._ledgers.list_segments(write.ledger_id)
        own = (write.number, write.entries, write.size_bytes, write.sha256)
        return next((row for row in rows if (row.number, row.entries, row.size_bytes, row.sha256) == own), None)


def upload_confirmation(
    objects: ObjectStore, statement: LedgerStatement, extent: RegisteredLedgerExtent, *, clock: Clock, deadline_s: float
) -> None:
    """Upload a confirmation. A crash before the upload loses nothing, because the append has not returned yet.

    `extent` has the number of the registered segment, and the number of entries of the ledger up to the end of this
    segment. No attempt starts after the monotonic time `deadline_s`.

    Raises:
        OutcomeUnknown: The segment is registered without a confirmation. If the catalog is lost, the segment's entries
            may get other positions.
    """
    content = encode_segment([], publish_ms=0)
    metadata = (
        statement.to_metadata() | {EXTENT_FIELD: str(extent)} | build_digest_metadata(content, sha256_hex(content))
    )

    def put_at_random_number() -> None:
        number = extent.last_segment + random.randint(MIN_CONFIRMATION_GAP, MAX_CONFIRMATION_GAP)  # noqa: S311 - spreads writers
        key = segment_key(statement.ledger_id, number)
        try:
            with effect("append.put_confirmation"):
                objects.put_if_absent(key, content, metadata=metadata)
        except AlreadyExists as error:
            raise StoreUnavailable(f"{key}: expected a free number for a confirmation") from error

    try:
        clock.retry(put_at_random_number, deadline_s=deadline_s)
    except SextonError as error:
        subject = f"ledger {statement.ledger_id}, segment {extent.last_segment}"
        raise OutcomeUnknown(f"{subject}: registered, and storage was not told: {error}") from error
