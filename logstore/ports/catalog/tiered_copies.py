"""Port of tiered copies: upload, publication, abandonment, and removal of primary copies."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from logstore.log.ledgers import LedgerStatement
from logstore.offload.tiered_copy import CopyLengths
from logstore.ports.catalog.claims_and_batches import AuditCause, Claim, DetachedBatch
from logstore.positions import LedgerId, TopicId


class OffloadStartOutcome(StrEnum):
    """Result of beginning an offload."""

    BEGUN = "BEGUN"  # this attempt may write the copy
    ALREADY = "ALREADY"  # a tiered copy is LIVE
    GONE = "GONE"  # the ledger is in no list any more


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadStart:
    """Answer to the beginning of an offload, with the ledger and the offload context."""

    answer: OffloadStartOutcome
    statement: LedgerStatement | None = None  # None: the ledger is gone
    entries: int = 0
    context: Mapping[str, str] = field(default_factory=dict)  # of this attempt's copy or of the LIVE copy


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadableCopies:
    """LIVE copies of a listed ledger."""

    primary: bool
    tiered: Mapping[str, str] | None = None  # the offload context, kept as found


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedTieredCopy:
    """LIVE tiered copy, with the content that storage must hold."""

    statement: LedgerStatement
    entries: int
    context: Mapping[str, str]


class Offloads(Protocol):
    """Tiered copies of data ledgers. Every change locks the ledger's list and raises its list version."""

    def begin_offload(
        self,
        ledger_id: LedgerId,
        *,
        uuid: str,
        driver_metadata: Mapping[str, str],
        timeout_s: float,
        topic: str | None = None,
    ) -> OffloadStart:
        """Assign the ledger's tiered copy to this attempt, for at most `timeout_s` plus `UPLOAD_GRACE_S`.

        An unpublished copy of an earlier attempt is replaced, and its deletion intent is filed in the same transaction.
        A copy that is being written protects its ledger from every detach (apache/pulsar#13219).

        The ledger is closed and listed, with a LIVE primary copy. `uuid` must be new. After `timeout_s` the attempt
        sends nothing more. `driver_metadata` is driver, bucket, endpoint and region, by which a deletion finds the copy
        (apache/pulsar#16687). If `topic` is given, the ledger's topic must have this encoded name.

        Idempotency: keyed by `uuid`. A repeated call does not extend this time.

        Raises:
            InvalidInput: The ledger belongs to another topic. Nothing changed.
            PreconditionFailed: The topic is not ACTIVE, the ledger is not CLOSED, or its primary copy is not LIVE.
            Unsupported: The ledger is no ledger of messages.
        """

    def publish_tiered_copy(self, ledger_id: LedgerId, uuid: str, *, lengths: CopyLengths | None = None) -> bool:
        """Make the copy LIVE if it still belongs to the attempt, the ledger is listed and its topic ACTIVE.

        `lengths` are added to the offload context of the copy, unless they are `None`. If the copy belongs to another
        attempt, this attempt is ended like by `abandon`. But there is no waiting time, because all its requests were
        answered.

        Idempotency: keyed by `uuid`. The result is the same as long as the copy exists.

        Returns:
            Whether this attempt's copy is LIVE.
        """

    def abandon_offload(self, ledger_id: LedgerId, uuid: str) -> None:
        """File the deletion intent for the attempt's uploads, if it does not exist. A LIVE copy is not changed.

        A request without an answer may land within `UPLOAD_GRACE_S`, so the deletion waits that long. If an earlier
        intent no longer waits for the upload, it may have missed objects, and one more intent is filed.

        Idempotency: keyed by `uuid`.
        """

    def find_readable_copies(self, ledger_id: LedgerId) -> ReadableCopies | None:
        """Return the copies that readers may use now, or `None` if the ledger is not listed."""

    def require_offloadable(self, topic_id: TopicId, ledger_ids: Sequence[LedgerId]) -> None:
        """Refuse ledgers that cannot be offloaded.

        Raises:
            UnknownObject: A ledger is not in the topic's list of messages.
            PreconditionFailed: A ledger is not CLOSED.
        """

    def find_unlisted_ledgers(self, topic_id: TopicId, ledger_ids: Sequence[LedgerId]) -> list[LedgerId]:
        """Return the ledgers that are not listed, ascending.

        Raises:
            PreconditionFailed: A listed ledger is not CLOSED.
        """

    def list_offload_candidates(
        self, topic_id: TopicId, ledger_ids: Sequence[LedgerId] | None, *, after: LedgerId, limit: int
    ) -> list[LedgerId]:
        """Return closed, listed ledgers with entries and without a LIVE tiered copy, ascending.

        `ledger_ids` is the selection, or `None` for all. The page begins after `after`.
        """

    def list_removable_primaries(
        self, topic_id: TopicId, ledger_ids: Sequence[LedgerId] | None, *, after: LedgerId, limit: int
    ) -> list[PublishedTieredCopy]:
        """Return tiered copies of listed ledgers with two LIVE copies, ascending by ledger.

        Their primary copy may go after storage has proved the tiered one. Arguments as `list_offload_candidates`.
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
        """Detach only the primary copies (phase one). The ledgers stay listed and are read from their tiered copies.

        One audited transaction removes the rows of the primary copies and files their intents. It selects ledgers whose
        LIVE tiered copy is the one in `proved`. An only copy stays. Stalled intents of primary copies move to the
        batch.

        `ledger_ids` is the selection, or `None` for all. `proved` are the uuids of tiered copies that storage has just
        proved (apache/pulsar#22839). `claim` is for the workflow that does phase two.

        Idempotency: keyed by `batch_id`. A repeated call returns the first result. A call that changed nothing is not
        recorded.

        Raises:
            UnknownObject: The topic does not exist.
        """

    def now_us(self) -> int:
        """Return the catalog's time in microseconds since 1970. It decides when an upload has ended."""
