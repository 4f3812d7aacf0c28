"""A catalog in SQLite and a bucket in memory, filled with ledgers that activities act on."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Row, text
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.testing import ActivityEnvironment

from activities.deletion.deletion_queue import DeletionQueueActivities
from activities.deletion.inputs_and_results import (
    CertifyInput,
    ChunkInput,
    DeleteIntentInput,
    DetachInput,
    DetachResult,
)
from activities.deletion.ledger_deletion import LedgerDeletionActivities
from activities.deletion.phase_two_steps import intent_key
from activities.offload import LedgerOffloadActivities
from activities.owner_routing import CompletedWork, OwnerRoutedAnswer
from logstore.catalog import Catalog, Database
from logstore.deletion.intents import DeletionIntent, IntentKey
from logstore.deletion.retention import RetentionPolicy
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.log.ledger_object_keys import SHARDS, ledger_prefix, meta_key, segment_key
from logstore.log.ledgers import LedgerStatement
from logstore.log.segment_format import encode_segment
from logstore.offload.tiered_copy import CopyLocation
from logstore.ports.bundle_owners import TopicOwners
from logstore.ports.catalog.deletion import IntentRowRange
from logstore.ports.catalog.log import AcknowledgeWrite, RegisterSegmentWrite, Segment, Topic
from logstore.ports.object_storage import ObjectInfo
from logstore.positions import LedgerId, Position
from tests.ending_functions import ENDING_FUNCTION_REFERENCES
from tests.fakes.bulk_jobs import FakeBulkJobs
from tests.fakes.object_store import FakeObjectStore
from tests.fakes.owners import UnownedTopics
from tests.fakes.pulsar_cluster import FakePulsarCluster
from tests.migrated_catalogs import migrate_or_copy_catalog
from workers.assembly.activities import WorkerActivities
from workers.assembly.log_store import ImportedRecordFunctions, LogStore, LogStoreBuckets, LogStorePolicies

T = TypeVar("T")

TOPIC_NAME = "persistent://tenant/namespace/orders"
TIERED_BUCKET = "cold"
BATCH_ID = "batch-1"
BATCH_WORKFLOW_ID = f"delete-ledgers/{BATCH_ID}"
ALL_ROWS = IntentRowRange(first=0, last=1_000_000, rows=0)


class KeyHidingObjectStore(FakeObjectStore):
    """A store whose listings leave out, as often as told, what they should show; as if that were all."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden: Callable[[str], bool] = lambda _key: False
        self.remaining_hiding_listings = 0

    def list(self, prefix: str, *, start_after: str = "", first_page: int = 1_000) -> Iterator[ObjectInfo]:
        listed_objects = list(super().list(prefix, start_after=start_after, first_page=first_page))
        hides_keys = self.remaining_hiding_listings > 0
        self.remaining_hiding_listings -= hides_keys
        yield from (
            listed_object for listed_object in listed_objects if not (hides_keys and self.hidden(listed_object.key))
        )

    def blind(self, hidden: Callable[[str], bool], *, listings: int = 1_000_000) -> None:
        """Hide matching keys from the next listings."""
        self.hidden, self.remaining_hiding_listings = hidden, listings


