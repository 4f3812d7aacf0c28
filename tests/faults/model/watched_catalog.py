"""What a detach may take, worked out anew from raw rows: no code of the rule itself.

Sources: PIP-186, first phase; apache/pulsar#20898 (a prefix), apache/pulsar#9136 (and all of it),
apache/pulsar#13219 (nothing that is being offloaded).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from logstore.deletion.intents import DeletionIntent
from logstore.log.ledgers import CopyKind
from logstore.ports.catalog.cursors import StoredCursor
from logstore.ports.catalog.deletion import Claim, DetachedBatch, IntentResult
from logstore.ports.catalog.log import Ledger, Topic
from logstore.positions import LedgerId, TopicId
from tests.fakes.catalog import Copy, FakeCatalog
from tests.fakes.catalog.deletions import FakeDeletions
from tests.fakes.catalog.ledgers import FakeLedgers
from tests.fakes.catalog.phase_one import FakePhaseOne


@dataclass(frozen=True, kw_only=True)
class TopicView:
    """A topic's list at one moment."""

    topic: Topic
    ledgers: tuple[Ledger, ...]  # listed, in order
    copies: frozenset[tuple[int, str]]  # ledger and kind, of every ledger there is
    writing: frozenset[int]  # ledgers that a copy is being made of
    intents: frozenset[tuple[int, str, int]]  # ledger, kind, row
    cursors: tuple[StoredCursor, ...]
    now_us: int

    @property
    def is_active(self) -> bool:
        """Whether things can be attached to the topic."""
        return self.topic.state.value == "ACTIVE"

    @property
    def ids(self) -> list[int]:
        """The list."""
        return [row.ledger_id for row in self.ledgers]


def view_topic(catalog: FakeCatalog, topic_id: TopicId) -> TopicView | None:
    """The topic as it is; None when there is none."""
    topic = catalog.topic_rows.get(topic_id)
    if topic is None:
        return None
    return TopicView(
        topic=topic,
        ledgers=tuple(catalog.ledger_rows[ledger_id] for ledger_id in catalog.lists[topic_id]),
        copies=frozenset((ledger_id, kind.value) for ledger_id, copies in catalog.copies.items() for kind in copies),
        writing=frozenset(
            ledger_id
            for ledger_id, copies in catalog.copies.items()
            for kind, copy in copies.items()
            if kind.value == "OFFLOADED_LEDGER"
            and copy.state.value == "WRITING"
            and _may_upload_continue(copy, catalog.now_us)
        ),
        intents=frozenset((row.ledger_id, row.copy.value, row.row_id) for row in catalog.intent_rows.values()),
        cursors=tuple(row for (topic, _), row in sorted(catalog.cursor_rows.items()) if topic == topic_id),
        now_us=catalog.now_us,
    )


def _may_upload_continue(copy: Copy, now_us: int) -> bool:
    """Whether an upload may still be going: until the time that it was given, and two minutes more."""
    return "until_us" not in copy.context or int(copy.context["until_us"]) + 120_000_000 > now_us


def _is_needed(topic_view: TopicView, row: Ledger, *, force: bool) -> bool:
    last_entry = (int(row.ledger_id), row.entries - 1)
    marks = [
        (int(cursor.state.mark_delete.ledger_id), cursor.state.mark_delete.entry_id) for cursor in topic_view.cursors
    ]
    unread = row.entries > 0 and any(mark < last_entry for mark in marks)
    is_last = row.ledger_id == topic_view.ids[-1]
    return row.state.value != "CLOSED" or is_last or row.ledger_id in topic_view.writing or (unread and not force)


def _is_retention_over(topic_view: TopicView, place: int) -> bool:
    policy, closed_us = topic_view.topic.policy, topic_view.ledgers[place].closed_us
    newer_bytes = sum(row.size_bytes for row in topic_view.ledgers[place + 1 :])
    if not policy.retention_s and policy.retention_bytes is None:
        return True
    too_old = bool(policy.retention_s and closed_us is not None) and (
        topic_view.now_us - (closed_us or 0) >= policy.retention_s * 1_000_000
    )
    return too_old or (policy.retention_bytes is not None and newer_bytes >= policy.retention_bytes)


def expected_detach_prefix(topic_view: TopicView) -> list[int]:
    """What retention must take: as much of the list's head as may go, and nothing behind it."""
    detachable_ids: list[int] = []
    for place, row in enumerate(topic_view.ledgers):
        if _is_needed(topic_view, row, force=False) or not _is_retention_over(topic_view, place):
            break
        detachable_ids.append(row.ledger_id)
    return detachable_ids


class WatchedLedgers(FakeLedgers):
    """The fake; it remembers what somebody gave up."""

    def __init__(self, catalog: FakeCatalog) -> None:
        super().__init__(catalog)
        self.given_up: set[int] = set()

    def record_abandoned_upload(self, ledger_id: LedgerId, *, epoch: int) -> None:
        self.given_up.add(int(ledger_id))
        super().record_abandoned_upload(ledger_id, epoch=epoch)


