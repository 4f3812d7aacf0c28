"""Deleting a whole topic, one step an activity; phase two of its ledgers is `activities.deletion`'s."""

from dataclasses import dataclass, field

from activities.deletion.claims import detach_arguments, own_cause, report_detached
from activities.deletion.values import DetachResult
from activities.heartbeats import beating, defined
from logstore.errors import StaleCatalog
from logstore.ports.catalog import Ledgers, PhaseOne
from logstore.positions import TopicId
from logstore.records.tombstones import asked_for


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOrder:
    """Which topic is to be deleted, and why."""

    topic_id: int
    topic: str  # encoded; the topic of that id must bear it
    actor: str
    reason: str
    catalog_epoch: int | None = None  # required to be the catalog's, where it is known
    durable_delete: str | None = None  # a `DeletePolicy`; None: as the topic says, otherwise durable


@dataclass(frozen=True, slots=True, kw_only=True)
class SetDeletingResult:
    """That the topic is DELETING."""

    since_us: int  # by the catalog's clock
    catalog_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DetachAllInput:
    """Phase one for everything of the topic."""

    order: TopicOrder
    batch_id: str
    batch_workflow_id: str  # which workflow will do phase two: it gets the claim


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveTopicInput:
    """The last step."""

    order: TopicOrder
    since_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveTopicResult:
    """Whether the topic is gone, and what became of its copies since the deletion began."""

    gone: bool
    outcomes: dict[str, int] = field(default_factory=dict)
    objects: int = 0  # confirmed by storage
    size_bytes: int = 0


class TopicDeletion:
    """The activities of a topic's deletion, over ports."""

    def __init__(self, *, phase_one: PhaseOne, ledgers: Ledgers) -> None:
        """Take the ports."""
        self._phase_one = phase_one
        self._ledgers = ledgers

    @defined(name="topic.set_deleting")
    @beating()
    def set_deleting(self, request: TopicOrder) -> SetDeletingResult:
        """Set the topic DELETING, so that nothing can be attached to it any more.

        Idempotency: keyed by topic id; a second call answers when it began, and writes no second audit row.
        Raises: UnknownObject, PreconditionFailed, StaleCatalog, Unsupported (terminal); CatalogBusy, StoreUnavailable
            (retry).
        """
        epoch = self._epoch(request)
        asked_for(request.durable_delete)  # refused before anything changes
        since_us = self._phase_one.begin_topic(
            TopicId(request.topic_id), request.topic, own_cause(request.actor, request.reason)
        )
        return SetDeletingResult(since_us=since_us, catalog_epoch=epoch)

    @defined(name="topic.detach_all")
    @beating()
    def detach_all(self, request: DetachAllInput) -> DetachResult:
        """Replace every ledger of the topic by an intent for each of its copies, in one SQL transaction.

        Idempotency: keyed by `batch_id`; a second call returns what the first one did.
        Raises: PreconditionFailed, StaleCatalog (terminal); CatalogBusy, StoreUnavailable (retry).
        """
        epoch, order = self._epoch(request.order), request.order
        batch = detach_arguments(request.batch_id, request.batch_workflow_id, order.actor, order.reason)
        durable = asked_for(order.durable_delete)
        return report_detached(self._phase_one.detach_all(TopicId(order.topic_id), durable=durable, **batch), epoch)

    @defined(name="topic.remove")
    @beating()
    def remove(self, request: RemoveTopicInput) -> RemoveTopicResult:
        """Remove what is left of the topic in the catalog, if no ledger is attached to it, and count its copies.

        Idempotency: a topic that is gone is answered as gone; copies are counted from their rows.
        Raises: PreconditionFailed, StaleCatalog (terminal); CatalogBusy, StoreUnavailable (retry).
        """
        order = request.order
        self._epoch(order)
        topic_id = TopicId(order.topic_id)
        cause, durable = own_cause(order.actor, order.reason), asked_for(order.durable_delete)
        gone = self._phase_one.remove_topic(topic_id, cause, durable=durable)
        tally = self._phase_one.topic_tally(topic_id, since_us=request.since_us)
        return RemoveTopicResult(
            gone=gone, outcomes=dict(tally.outcomes), objects=tally.objects, size_bytes=tally.size_bytes
        )

    def _epoch(self, order: TopicOrder) -> int:
        epoch = self._ledgers.epoch()
        if order.catalog_epoch not in {None, epoch}:
            raise StaleCatalog(f"delete-topic: expected catalog epoch {epoch}, found {order.catalog_epoch}")
        return epoch