@dataclass(frozen=True, kw_only=True)
class World:
    """One topic and what holds it."""

    catalog: Catalog
    objects: KeyHidingObjectStore
    topic: Topic
    log: LogStore
    activities: WorkerActivities
    tiered: KeyHidingObjectStore
    record_objects: FakeObjectStore
    bulk: FakeBulkJobs
    cluster: FakePulsarCluster
    opened: ExitStack  # what the log needs to be closed

    @property
    def deletion(self) -> LedgerDeletionActivities:
        """Of a worker that owns nothing, where nobody does."""
        return self.activities.deletion

    @property
    def upkeep(self) -> DeletionQueueActivities:
        """Of the same worker."""
        return self.activities.upkeep

    @property
    def offload(self) -> LedgerOffloadActivities:
        """Of the same worker."""
        return self.activities.offload

    def deletion_activities_with_owners(self, owners: TopicOwners) -> LedgerDeletionActivities:
        """The deletion activities of a worker that sees ownership so."""
        return WorkerActivities(self.log, owners).deletion

    def create_readable_ledgers(self, count: int) -> list[LedgerId]:
        """As `fill`, with segments that hold entries, each its position as payload."""
        ledgers = self.fill(count)
        for ledger_id in ledgers:
            for row in self.catalog.ledgers.list_segments(ledger_id):
                self._write_entries(row)
        return ledgers

    def _write_entries(self, row: Segment) -> None:
        key = segment_key(row.ledger_id, row.number)
        entries = [
            NewEntry(payload=b"%d:%d" % (row.ledger_id, row.first_entry + offset)) for offset in range(row.entries)
        ]
        body = encode_segment([ProducedEntries(entries=entries)], publish_ms=1)
        stored = self.objects.get(key)
        assert stored
        self.objects.delete([key])
        self.objects.put_if_absent(key, body, metadata=stored.metadata)
        sizes = "UPDATE segment SET size_bytes = :size WHERE ledger_id = :ledger AND number = :number"
        self.sql(sizes, size=len(body), ledger=row.ledger_id, number=row.number)

    def fill(
        self, count: int, *, segments: int = 2, acknowledged: bool = True, in_one_shard: bool = False
    ) -> list[LedgerId]:
        """So many closed ledgers of `segments` objects each, and an open one behind them; in one shard if asked."""
        statements = [self._create_ledger(segments, id_gap=SHARDS if in_one_shard else 1) for _ in range(count + 1)]
        ids = [statement.ledger_id for statement in statements]
        if acknowledged and count:
            self.acknowledge(ids[-2])
        return ids[:-1]

    def _create_ledger(self, segment_count: int, *, id_gap: int = 1) -> LedgerStatement:
        last_ledger = self.catalog.ledgers.last_ledger(self.topic.topic_id)
        self.sql("UPDATE catalog SET next_ledger_id = next_ledger_id + :more", more=id_gap - 1)
        statement = self.catalog.ledgers.create_ledger(self.topic.topic_id, application="sexton")
        self.store(statement, segment_count)
        assert self.catalog.ledgers.attach_ledger(
            statement.ledger_id, after=last_ledger.ledger_id if last_ledger else None
        )
        self.catalog.commits.commit_writes(
            [self._registration_write(statement, number) for number in range(segment_count)]
        )
        return statement

    def _registration_write(self, statement: LedgerStatement, number: int) -> RegisterSegmentWrite:
        return RegisterSegmentWrite(
            topic_id=self.topic.topic_id,
            ledger_id=statement.ledger_id,
            epoch=statement.epoch,
            number=number,
            entries=10,
            size_bytes=100,
        )

    def store(self, statement: LedgerStatement, segment_count: int) -> None:
        """Put the ledger's objects."""
        metadata = statement.to_metadata()
        self.objects.put_if_absent(
            meta_key(statement.ledger_id, statement.owner), statement.to_json(), metadata=metadata
        )
        for number in range(segment_count):
            self.objects.put_if_absent(segment_key(statement.ledger_id, number), b"x" * 100, metadata=metadata)

    def acknowledge(self, ledger_id: LedgerId, subscription: str = "reader") -> None:
        """Move the subscription, made at the first ledger if need be, to the end of a ledger."""
        self.catalog.cursors.create_subscription(self.topic.topic_id, subscription, latest=False)
        last_position = Position(ledger_id, 19)
        self.catalog.commits.commit_writes(
            [AcknowledgeWrite(topic_id=self.topic.topic_id, subscription=subscription, up_to=last_position)]
        )

    def detach(self, ledger_ids: list[LedgerId] | None = None, *, batch_id: str = BATCH_ID) -> DetachResult:
        """Phase one, in the name of the batch's workflow."""
        return run_owner_routed_activity(self.deletion.detach, self.make_detach_input(ledger_ids, batch_id=batch_id))

    def make_detach_input(
        self, ledger_ids: list[LedgerId] | None = None, *, batch_id: str = BATCH_ID, **changes: Any
    ) -> DetachInput:
        """A request for phase one."""
        request = DetachInput(
            topic_id=self.topic.topic_id,
            batch_id=batch_id,
            batch_workflow_id=f"delete-ledgers/{batch_id}",
            actor="tests",
            reason="a test",
            ledger_ids=None if ledger_ids is None else [int(ledger_id) for ledger_id in ledger_ids],
        )
        return replace(request, **changes)

    def intents(self, batch_id: str = BATCH_ID) -> list[DeletionIntent]:
        """Every row of a batch."""
        return self.catalog.deletions.list_intents_in_range(batch_id, ALL_ROWS)

    def outcomes(self, batch_id: str = BATCH_ID) -> dict[str, int]:
        """Rows of a batch by outcome."""
        return dict(self.catalog.deletions.tally_batch(batch_id).outcomes)

    def left_of(self, ledger_id: LedgerId) -> list[str]:
        """Names of the ledger's objects in storage."""
        prefix = ledger_prefix(ledger_id)
        return [key.removeprefix(prefix) for key in self.objects.keys if key.startswith(prefix)]

    def key(self, ledger_id: LedgerId) -> IntentKey:
        """The key of the ledger's newest intent."""
        return next(
            intent_key(intent)
            for intent in self.catalog.deletions.list_intents(None, limit=1000)
            if intent.ledger_id == ledger_id
        )

    def sql(self, statement: str, **values: Any) -> list[Row[Any]]:
        """One statement on the catalog, in its own transaction."""

        def work(connection: Any) -> list[Row[Any]]:
            result = connection.execute(text(statement), values)
            return list(result) if result.returns_rows else []

        return self.catalog.database.write(work)


