"""Port of phase one, which replaces ledgers of the catalog by deletion intents."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self

from logstore.ownership import Lease
from logstore.ports.catalog.claims_and_deletion_results import AuditCause, Claim, DetachedBatch, IntentTally
from logstore.ports.catalog.ledgers_and_segments import Ledger
from logstore.positions import LedgerId, TopicId
from logstore.records.tombstone_rules import CompoundOperation


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicContentCounts:
    ledgers: Mapping[str, int]  # by component
    copies: Mapping[str, Mapping[str, int]]  # by component, then by kind of copy
    subscriptions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DetachChosenResult:
    reason_by_kept_ledger: Mapping[LedgerId, str] = field(default_factory=dict)
    detached: DetachedBatch  # result for all other ledgers


class PhaseOne(Protocol):
    """Phase one for ledgers of a topic, for many topics in one batch, and for a whole topic.

    Under an outdated lease, `detach_ledgers` and `apply_compound_operation` raise `NotOwner` and change nothing.

    `durable` says whether detached ledgers leave tombstones. `None` selects the topic's setting. If the topic has no
    setting, only requested deletions leave tombstones, and detaches by retention leave none.

    Idempotency: `detach_ledgers`, `apply_compound_operation` and `detach_whole_topic` are keyed by `batch_id`. A
    repeated call returns the first result.
    """

    def with_lease(self, lease: Lease | None) -> Self:
        """Return this port with a lease. With `None`, writes check no fence.

        With a lease, `detach_ledgers` and `apply_compound_operation` require that the lease is the newest of its
        bundle. No worker can raise the fence between this check and the commit. Other writes never check a fence.
        """

    def preview_detach(
        self,
        topic_id: TopicId,
        requested_ids: Sequence[LedgerId] | None,
        *,
        force: bool,
        rolled: LedgerId | None = None,
    ) -> list[LedgerId]:
        """Return the ledgers that `detach_ledgers` would detach now. Nothing changes.

        The preview treats `rolled`, the last ledger of the list, as closed and followed by another ledger.

        Raises:
            UnknownObject, LedgerStillNeeded: The errors of `detach_ledgers`.
        """

    def detach_ledgers(
        self,
        topic_id: TopicId,
        requested_ids: Sequence[LedgerId] | None,
        *,
        force: bool,
        batch_id: str,
        claim: Claim,
        cause: AuditCause,
        durable: bool | None = None,
    ) -> DetachedBatch:
        """Take ledgers out of their list and file an intent for each copy.

        The call locks the list's row, checks under this lock which ledgers are needed, and raises the list version.

        - With `requested_ids`, either all of these ledgers are detached or none. `force` also detaches ledgers that
          subscriptions need, and moves the cursors of these subscriptions over the ledgers.
        - With `None`, retention selects the ledgers. Stalled intents of the topic and abandoned newborn ledgers move to
          the batch. If nothing is selected, the call is not recorded, and a repeated call may select ledgers.

        Raises:
            UnknownObject: The topic does not exist, or a ledger was never in the topic's list.
            LedgerStillNeeded: A subscription needs a ledger and `force` is not set, or a ledger is the open last
                ledger.
        """

    def find_reasons_to_keep(self, topic_id: TopicId, chosen: Sequence[Ledger]) -> Mapping[LedgerId, str]:
        """Return the reason for each ledger that `detach_chosen_ledgers` would keep. Nothing changes.

        Raise `UnknownObject` if the topic does not exist.
        """

    def detach_chosen_ledgers(
        self,
        topic_id: TopicId,
        chosen: Sequence[Ledger],
        *,
        batch_id: str,
        claim: Claim,
        cause: AuditCause,
        durable: bool | None = None,
    ) -> DetachChosenResult:
        """Detach ledgers one by one. Keep each ledger that is needed, or that has changed since `chosen` was read.

        The ledgers are added to a batch of many topics. The call opens the batch, or claims the open batch for
        `claim.ttl_s` from now.

        Idempotency: a repeated call reports detached ledgers as no longer listed.

        Raises:
            UnknownObject, CorruptData: The topic does not exist, or a cursor's row cannot be read.
            ClaimHeld: The batch is finished, or another workflow has claimed it. Nothing changed.
        """

    def apply_compound_operation(
        self,
        topic_id: TopicId,
        operation: CompoundOperation,
        *,
        batch_id: str,
        claim: Claim,
        cause: AuditCause,
        durable: bool | None = None,
    ) -> DetachedBatch:
        """Apply several changes to one ledger, all or none, and write an audit row.

        A ledger that loses its last copy is detached. The operation may name subscriptions that cannot prevent the
        detach. The cursors of these subscriptions then move over the detached ledger. If the ledger stays listed, the
        list version and the ledger's generation rise.

        Raises:
            UnknownObject: The topic or the subscription does not exist, or the ledger is not in the topic's list.
            PreconditionFailed: The ledger is not in the state that the operation expects.
            LedgerStillNeeded: The ledger would lose its last copy and is needed.
        """

    def would_end_ledger(self, topic_id: TopicId, operation: CompoundOperation) -> bool:
        """Return whether `apply_compound_operation` would detach the ledger. Raise the errors of that method."""

    def select_detachable_topics(self, topic_ids: Sequence[TopicId]) -> frozenset[TopicId]:
        """Return the topics that may have ledgers to detach. The call takes no lock, and usually selects few topics."""

    def detach_by_retention_into_batch(
        self, topic_id: TopicId, *, batch_id: str, claim: Claim, cause: AuditCause
    ) -> DetachedBatch:
        """Detach by retention into a batch of many topics. Open or claim the batch for `claim.ttl_s` from now.

        In the result, `ledgers` includes abandoned newborn ledgers.

        Idempotency: keyed by batch and topic; if the batch has intents of the topic, the call only counts them.

        Raises:
            UnknownObject, CorruptData: The topic does not exist, or a cursor's row cannot be read.
            ClaimHeld: The batch is finished, or another workflow has claimed it. Nothing changed.
        """

    def count_detached_batch(self, batch_id: str) -> DetachedBatch:
        """Return the counts of a batch, taken from the batch's rows. All counts of an unknown batch are zero."""

    def count_topic_contents(self, topic_id: TopicId) -> TopicContentCounts:
        """Count what a deletion of the topic would remove. Raise `UnknownObject` if the topic does not exist."""

    def begin_topic_deletion(self, topic_id: TopicId, name: str, cause: AuditCause) -> int:
        """Set the topic DELETING and write an audit row. Return the catalog's time of this change, in microseconds.

        After the commit nothing can be attached to the topic, because an attach locks the topic and requires ACTIVE.
        The call does not wait for transactions that have this lock, because a busy topic always has such
        transactions. `detach_whole_topic` waits for these transactions.

        Idempotency: if the topic is DELETING or deleted, return the time of the first call and write no audit row.

        Raises:
            UnknownObject: The topic never existed.
            PreconditionFailed: The topic has another name.
        """

    def detach_whole_topic(
        self, topic_id: TopicId, *, batch_id: str, claim: Claim, cause: AuditCause, durable: bool | None = None
    ) -> DetachedBatch:
        """File an intent for each copy of each ledger of the topic, whatever its component and state.

        Cursors, schema versions and other rows that name ledgers are removed. Stalled intents of the topic move to the
        batch. If the topic does not exist any more, nothing is detached.

        Raises:
            PreconditionFailed: The topic is not DELETING, or the batch id belongs to another request.
        """

    def remove_topic(self, topic_id: TopicId, cause: AuditCause, *, durable: bool | None = None) -> bool:
        """Remove the topic's rows, so that its name is free.

        If a list still has a ledger, return `False` and change nothing. Raise `PreconditionFailed` if the topic is not
        DELETING.
        """

    def tally_topic_intents(self, topic_id: TopicId, *, since_us: int) -> IntentTally:
        """Count all intents of the topic except those whose copy was deleted before `since_us`."""
