"""A catalog with rows of every kind, flushed as it changes, and lost; and what two databases hold, to compare them."""

import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
import pytest
from pyroaring import BitMap64
from sqlalchemy import Connection, Table, delete, insert, select, text, update

from logstore.catalog import Database
from logstore.catalog import tables as t
from logstore.catalog.records.outbox import RecordOutbox
from logstore.catalog.records.rebuild_loading import RebuildDatabase
from logstore.catalog.records.recorded_tables import LOADED_TABLES, RECORDED_TABLES
from logstore.identity.bucket_markers import MARKER_KEY, BucketRole, marker_content
from logstore.identity.services.marker_checked_buckets import LostCatalogIdentity, MarkerCheckedBucket
from logstore.ports.catalog.records import RebuiltCatalogStart
from logstore.reconciliation.bulk_job_inputs_and_results import BulkJobSummary
from logstore.records.manifest import IdCeilings, Manifest
from logstore.records.rebuild_job import RebuildId, RowFilesFolder, WriteCatalogRowsJob
from logstore.records.record_kinds import RecordKind
from logstore.records.services.record_log import RecordLog
from spark.records.write_catalog_rows import write_catalog_rows
from tests.fakes.object_store import FakeObjectStore
from tests.full_outbox import put_all_records_into_outbox
from tests.migrated_catalogs import migrate_or_copy_catalog
from tests.postgres import PostgresServer

CATALOG_ID: Final = "00000000-0000-4000-8000-00000000c01d"
NOT_RECORDED: Final[Mapping[str, frozenset[str]]] = {
    recorded.table.name: frozenset(recorded.unrecorded)
    for kind, recorded in RECORDED_TABLES.items()
    if kind is not RecordKind.LEDGER  # its sums come back
}
"""Columns that a rebuilt catalog begins anew: claims, traces, releases, and what adoption counts."""


def dump(url: str, *, tables: tuple[Table, ...] = LOADED_TABLES) -> dict[str, list[tuple[Any, ...]]]:
    """All rows of the recorded tables, each in the order of its columns."""
    database = Database(url)

    def work(connection: Connection) -> dict[str, list[tuple[Any, ...]]]:
        return {table.name: _rows(connection, table) for table in tables}

    try:
        return database.read(work)
    finally:
        database.close()


def _rows(connection: Connection, table: Table) -> list[tuple[Any, ...]]:
    left_out = NOT_RECORDED.get(table.name, frozenset())
    columns = [column for column in table.c if column.name not in left_out]
    rows = connection.execute(select(*columns).order_by(*table.primary_key))
    return [tuple(json.dumps(one, sort_keys=True) if isinstance(one, dict) else one for one in row) for row in rows]


def flush_all(records: RecordOutbox, log: RecordLog, *, ceiling: int) -> Manifest:
    """One manifest more, with what has changed; ids below the ceiling may be given out."""
    state, stamp = records.read_state(), uuid4().hex
    records.add_pending_stamp(stamp)
    tables: dict[RecordKind, list[pa.RecordBatch]] = {}
    with records.read_changes(cursors=True) as changes:
        for kind, batch in changes.iterate_version_batches():
            tables.setdefault(kind, []).append(batch)
        taken = list(changes.outbox_rows)
    new = [block for kind, parts in tables.items() for block in log.put_blocks(kind, pa.Table.from_batches(parts))]
    before = log.read_newest_manifest()
    manifest = Manifest(
        number=(before.number if before else 0) + 1,
        catalog_id=state.catalog_id,
        epoch=state.epoch,
        bundles=state.bundles,
        stamp=stamp,
        flushed_us=changes.at_us,
        ceilings=IdCeilings(ledger=ceiling, topic=ceiling, transaction=ceiling),
        blocks=(*(before.blocks if before else ()), *new),
    )
    log.put_manifest(manifest)
    records.settle_manifest(number=manifest.number, stamp=stamp, ceilings=manifest.ceilings, outbox_rows=taken)
    return manifest


def load_from(manifest: Manifest, url: str, summary: BulkJobSummary) -> RebuiltCatalogStart:
    """What a database begins with that is rebuilt from there."""
    known = RebuildId.for_command(manifest.catalog_id, manifest.number, database_url=url, skip_unreadable=False)
    return RebuiltCatalogStart(
        rebuild=str(known),
        manifest=manifest,
        epoch=manifest.epoch + 1,
        highest_version=summary.counts["version"],
        stamp="5" * 32,
        markers=((BucketRole.RECORDS, "records"),),
        now_us=7,
    )


