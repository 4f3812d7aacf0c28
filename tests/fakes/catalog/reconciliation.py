"""Reconciliation's part of the catalog in memory."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from logstore.deletion.intents import DeletionIntent, DeletionState
from logstore.errors import ClaimHeld, PreconditionFailed, UnknownObject
from logstore.failpoints import effect
from logstore.log.ledgers import Component, CopyKind, LedgerState, segment_key
from logstore.ports.catalog import Cause, Claim, Detached
from logstore.ports.catalog.reconciliation import (
    FiledCopy,
    Filing,
    OrphanCopy,
    PageOfFindings,
    ReconciliationRun,
    RunKind,
    Standing,
)
from logstore.positions import LedgerId
from logstore.reconciliation.results import plan_run_id
from logstore.reconciliation.rules import reason_to_keep_segment, takes_segments
from tests.fakes.catalog.batches import SEVERAL_TOPICS, Batches, Run

_KINDS = {kind.value for kind in RunKind}


class FakeReconciliation(Batches):
    """The `Reconciliation` port."""

    def standing(self) -> Standing:
        catalog = self._catalog
        with catalog.lock:
            return Standing(
                now_us=catalog.now_us,
                epoch=catalog.current_epoch,
                next_ledger_id=catalog.next_ledger,
            )

    def count_ledgers(self, *, below: int) -> int:
        with self._catalog.lock:
            return sum(ledger_id < below for ledger_id in self._catalog.ledger_rows)

    def open_run(self, run_id: str, kind: RunKind, *, claim: Claim, summary: Mapping[str, Any]) -> ReconciliationRun:
        with effect("catalog.open_run"), self._catalog.lock:
            run = self._catalog.runs.get(run_id)
            if run is None:
                self._catalog.runs[run_id] = Run(
                    topic_id=SEVERAL_TOPICS,
                    request=None,
                    detached=Detached(batch_id=run_id, ledgers=0, intents=0),
                    holder=claim.workflow_id,
                    holder_run=claim.run_id,
                    until_us=self._catalog.until_us(claim.ttl_s),
                    kind=kind.value,
                    created_us=self._catalog.now_us,
                    summary=dict(summary),
                )
                return self._shown(run_id)
            if run.kind != kind.value:
                raise PreconditionFailed(f"run {run_id}: expected one of {kind.value}, found one of {run.kind}")
            if run.finished_us is None:
                if run.holder != claim.workflow_id and run.is_held(self._catalog.now_us):
                    raise ClaimHeld(f"run {run_id}: expected {claim.workflow_id}, found {run.holder}")
                run.holder, run.holder_run = claim.workflow_id, claim.run_id
                run.until_us = self._catalog.until_us(claim.ttl_s)
            return self._shown(run_id)

    def close_run(self, run_id: str, summary: Mapping[str, Any]) -> None:
        with effect("catalog.close_run"), self._catalog.lock:
            self._shown(run_id)
            run = self._catalog.runs[run_id]
            if run.finished_us is None:
                run.finished_us, run.summary = self._catalog.now_us, dict(summary)

    def run(self, run_id: str) -> ReconciliationRun:
        with self._catalog.lock:
            return self._shown(run_id)

    def runs(self, kind: RunKind, *, limit: int) -> list[ReconciliationRun]:
        with self._catalog.lock:
            mine = [self._shown(run_id) for run_id, run in self._catalog.runs.items() if run.kind == kind.value]
        return sorted(mine, key=lambda one: (one.created_us, one.run_id), reverse=True)[:limit]

    def forget(self, *, older_than_s: float, limit: int) -> list[str]:
        with effect("catalog.forget_runs"), self._catalog.lock:
            before_us = self._catalog.until_us(-older_than_s)
            newest = next((one.run_id for one in self.runs(RunKind.PLAN, limit=1_000) if one.finished_us), None)
            old = sorted(
                (run.created_us, run_id)
                for run_id, run in self._catalog.runs.items()
                if run.kind in _KINDS and run.created_us < before_us and not run.is_held(self._catalog.now_us)
            )
            names = {run_id for _, run_id in old}
            at_work = {
                plan_run_id(run_id)
                for run_id, run in self._catalog.runs.items()
                if run.kind == RunKind.APPLY.value and run.finished_us is None and run_id not in names
            }
            gone = [run_id for _, run_id in old if run_id not in {newest, *at_work}][:limit]
            for run_id in gone:
                del self._catalog.runs[run_id]
            return gone

    def _shown(self, run_id: str) -> ReconciliationRun:
        run = self._catalog.runs.get(run_id)
        if run is None or run.kind not in _KINDS:
            raise UnknownObject(
                "run id", expected="that of a plan or an apply, as `orphans list` shows it", found=run_id
            )
        return ReconciliationRun(
            run_id=run_id,
            kind=RunKind(run.kind),
            created_us=run.created_us,
            finished_us=run.finished_us,
            summary=run.summary,
        )

    def file(self, page: PageOfFindings) -> Filing:
        named = frozenset((one.number, one.copy, one.statement.ledger_id, _uuid(one)) for one in page.orphans)
        request = ("findings", named, frozenset(page.unreferenced.items()), frozenset(page.stalled.items()))
        with effect("catalog.file_findings"), self._catalog.lock:
            earlier = self.earlier(page.batch_id, request)
            if earlier:
                return Filing(detached=earlier.detached, kept=earlier.kept)
            before, kept = set(self._catalog.intent_rows), dict[int, str]()
            for one in page.orphans:
                if why := self._why_kept(one):
                    kept[one.number] = f"ledger {one.statement.ledger_id}: {why}"
                else:
                    self._file_orphan(one, page.batch_id)
            filed = set(self._catalog.intent_rows) - before
            gone = self._detach(page.batch_id, page.unreferenced, kept)
            copies = len(set(self._catalog.intent_rows) - before - filed)
            self._catalog.phase_one.decide(before, page.cause)
            new = self._catalog.phase_one.filed_since(before)
            taken = self._take_up(page.batch_id, page.stalled, kept)
            done = Detached(batch_id=page.batch_id, ledgers=gone, intents=len(filed) + copies + taken)
            self.open_batch(done, page.claim, request)
            self._catalog.runs[page.batch_id].kept = kept
            detail = {"orphans": len(filed), "unreferenced": gone, "stalled": taken, "kept": len(kept)}
            self._catalog.audit("file-findings", page.cause, detail, run_id=page.batch_id)
            return Filing(detached=replace(done, filed=new), kept=kept)

    def _why_kept(self, one: OrphanCopy) -> str | None:
        statement, catalog = one.statement, self._catalog
        if not 0 <= statement.ledger_id < catalog.next_ledger:
            return "this catalog never gave out that id"
        if statement.epoch > catalog.current_epoch:
            return f"it is of catalog epoch {statement.epoch}, and this is {catalog.current_epoch}"
        copy = catalog.copies.get(statement.ledger_id, {}).get(one.copy)
        if copy and (one.copy is CopyKind.LEDGER or copy.context.get("uuid", "") == _uuid(one)):
            return f"its row names this {one.copy.value} copy"
        for row in self._intents(statement.ledger_id):
            same = row.copy is one.copy and row.context.get("uuid", "") == _uuid(one)
            if same and row.state is not DeletionState.DELETED:
                return f"deletion {row.row_id} of this copy is {row.state.value}"
        return None

    def _intents(self, ledger_id: LedgerId) -> list[DeletionIntent]:
        return [row for row in self._catalog.intent_rows.values() if row.ledger_id == ledger_id]

    def _file_orphan(self, one: OrphanCopy, batch_id: str) -> None:
        catalog, statement = self._catalog, one.statement
        ledger = catalog.ledger_rows.get(statement.ledger_id)
        generations = [row.generation for row in self._intents(statement.ledger_id)]
        generation = max([0, *generations, ledger.generation if ledger else 0]) + 1
        catalog.intent_rows[catalog.next_row] = DeletionIntent(
            row_id=catalog.next_row,
            batch_id=batch_id,
            ledger_id=statement.ledger_id,
            copy=one.copy,
            generation=generation,
            application=statement.owner.application,
            component=statement.owner.component.value,
            topic_id=statement.owner.topic_id,
            topic=statement.owner.topic,
            keys=statement.owner.keys,
            context=one.context,
            ledger_created_us=statement.created_us,
            size_bytes=one.size_bytes,
            epoch=statement.epoch,
        )
        catalog.next_row += 1
        if ledger:
            catalog.ledger_rows[statement.ledger_id] = replace(ledger, generation=generation)

    def _detach(self, batch_id: str, unreferenced: Mapping[int, LedgerId], kept: dict[int, str]) -> int:
        for number, ledger_id in unreferenced.items():
            if why := self._reason_to_stay(ledger_id):
                kept[number] = f"ledger {ledger_id}: {why}"
        gone = {ledger_id for number, ledger_id in unreferenced.items() if number not in kept}
        for ledger_id in sorted(gone):
            self._catalog.file_intents(ledger_id, batch_id)
        return len(gone)

    def _reason_to_stay(self, ledger_id: LedgerId) -> str | None:
        catalog, row = self._catalog, self._catalog.ledger_rows.get(ledger_id)
        if row is None:
            return "it has left the catalog"
        if row.state is LedgerState.CREATING:
            return "it is being created"
        if row.component is Component.MANAGED_CURSOR:
            named = any(one.snapshot_ledger == ledger_id for one in catalog.cursor_rows.values())
        elif row.component is Component.SCHEMA_STORAGE:
            named = any(one.ledger_id == ledger_id for rows in catalog.schema_rows.values() for one in rows)
        else:
            named = ledger_id in catalog.lists[row.topic_id]
        if named:
            return "something names it"
        return None if catalog.copies[ledger_id] else "its copies, its list or its topic have no row"

    def _take_up(self, batch_id: str, stalled: Mapping[int, int], kept: dict[int, str]) -> int:
        taken = set()
        for number, row_id in stalled.items():
            row = self._catalog.intent_rows.get(row_id)
            if row and (row_id in taken or self.is_stalled(row)):
                taken.add(row_id)
                self._catalog.intent_rows[row_id] = replace(row, batch_id=batch_id, handed_to=None)
            else:
                kept[number] = f"deletion {row_id}: somebody works on it, or it has ended"
        return len(taken)

    def pass_over(self, segments: Mapping[int, tuple[LedgerId, int]], *, cause: Cause) -> Mapping[int, str]:
        with effect("catalog.pass_over"), self._catalog.lock:
            kept = {
                number: f"segment {at} of ledger {ledger_id}: {why}"
                for number, (ledger_id, at) in segments.items()
                if (why := self._reason_to_keep(ledger_id, at))
            }
            passed = sorted(at for number, at in segments.items() if number not in kept)
            for ledger_id, at in passed:
                row = self._catalog.ledger_rows[ledger_id]
                if takes_segments(row.state):
                    self._catalog.ledger_rows[ledger_id] = replace(row, last_segment=max(row.last_segment, at))
            if passed:
                keys = [segment_key(*one) for one in passed[:10]]
                told = {"segments": len(passed), "kept": len(kept), "keys": keys}
                self._catalog.audit("pass-over-segments", cause, told)
            return kept

    def _reason_to_keep(self, ledger_id: LedgerId, number: int) -> str | None:
        row = self._catalog.ledger_rows.get(ledger_id)
        if row is None:
            return "the ledger has left the catalog"
        if any(one.number == number for one in self._catalog.segment_rows.get(ledger_id, ())):
            return "a row names it"
        primary = CopyKind.LEDGER in self._catalog.copies[ledger_id]
        return reason_to_keep_segment(row.state, last_segment=row.last_segment, primary=primary, number=number)

    def filed(self, batch_id: str, *, after: int, limit: int) -> list[FiledCopy]:
        with self._catalog.lock:
            rows = [row for _, row in sorted(self._catalog.intent_rows.items()) if row.batch_id == batch_id]
            found = [row for row in rows if row.row_id > after][:limit]
            ends = self._catalog.confirmed
            return [
                FiledCopy(
                    row_id=row.row_id,
                    ledger_id=row.ledger_id,
                    copy=row.copy,
                    uuid=_uuid(row),
                    outcome=row.outcome,
                    error=row.last_error,
                    objects=ends.get(row.row_id, (0, 0))[0],
                    size_bytes=ends.get(row.row_id, (0, 0))[1],
                )
                for row in found
            ]


def _uuid(one: OrphanCopy | DeletionIntent) -> str:
    return one.context.get("uuid", "")
