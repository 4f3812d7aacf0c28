"""A log store, a Temporal client and a stack that remember what the command line asked of them."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from logstore.cursors.cursor_state import CursorState, seek
from logstore.delayed.index_buckets import IndexBucketList
from logstore.deletion.intents import DeletionIntent, DeletionState, Outcome
from logstore.deletion.retention import RetentionPolicy
from logstore.errors import AlreadyExists, PreconditionFailed, UnknownObject
from logstore.log.entries import Entry, NewEntry, ProducedEntries
from logstore.log.ledgers import Component, CopyKind, LedgerState
from logstore.log.services.batched_appends import AppendResult
from logstore.log.services.segment_placement import RollResult
from logstore.ports.catalog.cursors import StoredCursor
from logstore.ports.catalog.delayed import UnsealedEntryCounts
from logstore.ports.catalog.deletion import SweepBacklogCounts, TopicContentCounts, UndeletedCopyCounts
from logstore.ports.catalog.log import (
    AcknowledgeResult,
    AcknowledgeWrite,
    Ledger,
    SchemaVersion,
    SubscriptionSummary,
    Topic,
    TopicLedgerTotals,
    TopicState,
    TopicSummary,
    TopicSummaryPage,
)
from logstore.ports.catalog.records import Tombstone
from logstore.positions import LedgerId, Position, TopicId
from logstore.records.record_kinds import RecordKind
from logstore.records.tombstone_rules import CompoundOperation
from tests.fakes.object_store import FakeObjectStore
from tests.fakes.reconciliation_runs import FakeReconciliationRuns
from tests.logstore.delayed.rows import Snapshots
from workers.cli.command_context import CommandServices, Say
from workers.client.schedules import AppliedSchedule, ScheduleSummary
from workers.client.workflow_search import WorkflowSummary
from workers.settings import LoadedSettings, load_settings
from workflows.deletion.job_definitions import DeleteLedgersProgress

ORDERS_TOPIC = "persistent://public/default/orders"
FAKE_TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"


class FakeLogStore:
    """One ledger a topic; also its own catalog, managed ledger and subscriptions."""

    def __init__(self) -> None:
        self.found: dict[str, Topic] = {}
        self.entries: list[NewEntry] = []
        self.appends: list[ProducedEntries] = []
        self.written: list[AcknowledgeWrite] = []
        self.subscribed: dict[str, StoredCursor] = {}
        self.previews: list[tuple[list[LedgerId] | None, bool]] = []
        self.rolled: list[LedgerId | None] = []
        self.last: Ledger | None = None
        self.fail_append_at: tuple[int, BaseException] | None = None
        self.closed = 0
        self.deletions = 1  # rows in the queue of phase two
        self.failed: list[DeletionIntent] = []  # deletions that are dead letters, or tried again alone
        self.failed_intent_queries: list[dict[str, object]] = []
        self.failures_fault: Exception | None = None
        self.reads: list[Mapping[str, object]] = []
        self.cumulative: tuple[int, Position] | None = (3, Position(LedgerId(4), 1))
        self.topic_logs = SimpleNamespace(append=self._append, roll=self._roll)
        self.delivery = SimpleNamespace(create_consumer=self._create_consumer)
        self.record_objects = FakeObjectStore()
        self.index = FakeDelayedIndex()
        self.delayed = SimpleNamespace(snapshots=self.index.snapshots)
        self.contents: list[bytes] = []  # of schema versions
        self.components: list[Ledger] = []  # beside the data ledgers
        self.schemas = SimpleNamespace(
            set=self._set_schema,
            all=lambda _: self._list_schema_versions(),
            read=lambda _, version: self._read_schema(version),
        )
        self.subscriptions = SimpleNamespace(
            subscribe=self._subscribe,
            get=self._get_subscription,
            all=lambda _: list(self.subscribed.values()),
            seek=self._seek,
            acknowledge=self._acknowledge,
        )
        self.catalog = SimpleNamespace(
            topics=SimpleNamespace(
                create_topic=self._create_topic,
                get_topic=self._get_topic,
                list_topic_summaries=self._list_topic_summaries,
                summarize_topic=self._summarize_topic,
            ),
            delayed=self.index,
            ledgers=SimpleNamespace(
                list_ledgers=self._list_ledgers,
                get_topic_totals=self._get_topic_totals,
                count_backlogs=self._count_backlogs,
                last_ledger=lambda _: self.last,
            ),
            components=SimpleNamespace(iterate_ledger_pages=self._iterate_ledger_pages),
            phase_one=SimpleNamespace(
                count_topic_contents=self._count_topic_contents,
                preview_detach=self._preview_detach,
                would_end_ledger=lambda _, operation: len(operation.remove) == len(CopyKind),
            ),
            tombstones=SimpleNamespace(list_topic_tombstones=self._list_topic_tombstones),
            upkeep=SimpleNamespace(
                count_sweep_backlog=self._count_sweep_backlog, count_redrivable_dead_letters=self._preview_redrive
            ),
            fences=SimpleNamespace(count_bundles=lambda: 64),
            reconciliation=FakeReconciliationRuns(),
            deletions=SimpleNamespace(
                count_undeleted_copies=lambda: UndeletedCopyCounts(estimated_inflight=2, dead_lettered=1),
                list_intents=self._list_intents,
                list_failed_intents=self._list_failed_intents,
            ),
        )

    def _list_topic_tombstones(
        self, topic_id: int, *, component: str | None, after: int, limit: int
    ) -> list[Tombstone]:
        columns = {"kind": RecordKind.LEDGER, "generation": 1, "epoch": 1, "at_us": 1_500_000, "raid": None}
        tombstones = [Tombstone(id=2, component="MANAGED_LEDGER", **columns)]  # type: ignore[arg-type]
        matching = [
            tombstone
            for tombstone in tombstones
            if topic_id == 7 and component in {None, tombstone.component} and tombstone.id > after
        ]
        return matching[:limit]

    def _count_sweep_backlog(self, *, older_than_s: float) -> SweepBacklogCounts:
        assert older_than_s == 30 * 86_400
        return SweepBacklogCounts(stalled=4, newborn=1, uploads=0, rows=7, runs=2)

    def _preview_redrive(self, row_ids: list[int] | None) -> int:
        if row_ids and 99 in row_ids:
            raise PreconditionFailed("deletions: expected dead letters, found 99 unknown; nothing was changed")
        return len(row_ids or [1, 2, 3])

    def _create_topic(self, name: str, policy: RetentionPolicy, *, durable_delete: bool | None = None) -> Topic:
        if name in self.found:
            raise AlreadyExists(f"topic {name} exists")
        columns = {"topic_id": TopicId(7), "created_us": 1_500_000, "durable_delete": durable_delete}
        topic = Topic(name=name, state=TopicState.ACTIVE, policy=policy, **columns)  # type: ignore[arg-type]
        self.found[name] = topic
        return topic

    def _get_topic(self, name: str) -> Topic:
        if name not in self.found:
            raise UnknownObject("topic", expected="an existing topic", found=name)
        return self.found[name]

    def _list_topic_summaries(
        self, *, prefix: str, limit: int, state: TopicState | None = None, after: str = ""
    ) -> TopicSummaryPage:
        matching = [
            topic for topic in self.found.values() if topic.name.startswith(prefix) and state in {None, topic.state}
        ]
        following = [topic for topic in sorted(matching, key=lambda topic: topic.name) if topic.name > after]
        return TopicSummaryPage(
            topics=[self._summarize_topic(topic) for topic in following[:limit]], more=len(following[limit:])
        )

    def _summarize_topic(self, topic: Topic) -> TopicSummary:
        subscriptions = [
            SubscriptionSummary(
                name=subscription.name,
                mark_delete=subscription.state.mark_delete,
                created_us=subscription.created_us,
                backlog=self._count_backlogs(topic.topic_id, [subscription.state])[0]
                if subscription.lost_snapshot is None
                else None,
            )
            for subscription in self.subscribed.values()
        ]
        return TopicSummary(topic=topic, totals=self._get_topic_totals(topic.topic_id), subscriptions=subscriptions)

    def _list_ledgers(self, topic_id: TopicId, *, from_ledger: LedgerId | None = None) -> list[Ledger]:
        count = len(self.entries)
        facts = {"topic_id": topic_id, "component": Component.MANAGED_LEDGER, "state": LedgerState.OPEN}
        sizes = {"entries": count, "size_bytes": 10 * count, "last_segment": 0, "generation": 1}
        return [Ledger(ledger_id=LedgerId(4), **facts, **sizes, created_us=0, closed_us=None)]  # type: ignore[arg-type]

    def _iterate_ledger_pages(self, topic_id: TopicId, *, component: Component | None) -> Iterator[list[Ledger]]:
        yield from (
            [ledger]
            for ledger in [*self._list_ledgers(topic_id), *self.components]
            if component in {None, ledger.component}
        )

    def _get_topic_totals(self, topic_id: TopicId) -> TopicLedgerTotals:
        count, ledger_id = len(self.entries), LedgerId(4)
        first_position, last_position = (
            (Position(ledger_id, 0), Position(ledger_id, count - 1)) if count else (None, None)
        )
        return TopicLedgerTotals(
            ledgers=1, entries=count, size_bytes=10 * count, first=first_position, last=last_position
        )

    def _count_backlogs(self, topic_id: TopicId, states: list[CursorState]) -> list[int]:
        positions = [Position(LedgerId(4), entry_id) for entry_id in range(len(self.entries))]
        return [sum(not state.covers(position) for position in positions) for state in states]

    def _append(self, topic: Topic, produced: ProducedEntries) -> AppendResult:
        if self.fail_append_at and self.fail_append_at[0] == len(self.appends):
            raise self.fail_append_at[1]
        self.appends.append(produced)
        first_entry = len(self.entries)
        self.entries += produced.entries
        ends = Position(LedgerId(4), first_entry), Position(LedgerId(4), len(self.entries) - 1)
        return AppendResult(count=len(produced.entries), first=ends[0], last=ends[1])

    def _roll(self, topic: Topic) -> RollResult:
        return RollResult(closed=LedgerId(4), opened=LedgerId(5))

    @contextmanager
    def _create_consumer(
        self, topic: Topic, subscription: str | None, *, from_position: Position | None, columns: Sequence[str]
    ) -> Iterator[SimpleNamespace]:
        def receive(max_entries: int) -> list[Entry]:
            self.reads.append(
                {
                    "subscription": subscription,
                    "from_position": from_position,
                    "max_entries": max_entries,
                    "columns": tuple(columns),
                }
            )
            return [
                Entry(
                    position=Position(LedgerId(4), entry_id),
                    publish_ms=5,
                    deliver_at_ms=entry.deliver_at_ms,
                    key=entry.key,
                    payload=entry.payload,
                )
                for entry_id, entry in enumerate(self.entries[:max_entries])
            ]

        yield SimpleNamespace(receive=receive, cumulative_bounds=lambda: self.cumulative)

    def _acknowledge(
        self,
        topic_id: TopicId,
        name: str,
        *,
        positions: tuple[Position, ...],
        up_to: Position | None,
        releases: int | None,
        txn: object,
    ) -> AcknowledgeResult:
        assert txn is None
        write = AcknowledgeWrite(
            topic_id=topic_id, subscription=name, positions=positions, up_to=up_to, releases=releases
        )
        self.written.append(write)
        return AcknowledgeResult(mark_delete=up_to or max(positions))

    def _subscribe(self, topic_id: TopicId, name: str, *, latest: bool) -> StoredCursor:
        mark = Position(LedgerId(4), len(self.entries) - 1 if latest else -1)
        subscription = StoredCursor(name=name, state=CursorState(mark), created_us=0)
        return self.subscribed.setdefault(name, subscription)

    def _get_subscription(self, topic_id: TopicId, name: str) -> StoredCursor:
        if name not in self.subscribed:
            raise UnknownObject("subscription", expected="an existing subscription", found=name)
        return self.subscribed[name]

    def _seek(self, topic_id: TopicId, name: str, position: Position) -> StoredCursor:
        subscription = self._get_subscription(topic_id, name)
        state = seek(position, [ledger.span for ledger in self._list_ledgers(topic_id)])
        return StoredCursor(name=name, state=state, created_us=subscription.created_us)

    def _count_topic_contents(self, topic_id: TopicId) -> TopicContentCounts:
        copies = {"MANAGED_LEDGER": {"LEDGER": 2, "OFFLOADED_LEDGER": 1}}
        return TopicContentCounts(ledgers={"MANAGED_LEDGER": 2}, copies=copies, subscriptions=3)

    def _set_schema(self, topic: Topic, content: bytes) -> SchemaVersion:
        self.contents.append(content)
        return self._list_schema_versions()[-1]

    def _list_schema_versions(self) -> list[SchemaVersion]:
        return [
            SchemaVersion(
                version=version,
                ledger_id=LedgerId(40 + version),
                digest=f"d{version}",
                size_bytes=len(content),
                created_us=0,
            )
            for version, content in enumerate(self.contents)
        ]

    def _read_schema(self, version: int | None) -> tuple[SchemaVersion, bytes]:
        index = -1 if version is None else version
        return self._list_schema_versions()[index], self.contents[index]

    def _preview_detach(
        self, topic_id: TopicId, ids: list[LedgerId] | None, *, force: bool, rolled: LedgerId | None = None
    ) -> list[LedgerId]:
        self.previews.append((ids, force))
        self.rolled.append(rolled)
        return [LedgerId(1), LedgerId(2)] if ids is None else ids

    def _list_failed_intents(self, **filters: object) -> list[DeletionIntent]:
        self.failed_intent_queries.append({name: value for name, value in filters.items() if value is not None})
        if self.failures_fault:
            raise self.failures_fault
        return self.failed

    def _list_intents(
        self, state: DeletionState | None, *, topic: str | None, ledger_id: LedgerId | None, limit: int
    ) -> list[DeletionIntent]:
        intent = DeletionIntent(
            row_id=1,
            batch_id="b",
            ledger_id=LedgerId(4),
            copy=CopyKind.LEDGER,
            generation=1,
            application="sexton",
            component="MANAGED_LEDGER",
            topic_id=TopicId(7),
            topic="persistent://public/default/a%20b",
            keys={},
            state=state or DeletionState.PENDING,
            outcome=Outcome.RETRYING,
        )
        return ([intent] * self.deletions)[:limit]


class FakeDelayedIndex:
    """`DelayedIndex` as the command line calls it; buckets are put into the list by tests, snapshots are in memory."""

    def __init__(self) -> None:
        self.snapshots = Snapshots()
        self.list = IndexBucketList()
        self.behind = 0
        self.at_work: str | None = None
        self.cleared: list[str] = []

    def get_bucket_list(self, topic_id: TopicId) -> IndexBucketList:
        return self.list

    def count_unsealed_entries(self, topic_id: TopicId) -> UnsealedEntryCounts:
        return UnsealedEntryCounts(entries=self.behind, ledgers=1, changed_us=None)

    def find_claim_holder(self, topic_id: TopicId) -> str | None:
        return self.at_work

    def retire_all_buckets(self, topic_id: TopicId, *, reason: str) -> int:
        self.cleared.append(reason)
        return len(self.list.buckets)


@dataclass(frozen=True)
class FakeDeletionResult:
    """What a deleting workflow returns."""

    outcomes: dict[str, int]
    detached: int = 3
    deleted: int = 3
    batches: int = 1
    intents: int = 3
    newborn: int = 0
    uncertified: int = 0
    forgotten: int = 7
    batch_id: str = "redrive-1"


@dataclass
class FakeJobHandle:
    """A workflow that was started."""

    result_or_error: FakeDeletionResult | BaseException
    id: str = "trim-topic/7"
    first_execution_run_id: str = "run-1"

    async def result(self) -> FakeDeletionResult:
        """Its result, or what it failed with."""
        if isinstance(self.result_or_error, BaseException):
            raise self.result_or_error
        return self.result_or_error


@dataclass
class FakeDeletionBatches:
    """`workers.client.deletion_batches.Batches` as the command line calls it: one batch, told what to do."""

    known: DeleteLedgersProgress = field(
        default_factory=lambda: DeleteLedgersProgress(intents=9, outcomes={"DELETED": 4}, objects=12, done=4, left=5)
    )
    ended: bool = False

    def _update_progress(self, workflow_id: str, **orders: Any) -> DeleteLedgersProgress:
        if workflow_id != "delete-ledgers/b":
            raise UnknownObject("workflow", expected="the id of a batch", found=workflow_id)
        if self.ended:
            raise PreconditionFailed(f"{workflow_id}: expected a batch that is running, found COMPLETED")
        self.known = replace(self.known, **orders)
        return self.known

    async def progress(self, workflow_id: str) -> DeleteLedgersProgress:
        return self._update_progress(workflow_id)

    async def pause(self, workflow_id: str) -> DeleteLedgersProgress:
        return self._update_progress(workflow_id, paused=True)

    async def resume(self, workflow_id: str) -> DeleteLedgersProgress:
        return self._update_progress(workflow_id, paused=False)

    async def set_rate(self, workflow_id: str, objects_per_s: int) -> DeleteLedgersProgress:
        return self._update_progress(workflow_id, rate=objects_per_s)


@dataclass
class FakeSextonClient:
    """`workers.client.sexton.Sexton` as the command line calls it."""

    result: FakeDeletionResult | BaseException = field(default_factory=lambda: FakeDeletionResult({"DELETED": 3}))
    asked: list[tuple[object, ...]] = field(default_factory=list)
    finished_recurring: list[bool] = field(default_factory=list)
    dead: int = 3  # dead letters
    durable: list[bool | None] = field(default_factory=list)  # what deletes were told of tombstones
    batches: FakeDeletionBatches = field(default_factory=FakeDeletionBatches)

    async def wait_for_result(self, handle: FakeJobHandle, say: Say) -> FakeDeletionResult:
        """What it ends with."""
        say(f"started {handle.id}")
        return await handle.result()

    def format_web_ui_url(self, workflow_id: str, run_id: str | None) -> str:
        """A page of a Web UI."""
        return f"http://ui/{workflow_id}/{run_id}"

    async def trim_topic(self, topic: Topic, reason: str, actor: str) -> FakeJobHandle:
        self.asked.append((topic.name, reason))
        return FakeJobHandle(self.result)

    async def delete_topic(
        self, topic: Topic, reason: str, actor: str, *, durable_delete: bool | None
    ) -> FakeJobHandle:
        self.asked.append(("delete", topic.name, reason))
        self.durable.append(durable_delete)
        return FakeJobHandle(self.result, id="delete-topic/7")

    async def delete_ledgers(
        self,
        topic: Topic,
        ledger_ids: Sequence[LedgerId],
        force: bool,
        reason: str,
        actor: str,
        *,
        durable_delete: bool | None,
    ) -> FakeJobHandle:
        self.durable.append(durable_delete)
        self.asked.append((topic.name, list(ledger_ids), force, reason))
        return FakeJobHandle(self.result, id="delete-ledgers/1")

    async def run_compound_operation(
        self, topic: Topic, operation: CompoundOperation, reason: str, actor: str, *, durable_delete: bool | None
    ) -> FakeJobHandle:
        self.durable.append(durable_delete)
        self.asked.append((topic.name, operation, reason))
        return FakeJobHandle(self.result, id="delete-ledgers/2")

    async def redrive_dead_letters(self, row_ids: Sequence[int] | None, reason: str, actor: str) -> SimpleNamespace:
        """Remember the call; nothing is started where nothing is dead."""
        self.asked.append((row_ids, reason))
        handle = FakeJobHandle(self.result, id="delete-ledgers/redrive-1") if self.dead else None
        return SimpleNamespace(started=self.dead, handle=handle)

    async def sweep_deletions(self, reason: str, actor: str) -> FakeJobHandle:
        self.asked.append((reason,))
        return FakeJobHandle(self.result, id="sweep-deletions")

    async def plan_orphans(self, **options: object) -> FakeJobHandle:
        """Remember the call."""
        self.asked.append(tuple(options.items()))
        return FakeJobHandle(self.result, id="reconcile-orphans/plan-1")

    async def apply_orphans(self, run_id: str, **options: object) -> FakeJobHandle:
        """Remember the call."""
        self.asked.append((run_id, *options.items()))
        return FakeJobHandle(self.result, id=f"apply-orphans/{run_id}")

    async def fetch_history(self, workflow_id: str, run_id: str | None) -> Any:
        """Of no workflow."""
        raise UnknownObject("workflow", expected="one that Temporal keeps", found=(workflow_id, run_id))

    async def apply_schedules(self) -> list[AppliedSchedule]:
        """One of each kind."""
        return [
            AppliedSchedule(schedule_id="sexton-sweep", change="created"),
            AppliedSchedule(schedule_id="sexton-trim", change="unchanged"),
        ]

    async def restart_schedule(self, schedule_id: str) -> list[str]:
        known_ids = ("sexton-records", "sexton-sweep", "sexton-trim")
        if schedule_id not in known_ids:
            raise UnknownObject("schedule", expected=f"one of {', '.join(known_ids)}", found=schedule_id)
        return [f"{schedule_id}-2026-11-20T17:05:00Z"]

    async def list_schedules(self) -> list[ScheduleSummary]:
        """One that runs, one that is paused."""
        moment = datetime(2026, 11, 20, 17, 5, 0, 26903, tzinfo=UTC)
        return [
            ScheduleSummary(
                schedule_id="sexton-trim",
                workflow="trim-topics",
                interval_s=300,
                next_run=moment,
                last_run=None,
                paused=False,
            )
        ]

    async def list_workflows(
        self, type_: str | None, status: str | None, topic: str | None, limit: int, *, finished_recurring: bool
    ) -> list[WorkflowSummary]:
        self.asked.append((type_, status, topic, limit))
        self.finished_recurring.append(finished_recurring)
        return [
            WorkflowSummary(
                workflow_id="trim-topic/7",
                run_id="run-1",
                type="trim-topic",
                status="Running",
                started=datetime(2026, 11, 20, 17, 5, tzinfo=UTC),
                closed=None,
                topic="persistent://public/default/a%20b",
                outcome=[],
            )
        ]


@dataclass
class FakeCommandServices(CommandServices):
    """Everything behind the command line."""

    cwd: Path
    log: FakeLogStore = field(default_factory=FakeLogStore)
    client: FakeSextonClient = field(default_factory=FakeSextonClient)
    health: list[dict[str, object]] = field(default_factory=list)
    raised: BaseException | None = None
    sends_spans_to: str | None = None
    calls: list[tuple[object, ...]] = field(default_factory=list)
    told: list[tuple[Any, ...]] = field(default_factory=list)  # exit code, facts, failure: of each traced command
    environ: dict[str, str] = field(
        default_factory=lambda: {
            "SEXTON_TEMPORAL_ADDRESS": "127.0.0.1:1",
            "SEXTON_S3_ENDPOINT": "http://127.0.0.1:2",
            "SEXTON_S3_SECRET_KEY": "it's; rm -rf $HOME",
        }
    )

    def load(self, flags: Mapping[str, object]) -> LoadedSettings:
        """Settings from this object's own surroundings."""
        return load_settings(flags, self.environ, self.cwd)

    def memory(self) -> str:
        """Everything that a command may have changed or asked for, but for what was looked at."""
        log, calls = self.log, [call for call in self.calls if call[0] != "traced"]
        log_state = (log.found, log.entries, log.written, log.subscribed, log.contents, log.previews)
        return repr((log_state, calls, self.client.asked, self.client.batches.known))

    @contextmanager
    def open_catalog(self, settings: Any) -> Iterator[Any]:
        """The fake log's catalog."""
        yield self.log.catalog
        self.log.closed += 1

    @contextmanager
    def open_log(self, catalog: Any, settings: Any) -> Iterator[Any]:
        """The fake log."""
        assert catalog is self.log.catalog
        yield self.log

    def find_collector(self) -> str | None:
        """The collector it was told."""
        return self.sends_spans_to

    @contextmanager
    def trace_command_and_prune_span_files(self, settings: Any, command: str, began_ns: int) -> Iterator[Any]:
        """Remember which command was traced, and how it says that it ended."""
        self.calls.append(("traced", command))
        yield SimpleNamespace(trace_id=FAKE_TRACE_ID, record_result=lambda *told: self.told.append(told))

    async def connect(self, settings: Any, catalog: Any) -> Any:
        """The fake client."""
        return self.client

    def up(self, settings: Any, *, no_worker: bool, free_ports: bool, on_progress: Say, say: Say) -> dict[str, object]:
        """Remember the call, and print as careless libraries do."""
        print("noise of a library")  # noqa: T201
        on_progress("half way")
        self.calls.append(("up", no_worker, free_ports, settings.home))
        return {"temporal": "127.0.0.1:1", "worker_pids": [5]}

    def down(self, settings: Any) -> list[str]:
        """Two services, or what it was told to raise."""
        if self.raised:
            raise self.raised
        return ["temporal", "s3"]

    def status(self, settings: Any) -> list[dict[str, object]]:
        """The health it was told."""
        return self.health

    doctor = status

    def demo(self, settings: Any, *, topics: int, ledgers: int, keep: bool, on_progress: Say) -> Any:
        """A demo whose promises hold if there are topics enough."""
        rows = [{"promise": 1, "ok": topics > 1}]
        return SimpleNamespace(ok=topics > 1, rows=rows, to_json=lambda: {"ok": topics > 1, "topics": topics})

    async def run_worker(self, settings: Any, queues: Sequence[str], worker_id: str | None) -> None:
        self.calls.append(("worker", list(queues), worker_id))
