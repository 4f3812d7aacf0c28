"""The database of a replica on both databases: row by row what the source has, and refused to everybody else."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, delete, insert, select, text, update

from logstore.catalog import Catalog, Database
from logstore.catalog import tables as t
from logstore.catalog.engine.catalog_version import migrate_catalog
from logstore.catalog.records.rebuild_loading import RebuildDatabase
from logstore.catalog.records.replica_database import open_replica_database
from logstore.catalog.records.tombstone_rows import insert_ledger_tombstones, insert_topic_tombstone
from logstore.deletion.retention import RetentionPolicy
from logstore.errors import CatalogAdopting, CatalogBusy, PreconditionFailed
from logstore.failpoints import SimulatedCrash, arm, disarm_all_and_take_hits
from logstore.positions import TopicId
from logstore.records.job_results import FollowedRecords
from logstore.records.services.flusher import Flusher
from logstore.records.services.replicas import ReplicaFollower, ReplicaFollowSettings
from tests.postgres import postgres
from tests.spark.records.lost import LostWorld, dump, remove_ledger, target

__all__ = ["postgres", "target"]

_FOLLOW = ReplicaFollowSettings(
    replica="records/mirror", bucket="records", follows_replica_bucket=False, eligible_age_s=1_000
)


@pytest.fixture
def source(tmp_path: Path) -> Iterator[LostWorld]:
    """A catalog with rows of every recorded table."""
    world = LostWorld(f"sqlite:///{tmp_path / 'source.db'}")
    world.fill()
    yield world
    disarm_all_and_take_hits()
    world.database.close()


def _flush(source: LostWorld) -> None:
    Flusher(source.records, source.log, clock_bound_s=1e12).flush(cursors=True)


def _step(source: LostWorld, target: str, *, seed: bool = False) -> FollowedRecords:
    with open_replica_database(target) as database:
        follower = ReplicaFollower(
            _FOLLOW,
            source=source.log,
            followed=source.log,
            database=database,
            store_now_us=lambda: source.objects.now_us,
        )
        return follower.apply_new_manifests(seed=seed)


def _read(url: str, statement: str) -> list[Any]:
    database = Database(url)
    try:
        return [tuple(row) for row in database.read(lambda connection: connection.execute(text(statement)).all())]
    finally:
        database.close()


def _same(source: LostWorld, target: str) -> None:
    found, expected = dump(target), dump(source.url)
    for name, rows in expected.items():
        assert found[name] == rows, name


def _change(connection: Connection) -> None:
    """Something of every kind that can change, and a ledger that leaves its list."""
    ledger, segment = t.ledger.c, t.segment.c
    connection.execute(update(t.topic).where(t.topic.c.topic_id % 2 == 0).values(retention_s=99))
    connection.execute(update(t.cursor).values(mark_entry=77))
    connection.execute(update(t.pending_deletion).values(state="DEAD_LETTERED", context={"uuid": "2"}))
    connection.execute(update(t.producer_sequence).values(sequence_id=5))
    connection.execute(update(t.buffer_hidden).values(entries=b"other"))
    connection.execute(update(t.transaction_snapshot).values(ledger_id=4))
    connection.execute(update(t.delayed_index).values(version=9, sealed_entry=8))
    connection.execute(delete(t.delayed_bucket).where(t.delayed_bucket.c.topic_id == 1))
    connection.execute(delete(t.buffer_range).where(t.buffer_range.c.sequence == 41))
    connection.execute(update(t.transaction).where(t.transaction.c.sequence == 42).values(state="ABORTED"))
    full = connection.execute(select(ledger.ledger_id).where(ledger.segments > 1, ledger.place.is_not(None))).scalars()
    one, other = list(full)[:2]
    connection.execute(
        insert(t.segment).values(ledger_id=one, number=90, first_entry=999, entries=5, size_bytes=7, sha256=None)
    )
    sums = {"entries": ledger.entries + 5, "size_bytes": ledger.size_bytes + 7, "segments": ledger.segments + 1}
    connection.execute(update(t.ledger).where(ledger.ledger_id == one).values(**sums, last_segment=90))
    connection.execute(delete(t.ledger_copy).where(t.ledger_copy.c.ledger_id == other))
    connection.execute(update(t.ledger).where(ledger.ledger_id == other).values(generation=8, place=None))
    listed = select(ledger.list_id).where(ledger.ledger_id == other).scalar_subquery()
    connection.execute(
        update(t.ledger_list).where(t.ledger_list.c.list_id == listed).values(version=t.ledger_list.c.version + 1)
    )
    assert connection.execute(select(segment.number).where(segment.ledger_id == one, segment.number == 90)).all()


def test_replica_has_every_row_of_its_source_step_by_step(source: LostWorld, target: str) -> None:
    """Seeded, then changed in every table, then changed by nothing."""
    _flush(source)
    seeded = _step(source, target)
    assert (seeded.manifest, seeded.steps, seeded.seeded) == (1, 1, 1)
    _same(source, target)
    source.do(_change)
    _flush(source)
    stepped = _step(source, target)
    assert (stepped.manifest, stepped.steps, stepped.seeded) == (2, 1, 0)
    assert 0 < stepped.records < seeded.records
    _same(source, target)
    assert _step(source, target) == FollowedRecords(replica=seeded.replica, manifest=2)
    assert _step(source, target, seed=True).seeded == 1
    _same(source, target)


def _end_some(connection: Connection) -> None:
    """A ledger and a topic end durably, and a ledger is born and ends before any flush sees it."""
    gone = t.ledger.c.ledger_id == 502
    insert_ledger_tombstones(connection, gone, now_us=55)
    remove_ledger(connection, 502)
    insert_topic_tombstone(connection, 2, now_us=56)
    lists = select(t.ledger_list.c.list_id).where(t.ledger_list.c.topic_id == 2)
    ids = list(connection.execute(select(t.ledger.c.ledger_id).where(t.ledger.c.list_id.in_(lists))).scalars())
    insert_ledger_tombstones(connection, t.ledger.c.ledger_id.in_(ids), now_us=57)
    for ledger_id in ids:
        remove_ledger(connection, ledger_id)
    for table in (t.ledger_list, t.cursor, t.schema_version, t.producer_sequence, t.delayed_index, t.delayed_bucket):
        connection.execute(delete(table).where(table.c.topic_id == 2))
    connection.execute(delete(t.transaction_snapshot).where(t.transaction_snapshot.c.topic_id == 2))
    connection.execute(delete(t.topic).where(t.topic.c.topic_id == 2))


def test_tombstones_take_the_place_of_rows_and_stay(source: LostWorld, target: str) -> None:
    """What hung on them goes as well; a replica that is seeded from the same manifest has the same."""
    _flush(source)
    _step(source, target)
    source.do(_end_some)
    _flush(source)
    stepped = _step(source, target)
    assert stepped.tombstones == stepped.removed == len(_read(source.url, "SELECT id FROM tombstone"))
    _same(source, target)
    _step(source, target, seed=True)
    _same(source, target)


def test_a_plain_delete_is_not_shipped_until_its_name_is_used_again(source: LostWorld, target: str) -> None:
    """The topic stays at the replica with its cursors; a new one of its name takes its place, with nothing of it."""
    _flush(source)
    _step(source, target)

    def end_plainly(connection: Connection) -> None:
        for table in (t.ledger_list, t.cursor, t.topic):
            connection.execute(delete(table).where(table.c.topic_id == 3))

    (name,) = _read(source.url, "SELECT name FROM topic WHERE topic_id = 3")[0]
    source.do(end_plainly)
    _flush(source)
    _step(source, target)
    assert _read(target, "SELECT topic_id FROM topic WHERE topic_id = 3") == [(3,)]
    row = {"name": name, "state": "ACTIVE", "retention_s": 1, "created_us": 7}
    source.do(lambda connection: connection.execute(insert(t.topic).values(**row)))
    _flush(source)
    assert _step(source, target).removed == 1
    ((topic_id,),) = _read(target, f"SELECT topic_id FROM topic WHERE name = '{name}'")
    assert topic_id > 3
    for table in ("ledger_list", "cursor", "schema_version", "producer_sequence", "topic"):
        assert _read(target, f"SELECT 1 FROM {table} WHERE topic_id = 3") == []
    assert _read(target, "SELECT 1 FROM ledger WHERE place IS NOT NULL AND list_id NOT IN"
                 " (SELECT list_id FROM ledger_list)") == []  # fmt: skip


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_step_that_dies_is_done_again(source: LostWorld, target: str, when: str) -> None:
    """Before the transaction nothing has happened; behind it the manifest is there, and only the word is lacking."""
    _flush(source)
    arm(f"records.apply.{when}", "crash")
    with pytest.raises(SimulatedCrash):
        _step(source, target)
    disarm_all_and_take_hits()
    assert [one.manifest for one in source.log.list_lowest_acknowledgements()] == [0], "tombstones wait"
    again = _step(source, target)
    assert (again.manifest, again.steps) == (1, int(when == "before"))
    assert [one.manifest for one in source.log.list_lowest_acknowledgements()] == [1]
    _same(source, target)


def test_a_step_whose_blocks_cannot_be_read_changes_nothing(source: LostWorld, target: str) -> None:
    """All of it is one transaction: what was written before the last block is undone."""
    _flush(source)
    _step(source, target)
    before = dump(target)
    source.do(_change)
    _flush(source)
    reads = iter(range(100))

    def stop() -> None:
        if next(reads) == 4:
            raise CatalogBusy("stopped")

    with open_replica_database(target) as database:
        clock: Callable[[], int] = lambda: source.objects.now_us  # noqa: E731
        log = source.log
        follower = ReplicaFollower(_FOLLOW, source=log, followed=log, database=database, store_now_us=clock)
        with pytest.raises(CatalogBusy):
            follower.apply_new_manifests(proceed=stop)
    assert dump(target) == before
    assert _step(source, target).manifest == 2
    _same(source, target)


def test_a_step_that_another_process_has_done_is_begun_anew(source: LostWorld, target: str) -> None:
    """What a process has seen before another one's step is no reason to apply older versions."""
    _flush(source)
    with open_replica_database(target) as database:
        assert database.read_applied_manifest() is None
        _step(source, target)
        newest = source.log.read_newest_manifest()
        assert newest
        for seed in (True, False):
            with pytest.raises(CatalogBusy):
                database.apply_versions(newest, lambda _: iter(()), expected=None, replica="records/other", seed=seed)
    _same(source, target)