def open_activity_world(folder: Path) -> World:
    """A fresh catalog with one topic, and an empty bucket."""
    database = Database(f"sqlite:///{folder / 'catalog.db'}")
    migrate_or_copy_catalog(database)
    catalog = Catalog(database)
    objects, tiered, record_objects = (
        KeyHidingObjectStore(),
        KeyHidingObjectStore(),
        FakeObjectStore(now_us=time.time_ns() // 1_000),
    )
    bulk, cluster = FakeBulkJobs(folder / "bulk"), FakePulsarCluster()
    opened = ExitStack()
    log = opened.enter_context(
        closing(
            LogStore(
                catalog=catalog,
                stores=LogStoreBuckets(
                    primary=objects,
                    tiered={CopyLocation(TIERED_BUCKET): tiered}.__getitem__,
                    records=record_objects,
                    now_us=lambda: objects.now_us,
                ),
                policies=LogStorePolicies(
                    scratch=folder / "tmp",
                    driver_metadata={"driver": "aws-s3", "bucket": TIERED_BUCKET},
                    clock_bound_s=10**10,  # the fake's clock is its own
                    functions=ImportedRecordFunctions(ENDING_FUNCTION_REFERENCES),
                ),
                bulk=bulk,
                cluster=cluster,
            )
        )
    )
    return World(
        catalog=catalog,
        objects=objects,
        topic=catalog.topics.create_topic(TOPIC_NAME, RetentionPolicy()),
        log=log,
        activities=WorkerActivities(log, UnownedTopics()),
        tiered=tiered,
        record_objects=record_objects,
        bulk=bulk,
        cluster=cluster,
        opened=opened,
    )


def make_activity_environment(workflow_id: str = BATCH_WORKFLOW_ID) -> ActivityEnvironment:
    """Where an activity runs, in the name of a workflow."""
    env = ActivityEnvironment()
    env.info = replace(env.info, workflow_id=workflow_id, workflow_run_id="run-1")
    return env


def run(activity: Callable[..., T], request: object, *, workflow_id: str = BATCH_WORKFLOW_ID) -> T:
    """Run one activity once."""
    return make_activity_environment(workflow_id).run(activity, request)


def run_owner_routed_activity(
    activity: Callable[..., OwnerRoutedAnswer[T]], request: object, *, workflow_id: str = BATCH_WORKFLOW_ID
) -> T:
    """The result of one that a topic's owner may serve, run once where it is done."""
    answer = run(activity, request, workflow_id=workflow_id)
    assert isinstance(answer, CompletedWork), answer
    return answer.result


def make_chunk_input(*, batch_id: str = BATCH_ID, epoch: int = 1) -> ChunkInput:
    """All rows of a batch as one chunk."""
    return ChunkInput(batch_id=batch_id, chunk=IntentRowRange(first=0, last=1_000_000, rows=3), catalog_epoch=epoch)


def make_delete_intent_input(key: IntentKey, *, epoch: int = 1) -> DeleteIntentInput:
    """One intent, retried after ten minutes."""
    return DeleteIntentInput(key=key, catalog_epoch=epoch, retry_interval_s=600)


def make_certify_input(batch_id: str = BATCH_ID) -> CertifyInput:
    """A request for the batch's certificate."""
    return CertifyInput(batch_id=batch_id, actor="tests", reason="a test")


def encoded_payload_bytes(value: object) -> int:
    """How large the value is on its way through Temporal."""
    return asyncio.run(pydantic_data_converter.encode([value]))[0].ByteSize()
