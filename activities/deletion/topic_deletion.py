"""Activities that delete a whole topic. Phase two of the topic's ledgers is in `ledger_deletion`."""

from dataclasses import dataclass, field, replace

from activities.deletion.claims_and_causes import count_and_summarize_detach, detach_arguments, own_workflow_cause
from activities.deletion.inputs_and_results import DetachResult
from activities.heartbeats import define_activity, send_heartbeats
from logstore.catalog.sql_catalog import Catalog
from logstore.errors import StaleCatalog
from logstore.positions import TopicId
from logstore.records.tombstone_rules import parse_delete_durability
from logstore.subjects import HasOutcomes, HasSubject, HasTopic, Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDeletionOrder(HasTopic):
    topic_id: int
    topic: str  # encoded; must be the name of `topic_id`
    actor: str
    reason: str
    catalog_epoch: int | None = None  # if given, it must be the catalog's epoch
    durable_delete: str | None = None  # a `DeleteDurability`; None: the topic's setting, or else durable


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDeletingSince:
    since_us: int  # by the catalog's clock
    catalog_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DetachAllLedgersInput(HasSubject):
    order: TopicDeletionOrder
    batch_id: str
    batch_workflow_id: str  # workflow of phase two, which gets the claim

    def subject(self) -> Subject:
        return replace(self.order.subject(), batch_id=self.batch_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveTopicInput(HasSubject):
    order: TopicDeletionOrder
    since_us: int

    def subject(self) -> Subject:
        return self.order.subject()


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedTopicTally(HasOutcomes):
    gone: bool
    outcomes: dict[str, int] = field(default_factory=dict)
    objects: int = 0  # confirmed by storage
    size_bytes: int = 0


class TopicDeletionActivities:
    def __init__(self, *, catalog: Catalog) -> None:
        self._phase_one, self._ledgers = catalog.phase_one, catalog.ledgers

    @define_activity(name="topic.set_deleting")
    @send_heartbeats()
    def set_topic_deleting(self, request: TopicDeletionOrder) -> TopicDeletingSince:
        """Set the topic DELETING. Afterwards no ledger can be added to the topic.

        Idempotency: keyed by topic id; a second call returns the time of the first call and writes no audit row.
        Raises: UnknownObject, PreconditionFailed, StaleCatalog, Unsupported (terminal); CatalogBusy, StoreUnavailable
            (retry).
        """
        epoch = self._require_epoch(request)
        parse_delete_durability(request.durable_delete)  # raises before anything changes
        since_us = self._phase_one.begin_topic_deletion(
            TopicId(request.topic_id), request.topic, own_workflow_cause(request.actor, request.reason)
        )
        return TopicDeletingSince(since_us=since_us, catalog_epoch=epoch)

    @define_activity(name="topic.detach_all")
    @send_heartbeats()
    def detach_all_ledgers(self, request: DetachAllLedgersInput) -> DetachResult:
        """Take all ledgers of the topic out of their lists and file an intent for each copy, in one SQL transaction.

        Idempotency: keyed by `batch_id`; a second call returns the first result.
        Raises: PreconditionFailed, StaleCatalog (terminal); CatalogBusy, StoreUnavailable (retry).
        """
        epoch, order = self._require_epoch(request.order), request.order
        batch = detach_arguments(request.batch_id, request.batch_workflow_id, order.actor, order.reason)
        durable = parse_delete_durability(order.durable_delete)
        return count_and_summarize_detach(
            self._phase_one.detach_whole_topic(TopicId(order.topic_id), durable=durable, **batch), epoch
        )

    @define_activity(name="topic.remove")
    @send_heartbeats()
    def remove_topic_and_tally(self, request: RemoveTopicInput) -> RemovedTopicTally:
        """Remove the topic's rows if no list of the topic has a ledger. Count the topic's intents by outcome.

        Idempotency: a removed topic is reported as gone; outcomes are counted from rows.
        Raises: PreconditionFailed, StaleCatalog (terminal); CatalogBusy, StoreUnavailable (retry).
        """
        order = request.order
        self._require_epoch(order)
        topic_id = TopicId(order.topic_id)
        cause, durable = own_workflow_cause(order.actor, order.reason), parse_delete_durability(order.durable_delete)
        is_gone = self._phase_one.remove_topic(topic_id, cause, durable=durable)
        tally = self._phase_one.tally_topic_intents(topic_id, since_us=request.since_us)
        return RemovedTopicTally(
            gone=is_gone, outcomes=dict(tally.outcomes), objects=tally.objects, size_bytes=tally.size_bytes
        )

    def _require_epoch(self, order: TopicDeletionOrder) -> int:
        epoch = self._ledgers.catalog_epoch()
        if order.catalog_epoch not in {None, epoch}:
            raise StaleCatalog(f"delete-topic: expected catalog epoch {epoch}, found {order.catalog_epoch}")
        return epoch
