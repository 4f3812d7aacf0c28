"""Records that a function ends: the function is asked page by page, and what it ends leaves its list (phase one)."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from activities.deletion import metrics
from activities.deletion.claims import detach_arguments
from activities.dispatch import check_topic_name
from activities.heartbeats import beating, defined, renewing_many
from activities.records.values import BeginEndingInput, EndedPage, EndingBegun, EndPageInput
from logstore.clock import Clock
from logstore.errors import CatalogAdopting, CorruptData, StaleCatalog, UnknownObject
from logstore.log.ledgers import LedgerState
from logstore.ports.catalog import Deletions, Ledger, Ledgers, PhaseOne, Records, Topic, Topics, TopicState
from logstore.positions import LedgerId, TopicId
from logstore.records.functions import LedgerRecord, RecordFunction, RecordFunctions, ends
from logstore.records.jobs import Place
from logstore.records.tombstones import asked_for
from logstore.units import raise_if_stopped

_TOPICS: Final = 100  # of a page: each costs two reads
_SAMPLE: Final = 10  # reasons told of a page
_ASKED_S: Final = 600.0
"""For so long a function is asked in one page: a slow one gets shorter pages, and none that outlasts its timeout."""


@dataclass(slots=True)
class _Found:
    """What was found and ended of one page so far."""

    going: dict[TopicId, list[Ledger]] = field(default_factory=dict)  # what the function ends, by topic
    ledgers: int = 0  # looked at
    records: int = 0  # of them, that the function was asked of
    after: Place | None = None  # where the next page begins; None: there is none


class RecordEnding:
    """The activities, over ports."""

    def __init__(
        self,
        *,
        topics: Topics,
        ledgers: Ledgers,
        phase_one: PhaseOne,
        deletions: Deletions,
        records: Records,
        functions: RecordFunctions,
        clock: Clock | None = None,
    ) -> None:
        """Take the ports, the functions that an operator has registered, and by which clock they are slow."""
        self._topics, self._ledgers = topics, ledgers
        self._phase_one, self._deletions = phase_one, deletions
        self._records, self._functions, self._clock = records, functions, clock or Clock()

    @defined(name="records.begin_ending")
    @beating()
    def begin_ending(self, request: BeginEndingInput) -> EndingBegun:
        """Look whether the function may be asked at all, before anything is changed.

        Idempotency: reads only; the time is that of the attempt whose answer counts.
        Raises: InvalidInput, UnknownObject, Unsupported, CatalogAdopting, StaleCatalog (terminal); StoreUnavailable,
            CatalogBusy (retry).
        """
        self._functions.named(request.function)
        asked_for(request.durable_delete)
        if request.topic_id:
            check_topic_name(self._topics, request.topic_id, request.topic)
            self._topics.get_by_id(TopicId(request.topic_id))
        state = self._records.state()
        if state.adopting:
            raise CatalogAdopting("catalog: expected one that is complete, found one that is rebuilt and adopts")
        if request.catalog_epoch not in {None, state.epoch}:
            raise StaleCatalog(f"end records: expected catalog epoch {state.epoch}, found {request.catalog_epoch}")
        return EndingBegun(now_us=state.now_us, catalog_epoch=state.epoch)

    @defined(name="records.end_page")
    def end_page(self, request: EndPageInput) -> EndedPage:
        """Ask the function of each closed ledger of a page; then detach those that it ends, topic by topic.

        The function has answered for the whole page before anything is detached: where it fails nothing of the page
        ends. What is needed stays, and so does what has changed since; a topic that is gone has nothing to end,
        and of one with a cursor that cannot be read everything stays.

        Idempotency: what an earlier attempt has detached is listed no more, and is in the batch; the rest of the page
        is asked again.
        Heartbeat: while it runs; the batch is held as well, so that no sweep takes up what is in it.
        Raises: InvalidInput, UnknownObject, Unsupported, FunctionFailed, StaleCatalog, CatalogAdopting, ClaimHeld
            (terminal); StoreUnavailable, CatalogBusy, OutcomeUnknown (retry).
        """
        if self._ledgers.epoch() != request.catalog_epoch:
            raise StaleCatalog(f"end records: expected catalog epoch {request.catalog_epoch}, found another one")
        if request.dry_run:
            with beating():
                return self._end_page(request)
        claim = detach_arguments(request.batch_id, request.batch_workflow_id, request.actor, request.reason)["claim"]
        with suppress(UnknownObject):  # nothing was detached into it yet
            self._deletions.renew(request.batch_id, claim)
        with renewing_many(lambda: self._deletions.renew(request.batch_id, claim)):
            return self._end_page(request)

    def _end_page(self, request: EndPageInput) -> EndedPage:
        found = self._ask(request, self._functions.named(request.function))
        ended, because, kept = list[LedgerId](), list[str](), 0
        for topic_id, going in found.going.items():
            raise_if_stopped()
            stays = self._stay(request, topic_id, going)
            if stays is None:
                continue
            ended += [one.ledger_id for one in going if one.ledger_id not in stays]
            because += [f"ledger {ledger_id}: {why}" for ledger_id, why in sorted(stays.items())]
            kept += len(stays)
        return EndedPage(
            records=found.records,
            ended=len(ended),
            kept=kept,
            ledger_ids=[int(one) for one in ended[:_SAMPLE]],
            because=because[:_SAMPLE],
            after=found.after,
        )

    def _ask(self, request: EndPageInput, function: RecordFunction) -> _Found:
        """Ask the function of ledgers, at least one, until the page is full or the time for a page is over."""
        found, until_s = _Found(), self._clock.monotonic_s() + _ASKED_S
        for topic in self._of_page(request):
            first = request.after.ledger_id if topic.topic_id == request.after.topic_id else 0
            left = request.page - found.ledgers
            for ledger in self._ledgers.list_ledgers(topic.topic_id, from_ledger=LedgerId(first), limit=left):
                if found.ledgers and self._clock.monotonic_s() > until_s:
                    return found
                found.ledgers += 1
                found.after = Place(topic_id=topic.topic_id, ledger_id=ledger.ledger_id + 1)
                if ledger.state is LedgerState.CLOSED:
                    found.records += 1
                    if _is_ended(request, function, topic, ledger):
                        found.going.setdefault(topic.topic_id, []).append(ledger)
            if found.ledgers >= request.page:
                return found
            found.after = None if request.topic_id else Place(topic_id=topic.topic_id + 1)
        return found

    def _of_page(self, request: EndPageInput) -> Iterator[Topic]:
        """ACTIVE topics from the place on; the one that was asked for, if it is that still."""
        if not request.topic_id:
            yield from self._topics.list_active(after=TopicId(request.after.topic_id - 1), limit=_TOPICS)
            return
        topic = self._topics.get_by_id(TopicId(request.topic_id))
        if topic.state is TopicState.ACTIVE:
            yield topic

    def _stay(self, request: EndPageInput, topic_id: TopicId, going: Sequence[Ledger]) -> Mapping[LedgerId, str] | None:
        """Detach the ledgers, or only look; returns those that stay, with the reasons. None: their topic is gone."""
        try:
            return self._end(request, topic_id, going)
        except UnknownObject:
            return None
        except CorruptData as error:  # of a cursor: what it needs is not known
            return dict.fromkeys((one.ledger_id for one in going), str(error))

    def _end(self, request: EndPageInput, topic_id: TopicId, going: Sequence[Ledger]) -> Mapping[LedgerId, str]:
        if request.dry_run:
            return self._phase_one.reasons_to_keep(topic_id, going)
        done = self._phase_one.detach_chosen(
            topic_id,
            going,
            durable=asked_for(request.durable_delete),
            **detach_arguments(request.batch_id, request.batch_workflow_id, request.actor, request.reason),
        )
        metrics.count_filed(done.detached.filed_counts)
        return done.reason_by_kept_ledger


def _is_ended(request: EndPageInput, function: RecordFunction, topic: Topic, ledger: Ledger) -> bool:
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
    return ends(request.function, function, record)