class WatchedDeletions(FakeDeletions):
    """The fake; it remembers who took a row that another workflow held."""

    def __init__(self, catalog: FakeCatalog) -> None:
        super().__init__(catalog)
        self.wrong: list[str] = []
        self.detached: list[int] = []  # every ledger that left its list by a detach
        self.before_finish: Callable[[], None] | None = None  # called once, when outcomes are about to be recorded

    def record_outcomes(self, results: Sequence[IntentResult], *, holder: str) -> frozenset[int]:
        hook, self.before_finish = self.before_finish, None
        if hook:
            hook()
        return super().record_outcomes(results, holder=holder)

    def claim_intent(
        self,
        ledger_id: LedgerId,
        copy: CopyKind,
        generation: int,
        claim: Claim,
        *,
        epoch: int | None = None,
        counts_attempt: bool = True,
        topic: str | None = None,
    ) -> DeletionIntent:
        with self._catalog.lock:
            rows = list(self._catalog.intent_rows.values())
            claimed = super().claim_intent(
                ledger_id, copy, generation, claim, epoch=epoch, counts_attempt=counts_attempt, topic=topic
            )
            before = next(row for row in rows if row.row_id == claimed.row_id)
            holder = self.holder(before)
            if before.state.value == "PENDING" and holder not in {None, claim.workflow_id}:
                self.wrong.append(f"{claim.workflow_id} took ledger {ledger_id}, which {holder} held")
            return claimed


class WatchedPhaseOne(FakePhaseOne):
    """The fake; every detach is judged by the rows before and after it.

    Everything of a topic goes only once nothing can be attached to it any more.
    """

    def __init__(self, catalog: FakeCatalog, watched: WatchedDeletions) -> None:
        super().__init__(catalog)
        self._watched = watched

    @contextmanager
    def _judge_detach(self, topic_id: TopicId, call_name: str, judge: Callable[..., Iterable[str]]) -> Iterator[None]:
        with self._catalog.lock:
            before, ended = view_topic(self._catalog, topic_id), False
            try:
                yield
                ended = True
            finally:
                after = view_topic(self._catalog, topic_id)
                if before and after:
                    detached_ids = [
                        ledger_or_sentence for ledger_or_sentence in before.ids if ledger_or_sentence not in after.ids
                    ]
                    self._watched.detached += detached_ids
                    self._watched.wrong += [
                        f"{call_name}: {ledger_or_sentence}"
                        for ledger_or_sentence in judge(before, after, detached_ids, ended=ended)
                    ]

    def detach_ledgers(
        self, topic_id: TopicId, requested_ids: Sequence[LedgerId] | None, *, force: bool, batch_id: str, **options: Any
    ) -> DetachedBatch:
        is_repeated = batch_id in self._catalog.runs
        judge = partial(_find_wrong_detach, requested_ids=requested_ids, force=force, repeated=is_repeated)
        with self._judge_detach(topic_id, f"detach {batch_id}", judge):
            return super().detach_ledgers(topic_id, requested_ids, force=force, batch_id=batch_id, **options)

    def detach_by_retention_into_batch(self, topic_id: TopicId, *, batch_id: str, **options: Any) -> DetachedBatch:
        repeated = self._count_batch_intents(batch_id, topic_id).intents > 0
        judge = partial(_find_wrong_detach, requested_ids=None, force=False, repeated=repeated)
        with self._judge_detach(topic_id, f"detach into {batch_id}", judge):
            return super().detach_by_retention_into_batch(topic_id, batch_id=batch_id, **options)

    def detach_whole_topic(self, topic_id: TopicId, *, batch_id: str, **options: Any) -> DetachedBatch:
        with self._judge_detach(topic_id, f"detach of all {batch_id}", _find_wrong_topic_detach):
            return super().detach_whole_topic(topic_id, batch_id=batch_id, **options)


def _find_wrong_detach(
    before: TopicView,
    after: TopicView,
    detached_ids: list[int],
    *,
    ended: bool,
    requested_ids: Sequence[LedgerId] | None,
    force: bool,
    repeated: bool,
) -> Iterator[str]:
    detachable_ids = (
        expected_detach_prefix(before)
        if requested_ids is None
        else [ledger_id for ledger_id in before.ids if ledger_id in requested_ids]
    )
    if after.ids != [ledger_id for ledger_id in before.ids if ledger_id not in detached_ids]:
        yield f"the list was {before.ids} and is {after.ids}"
    if repeated and detached_ids:
        yield f"a repeated call took {detached_ids}"
    if (
        detached_ids and detached_ids != detachable_ids
    ):  # a call that was refused, or died before its commit, took nothing
        yield f"it took {detached_ids} out of {before.ids}, and {detachable_ids} may go"
    if ended and not repeated and detached_ids != detachable_ids:
        yield f"it left {[ledger_id for ledger_id in detachable_ids if ledger_id not in detached_ids]}, which must go"
    if requested_ids is not None:
        needed = [
            row.ledger_id
            for row in before.ledgers
            if row.ledger_id in detached_ids and _is_needed(before, row, force=force)
        ]
        if needed:
            yield f"{needed} are needed"
    yield from _find_copies_without_intent(before, after, detached_ids)


def _find_wrong_topic_detach(
    before: TopicView, after: TopicView, detached_ids: list[int], *, ended: bool
) -> Iterator[str]:
    del ended
    if detached_ids and before.is_active:
        yield "it took ledgers of an ACTIVE topic"
    yield from _find_copies_without_intent(before, after, detached_ids)


def _find_copies_without_intent(before: TopicView, after: TopicView, detached_ids: list[int]) -> Iterator[str]:
    """Every copy that left has one new intent."""
    new_intents = sorted((ledger_id, kind) for ledger_id, kind, _ in after.intents - before.intents)
    removed_copies = sorted(before.copies - after.copies)
    if new_intents != removed_copies:
        yield f"copies {removed_copies} left, intents {new_intents} were filed"
    if not set(detached_ids) <= {ledger_id for ledger_id, _ in removed_copies}:
        yield f"{detached_ids} left the list and not the catalog"
