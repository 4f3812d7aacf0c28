"""The state that every port's fake shares, under one lock."""

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from logstore.cursors.cursor_state import VisibleLedgerSpan
from logstore.deletion.intents import DeletionIntent, DeletionState
from logstore.errors import (
    PreconditionFailed,
    UnknownObject,
)
from logstore.identity.bucket_markers import BucketRole
from logstore.log.ledgers import CopyKind, CopyState, LedgerOwner, LedgerState, LedgerStatement
from logstore.ports.catalog.cursors import StoredCursor
from logstore.ports.catalog.deletion import AuditCause
from logstore.ports.catalog.log import Ledger, SchemaVersion, Segment, Topic, TopicState
from logstore.positions import LedgerId, TopicId
from logstore.trace_id import current_trace_id
from tests.fakes.catalog.batch_runs import FakeBatchRun
from tests.fakes.catalog.components import FakeComponents
from tests.fakes.catalog.cursors import FakeCursors
from tests.fakes.catalog.deletions import FakeDeletions
from tests.fakes.catalog.group_commits import FakeCommits, Misfortune
from tests.fakes.catalog.identities import FakeIdentities
from tests.fakes.catalog.ledgers import FakeLedgers
from tests.fakes.catalog.offloads import FakeOffloads
from tests.fakes.catalog.phase_one import FakePhaseOne
from tests.fakes.catalog.queue_upkeep import FakeUpkeep
from tests.fakes.catalog.schemas import FakeSchemas
from tests.fakes.catalog.topics import FakeTopics
from tests.fakes.catalog.transactions import FakeTransactions
from tests.fakes.catalog.unsupported_ports import UnrecordedOutbox, UnsupportedPort


@dataclass(frozen=True, kw_only=True)
class Copy:
    """One copy of a ledger."""

    state: CopyState
    context: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class FakeAuditRow:
    """A row of the audit log."""

    act: str
    cause: AuditCause
    run_id: str
    detail: Mapping[str, Any]


class _TracedIntentRows(dict[int, DeletionIntent]):
    """Rows that name the trace of whatever wrote them last."""

    def __setitem__(self, row_id: int, row: DeletionIntent) -> None:
        super().__setitem__(row_id, replace(row, trace_id=current_trace_id()))


