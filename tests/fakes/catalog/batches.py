"""What the fakes of deletion share: batches, who holds them, and the lease that a write is under."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from logstore.deletion.intents import DeletionIntent, DeletionState
from logstore.errors import InvalidInput, PreconditionFailed
from logstore.ownership import Lease
from logstore.ports.catalog import Claim, Detached
from logstore.positions import TopicId

if TYPE_CHECKING:
    from tests.fakes.catalog.state import FakeCatalog

SEVERAL_TOPICS = TopicId(0)


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
    kind: str = "delete-ledgers"
    created_us: int = 0
    summary: Mapping[str, Any] = field(default_factory=dict)  # of a plan or an apply
    kept: Mapping[int, str] = field(default_factory=dict)  # of a page of findings: number -> why nothing was done

    def is_held(self, now_us: int) -> bool:
        """Claimed, or paused, and not finished."""
        return self.finished_us is None and (self.until_us > now_us or self.paused)


class Batches:
    """Opens batches, and says of rows whether somebody works on them."""

    def __init__(self, catalog: "FakeCatalog") -> None:
        self._catalog = catalog
        self._lease: Lease | None = None

    def under(self, lease: Lease | None) -> Self:
        bound = self if lease is None else copy(self)
        bound._lease = lease
        return bound

    @contextmanager
    def _fenced(self) -> Iterator[None]:
        """One write: under the catalog's lock, and the lease if there is one."""
        with self._catalog.lock:
            self._catalog.fences.hold(self._lease)
            yield

    def open_batch(self, done: Detached, claim: Claim, request: object, topic_id: TopicId = SEVERAL_TOPICS) -> Detached:
        """Hold the batch for whoever asked."""
        self._catalog.runs[done.batch_id] = Run(
            topic_id=topic_id,
            request=request,
            detached=done,
            holder=claim.workflow_id,
            until_us=self._catalog.until_us(claim.ttl_s),
            holder_run=claim.run_id,
        )
        return done

    def earlier(self, batch_id: str, request: object) -> Run | None:
        """The batch of that id, if there was one."""
        if not batch_id:
            raise InvalidInput("batch_id", expected="a name never used before", found=batch_id)
        run = self._catalog.runs.get(batch_id)
        if run and run.request != request:
            raise PreconditionFailed(f"batch {batch_id}: expected a name never used, found one of another request")
        return run

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
