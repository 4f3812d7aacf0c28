"""Phase one in the catalog: ledgers leave, and intents stand in their place; and its port."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self

from logstore.ownership import Lease
from logstore.ports.catalog.claims import Cause, Claim, DetachedBatch, Tally
from logstore.ports.catalog.ledgers import Ledger
from logstore.positions import LedgerId, TopicId
from logstore.records.tombstones import Compound


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicContents:
    """What hangs on a topic, whatever component owns it."""

    ledgers: Mapping[str, int]  # by component
    copies: Mapping[str, Mapping[str, int]]  # by component, then by kind of copy
    subscriptions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DetachChosenResult:
    """What became of ledgers that were chosen one by one."""

    reason_by_kept_ledger: Mapping[LedgerId, str] = field(default_factory=dict)  # which stay, each with the reason
    detached: DetachedBatch  # the others


class PhaseOne(Protocol):
    """What leaves the catalog: of one topic by retention or by name, of many topics into one batch, of a whole topic.

    Each is one transaction. `detach` raises `NotOwner`, and changes nothing, where the port is `under` a lease that was
    overtaken. The steps of a topic's deletion go on from whatever an earlier try left.
    """

    def under(self, lease: Lease | None) -> Self:
        """The same port for the owner of a bundle; None: for any worker, whose writes look at no fence.

        `detach` requires the lease to be its bundle's last before it reads what it is about, and no worker raises the
        fence before it is committed. The other writes are no owner's: they look at no fence, under a lease either.
        """

    def preview(
        self,
        topic_id: TopicId,
        ledger_ids: Sequence[LedgerId] | None,
        *,
        force: bool,
        rolled: LedgerId | None = None,
    ) -> list[LedgerId]:
        """What a detach would take out now; None asks for what retention does not keep. Changes nothing.

        With `rolled`, the list's last ledger, the answer is what a detach would take out right after it was closed and
        another one was opened behind it.

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
        """Phase one in one transaction: take ledgers out of the list and file an intent per copy.

        Locks the list row, evaluates the whole rule, raises the version. With `ledger_ids` None, retention
        decides, and intents of this topic without a live claim and newborn ledgers that were never attached
        join the batch. `force` moves cursors over the hole. All or nothing for given ids.

        `durable` says whether the ledgers leave tombstones; None: as the topic says, otherwise given ids do and what
        retention takes does not. Their intents say so too.

        Idempotency: keyed by `batch_id`; a repeated call returns what the first one did, also where the topic was
        deleted since. One that retention gave nothing to do leaves no trace, and may find something when repeated.

        Raises:
            UnknownObject: No such topic, or an id that was never of this topic's list.
            LedgerStillNeeded: Not forced and still needed, or the open last ledger.
        """

    def reasons_to_keep(self, topic_id: TopicId, chosen: Sequence[Ledger]) -> Mapping[LedgerId, str]:
        """Those of the ledgers that `detach_chosen` would leave where they are, each with the reason. Changes nothing.

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
        """As `detach` of given ledgers, but each for itself: one that is needed stays, and the others go.

        One stays, too, that is not as it was read: in its list, and equal to what is given. Into a batch of many
        topics, which is opened, or held until `ttl_s` from now.

        They leave tombstones, unless `durable`, or if that is None the topic, says otherwise.

        Idempotency: a repeated call finds what went no more in the list, and says so of it.

        Raises:
            UnknownObject: No such topic.
            CorruptData: A cursor's row cannot be read.
            ClaimHeld: The batch is finished, or another workflow's; nothing was changed.
        """

    def operate(
        self,
        topic_id: TopicId,
        operation: Compound,
        *,
        batch_id: str,
        claim: Claim,
        cause: Cause,
        durable: bool | None = None,
    ) -> DetachedBatch:
        """Several changes of one ledger in one transaction: all of them, or none; the last of them may end it.

        A ledger from which every copy was taken ends, as by `detach`; subscriptions that are passed over do not keep
        it, and move over the hole as all others do. It leaves a tombstone, unless `durable`, or if that is None the
        topic, says otherwise. Of a ledger that stays the list's version and its generation rise, and its copy gets an
        intent. Audited.

        Idempotency: keyed by `batch_id`; a repeated call returns what the first one did.

        Raises:
            UnknownObject: No such topic, no such ledger in its list, or no such subscription.
            PreconditionFailed: The ledger is not as the operation expects it; see `logstore.records.tombstones`.
            LedgerStillNeeded: It would end, and is needed.
        """

    def would_end(self, topic_id: TopicId, operation: Compound) -> bool:
        """Whether `operate` would end the ledger; otherwise a copy of it would go. Changes nothing.

        Raises:
            UnknownObject, PreconditionFailed, LedgerStillNeeded: It would refuse so.
        """

    def select_promising(self, topic_ids: Sequence[TopicId]) -> frozenset[TopicId]:
        """Those of the topics in which a detach could find something: most have nothing, and need no lock."""

    def detach_into(self, topic_id: TopicId, *, batch_id: str, claim: Claim, cause: Cause) -> DetachedBatch:
        """As `detach` by retention, in one transaction for the topic, into a batch of many topics.

        Opens the batch, or holds it until `ttl_s` from now. Newborn ledgers that were never attached count as
        ledgers too.

        Idempotency: keyed by batch and topic: where intents of the topic are in the batch, they are counted and
        nothing else happens.

        Raises:
            UnknownObject: No such topic.
            CorruptData: A cursor's row cannot be read.
            ClaimHeld: The batch is finished, or another workflow's; nothing was changed.
        """

    def count_detached(self, batch_id: str) -> DetachedBatch:
        """The whole batch, counted from its rows; all zero when nothing was detached into it."""

    def count_contents(self, topic_id: TopicId) -> TopicContents:
        """Count what a deletion would take. Changes nothing.

        Raises:
            UnknownObject: No such topic.
        """

    def begin_topic(self, topic_id: TopicId, name: str, cause: Cause) -> int:
        """Set the topic DELETING and write the audit row; when that was, microseconds by the catalog's clock.

        After its commit nothing can be attached to the topic, because that requires ACTIVE under a lock. It
        does not wait for holders of that lock, or a busy topic would never begin to go: `detach_all` does.

        Idempotency: a topic that is DELETING, or that was deleted, answers when it began, and is audited once.

        Raises:
            UnknownObject: There is no such topic, and never was.
            PreconditionFailed: The topic of that id bears another name.
        """

    def detach_all(
        self, topic_id: TopicId, *, batch_id: str, claim: Claim, cause: Cause, durable: bool | None = None
    ) -> DetachedBatch:
        """Phase one for everything of the topic, in one transaction: an intent for each copy of each ledger.

        Each ledger leaves a tombstone, unless `durable`, or if that is None the topic, says otherwise.

        Whatever the component, and whatever the state: newborn and open ledgers, copies that are being written.
        Rows that name ledgers, cursors and schema versions, go with them. The topic's intents without a live claim
        join the batch.

        Idempotency: keyed by `batch_id`; a repeated call returns what the first one did. A topic that is gone has
        nothing left to detach.

        Raises:
            PreconditionFailed: The topic is not DELETING, or the batch id is one of another request.
        """

    def remove_topic(self, topic_id: TopicId, cause: Cause, *, durable: bool | None = None) -> bool:
        """Remove what the topic is besides ledgers, and its own row; its name is free from then on.

        It leaves a tombstone, unless `durable`, or if that is None the topic, says otherwise.

        Returns:
            Whether the topic is gone now; False when a ledger is attached to it still, and nothing was changed.

        Raises:
            PreconditionFailed: The topic is not DELETING.
        """

    def topic_tally(self, topic_id: TopicId, *, since_us: int) -> Tally:
        """Count intents of the topic that ended since then, and all of them that have not succeeded."""