@dataclass
class LostWorld:
    """A catalog at a URL, its record log in memory, and the changes that were made."""

    url: str
    seed: int = 0
    objects: FakeObjectStore = field(default_factory=FakeObjectStore)

    def __post_init__(self) -> None:
        self.objects.put_if_absent(MARKER_KEY, marker_content(CATALOG_ID), metadata={})
        self.random = random.Random(self.seed)
        self.database = Database(self.url)
        migrate_or_copy_catalog(self.database)
        self.do(lambda c: c.execute(update(t.catalog).values(catalog_id=CATALOG_ID, next_ledger_id=500)))
        self.records = RecordOutbox(self.database)
        self.log = RecordLog(self.own())
        self.number = 0

    def own(self) -> MarkerCheckedBucket:
        return LostCatalogIdentity(CATALOG_ID).get_checked_bucket(self.named, self.objects)

    @property
    def named(self) -> Any:
        return SimpleNamespace(role=BucketRole.RECORDS, bucket="records", address="")

    def do(self, work: Callable[[Connection], object]) -> None:
        self.database.write(work)

    def fill(self, topics: int = 6) -> None:
        """Rows of every recorded table, with every column set somewhere."""
        self.do(lambda connection: Filling(connection, self.random, topics).all())

    def flush(self, *, ceiling: int = 10_000) -> Manifest:
        """One manifest more, with what has changed."""
        return flush_all(self.records, self.log, ceiling=ceiling)

    def job(self, *, skip_unreadable: bool = False) -> WriteCatalogRowsJob:
        newest = self.log.read_newest_manifest()
        assert newest
        return WriteCatalogRowsJob(
            run_id="rebuild", catalog_id=CATALOG_ID, manifest=newest.number, skip_unreadable=skip_unreadable
        )

    def rebuild_rows(self, folder: Path, *, skip_unreadable: bool = False) -> BulkJobSummary:
        """The bulk job, its tasks one after the other in this process."""
        folder.mkdir(parents=True, exist_ok=True)
        run: Any = SimpleNamespace(
            folder=folder,
            spark=SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=3)),
            run_in_executors=lambda _what, tasks, work: [work(task) for task in tasks],
        )
        address: Any = SimpleNamespace(role="records", bucket="records", endpoint="", store=lambda: self.objects)
        return write_catalog_rows(address, run, self.job(skip_unreadable=skip_unreadable))

    def load_of(self, url: str, summary: BulkJobSummary) -> RebuiltCatalogStart:
        manifest = self.log.read_newest_manifest()
        assert manifest
        return load_from(manifest, url, summary)

    def rebuild(self, url: str, folder: Path) -> BulkJobSummary:
        summary = self.rebuild_rows(folder)
        RebuildDatabase(url).load_rows(self.load_of(url, summary), RowFilesFolder(folder), lambda: None)
        return summary