def test_a_database_that_becomes_a_catalog_while_it_is_seeded_stays_one(source: LostWorld, target: str) -> None:
    """It was empty when the step began; what stands there now is nobody's to empty."""
    _flush(source)
    with open_replica_database(target) as database:
        newest = source.log.read_newest_manifest()
        assert newest
        assert database.read_applied_manifest() is None
        other = Database(target)
        migrate_catalog(other)
        Catalog(other).topics.create_topic("persistent://a/b/new", RetentionPolicy())
        before = dump(target)
        with pytest.raises(PreconditionFailed, match="expected an empty one or a replica's, found 1 rows of topic"):
            database.apply_versions(newest, lambda _: iter(()), expected=None, replica=_FOLLOW.replica, seed=True)
        other.close()
    assert dump(target) == before


def test_a_catalog_that_has_marked_buckets_is_not_empty(source: LostWorld, target: str) -> None:
    """It has no topic yet, and is somebody's."""
    _flush(source)
    other = Database(target)
    migrate_catalog(other)
    row = {"role": "primary", "bucket": "theirs", "marked_us": 1}
    other.write(lambda connection: connection.execute(insert(t.metadata.tables["bucket_marker"]).values(**row)))
    other.close()
    with pytest.raises(PreconditionFailed, match="found 1 rows of bucket_marker"):
        _step(source, target)
    with pytest.raises(PreconditionFailed, match="found 1 rows of bucket_marker"):
        RebuildDatabase(target).read_target()


