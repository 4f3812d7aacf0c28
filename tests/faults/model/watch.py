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
from logstore.ports.catalog import Claim, DetachedBatch, IntentResult, Ledger, StoredCursor, Topic
from logstore.positions import LedgerId, TopicId
from tests.fakes.catalog import Copy, FakeCatalog
from tests.fakes.catalog.deletions import FakeDeletions
from tests.fakes.catalog.ledgers import FakeLedgers
from tests.fakes.catalog.phase_one import FakePhaseOne


@dataclass(frozen=True, kw_only=True)
class View:
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


def view(catalog: FakeCatalog, topic_id: TopicId) -> View | None:
    """The topic as it is; None when there is none."""
    topic = catalog.topic_rows.get(topic_id)
    if topic is None:
        return None
    return View(
        topic=topic,
        ledgers=tuple(catalog.ledger_rows[one] for one in catalog.lists[topic_id]),
        copies=frozenset((one, kind.value) for one, copies in catalog.copies.items() for kind in copies),
        writing=frozenset(
            one
            for one, copies in catalog.copies.items()
            for kind, copy in copies.items()
            if kind.value == "OFFLOADED_LEDGER" and copy.state.value == "WRITING" and _goes_on(copy, catalog.now_us)
        ),
        intents=frozenset((row.ledger_id, row.copy.value, row.row_id) for row in catalog.intent_rows.values()),
        cursors=tuple(row for (topic, _), row in sorted(catalog.cursor_rows.items()) if topic == topic_id),
        now_us=catalog.now_us,
    )


def _goes_on(copy: Copy, now_us: int) -> bool:
    """Whether an upload may still be going: until the time that it was given, and a minute more."""
    return "until_us" not in copy.context or int(copy.context["until_us"]) + 60_000_000 > now_us


def _needed(seen: View, row: Ledger, *, force: bool) -> bool:
    last = (int(row.ledger_id), row.entries - 1)
    marks = [(int(one.state.mark_delete.ledger_id), one.state.mark_delete.entry_id) for one in seen.cursors]
    unread = row.entries > 0 and any(mark < last for mark in marks)
    is_last = row.ledger_id == seen.ids[-1]
    return row.state.value != "CLOSED" or is_last or row.ledger_id in seen.writing or (unread and not force)


def _outlived(seen: View, at: int) -> bool:
    policy, closed_us = seen.topic.policy, seen.ledgers[at].closed_us
    newer = sum(row.size_bytes for row in seen.ledgers[at + 1 :])
    if not policy.retention_s and policy.retention_bytes is None:
        return True
    too_old = bool(policy.retention_s and closed_us is not None) and (
        seen.now_us - (closed_us or 0) >= policy.retention_s * 1_000_000
    )
    return too_old or (policy.retention_bytes is not None and newer >= policy.retention_bytes)


def prefix(seen: View) -> list[int]:
    """What retention must take: as much of the list's head as may go, and nothing behind it."""
    gone: list[int] = []
    for at, row in enumerate(seen.ledgers):
        if _needed(seen, row, force=False) or not _outlived(seen, at):
            break
        gone.append(row.ledger_id)
    return gone


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
            taken = super().claim_intent(
                ledger_id, copy, generation, claim, epoch=epoch, counts_attempt=counts_attempt, topic=topic
            )
            before = next(one for one in rows if one.row_id == taken.row_id)
            holder = self.holder(before)
            if before.state.value == "PENDING" and holder not in {None, claim.workflow_id}:
                self.wrong.append(f"{claim.workflow_id} took ledger {ledger_id}, which {holder} held")
            return taken


class WatchedPhaseOne(FakePhaseOne):
    """The fake; every detach is judged by the rows before and after it.

    Everything of a topic goes only once nothing can be attached to it any more.
    """

    def __init__(self, catalog: FakeCatalog, watched: WatchedDeletions) -> None:
        super().__init__(catalog)
        self._watched = watched

    @contextmanager
    def _judged(self, topic_id: TopicId, what: str, judge: Callable[..., Iterable[str]]) -> Iterator[None]:
        with self._catalog.lock:
            before, ended = view(self._catalog, topic_id), False
            try:
                yield
                ended = True
            finally:
                after = view(self._catalog, topic_id)
                if before and after:
                    gone = [one for one in before.ids if one not in after.ids]
                    self._watched.detached += gone
                    self._watched.wrong += [f"{what}: {one}" for one in judge(before, after, gone, ended=ended)]

    def detach_ledgers(
        self, topic_id: TopicId, ledger_ids: Sequence[LedgerId] | None, *, force: bool, batch_id: str, **more: Any
    ) -> DetachedBatch:
        judge = partial(_judge, asked=ledger_ids, force=force, repeated=batch_id in self._catalog.runs)
        with self._judged(topic_id, f"detach {batch_id}", judge):
            return super().detach_ledgers(topic_id, ledger_ids, force=force, batch_id=batch_id, **more)

    def detach_by_retention_into_batch(self, topic_id: TopicId, *, batch_id: str, **more: Any) -> DetachedBatch:
        repeated = self._counted(batch_id, topic_id).intents > 0
        judge = partial(_judge, asked=None, force=False, repeated=repeated)
        with self._judged(topic_id, f"detach into {batch_id}", judge):
            return super().detach_by_retention_into_batch(topic_id, batch_id=batch_id, **more)

    def detach_whole_topic(self, topic_id: TopicId, *, batch_id: str, **more: Any) -> DetachedBatch:
        with self._judged(topic_id, f"detach of all {batch_id}", _judge_all):
            return super().detach_whole_topic(topic_id, batch_id=batch_id, **more)


def _judge(
    before: View,
    after: View,
    gone: list[int],
    *,
    ended: bool,
    asked: Sequence[LedgerId] | None,
    force: bool,
    repeated: bool,
) -> Iterator[str]:
    may = prefix(before) if asked is None else [one for one in before.ids if one in asked]
    if after.ids != [one for one in before.ids if one not in gone]:
        yield f"the list was {before.ids} and is {after.ids}"
    if repeated and gone:
        yield f"a repeated call took {gone}"
    if gone and gone != may:  # a call that was refused, or died before its commit, took nothing
        yield f"it took {gone} out of {before.ids}, and {may} may go"
    if ended and not repeated and gone != may:
        yield f"it left {[one for one in may if one not in gone]}, which must go"
    if asked is not None:
        needed = [
            row.ledger_id for row in before.ledgers if row.ledger_id in gone and _needed(before, row, force=force)
        ]
        if needed:
            yield f"{needed} are needed"
    yield from _unfiled(before, after, gone)


def _judge_all(before: View, after: View, gone: list[int], *, ended: bool) -> Iterator[str]:
    del ended
    if gone and before.is_active:
        yield "it took ledgers of an ACTIVE topic"
    yield from _unfiled(before, after, gone)


def _unfiled(before: View, after: View, gone: list[int]) -> Iterator[str]:
    """Every copy that left has one new intent."""
    new = sorted((ledger_id, kind) for ledger_id, kind, _ in after.intents - before.intents)
    left = sorted(before.copies - after.copies)
    if new != left:
        yield f"copies {left} left, intents {new} were filed"
    if not set(gone) <= {ledger_id for ledger_id, _ in left}:
        yield f"{gone} left the list and not the catalog"
