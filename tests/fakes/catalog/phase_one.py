"""Phase one in memory: which ledgers go, and the intents that stand in their place."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from logstore.cursors import state as cursors
from logstore.deletion.intents import DeletionIntent, DeletionState, Outcome
from logstore.deletion.retention import LedgerFacts, detachable_prefix, reason_to_keep
from logstore.errors import InvalidInput, LedgerStillNeeded, PreconditionFailed, UnknownObject
from logstore.failpoints import effect
from logstore.log.ledgers import CopyKind, CopyState, LedgerState
from logstore.ownership import Lease
from logstore.ports.catalog import Cause, Claim, Detached, Filed
from logstore.positions import LedgerId, Position, TopicId

if TYPE_CHECKING:
    from tests.fakes.catalog.state import FakeCatalog

_MOST_IDS = 10_000
_BEFORE_ANY = LedgerId(-1)


@dataclass(kw_only=True)
class Run:
    """A batch, held until a time, or finished."""

    topic_id: TopicId
    request: object  # what was asked
    detached: Detached
    holder: str
    until_us: int
    holder_run: str = ""
    finished_us: int | None = None
    paused: bool = False

    def is_held(self, now_us: int) -> bool:
        """Claimed, or paused, and not finished."""
        return self.finished_us is None and (self.until_us > now_us or self.paused)


class FakePhaseOne:
    """Preview and detach; a part of `FakeDeletions`."""

    def __init__(self, catalog: "FakeCatalog") -> None:
        self._catalog = catalog
        self._lease: Lease | None = None

    def under(self, lease: Lease | None) -> Self:
        """See the port."""
        bound = self if lease is None else copy(self)
        bound._lease = lease
        return bound

    @contextmanager
    def _fenced(self) -> Iterator[None]:
        """One write: under the catalog's lock, and the lease if there is one."""
        with self._catalog.lock:
            self._catalog.fences.hold(self._lease)
            yield

    def preview(self, topic_id: TopicId, ledger_ids: Sequence[LedgerId] | None, *, force: bool) -> list[LedgerId]:
        """See the port."""
        with self._catalog.lock:
            return self._doomed(topic_id, ledger_ids, force=force)[0]

    def detach(
        self,
        topic_id: TopicId,
        ledger_ids: Sequence[LedgerId] | None,
        *,
        force: bool,
        batch_id: str,
        claim: Claim,
        cause: Cause,
    ) -> Detached:
        """See the port."""
        request = (topic_id, None if ledger_ids is None else frozenset(ledger_ids), force)
        with effect("catalog.detach"), self._fenced():
            self._catalog.topic(topic_id)
            earlier = self.earlier(batch_id, request)
            if earlier:
                return earlier.detached
            gone, finished = self._doomed(topic_id, ledger_ids, force=force)
            before = set(self._catalog.intent_rows)
            intents = self.adopt(topic_id, ledger_ids, batch_id)
            if ledger_ids is None:
                intents += self._file(self._abandoned(topic_id), batch_id)
            intents += self._file(gone, batch_id)
            if ledger_ids is None:
                intents += self._catalog.offloads.take_away_abandoned(topic_id, batch_id)
            self.decide(before, cause)
            done = Detached(batch_id=batch_id, ledgers=len(gone), intents=intents, finished=finished)
            if gone:
                self._close_holes(topic_id)
                self._catalog.versions[topic_id] += 1
                detail = {"ledgers": len(gone), "first": gone[0], "last": gone[-1], "sample": gone[:20]}
                self._catalog.audit("detach", cause, detail, run_id=batch_id)
            if intents or ledger_ids is not None:
                until_us = self._catalog.until_us(claim.ttl_s)
                self._catalog.runs[batch_id] = Run(
                    topic_id=topic_id,
                    request=request,
                    detached=done,
                    holder=claim.workflow_id,
                    until_us=until_us,
                    holder_run=claim.run_id,
                )
            return replace(done, filed=self.filed_since(before))

    def decide(self, before: set[int], cause: Cause) -> None:
        """Keep who decided on intents that are new since then."""
        rows = self._catalog.intent_rows
        for row_id in rows.keys() - before:
            rows[row_id] = replace(rows[row_id], actor=cause.actor, reason=cause.reason)

    def filed_since(self, before: set[int]) -> tuple[Filed, ...]:
        """Intents that are new since then, by component and copy."""
        new = [row for row_id, row in self._catalog.intent_rows.items() if row_id not in before]
        counts = Counter((row.component, row.copy.value) for row in new)
        return tuple(Filed(component=kind[0], copy=kind[1], rows=rows) for kind, rows in sorted(counts.items()))

    def earlier(self, batch_id: str, request: object) -> Run | None:
        """The batch of that id, if there was one."""
        if not batch_id:
            raise InvalidInput("batch_id", expected="a name never used before", found=batch_id)
        run = self._catalog.runs.get(batch_id)
        if run and run.request != request:
            raise PreconditionFailed(f"batch {batch_id}: expected a name never used, found one of another request")
        return run

    def _doomed(
        self, topic_id: TopicId, asked: Sequence[LedgerId] | None, *, force: bool
    ) -> tuple[list[LedgerId], dict[str, int]]:
        """Listed ledgers that go, ascending, and how those ended that were asked for and are gone."""
        topic = self._catalog.topic(topic_id)
        listed = self._catalog.lists[topic_id]
        last = listed[-1] if listed else _BEFORE_ANY
        marks = {row.name: row.state.mark_delete for row in self._catalog.cursors.all(topic_id)}
        if asked is None:
            prefix = detachable_prefix(
                map(self._facts, listed),
                marks=marks,
                policy=topic.policy,
                total_bytes=sum(self._catalog.ledger_rows[one].size_bytes for one in listed),
                last=last,
                now_us=self._catalog.now_us,
            )
            return [ledger.ledger_id for ledger in prefix], {}
        wanted = sorted(set(asked))
        if not 0 < len(wanted) <= _MOST_IDS:
            raise InvalidInput("ledger ids", expected=f"1 to {_MOST_IDS} ids", found=len(wanted))
        found = [one for one in wanted if one in listed]
        finished = self._ended(topic_id, [one for one in wanted if one not in listed])
        self._require_unneeded(found, {} if force else marks, last)
        return found, finished

    def _require_unneeded(self, ledgers: list[LedgerId], marks: dict[str, Position], last: LedgerId) -> None:
        for ledger_id in ledgers:
            reason = reason_to_keep(self._facts(ledger_id), last=last, marks=marks)
            if reason:
                raise LedgerStillNeeded(f"ledger {ledger_id}: {reason}")

    def _ended(self, topic_id: TopicId, ids: list[LedgerId]) -> dict[str, int]:
        rows = [row for row in self._catalog.intent_rows.values() if row.topic_id == topic_id and row.ledger_id in ids]
        unknown = set(ids) - {row.ledger_id for row in rows}
        if unknown:
            raise UnknownObject("ledger", expected="a ledger of the topic", found=min(unknown))
        outcomes = [(row.outcome or Outcome.RETRYING).value for row in rows if not self.is_stalled(row)]
        return {name: outcomes.count(name) for name in outcomes}

    def _facts(self, ledger_id: LedgerId) -> LedgerFacts:
        row = self._catalog.ledger_rows[ledger_id]
        tiered = self._catalog.copies[ledger_id].get(CopyKind.OFFLOADED_LEDGER)
        return LedgerFacts(
            ledger_id=ledger_id,
            state=row.state,
            entries=row.entries,
            size_bytes=row.size_bytes,
            closed_us=row.closed_us,
            offloading=tiered is not None
            and tiered.state is CopyState.WRITING
            and not self._catalog.offloads.is_abandoned(tiered),
        )

    def _abandoned(self, topic_id: TopicId) -> list[LedgerId]:
        """Newborn ledgers whose creator gave up or died."""
        before_us = self._catalog.until_us(-self._catalog.registration_timeout_s)
        return [
            row.ledger_id
            for row in self._catalog.ledger_rows.values()
            if (row.topic_id, row.state) == (topic_id, LedgerState.CREATING) and row.created_us < before_us
        ]

    def _file(self, ledgers: list[LedgerId], batch_id: str) -> int:
        return sum(self._catalog.file_intents(ledger_id, batch_id) for ledger_id in ledgers)

    def adopt(
        self, topic_id: TopicId, asked: Sequence[LedgerId] | None, batch_id: str, *, copy: CopyKind | None = None
    ) -> int:
        """Take up intents that nobody works on."""
        mine = [
            row
            for row in self._catalog.intent_rows.values()
            if row.topic_id == topic_id
            and self.is_stalled(row)
            and (asked is None or row.ledger_id in asked)
            and copy in {None, row.copy}
        ]
        for row in mine:
            self._catalog.intent_rows[row.row_id] = replace(row, batch_id=batch_id, handed_to=None)
        return len(mine)

    def is_stalled(self, row: DeletionIntent) -> bool:
        """Unfinished, and neither its own claim nor, if it has none, that of its batch is live."""
        return row.state is DeletionState.PENDING and self.holder(row) is None

    def holder(self, row: DeletionIntent) -> str | None:
        """Which workflow is at work on the row now."""
        now_us = self._catalog.now_us
        if row.handed_to is not None:
            return row.handed_to if self._catalog.claims_us[row.row_id] > now_us else None
        run = self._catalog.runs.get(row.batch_id)
        return run.holder if run and run.is_held(now_us) else None

    def _close_holes(self, topic_id: TopicId) -> None:
        spans = self._catalog.spans(topic_id)
        for row in self._catalog.cursors.all(topic_id):
            self._catalog.cursors._store(topic_id, row.name, cursors.advance(row.state, spans))