def test_a_replica_is_no_database_to_rebuild_into(source: LostWorld, target: str) -> None:
    """It is named, whatever it holds."""
    _flush(source)
    seeded = _step(source, target)
    with pytest.raises(
        PreconditionFailed, match=f"expected an empty one to rebuild into, found a replica, {seeded.replica}"
    ):
        RebuildDatabase(target).read_target()


def test_a_replica_refuses_ordinary_writes_and_flushes(source: LostWorld, target: str) -> None:
    """It is read by everybody, and written by its own steps alone."""
    _flush(source)
    _step(source, target)
    database = Database(target)
    catalog = Catalog(database)
    try:
        with pytest.raises(CatalogAdopting, match="REPLICA"):
            catalog.topics.create_topic("persistent://a/b/new", RetentionPolicy())
        with pytest.raises(CatalogAdopting, match="REPLICA"):
            catalog.records.add_pending_stamp("stamp")
        state = catalog.records.read_state()
        assert (state.is_replica, state.is_adopting, state.outbox_changes, state.manifest) == (True, True, 0, 1)
        assert catalog.topics.list_active_topics(after=TopicId(0), limit=1)
    finally:
        database.close()
    _same(source, target)


def test_a_database_that_holds_something_else_is_refused(source: LostWorld) -> None:
    """The source itself, for one."""
    _flush(source)
    with pytest.raises(PreconditionFailed, match="expected an empty one"):
        _step(source, source.url)
    with pytest.raises(PreconditionFailed, match="expected an empty one"):
        _step(source, source.url, seed=True)
