"""Upkeep of the queue in memory: what nobody works on, what ended long ago, and dead letters that are tried again."""

from collections.abc import Sequence
from dataclasses import replace

from logstore.deletion.intent_queue_rules import normalize_ids, require_dead_letters
from logstore.deletion.intents import DeletionIntent, DeletionState
from logstore.failpoints import effect
from logstore.log.ledgers import LedgerState
from logstore.ports.catalog.deletion import AuditCause, Claim, DetachedBatch, RemovedRowCounts, SweepBacklogCounts
from logstore.positions import LedgerId, TopicId
from tests.fakes.catalog.batch_runs import FakeBatchRuns, audit_detail_of_ledgers

_NO_CAUSE = AuditCause(actor="", reason="", workflow_id="")


class FakeUpkeep(FakeBatchRuns):
    """The `PhaseTwoQueueUpkeep` port."""

    def move_abandoned_work_to_batch(self, *, batch_id: str, claim: Claim, limit: int) -> DetachedBatch:
        with self._catalog.lock:
            earlier = self.earlier(batch_id, "sweep")
            if earlier:
                return earlier.detached
            newborn, stalled, dead = (
                self._list_abandoned_newborns(),
                self._list_stalled_intents(),
                self._topics_with_abandoned_copies(),
            )
        if not newborn and not stalled and not dead:
            return DetachedBatch(batch_id=batch_id, ledgers=0, intents=0)
        with effect("catalog.adopt"), self._catalog.lock:
            before, stalled_rows = set(self._catalog.intent_rows), self._list_stalled_intents()[:limit]
            newborn_ids = self._list_abandoned_newborns()[:limit]
            for row in stalled_rows:
                self._catalog.intent_rows[row.row_id] = replace(row, batch_id=batch_id, handed_to=None)
            filed = sum(self._catalog.replace_ledger_by_intents(ledger_id, batch_id) for ledger_id in newborn_ids)
            filed += sum(
                self._catalog.offloads.file_abandoned_copies(topic_id, batch_id)
                for topic_id in self._topics_with_abandoned_copies()[:limit]
            )
            filed_counts = self.decide(before, _NO_CAUSE)
            detached = DetachedBatch(
                batch_id=batch_id,
                ledgers=len(newborn_ids),
                intents=len(stalled_rows) + filed,
                filed_counts=filed_counts,
            )
            if detached.intents:
                self.open_batch(detached, claim, "sweep")
            return detached

    def _list_stalled_intents(self) -> list[DeletionIntent]:
        rows = sorted(self._catalog.intent_rows.items())
        return [row for _, row in rows if self.is_stalled(row)]

    def _topics_with_abandoned_copies(self) -> list[TopicId]:
        """Topics with copies of uploads that died."""
        return [
            topic_id for topic_id, listed in sorted(self._catalog.lists.items()) if self._count_abandoned_copies(listed)
        ]

    def _count_abandoned_copies(self, listed: Sequence[LedgerId]) -> int:
        copies = [copy for ledger_id in listed for copy in self._catalog.copies[ledger_id].values()]
        return sum(map(self._catalog.offloads.is_abandoned, copies))

    def _list_abandoned_newborns(self) -> list[LedgerId]:
        before_us = self._catalog.until_us(-self._catalog.registration_timeout_s)
        rows = [row for row in self._catalog.ledger_rows.values() if row.topic_id in self._catalog.topic_rows]
        abandoned_rows = [row for row in rows if row.state is LedgerState.CREATING and row.created_us < before_us]
        return sorted(row.ledger_id for row in abandoned_rows)

    def count_sweep_backlog(self, *, older_than_s: float) -> SweepBacklogCounts:
        with self._catalog.lock:
            before_us = self._catalog.until_us(-older_than_s)
            return SweepBacklogCounts(
                stalled=len(self._list_stalled_intents()),
                newborn=len(self._list_abandoned_newborns()),
                uploads=sum(self._count_abandoned_copies(listed) for listed in self._catalog.lists.values()),
                rows=len(self._list_old_finished_rows(before_us)),
                runs=len(self._list_old_empty_runs(before_us)),
            )

    def remove_finished_rows(self, *, older_than_s: float, limit: int, cause: AuditCause) -> RemovedRowCounts:
        with self._catalog.lock:
            before_us = self._catalog.until_us(-older_than_s)
            if not self._list_old_finished_rows(before_us) and not self._list_old_empty_runs(before_us):
                return RemovedRowCounts()
        with effect("catalog.forget"), self._catalog.lock:
            rows = self._list_old_finished_rows(before_us)[:limit]
            for row_id in rows:
                del self._catalog.intent_rows[row_id]
            runs = self._list_old_empty_runs(before_us)[:limit]
            for run_id in runs:
                del self._catalog.runs[run_id]
            self._catalog.audit("forget", cause, {"rows": len(rows), "runs": len(runs), "before_us": before_us})
            return RemovedRowCounts(rows=len(rows), runs=len(runs))

    def _list_old_finished_rows(self, before_us: int) -> list[int]:
        now_us, runs = self._catalog.now_us, self._catalog.runs
        at_work = {name for name, run in runs.items() if run.is_held(now_us)}
        rows = [row for row in self._catalog.intent_rows.values() if row.state is DeletionState.DELETED]
        ended = [row for row in rows if self._catalog.ended_us[row.row_id] < before_us and row.batch_id not in at_work]
        return sorted((row.row_id for row in ended), key=lambda row_id: self._catalog.ended_us[row_id])

    def _list_old_empty_runs(self, before_us: int) -> list[str]:
        used = {row.batch_id for row in self._catalog.intent_rows.values()}
        old_run_ids = [
            name
            for name, run in self._catalog.runs.items()
            if (run.until_us if run.finished_us is None else run.finished_us) < before_us
        ]
        return [name for name in old_run_ids if name not in used]

    def count_redrivable_dead_letters(self, row_ids: Sequence[int] | None) -> int:
        with self._catalog.lock:
            return len(self._select_dead_letters(row_ids))

    def redrive_dead_letters(
        self, row_ids: Sequence[int] | None, *, batch_id: str, claim: Claim, cause: AuditCause
    ) -> DetachedBatch:
        request = ("redrive", None if row_ids is None else frozenset(row_ids))
        with effect("catalog.redrive"), self._catalog.lock:
            earlier = self.earlier(batch_id, request)
            if earlier:
                return earlier.detached
            rows = self._select_dead_letters(row_ids)
            for row in rows:
                self._catalog.keys_left.pop(row.row_id, None)
                pending_row = replace(row, batch_id=batch_id, state=DeletionState.PENDING, outcome=None)
                self._catalog.intent_rows[row.row_id] = replace(
                    pending_row, attempts=0, keys_left_attempts=0, handed_to=None
                )
            if rows:
                ids = sorted({row.ledger_id for row in rows})
                self._catalog.audit(
                    "redrive", cause, {"rows": len(rows), **audit_detail_of_ledgers(ids)}, run_id=batch_id
                )
            redriven = DetachedBatch(batch_id=batch_id, ledgers=0, intents=len(rows))
            return self.open_batch(redriven, claim, request) if rows else redriven

    def _select_dead_letters(self, row_ids: Sequence[int] | None) -> list[DeletionIntent]:
        rows = self._catalog.intent_rows
        if row_ids is None:
            return [row for _, row in sorted(rows.items()) if row.state is DeletionState.DEAD_LETTERED]
        requested_ids = normalize_ids("deletion ids", row_ids)
        require_dead_letters(
            requested_ids,
            {
                requested_id: (rows[requested_id].state, rows[requested_id].state.value)
                for requested_id in requested_ids
                if requested_id in rows
            },
        )
        return [rows[row_id] for row_id in requested_ids]
