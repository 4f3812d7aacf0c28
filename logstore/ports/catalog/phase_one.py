"""Port of phase one, which replaces ledgers in the catalog by deletion intents."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self

from logstore.ownership import Lease
from logstore.ports.catalog.claims import Cause, Claim, DetachedBatch, Tally
from logstore.ports.catalog.ledgers import Ledger
from logstore.positions import LedgerId, TopicId
from logstore.records.tombstones import CompoundOperation


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicContents:
    """Counts of a topic's ledgers, copies and subscriptions."""

    ledgers: Mapping[str, int]  # by component
    copies: Mapping[str, Mapping[str, int]]  # by component, then by kind of copy
    subscriptions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DetachChosenResult:
    """Result for ledgers that were chosen one by one."""

    reason_by_kept_ledger: Mapping[LedgerId, str] = field(default_factory=dict)
    detached: DetachedBatch  # all other ledgers


class PhaseOne(Protocol):
    """Phase one for ledgers of a topic, for many topics in one batch, and for a whole topic.

    Each method is one transaction. Under a lease that was overtaken, `detach` and `operate` raise `NotOwner` and change
    nothing.

    `durable` says whether detached ledgers leave tombstones. `None` means the topic's setting. If the topic has none,
    deletions leave tombstones and retention does not.
    """

    def under(self, lease: Lease | None) -> Self:
        """Return the port for the owner of a bundle. With `None`, writes check no fence.

        `detach` and `operate` first require that the lease is the newest of its bundle. No worker raises the fence
        before they are committed. The other writes check no fence even under a lease.
        """

    def preview(
        self,
        topic_id: TopicId,
        ledger_ids: Sequence[LedgerId] | None,
        *,
        force: bool,
        rolled: LedgerId | None = None,
    ) -> list[LedgerId]:
        """Return the ledgers that `detach` would take now. Nothing changes.

        `rolled`, the list's last ledger, counts as closed with another ledger after it.

        Raises:
            UnknownObject, LedgerStillNeeded: As `detach`.
        """

    def detach(
        self,
        topic_id: TopicId,
        ledger_ids: Sequence[LedgerId] | None,
        *,
        force: bool,
        batch_id: str,
        claim: Claim,
        cause: Cause,
        durable: bool | None = None,
    ) -> DetachedBatch:
        """Take ledgers out of the list and file an intent for each copy.

        The call locks the list's row, evaluates the whole rule, and raises the list version.

        - With ids, all of them are detached or none. `force` detaches ledgers that subscriptions need, and moves
          their cursors over the hole.
        - With `None`, retention selects the ledgers. Stalled intents of the topic and abandoned newborn ledgers join
          the batch.

        Idempotency: keyed by `batch_id`; a repeated call returns the first result, even if the topic was deleted since.
        A call for which retention found nothing leaves no trace, and may find something when it is repeated.

        Raises:
            UnknownObject: No such topic, or an id that was never in this topic's list.
            LedgerStillNeeded: A ledger is needed and not forced, or is the open last ledger.
        """

    def reasons_to_keep(self, topic_id: TopicId, chosen: Sequence[Ledger]) -> Mapping[LedgerId, str]:
        """Return the ledgers that `detach_chosen` would keep, with the reason for each. Nothing changes.

        Raises:
            UnknownObject: No such topic.
        """

    def detach_chosen(
        self,
        topic_id: TopicId,
        chosen: Sequence[Ledger],
        *,
        batch_id: str,
        claim: Claim,
        cause: Cause,
        durable: bool | None = None,
    ) -> DetachChosenResult:
        """Detach ledgers one by one: a ledger that is needed, or that changed since it was read, stays.

        They join a batch of many topics, which is opened, or claimed for `ttl_s` from now.

        Idempotency: a repeated call reports ledgers that are gone as no longer listed.

        Raises:
            UnknownObject: No such topic.
            CorruptData: A cursor's row cannot be read.
            ClaimHeld: The batch is finished, or another workflow holds it. Nothing changed.
        """

    def operate(
        self,
        topic_id: TopicId,
        operation: CompoundOperation,
        *,
        batch_id: str,
        claim: Claim,
        cause: Cause,
        durable: bool | None = None,
    ) -> DetachedBatch:
        """Apply several changes to one ledger, all or none, and write an audit row.

        A ledger that loses its last copy ends, as by `detach`. Subscriptions that are passed over do not keep it, and
        their cursors move over the hole. If the ledger stays, the list version and its generation rise.

        Idempotency: keyed by `batch_id`; a repeated call returns the first result.

        Raises:
            UnknownObject: No such topic, no such ledger in its list, or no such subscription.
            PreconditionFailed: The ledger is not as the operation expects it.
            LedgerStillNeeded: The ledger would end and is needed.
        """

    def would_end(self, topic_id: TopicId, operation: CompoundOperation) -> bool:
        """Return whether `operate` would end the ledger, with its errors. Nothing changes."""

    def select_promising(self, topic_ids: Sequence[TopicId]) -> frozenset[TopicId]:
        """Return the topics in which a detach may find something. Most topics have nothing, and need no lock."""

    def detach_into(self, topic_id: TopicId, *, batch_id: str, claim: Claim, cause: Cause) -> DetachedBatch:
        """Detach by retention into a batch of many topics, which is opened, or claimed for `ttl_s` from now.

        Newborn ledgers count as ledgers too.

        Idempotency: keyed by batch and topic; if the batch has intents of the topic, they are only counted.

        Raises:
            UnknownObject: No such topic.
            CorruptData: A cursor's row cannot be read.
            ClaimHeld: The batch is finished, or another workflow holds it. Nothing changed.
        """

    def count_detached(self, batch_id: str) -> DetachedBatch:
        """Count the batch from its rows. All counts of an unknown batch are zero."""

    def count_contents(self, topic_id: TopicId) -> TopicContents:
        """Count what a deletion of the topic would take. Nothing changes.

        Raises:
            UnknownObject: No such topic.
        """

    def begin_topic(self, topic_id: TopicId, name: str, cause: Cause) -> int:
        """Set the topic DELETING and write an audit row. Return the time, in microseconds by the catalog's clock.

        After the commit nothing can be attached to the topic, because that requires ACTIVE under a lock. The call does
        not wait for holders of that lock, which a busy topic always has. `detach_all` waits for them.

        Idempotency: a topic that is DELETING or deleted returns the first call's time, and is audited once.

        Raises:
            UnknownObject: The topic never existed.
            PreconditionFailed: The topic has another name.
        """

    def detach_all(
        self, topic_id: TopicId, *, batch_id: str, claim: Claim, cause: Cause, durable: bool | None = None
    ) -> DetachedBatch:
        """File an intent for each copy of each ledger of the topic, whatever its component and state.

        Cursors, schema versions and other rows that name ledgers are removed. Stalled intents of the topic join the
        batch.

        Idempotency: keyed by `batch_id`; a repeated call returns the first result. A topic that is gone has nothing to
        detach.

        Raises:
            PreconditionFailed: The topic is not DELETING, or the batch id belongs to another request.
        """

    def remove_topic(self, topic_id: TopicId, cause: Cause, *, durable: bool | None = None) -> bool:
        """Remove the topic's rows. Its name is free afterwards.

        Return whether the topic is gone. If a ledger is still attached, return `False` and change nothing.

        Raises:
            PreconditionFailed: The topic is not DELETING.
        """

    def topic_tally(self, topic_id: TopicId, *, since_us: int) -> Tally:
        """Count the topic's intents that ended since then or that have not succeeded."""