class Filling:
    """Rows of every recorded table, in the transaction of a connection."""

    def __init__(self, connection: Connection, chance: random.Random | None = None, topics: int = 6) -> None:
        self._c, self._random, self._topics = connection, chance or random.Random(1), topics
        self._ledger = 500

    def all(self) -> None:
        for number in range(self._topics):
            self._topic(number)
        self._transactions()
        self._c.execute(text("DELETE FROM record_outbox"))
        put_all_records_into_outbox(self._c)

    def _put(self, table: Table, **row: Any) -> Any:
        return self._c.execute(insert(table).values(row)).inserted_primary_key

    def _topic(self, number: int) -> None:
        (topic,) = self._put(
            t.topic,
            name=f"persistent://a/b/t{self._ledger}-{number}",
            state="ACTIVE",
            retention_s=number,
            retention_bytes=None if number % 2 else 2**40,
            durable_delete=(None, 0, 1)[number % 3],
            created_us=10**15 + number,
        )
        owners = (("MANAGED_LEDGER", "{}"), ("MANAGED_CURSOR", '{"cursor":"é \\" x"}'))
        for component, owner in owners:
            (list_id,) = self._put(t.ledger_list, topic_id=topic, component=component, owner=owner, version=number)
            for at in range(self._random.randrange(1, 5)):
                self._of_list(topic, list_id, listed=at > 0 or number % 2 == 0)
        self._of_topic(topic)

    def _of_list(self, topic: int, list_id: int, *, listed: bool) -> None:
        self._ledger += 1
        segments = self._random.randrange(0, 13)
        sizes = [self._random.randrange(1, 10**10) for _ in range(segments)]
        self._put(
            t.ledger,
            ledger_id=self._ledger,
            list_id=list_id,
            place=self._ledger if listed else None,
            application="sexton",
            state="CLOSED" if listed else "CREATING",
            entries=3 * segments,
            size_bytes=sum(sizes),
            segments=segments,
            last_segment=2 * segments - 1 if segments else -1,
            generation=self._random.randrange(3),
            epoch=0,
            created_us=10**15,
            closed_us=10**15 + 5 if listed else None,
        )
        self._put(t.ledger_copy, ledger_id=self._ledger, kind="LEDGER", state="LIVE", context={})
        if segments % 2:
            context = {"uuid": f"u{self._ledger}", "driver": 'a "b"'}
            self._put(t.ledger_copy, ledger_id=self._ledger, kind="OFFLOADED_LEDGER", state="WRITING", context=context)
        for at, size in enumerate(sizes):
            self._put(
                t.segment,
                ledger_id=self._ledger,
                number=2 * at + 1,
                first_entry=3 * at,
                entries=3,
                size_bytes=size,
                sha256="ab" * 32 if at % 2 else None,
                delayed=at or None,
            )
        hidden = BitMap64([1, 2**40]).serialize()
        self._put(t.buffer_hidden, ledger_id=self._ledger, topic_id=topic, entries=hidden)
        self._put(
            t.delayed_bucket, ledger_id=self._ledger, topic_id=topic, first_ledger=1, first_entry=2, last_ledger=3,
            last_entry=4, messages=5, segments=6, first_ms=7, last_ms=8,
        )  # fmt: skip

    def _of_topic(self, topic: int) -> None:
        for name in ("a", "b c", "é"):
            self._put(
                t.cursor, topic_id=topic, name=name, mark_ledger=1, mark_entry=2, acknowledged=b"\0\x01",
                snapshot_ledger=None if name == "a" else 9, seeks=3, created_us=4,
            )  # fmt: skip
            self._put(
                t.producer_sequence, topic_id=topic, producer=name, sequence_id=2**60, kept_id=None, txn_tc=3, txn_seq=4
            )
        for at in range(12):
            self._put(
                t.schema_version, topic_id=topic, version=at, ledger_id=self._ledger, digest="d", size_bytes=1,
                created_us=2,
            )  # fmt: skip
        self._put(
            t.delayed_index, topic_id=topic, version=4, sealed_ledger=5, sealed_entry=6, unsealed=0, changed_us=None
        )
        self._put(
            t.transaction_snapshot, topic_id=topic, ledger_id=self._ledger, read_ledger=1, read_entry=2, changes=0
        )
        self._put(
            t.pending_deletion, batch_id="b", ledger_id=topic, copy="LEDGER", generation=2, application="sexton",
            component="MANAGED_LEDGER", topic_id=topic, topic="x", keys="{}", context={"uuid": "1"}, segments=2,
            last_segment=3, ledger_created_us=4, size_bytes=5, epoch=1, state="DELETED", outcome="DELETED",
            attempts=2, last_error=None, objects_deleted=7, bytes_deleted=8, created_us=9, finished_us=10, actor="me",
            reason="why", openings=1, durable=1,
        )  # fmt: skip

    def _transactions(self) -> None:
        for at in range(5):
            key = {"tc_id": at % 2, "sequence": 40 + at}
            self._put(
                t.transaction, **key, state="COMMITTED", created_us=1, deadline_us=2, decided_us=3, finished_us=None,
                timed_out=at % 2, attempts=2, last_error="no",
            )  # fmt: skip
            for name in ("", "sub")[: at % 3]:
                self._put(
                    t.transaction_participant, **key, topic_id=at, subscription=name, topic="x", positions=b"\xff\0",
                    settled_us=4, how="MARKED", last_error=None,
                )  # fmt: skip
            self._put(t.buffer_range, ledger_id=900 + at, first_entry=1, entries=2, topic_id=3, **key)


def remove_ledger(connection: Connection, ledger_id: int) -> None:
    """As a plain delete does, behind the ports: its rows go, its list has another version."""
    (list_id,) = connection.execute(select(t.ledger.c.list_id).where(t.ledger.c.ledger_id == ledger_id)).one()
    for table in (t.ledger, t.ledger_copy, t.segment, t.buffer_hidden):
        connection.execute(delete(table).where(table.c.ledger_id == ledger_id))
    connection.execute(
        update(t.ledger_list).where(t.ledger_list.c.list_id == list_id).values(version=t.ledger_list.c.version + 1)
    )


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.external_service)])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database, for the module that imports this, and the fixture `postgres`."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'target' / 'catalog.db'}"
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    with server.database() as name:
        yield server.url(name)
