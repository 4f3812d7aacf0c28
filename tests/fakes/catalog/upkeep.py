"""Upkeep of the queue in memory: what nobody works on, what ended long ago, and dead letters that are tried again."""

from collections.abc import Sequence
from dataclasses import replace

from logstore.deletion.intent_queue_rules import normalize_ids, require_dead_letters
from logstore.deletion.intents import DeletionIntent, DeletionState
from logstore.failpoints import effect
from logstore.log.ledgers import LedgerState
from logstore.ports.catalog import AuditCause, Claim, DetachedBatch, RemovedRowCounts, SweepBacklogCounts
from logstore.positions import LedgerId, TopicId
from tests.fakes.catalog.batches import Batches, spanning

_NOBODY = AuditCause(actor="", reason="", workflow_id="")


class FakeUpkeep(Batches):
    """The `PhaseTwoQueueUpkeep` port."""

    def move_abandoned_work_to_batch(self, *, batch_id: str, claim: Claim, limit: int) -> DetachedBatch:
        with self._catalog.lock:
            earlier = self.earlier(batch_id, "sweep")
            if earlier:
                return earlier.detached
            newborn, stalled, dead = self._newborn(), self._stalled(), self._dead()
        if not newborn and not stalled and not dead:
            return DetachedBatch(batch_id=batch_id, ledgers=0, intents=0)
        with effect("catalog.adopt"), self._catalog.lock:
            before, taken = set(self._catalog.intent_rows), self._stalled()[:limit]
            born = self._newborn()[:limit]
            for row in taken:
                self._catalog.intent_rows[row.row_id] = replace(row, batch_id=batch_id, handed_to=None)
            filed = sum(self._catalog.file_intents(ledger_id, batch_id) for ledger_id in born)
            filed += sum(self._catalog.offloads.take_away_abandoned(one, batch_id) for one in self._dead()[:limit])
            new = self.decide(before, _NOBODY)
            done = DetachedBatch(batch_id=batch_id, ledgers=len(born), intents=len(taken) + filed, filed_counts=new)
            if done.intents:
                self.open_batch(done, claim, "sweep")
            return done

    def _stalled(self) -> list[DeletionIntent]:
        rows = sorted(self._catalog.intent_rows.items())
        return [row for _, row in rows if self.is_stalled(row)]

    def _dead(self) -> list[TopicId]:
        """Topics with copies of uploads that died."""
        return [topic_id for topic_id, listed in sorted(self._catalog.lists.items()) if self._dead_copies(listed)]

    def _dead_copies(self, listed: Sequence[LedgerId]) -> int:
        copies = [copy for one in listed for copy in self._catalog.copies[one].values()]
        return sum(map(self._catalog.offloads.is_abandoned, copies))

    def _newborn(self) -> list[LedgerId]:
        before_us = self._catalog.until_us(-self._catalog.registration_timeout_s)
        rows = [row for row in self._catalog.ledger_rows.values() if row.topic_id in self._catalog.topic_rows]
        young = [row for row in rows if row.state is LedgerState.CREATING and row.created_us < before_us]
        return sorted(row.ledger_id for row in young)

    def count_sweep_backlog(self, *, older_than_s: float) -> SweepBacklogCounts:
        with self._catalog.lock:
            before_us = self._catalog.until_us(-older_than_s)
            return SweepBacklogCounts(
                stalled=len(self._stalled()),
                newborn=len(self._newborn()),
                uploads=sum(self._dead_copies(listed) for listed in self._catalog.lists.values()),
                rows=len(self._ended(before_us)),
                runs=len(self._empty(before_us)),
            )

    def remove_finished_rows(self, *, older_than_s: float, limit: int, cause: AuditCause) -> RemovedRowCounts:
        with self._catalog.lock:
            before_us = self._catalog.until_us(-older_than_s)
            if not self._ended(before_us) and not self._empty(before_us):
                return RemovedRowCounts()
        with effect("catalog.forget"), self._catalog.lock:
            rows = self._ended(before_us)[:limit]
            for row_id in rows:
                del self._catalog.intent_rows[row_id]
            runs = self._empty(before_us)[:limit]
            for run_id in runs:
                del self._catalog.runs[run_id]
            self._catalog.audit("forget", cause, {"rows": len(rows), "runs": len(runs), "before_us": before_us})
            return RemovedRowCounts(rows=len(rows), runs=len(runs))

    def _ended(self, before_us: int) -> list[int]:
        now_us, runs = self._catalog.now_us, self._catalog.runs
        at_work = {name for name, run in runs.items() if run.is_held(now_us)}
        rows = [row for row in self._catalog.intent_rows.values() if row.state is DeletionState.DELETED]
        ended = [row for row in rows if self._catalog.ended_us[row.row_id] < before_us and row.batch_id not in at_work]
        return sorted((row.row_id for row in ended), key=lambda row_id: self._catalog.ended_us[row_id])

    def _empty(self, before_us: int) -> list[str]:
        used = {row.batch_id for row in self._catalog.intent_rows.values()}
        over = [
            name
            for name, run in self._catalog.runs.items()
            if (run.until_us if run.finished_us is None else run.finished_us) < before_us
        ]
        return [name for name in over if name not in used]

    def count_redrivable_dead_letters(self, row_ids: Sequence[int] | None) -> int:
        with self._catalog.lock:
            return len(self._wanted(row_ids))

    def redrive_dead_letters(
        self, row_ids: Sequence[int] | None, *, batch_id: str, claim: Claim, cause: AuditCause
    ) -> DetachedBatch:
        request = ("redrive", None if row_ids is None else frozenset(row_ids))
        with effect("catalog.redrive"), self._catalog.lock:
            earlier = self.earlier(batch_id, request)
            if earlier:
                return earlier.detached
            rows = self._wanted(row_ids)
            for row in rows:
                self._catalog.keys_left.pop(row.row_id, None)
                again = replace(row, batch_id=batch_id, state=DeletionState.PENDING, outcome=None)
                self._catalog.intent_rows[row.row_id] = replace(again, attempts=0, keys_left_attempts=0, handed_to=None)
            if rows:
                ids = sorted({row.ledger_id for row in rows})
                self._catalog.audit("redrive", cause, {"rows": len(rows), **spanning(ids)}, run_id=batch_id)
            done = DetachedBatch(batch_id=batch_id, ledgers=0, intents=len(rows))
            return self.open_batch(done, claim, request) if rows else done

    def _wanted(self, row_ids: Sequence[int] | None) -> list[DeletionIntent]:
        rows = self._catalog.intent_rows
        if row_ids is None:
            return [row for _, row in sorted(rows.items()) if row.state is DeletionState.DEAD_LETTERED]
        wanted = normalize_ids("deletion ids", row_ids)
        require_dead_letters(wanted, {one: (rows[one].state, rows[one].state.value) for one in wanted if one in rows})
        return [rows[row_id] for row_id in wanted]
