"""Deletion of ledgers that a record function selects. The ledgers are detached page by page (phase one)."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from activities.deletion import metrics
from activities.deletion.claims_and_causes import detach_arguments
from activities.heartbeats import define_activity, send_heartbeats, send_heartbeats_during_renewals
from activities.owner_routing import require_topic_name_if_known
from logstore.catalog.sql_catalog import Catalog
from logstore.errors import CatalogAdopting, CorruptData, StaleCatalog, UnknownObject
from logstore.log.ledgers import LedgerState
from logstore.ports.catalog.log import Ledger, Topic, TopicState
from logstore.positions import LedgerId, TopicId
from logstore.records.functions import LedgerRecord, RecordFunction, RecordFunctionRegistry, should_end_record
from logstore.records.job_results import EndedRecords, SelectionPageStart
from logstore.records.tombstone_rules import parse_delete_durability
from logstore.retrying_clock import Clock
from logstore.stop_checks import raise_if_stopped
from logstore.subjects import HasBatch, HasFunction, HasTopic


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckEndRecordsInput(HasFunction, HasTopic):
    function: str
    topic_id: int = 0  # 0: all topics
    topic: str = ""  # encoded name, which must be the name of `topic_id`
    durable_delete: str | None = None  # a `DeleteDurability`; None: setting of the topic, or else durable
    catalog_epoch: int | None = None  # expected epoch of the catalog; None: any


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRecordsStart:
    now_us: int  # start of the job by the catalog's clock; the function gets this time with every record
    catalog_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRecordsPageInput(HasFunction, HasBatch):
    function: str
    topic_id: int  # 0: all topics
    after: SelectionPageStart
    page: int  # maximum number of ledgers in the page
    now_us: int
    catalog_epoch: int
    batch_id: str
    batch_workflow_id: str  # workflow of phase two, which gets the claim
    dry_run: bool = False
    durable_delete: str | None = None
    actor: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRecordsPageResult(EndedRecords):
    after: SelectionPageStart | None = None  # start of the next page; None: no next page


_MAX_TOPICS_PER_PAGE: Final = 100  # each topic costs two reads
_MAX_NAMED_LEDGERS: Final = 10  # maximum number of ids, and of reasons, in the result of a page
_MAX_ASKING_S: Final = 600.0
"""Maximum seconds of function calls in a page. With a slow function, a page ends early instead of timing out."""


@dataclass(slots=True)
class _PageProgress:
    ledgers_by_topic: dict[TopicId, list[Ledger]] = field(default_factory=dict)  # ledgers that the function selects
    ledgers: int = 0  # ledgers read so far
    records: int = 0  # ledgers for which the function was called
    after: SelectionPageStart | None = None  # start of the next page; `None`: no next page


class EndRecordsActivities:
    def __init__(self, *, catalog: Catalog, functions: RecordFunctionRegistry, clock: Clock | None = None) -> None:
        self._topics, self._ledgers = catalog.topics, catalog.ledgers
        self._phase_one, self._deletions = catalog.phase_one, catalog.deletions
        self._records, self._functions, self._clock = catalog.records, functions, clock or Clock()

    @define_activity(name="records.begin_ending")
    @send_heartbeats()
    def check_ending_request(self, request: CheckEndRecordsInput) -> EndRecordsStart:
        """Check the function, the topic and the catalog's epoch before anything changes.

        Idempotency: reads only. A repeated call returns a later `now_us`.
        Raises: InvalidInput, UnknownObject, Unsupported, CatalogAdopting, StaleCatalog (terminal); StoreUnavailable,
            CatalogBusy (retry).
        """
        self._functions.find_function(request.function)
        parse_delete_durability(request.durable_delete)
        if request.topic_id:
            require_topic_name_if_known(self._topics, request.topic_id, request.topic)
            self._topics.get_topic_by_id(TopicId(request.topic_id))
        state = self._records.read_state()
        if state.is_adopting:
            raise CatalogAdopting("catalog: expected one that is complete, found one that is rebuilt and adopts")
        if request.catalog_epoch not in {None, state.epoch}:
            raise StaleCatalog(f"end records: expected catalog epoch {state.epoch}, found {request.catalog_epoch}")
        return EndRecordsStart(now_us=state.now_us, catalog_epoch=state.epoch)

    @define_activity(name="records.end_page")
    def end_page(self, request: EndRecordsPageInput) -> EndRecordsPageResult:
        """Call the function for each closed ledger of a page, then detach the selected ledgers, topic by topic.

        All calls of a page come before the first detach. If a call fails, no ledger of the page is detached. Selected
        ledgers stay if they are needed or have changed meanwhile. If a cursor of a topic is unreadable, all ledgers of
        the topic stay.

        Idempotency: ledgers that an earlier attempt detached are in the batch, and in no list. For the page's remaining
            ledgers, the function is called again.
        Heartbeat: while the page runs, with renewals of the batch's claim, so that no sweep takes over the batch.
        Raises: InvalidInput, UnknownObject, Unsupported, FunctionFailed, StaleCatalog, CatalogAdopting, ClaimHeld
            (terminal); StoreUnavailable, CatalogBusy, OutcomeUnknown (retry).
        """
        if self._ledgers.catalog_epoch() != request.catalog_epoch:
            raise StaleCatalog(f"end records: expected catalog epoch {request.catalog_epoch}, found another one")
        if request.dry_run:
            with send_heartbeats():
                return self._select_and_detach(request)
        claim = detach_arguments(request.batch_id, request.batch_workflow_id, request.actor, request.reason)["claim"]
        with suppress(UnknownObject):  # no intent is filed in the batch yet
            self._deletions.renew_batch_claim(request.batch_id, claim)
        with send_heartbeats_during_renewals(lambda: self._deletions.renew_batch_claim(request.batch_id, claim)):
            return self._select_and_detach(request)

    def _select_and_detach(self, request: EndRecordsPageInput) -> EndRecordsPageResult:
        progress = self._select_ledgers(request)
        ended_ids, reasons, kept_count = list[LedgerId](), list[str](), 0
        for topic_id, ledgers in progress.ledgers_by_topic.items():
            raise_if_stopped()
            try:
                reason_by_kept_ledger = self._detach_or_check_selected(request, topic_id, ledgers)
            except UnknownObject:  # the topic is deleted
                continue
            except CorruptData as error:  # an unreadable cursor may need every ledger
                reason_by_kept_ledger = dict.fromkeys((ledger.ledger_id for ledger in ledgers), str(error))
            ended_ids += [ledger.ledger_id for ledger in ledgers if ledger.ledger_id not in reason_by_kept_ledger]
            reasons += [f"ledger {ledger_id}: {reason}" for ledger_id, reason in sorted(reason_by_kept_ledger.items())]
            kept_count += len(reason_by_kept_ledger)
        return EndRecordsPageResult(
            records=progress.records,
            ended=len(ended_ids),
            kept=kept_count,
            ledger_ids=[int(ledger_id) for ledger_id in ended_ids[:_MAX_NAMED_LEDGERS]],
            because=reasons[:_MAX_NAMED_LEDGERS],
            after=progress.after,
        )

    def _select_ledgers(self, request: EndRecordsPageInput) -> _PageProgress:
        """Call the record function for each closed ledger, until the page is full or `_MAX_ASKING_S` is over."""
        function = self._functions.find_function(request.function)
        progress, deadline_s = _PageProgress(), self._clock.monotonic_s() + _MAX_ASKING_S
        for topic in self._list_topics(request):
            first = request.after.ledger_id if topic.topic_id == request.after.topic_id else 0
            remaining = request.page - progress.ledgers
            for ledger in self._ledgers.list_ledgers(topic.topic_id, from_ledger=LedgerId(first), limit=remaining):
                if progress.ledgers and self._clock.monotonic_s() > deadline_s:
                    return progress
                progress.ledgers += 1
                progress.after = SelectionPageStart(topic_id=topic.topic_id, ledger_id=ledger.ledger_id + 1)
                if ledger.state is LedgerState.CLOSED:
                    progress.records += 1
                    if _should_end_ledger(request, function, topic, ledger):
                        progress.ledgers_by_topic.setdefault(topic.topic_id, []).append(ledger)
            if progress.ledgers >= request.page:
                return progress
            progress.after = None if request.topic_id else SelectionPageStart(topic_id=topic.topic_id + 1)
        return progress

    def _list_topics(self, request: EndRecordsPageInput) -> Iterator[Topic]:
        if not request.topic_id:
            yield from self._topics.list_active_topics(
                after=TopicId(request.after.topic_id - 1), limit=_MAX_TOPICS_PER_PAGE
            )
            return
        topic = self._topics.get_topic_by_id(TopicId(request.topic_id))
        if topic.state is TopicState.ACTIVE:
            yield topic

    def _detach_or_check_selected(
        self, request: EndRecordsPageInput, topic_id: TopicId, ledgers: Sequence[Ledger]
    ) -> Mapping[LedgerId, str]:
        """Detach the selected ledgers of a topic, or only check them in a dry run. Return why ledgers stay."""
        if request.dry_run:
            return self._phase_one.find_reasons_to_keep(topic_id, ledgers)
        chosen = self._phase_one.detach_chosen_ledgers(
            topic_id,
            ledgers,
            durable=parse_delete_durability(request.durable_delete),
            **detach_arguments(request.batch_id, request.batch_workflow_id, request.actor, request.reason),
        )
        metrics.count_filed_intents(chosen.detached.filed_counts)
        return chosen.reason_by_kept_ledger


def _should_end_ledger(request: EndRecordsPageInput, function: RecordFunction, topic: Topic, ledger: Ledger) -> bool:
    raise_if_stopped()
    record = LedgerRecord(
        topic=topic.name,
        ledger_id=ledger.ledger_id,
        entries=ledger.entries,
        size_bytes=ledger.size_bytes,
        created_us=ledger.created_us,
        closed_us=ledger.created_us if ledger.closed_us is None else ledger.closed_us,
        copies=frozenset(ledger.copies),
        generation=ledger.generation,
        now_us=request.now_us,
    )
    return should_end_record(request.function, function, record)
