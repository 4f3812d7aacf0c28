"""Tiered copies in the catalog: written, published, given up; removal of primary copies; and the port."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from logstore.log.ledgers import LedgerStatement
from logstore.offload.tiered import CopyLengths
from logstore.ports.catalog.claims import Cause, Claim, DetachedBatch
from logstore.positions import LedgerId, TopicId


class OffloadAnswer(StrEnum):
    """Whether a ledger is to be offloaded by the caller."""

    BEGUN = "BEGUN"  # its copy is this attempt's to write
    ALREADY = "ALREADY"  # a tiered copy is LIVE
    GONE = "GONE"  # no list has the ledger any more


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadStart:
    """What an attempt to offload a ledger may do."""

    answer: OffloadAnswer
    statement: LedgerStatement | None = None  # None: the ledger is gone
    entries: int = 0
    context: Mapping[str, str] = field(default_factory=dict)  # of the tiered copy, this attempt's or the LIVE one


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadableCopies:
    """Where a listed ledger's entries can be read."""

    primary: bool
    tiered: Mapping[str, str] | None = None  # the offload context, kept as found


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedCopy:
    """A LIVE tiered copy: what storage is expected to hold of it."""

    statement: LedgerStatement
    entries: int
    context: Mapping[str, str]


class Offloads(Protocol):
    """Tiered copies of data ledgers. Whatever changes one locks the ledger's list and raises its version."""

    def begin(
        self,
        ledger_id: LedgerId,
        *,
        uuid: str,
        driver_metadata: Mapping[str, str],
        timeout_s: float,
        topic: str | None = None,
    ) -> OffloadStart:
        """Make the ledger's tiered copy this attempt's to write, for at most `timeout_s` and `UPLOAD_GRACE_S`.

        The copy of an earlier attempt that was never published is replaced, and a deletion intent filed for it in
        the same transaction. A copy that is being written keeps its ledger from every detach (apache/pulsar#13219).

        Args:
            ledger_id: Whose; closed and listed, with a LIVE primary copy.
            uuid: Names the attempt; never used before.
            driver_metadata: Driver, bucket, endpoint and region, by which a deletion finds it (apache/pulsar#16687).
            timeout_s: After this the attempt sends nothing more to storage.
            topic: The encoded name that the ledger's topic should bear; None: any.

        Idempotency: keyed by `uuid`; a repeated call does not prolong it.

        Raises:
            InvalidInput: The ledger is of another topic; nothing changed.
            PreconditionFailed: The topic is not ACTIVE, the ledger is not CLOSED, or its primary copy is not LIVE.
            Unsupported: Not a ledger of messages.
        """

    def publish(self, ledger_id: LedgerId, uuid: str, *, lengths: CopyLengths | None = None) -> bool:
        """WRITING → LIVE if the attempt still has the copy, the ledger is listed and its topic ACTIVE.

        The copy's offload context states `lengths` from then on. `None`: they are not known.

        Otherwise the attempt has lost, and the same happens as by `abandon`, except that nothing is waited for: all of
        its requests were answered.

        Idempotency: keyed by `uuid`; answers alike as long as the copy stands.

        Returns:
            Whether this attempt's copy is LIVE.
        """

    def abandon(self, ledger_id: LedgerId, uuid: str) -> None:
        """Leave what the attempt has uploaded to phase two: file its deletion intent, unless that was done.

        An intent whose upload was waited for in vain may have ended, or be about to end, without having seen the
        objects: then one more is filed. A LIVE copy is left alone. The attempt sends nothing more, but a request of
        it that was not answered may land within `UPLOAD_GRACE_S`, so for that long its deletion waits.

        Idempotency: keyed by `uuid`.
        """

    def copies(self, ledger_id: LedgerId) -> ReadableCopies | None:
        """Where the ledger can be read now, or None when no list has it."""

    def require_offloadable(self, topic_id: TopicId, ledger_ids: Sequence[LedgerId]) -> None:
        """Refuse ledgers that cannot be offloaded.

        Raises:
            UnknownObject: Not in the topic's list of messages.
            PreconditionFailed: Not CLOSED.
        """

    def find_missing(self, topic_id: TopicId, ledger_ids: Sequence[LedgerId]) -> list[LedgerId]:
        """As `check`, but for ledgers that are not in the list: it names them, ascending."""

    def list_candidates(
        self, topic_id: TopicId, ledger_ids: Sequence[LedgerId] | None, *, after: LedgerId, limit: int
    ) -> list[LedgerId]:
        """Closed listed ledgers with entries and without a LIVE tiered copy, ascending, beyond `after`.

        Args:
            topic_id: Whose.
            ledger_ids: Only of these; None: of all.
            after: Exclusive.
            limit: The most rows to return.
        """

    def list_removable(
        self, topic_id: TopicId, ledger_ids: Sequence[LedgerId] | None, *, after: LedgerId, limit: int
    ) -> list[PublishedCopy]:
        """Tiered copies of listed ledgers of which both copies are LIVE, ascending by ledger, beyond `after`.

        Their primary copy can go, once storage was seen to hold the tiered one; arguments as for `candidates`.
        """

    def remove_primaries(
        self,
        topic_id: TopicId,
        ledger_ids: Sequence[LedgerId] | None,
        *,
        proved: Mapping[LedgerId, str],
        batch_id: str,
        claim: Claim,
        cause: Cause,
    ) -> DetachedBatch:
        """Phase one for primary copies alone: the ledgers stay listed and are read from their tiered copy.

        Of whatever is proved and `removable` now, takes out the copies' rows and files their intents in one
        transaction; audited. A primary copy that is its ledger's only one stays, and so does one whose tiered copy
        no job proved, or another one. Stalled intents of primary copies join the batch.

        Args:
            topic_id: Whose.
            ledger_ids: What was asked for: only of these; None: of all.
            proved: The uuid of each tiered copy that storage was just seen to hold (apache/pulsar#22839).
            batch_id: Names the call.
            claim: Who will do phase two.
            cause: For the audit log.

        Idempotency: keyed by `batch_id`; a repeated call returns what the first one did. One that found nothing to
        do leaves no trace, and may find something when it is repeated.

        Raises:
            UnknownObject: No such topic.
        """

    def now_us(self) -> int:
        """The catalog's clock, microseconds since 1970: what an upload's end is compared with."""
