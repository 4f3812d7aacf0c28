"""Group commits in memory, with faults on request."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from logstore.cursors import cursor_state as cursors
from logstore.cursors.cursor_state import complete_state, state_without_snapshot
from logstore.errors import (
    InvalidInput,
    OutcomeUnknown,
    SextonError,
    Unsupported,
)
from logstore.failpoints import effect
from logstore.log.entries import HighestSequenceIds
from logstore.log.ledgers import LedgerState
from logstore.ports.catalog.log import (
    AcknowledgeResult,
    AcknowledgeWrite,
    GroupCommitResult,
    GroupCommitWrite,
    LedgerAppendState,
    RegisterSegmentResult,
    RegisterSegmentWrite,
    Segment,
)

if TYPE_CHECKING:
    from tests.fakes.catalog.fake_catalog import FakeCatalog


class Moment(StrEnum):
    """When a planned misfortune of a commit happens."""

    BEFORE = "before"  # nothing is written
    AFTER = "after"  # everything is written


@dataclass(frozen=True, kw_only=True)
class Misfortune:
    """What happens at one call of `commit`: `action` runs, then `error` is raised if there is one."""

    moment: Moment
    error: Callable[[], BaseException | None] = field(default=lambda: OutcomeUnknown("planned: connection lost"))
    action: Callable[[], None] = field(default=lambda: None)


class FakeCommits:
    """The `GroupCommits` port."""

    def __init__(self, catalog: "FakeCatalog") -> None:
        self._catalog = catalog

    def commit_writes(self, writes: Sequence[GroupCommitWrite]) -> list[GroupCommitResult]:
        self._apply_planned_fault(Moment.BEFORE)
        with effect("catalog.group_commit"), self._catalog.lock:
            self._catalog.batches.append(len(writes))
            results = [self._apply_write(write) for write in writes]
        self._apply_planned_fault(Moment.AFTER)
        return results

    def _apply_planned_fault(self, moment: Moment) -> None:
        with self._catalog.lock:
            planned = self._catalog.misfortunes
            if not planned or planned[0].moment is not moment:
                return
            fault = planned.pop(0)
        fault.action()
        error = fault.error()
        if error is not None:
            raise error

    def _apply_write(self, write: GroupCommitWrite) -> GroupCommitResult:
        try:
            match write:
                case RegisterSegmentWrite(transactions=()):
                    return self._register_segment(write)
                case AcknowledgeWrite(txn=None):
                    return self._acknowledge(write)
            raise Unsupported("the catalog in memory has no transactions")
        except SextonError as refused:
            return refused

    def _register_segment(self, write: RegisterSegmentWrite) -> RegisterSegmentResult:
        ledger = self._catalog.ledger_rows.get(write.ledger_id)
        current = write.epoch == self._catalog.current_epoch
        if current and (ledger is None or ledger.state is not LedgerState.OPEN):
            self._catalog.reopen_intents(write.ledger_id, is_late_upload=True)
        if write.entries < 1:
            raise InvalidInput("entries", expected="1 or more", found=write.entries)
        topic, last_sequences = self._catalog.topic_rows.get(write.topic_id), self._catalog.sequences
        keys = {(write.topic_id, producer.producer) for producer in write.producers}
        refusal = write.refusal(
            catalog_epoch=self._catalog.current_epoch,
            topic_state=topic.state if topic else None,
            ledger=LedgerAppendState(ledger.topic_id, ledger.state, ledger.last_segment) if ledger else None,
            sequences={
                key[1]: HighestSequenceIds.without_transaction(last_sequences[key])
                for key in keys & last_sequences.keys()
            },
        )
        if refusal or ledger is None:
            raise refusal or AssertionError("a ledger that no list has is refused")
        last_sequences.update({(write.topic_id, part.producer): part.last for part in write.producers})
        row = Segment(
            ledger_id=write.ledger_id,
            number=write.number,
            first_entry=ledger.entries,
            entries=write.entries,
            size_bytes=write.size_bytes,
            sha256=write.sha256,
            delayed=write.delayed,
        )
        self._catalog.segment_rows.setdefault(write.ledger_id, []).append(row)
        grown_ledger = replace(
            ledger,
            entries=ledger.entries + write.entries,
            size_bytes=ledger.size_bytes + write.size_bytes,
            last_segment=write.number,
        )
        self._catalog.ledger_rows[write.ledger_id] = grown_ledger
        return RegisterSegmentResult(
            first_entry=ledger.entries, ledger_entries=grown_ledger.entries, ledger_size_bytes=grown_ledger.size_bytes
        )

    def _acknowledge(self, write: AcknowledgeWrite) -> AcknowledgeResult:
        row = self._catalog.cursors.get_cursor(write.topic_id, write.subscription)
        spans = self._catalog.spans(write.topic_id)
        snapshot = cursors.require_snapshot(write.subscription, write.snapshot, needed=row.snapshot_ledger)
        before = complete_state(row.state, snapshot)
        cursors.require_current_releases(
            write.subscription,
            before,
            up_to=write.up_to,
            current_releases=row.releases,
            releases_at_read=write.releases,
        )
        if write.up_to is not None and write.releases is None and write.up_to > before.mark_delete:
            delayed = (
                cursors.DelayedSegmentRange(
                    span.ledger_id, range(segment.first_entry, segment.first_entry + segment.entries)
                )
                for span in spans
                for segment in self._catalog.segment_rows.get(span.ledger_id, [])
                if segment.delayed != 0
            )
            cursors.require_no_delayed_entries(write.subscription, before, spans, up_to=write.up_to, delayed=delayed)
        state = cursors.apply_acknowledgement(before, write.positions, write.up_to, spans)
        row_state = state_without_snapshot(state, snapshot)
        self._catalog.cursors._store(write.topic_id, write.subscription, row_state)
        size = len(cursors.pack_acknowledged(row_state.acknowledged))
        return AcknowledgeResult(mark_delete=state.mark_delete, row_bytes=size, snapshot_ledger=row.snapshot_ledger)
