"""Port of tiered copies: upload, publication, abandonment, and removal of primary copies."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from logstore.log.ledgers import LedgerStatement
from logstore.offload.tiered_copy import CopyLengths
from logstore.ports.catalog.claims_and_deletion_results import AuditCause, Claim, DetachedBatch
from logstore.positions import LedgerId, TopicId


class OffloadStartOutcome(StrEnum):
    BEGUN = "BEGUN"  # this attempt may write the copy
    ALREADY = "ALREADY"  # a tiered copy is LIVE
    GONE = "GONE"  # the ledger is in no list any more


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadStart:
    answer: OffloadStartOutcome
    statement: LedgerStatement | None = None  # None: the ledger is gone
    entries: int = 0
    context: Mapping[str, str] = field(
        default_factory=dict
    )  # offload context of this attempt's copy or of the LIVE copy


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadableCopies:
    primary: bool
    tiered: Mapping[str, str] | None = None  # offload context of the tiered copy, as stored


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedTieredCopy:
    """LIVE tiered copy, with the statement and the number of entries that storage must have."""

    statement: LedgerStatement
    entries: int
    context: Mapping[str, str]


class Offloads(Protocol):
    """Tiered copies of message ledgers. Every change locks the ledger's list and raises its list version."""

    def begin_offload(
        self,
        ledger_id: LedgerId,
        *,
        uuid: str,
        driver_metadata: Mapping[str, str],
        timeout_s: float,
        topic: str | None = None,
    ) -> OffloadStart:
        """Assign the ledger's tiered copy to this upload attempt, for at most `timeout_s` plus `UPLOAD_GRACE_S`.

        The ledger must be listed and closed, with a LIVE primary copy. The same transaction replaces an unpublished
        copy of an earlier attempt by an intent. While a copy is being written, its ledger cannot be detached
        (apache/pulsar#13219).

        `uuid` identifies only this attempt. The attempt must send nothing after `timeout_s`. `driver_metadata` is
        driver, bucket, endpoint and region. A deletion finds the copy by this metadata (apache/pulsar#16687). `topic`
        is the encoded name that the ledger's topic must have.

        Idempotency: keyed by `uuid`. A repeated call does not extend the attempt's time.

        Raises:
            InvalidInput: The ledger belongs to another topic. Nothing changed.
            PreconditionFailed: The topic is not ACTIVE, the ledger is not CLOSED, or its primary copy is not LIVE.
            Unsupported: The ledger is a component ledger.
        """

    def publish_tiered_copy(self, ledger_id: LedgerId, uuid: str, *, lengths: CopyLengths | None = None) -> bool:
        """Make the attempt's copy LIVE, and return whether the copy is LIVE now.

        The copy must still belong to the attempt, the ledger must be listed, and its topic must be ACTIVE. Otherwise
        the call files an intent for the attempt's uploads. Phase two may delete these uploads at once, because storage
        has answered all requests. `lengths` are added to the offload context.

        Idempotency: keyed by `uuid`. The result is the same as long as the copy exists.
        """

    def abandon_offload(self, ledger_id: LedgerId, uuid: str) -> None:
        """File an intent for the attempt's uploads, unless it is filed already. A LIVE copy does not change.

        Phase two deletes the uploads after `UPLOAD_GRACE_S`, because a request without an answer may still arrive. If
        phase two may have worked on an earlier intent and missed objects, the call files one more intent.

        Idempotency: keyed by `uuid`.
        """

    def find_readable_copies(self, ledger_id: LedgerId) -> ReadableCopies | None:
        """Return the LIVE copies, or `None` if the ledger is not listed."""

    def require_offloadable(self, topic_id: TopicId, ledger_ids: Sequence[LedgerId]) -> None:
        """Check that the ledgers can be offloaded.

        Raises:
            UnknownObject: A ledger is not in the topic's list of message ledgers.
            PreconditionFailed: A ledger is not CLOSED.
        """

    def find_unlisted_ledgers(self, topic_id: TopicId, ledger_ids: Sequence[LedgerId]) -> list[LedgerId]:
        """Return the unlisted ledgers, ascending. Raise `PreconditionFailed` if a listed ledger is not CLOSED."""

    def list_offload_candidates(
        self, topic_id: TopicId, ledger_ids: Sequence[LedgerId] | None, *, after: LedgerId, limit: int
    ) -> list[LedgerId]:
        """Return listed, CLOSED ledgers with entries and no LIVE tiered copy, with ids above `after`, ascending."""

    def list_removable_primaries(
        self, topic_id: TopicId, ledger_ids: Sequence[LedgerId] | None, *, after: LedgerId, limit: int
    ) -> list[PublishedTieredCopy]:
        """Return the tiered copies of listed ledgers that have two LIVE copies, ascending by ledger.

        The primary copy may be removed after the tiered copy was checked in storage. The ledger ids are above `after`.
        """

    def detach_primary_copies(
        self,
        topic_id: TopicId,
        ledger_ids: Sequence[LedgerId] | None,
        *,
        proved_uuid_by_ledger: Mapping[LedgerId, str],
        batch_id: str,
        claim: Claim,
        cause: AuditCause,
    ) -> DetachedBatch:
        """Detach only the primary copies. The ledgers stay listed and are read from their tiered copies.

        One transaction files intents for the primary copies and writes an audit row. The transaction selects a ledger
        if the uuid of its LIVE tiered copy is in `proved_uuid_by_ledger`. The caller must have just checked these
        copies in storage (apache/pulsar#22839). Stalled intents of primary copies move to the batch. Raise
        `UnknownObject` if the topic does not exist.

        With `ledger_ids`, only these ledgers are considered. `claim` is for the workflow that does phase two.

        Idempotency: keyed by `batch_id`. A repeated call returns the first result. A call that changed nothing is not
        recorded.
        """

    def now_us(self) -> int:
        """Return the catalog's time in microseconds since 1970."""
