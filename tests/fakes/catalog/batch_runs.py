"""What the fakes of deletion share: batches, and who holds them."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from logstore.deletion.intents import DeletionIntent, DeletionState, Outcome
from logstore.errors import InvalidInput, PreconditionFailed
from logstore.ownership import Lease
from logstore.ports.catalog.deletion import AuditCause, Claim, DetachedBatch, FiledIntentCount, IntentTally
from logstore.positions import LedgerId, TopicId
from tests.fakes.catalog.unsupported_ports import UnsupportedPort

if TYPE_CHECKING:
    from tests.fakes.catalog.fake_catalog import FakeCatalog

SEVERAL_TOPICS = TopicId(0)


@dataclass(kw_only=True)
class FakeBatchRun:
    """A batch, held until a time, or finished."""

    topic_id: TopicId
    request: object  # what was asked
    detached: DetachedBatch
    holder: str
    until_us: int
    holder_run: str = ""
    finished_us: int | None = None

    def is_held(self, now_us: int) -> bool:
        """Claimed, and not finished."""
        return self.finished_us is None and self.until_us > now_us


class FakeBatchRuns(UnsupportedPort):
    """Opens batches, and says of rows whether somebody works on them."""

    def __init__(self, catalog: "FakeCatalog") -> None:
        super().__init__("such calls of deletion")
        self._catalog = catalog

    def with_lease(self, lease: Lease | None) -> Self:
        """Nobody owns bundles here."""
        assert lease is None
        return self

    def open_batch(
        self, detached: DetachedBatch, claim: Claim, request: object, topic_id: TopicId = SEVERAL_TOPICS
    ) -> DetachedBatch:
        """Hold the batch by the claim."""
        self._catalog.runs[detached.batch_id] = FakeBatchRun(
            topic_id=topic_id,
            request=request,
            detached=replace(detached, filed_counts=()),
            holder=claim.workflow_id,
            until_us=self._catalog.until_us(claim.ttl_s),
            holder_run=claim.run_id,
        )
        return detached

    def earlier(self, batch_id: str, request: object) -> FakeBatchRun | None:
        """The batch of that id, if there was one."""
        if not batch_id:
            raise InvalidInput("batch_id", expected="a name never used before", found=batch_id)
        run = self._catalog.runs.get(batch_id)
        if run and run.request != request:
            raise PreconditionFailed(f"batch {batch_id}: expected a name never used, found one of another request")
        return run

    def decide(
        self, earlier_row_ids: set[int], cause: AuditCause, *, durable: bool = False
    ) -> tuple[FiledIntentCount, ...]:
        """Keep who decided on intents that are new since then, and count them by component and copy."""
        rows = self._catalog.intent_rows
        new_rows = [rows[row_id] for row_id in rows.keys() - earlier_row_ids]
        for row in new_rows:
            rows[row.row_id] = replace(row, actor=cause.actor, reason=cause.reason, durable=durable)
        counts = Counter((row.component, row.copy.value) for row in new_rows)
        return tuple(
            FiledIntentCount(component=kind[0], copy=kind[1], rows=count) for kind, count in sorted(counts.items())
        )

    def counted(self, rows: Iterable[DeletionIntent]) -> IntentTally:
        """How they ended."""
        outcome_sizes = [
            (row.outcome or Outcome.RETRYING, *self._catalog.confirmed.get(row.row_id, (0, 0))) for row in rows
        ]
        return IntentTally(
            outcomes=dict(Counter(outcome.value for outcome, *_ in outcome_sizes)),
            objects=sum(objects for _, objects, _ in outcome_sizes),
            size_bytes=sum(size for *_, size in outcome_sizes),
        )

    def is_stalled(self, row: DeletionIntent) -> bool:
        """Unfinished, and neither its own claim nor, if it has none, that of its batch is live."""
        return row.state is DeletionState.PENDING and self.holder(row) is None

    def holder(self, row: DeletionIntent) -> str | None:
        """Which workflow is at work on the row now."""
        now_us = self._catalog.now_us
        if row.handed_to is not None:
            return row.handed_to if self._catalog.claim_until_us_by_row[row.row_id] > now_us else None
        run = self._catalog.runs.get(row.batch_id)
        return run.holder if run and run.is_held(now_us) else None


def audit_detail_of_ledgers(ids: Sequence[LedgerId]) -> dict[str, Any]:
    """What the audit log tells of ledgers, ascending."""
    return {"ledgers": len(ids), "first": ids[0], "last": ids[-1], "sample": ids[:20]}