class FakeCatalog:
    """The ports' in-memory state. Any number of threads may use it; every method is one transaction."""

    def __init__(
        self, *, now_us: int = 1_750_000_000_000_000, first_ledger: int = 0, registration_timeout_s: float = 600
    ) -> None:
        self.now_us = now_us  # stands still until moved
        self.current_epoch = 1
        self.catalog_id = "00000000-0000-4000-8000-000000000001"
        self.markers: dict[tuple[BucketRole, str], int] = {}  # when each bucket was recorded as marked
        self.next_ledger = first_ledger
        self.registration_timeout_s = registration_timeout_s  # a newborn older than this was abandoned
        self.lock = threading.RLock()
        self.topic_rows: dict[TopicId, Topic] = {}
        self.ledger_rows: dict[LedgerId, Ledger] = {}
        self.statements: dict[LedgerId, LedgerStatement] = {}  # whose each ledger is, also after it has gone
        self.copies: dict[LedgerId, dict[CopyKind, Copy]] = {}
        self.lists: dict[TopicId, list[LedgerId]] = {}
        self.versions: dict[TopicId, int] = {}
        self.segment_rows: dict[LedgerId, list[Segment]] = {}
        self.sequences: dict[tuple[TopicId, str], int] = {}
        self.cursor_rows: dict[tuple[TopicId, str], StoredCursor] = {}
        self.schema_rows: dict[TopicId, list[SchemaVersion]] = {}
        self.intent_rows: dict[int, DeletionIntent] = _TracedIntentRows()
        self.claim_until_us_by_row: dict[int, int] = {}  # until when an intent with `handed_to` is held
        self.ended_us: dict[int, int] = {}
        self.keys_left: dict[int, int] = {}  # of an intent, by its last attempt that storage answered
        self.begun_us: dict[TopicId, int] = {}  # when the deletion of a topic began
        self.next_topic = 1
        self.confirmed: dict[int, tuple[int, int]] = {}  # objects and bytes that an intent's end reported
        self.next_row = 1
        self.runs: dict[str, FakeBatchRun] = {}
        self.filed_rows_by_batch: dict[str, set[int]] = {}  # rows that were filed for a batch of many topics
        self.audited: list[FakeAuditRow] = []
        self.misfortunes: list[Misfortune] = []
        self.batches: list[int] = []  # writes of every commit call
        self.topics = FakeTopics(self)
        self.ledgers = FakeLedgers(self)
        self.components = FakeComponents(self)
        self.cursors = FakeCursors(self)
        self.schemas = FakeSchemas(self)
        self.commits = FakeCommits(self)
        self.identities = FakeIdentities(self)
        self.phase_one = FakePhaseOne(self)
        self.deletions = FakeDeletions(self)
        self.offloads = FakeOffloads(self)
        self.upkeep = FakeUpkeep(self)
        self.reconciliation = UnsupportedPort("reconciliation")
        self.cluster_journal = UnsupportedPort("cluster_journal")
        self.fences = UnsupportedPort("fences")
        self.audit_log = UnsupportedPort("audit log")
        self.transactions = FakeTransactions(self)
        self.transaction_snapshots = UnsupportedPort("snapshots of transactions")
        self.delayed = UnsupportedPort("lists of buckets")
        self.records = UnrecordedOutbox("record log")

    def advance(self, *, seconds: float) -> None:
        """Move the catalog's clock."""
        self.now_us += round(seconds * 1_000_000)

    def until_us(self, seconds: float) -> int:
        """So long from now."""
        return self.now_us + round(seconds * 1_000_000)

    @property
    def pending_deletion(self) -> list[LedgerId]:
        """Ledgers that an intent was filed for, in the order of filing, one for each copy."""
        return [row.ledger_id for row in self.intent_rows.values()]

    def detach(self, topic_id: TopicId, ledger_ids: Iterable[LedgerId]) -> None:
        """Phase one whatever its rule says: out of the list, with an intent that nobody works on."""
        with self.lock:
            for ledger_id in ledger_ids:
                self.replace_ledger_by_intents(ledger_id, "")

    def set_state(self, topic_id: TopicId, state: TopicState) -> None:
        """Let the topic be deleted, or not."""
        with self.lock:
            self.topic_rows[topic_id] = replace(self.topic_rows[topic_id], state=state)

    def spans(self, topic_id: TopicId) -> list[VisibleLedgerSpan]:
        """The topic's listed ledgers as cursors need them."""
        return [self.ledger_rows[ledger_id].span for ledger_id in self.lists[topic_id]]

    def topic(self, topic_id: TopicId, *, must_be_active: bool = False) -> Topic:
        """The topic; ACTIVE if asked."""
        topic = self.topic_rows.get(topic_id)
        if topic is None:
            raise UnknownObject("topic_id", expected="an existing topic", found=topic_id)
        if must_be_active and topic.state is not TopicState.ACTIVE:
            raise PreconditionFailed(f"topic {topic.name}: expected state ACTIVE, found {topic.state.value}")
        return topic

    def audit(self, act: str, cause: AuditCause, detail: Mapping[str, Any], *, run_id: str = "") -> None:
        """Keep who did what, and why."""
        trace_id = current_trace_id()
        traced_detail = detail if trace_id is None else {**detail, "trace_id": trace_id}
        self.audited.append(FakeAuditRow(act=act, cause=cause, detail=traced_detail, run_id=run_id))

    def bear(self, owner: LedgerOwner) -> LedgerStatement:
        """A ledger with the next id, CREATING and in no list yet."""
        ledger_id = LedgerId(self.next_ledger)
        self.next_ledger += 1
        statement = LedgerStatement(owner=owner, ledger_id=ledger_id, created_us=self.now_us, epoch=self.current_epoch)
        self.statements[ledger_id] = statement
        self.copies[ledger_id] = {CopyKind.LEDGER: Copy(state=CopyState.WRITING)}
        self.ledger_rows[ledger_id] = Ledger(
            ledger_id=ledger_id,
            topic_id=owner.topic_id,
            component=owner.component,
            state=LedgerState.CREATING,
            entries=0,
            size_bytes=0,
            last_segment=-1,
            generation=0,
            created_us=self.now_us,
            closed_us=None,
            keys=owner.keys,
        )
        return statement

    def mark_copy_live(self, ledger_id: LedgerId, kind: CopyKind) -> None:
        """The copy's evidence was checked: it is LIVE."""
        copies = self.copies[ledger_id]
        copies[kind] = replace(copies[kind], state=CopyState.LIVE)

    def restore_primary_copy(self, ledger_id: LedgerId) -> None:
        """A ledger that lost all of its copies' rows gets its primary one."""
        if not self.copies[ledger_id]:
            self.copies[ledger_id][CopyKind.LEDGER] = Copy(state=CopyState.WRITING)

    def replace_ledger_by_intents(self, ledger_id: LedgerId, batch_id: str) -> int:
        """Take the ledger out of its list, with an intent for each of its copies in its place, and count those."""
        row = self.ledger_rows.pop(ledger_id)
        segments = self.segment_rows.pop(ledger_id, [])
        copies = self.copies.pop(ledger_id)
        if ledger_id in self.lists[row.topic_id]:
            self.lists[row.topic_id].remove(ledger_id)
        for kind, copy in sorted(copies.items()):
            self._file_intent(row, kind, copy, batch_id, len(segments))
        return len(copies)

    def replace_copy_by_intent(self, ledger_id: LedgerId, kind: CopyKind, batch_id: str) -> None:
        """Take one copy of a listed ledger away, with an intent in its place; the ledger's generation rises."""
        row, copy = self.ledger_rows[ledger_id], self.copies[ledger_id].pop(kind)
        self._file_intent(row, kind, copy, batch_id, len(self.segment_rows.get(ledger_id, [])))
        self.ledger_rows[ledger_id] = replace(row, generation=row.generation + 1)

    def _file_intent(self, row: Ledger, kind: CopyKind, copy: Copy, batch_id: str, segment_count: int) -> None:
        statement, generation = self.statements[row.ledger_id], row.generation + 1
        identity = (row.ledger_id, kind, generation)
        assert all(
            (intent.ledger_id, intent.copy, intent.generation) != identity for intent in self.intent_rows.values()
        ), identity
        self.intent_rows[self.next_row] = DeletionIntent(
            row_id=self.next_row,
            batch_id=batch_id,
            ledger_id=row.ledger_id,
            copy=kind,
            generation=generation,
            application=statement.owner.application,
            component=statement.owner.component.value,
            topic_id=row.topic_id,
            topic=statement.owner.topic,
            keys=statement.owner.keys,
            context=copy.context,
            segments=segment_count,
            last_segment=row.last_segment,
            ledger_created_us=row.created_us,
            size_bytes=row.size_bytes,
            epoch=statement.epoch,
        )
        self.next_row += 1

    def reopen_intents(self, ledger_id: LedgerId, *, is_late_upload: bool = False) -> None:
        """Let phase two look again at a newborn that was abandoned too early, or where an uploader came late."""
        if is_late_upload and CopyKind.LEDGER in self.copies.get(ledger_id, {}):
            return
        for row in [intent for intent in self.intent_rows.values() if intent.ledger_id == ledger_id]:
            is_affected = row.copy is CopyKind.LEDGER if is_late_upload else not row.segments
            if row.state in {DeletionState.DELETED, DeletionState.PENDING} and is_affected:
                openings = row.openings + (row.state is DeletionState.DELETED)
                reopened = replace(row, state=DeletionState.PENDING, outcome=None, batch_id="", handed_to=None)
                reopened = replace(reopened, openings=openings)
                self.intent_rows[row.row_id] = reopened
