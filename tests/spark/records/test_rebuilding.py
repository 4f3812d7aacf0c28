"""The catalog that was lost comes back, row by row, on both databases."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, insert, select, text, update

from logstore.catalog import Database
from logstore.catalog import tables as t
from logstore.catalog.records.rebuild_loading import RebuildDatabase
from logstore.catalog.records.tombstone_rows import insert_ledger_tombstones, insert_topic_tombstone
from logstore.cursors.cursor_state import RELEASES_PER_EPOCH
from logstore.errors import CorruptData, MissingData, PreconditionFailed, Unsupported
from logstore.failpoints import SimulatedCrash, arm
from logstore.records.rebuild_job import SKIPPED_BLOCK_PREFIX, RowFilesFolder
from logstore.transactions.transaction_ids_and_states import MAX_COORDINATORS
from tests.migrated_catalogs import migrate_or_copy_catalog
from tests.postgres import PostgresServer, postgres
from tests.spark.records.lost import LostWorld, dump, remove_ledger, target

__all__ = ["postgres", "target"]


@pytest.fixture
def lost(tmp_path: Path) -> Iterator[LostWorld]:
    world = LostWorld(f"sqlite:///{tmp_path / 'lost.db'}")
    yield world
    world.database.close()


def test_rebuilt_catalog_has_every_row_of_the_lost_one(lost: LostWorld, target: str, tmp_path: Path) -> None:
    """Flushed in two parts, the second of which changes half of the rows of the first."""
    lost.fill()
    lost.flush()
    lost.do(lambda c: c.execute(update(t.topic).where(t.topic.c.topic_id % 2 == 0).values(retention_s=99)))
    lost.do(lambda c: c.execute(update(t.cursor).values(mark_entry=77)))
    lost.do(lambda c: c.execute(update(t.ledger).where(t.ledger.c.ledger_id % 2 == 0).values(generation=9)))
    lost.do(lambda c: c.execute(delete(t.buffer_range).where(t.buffer_range.c.sequence == 41)))
    lost.flush()
    summary = lost.rebuild(target, tmp_path / "rows")
    assert dump(target) == dump(lost.url)
    assert {name for name, rows in dump(target).items() if not rows} == {"tombstone"}
    assert summary.counts["records"] == sum(
        len(rows)
        for name, rows in dump(target).items()
        if name not in {"ledger_copy", "transaction_participant", "buffer_range", "delayed_bucket", "tombstone"}
    )


def _rows(url: str, statement: str) -> list[Any]:
    database = Database(url)
    try:
        return [tuple(row) for row in database.read(lambda connection: connection.execute(text(statement)).all())]
    finally:
        database.close()


def _schema(url: str) -> list[Any]:
    """Tables, indexes and triggers."""
    if url.startswith("sqlite"):
        return _rows(url, "SELECT type, name, sql FROM sqlite_master ORDER BY type, name")
    triggers = "SELECT tgname, tgenabled::text FROM pg_trigger WHERE NOT tgisinternal ORDER BY tgname"
    indexes = "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = current_schema() ORDER BY indexname"
    return _rows(url, triggers) + _rows(url, indexes)


def test_rebuilt_catalog_is_the_same_one_in_a_new_epoch_and_not_ready(
    lost: LostWorld, target: str, tmp_path: Path
) -> None:
    """No id that may have been given out is given out again, nothing waits to be flushed, and no flush may begin."""
    lost.fill()
    lost.flush(ceiling=7_000)
    summary = lost.rebuild(target, tmp_path / "rows")
    load = lost.load_of(target, summary)
    state = _state(target)
    assert (state.catalog_id, state.epoch, state.bundles) == (load.manifest.catalog_id, 2, load.manifest.bundles)
    assert (state.manifest, state.stamp, state.pending_stamps) == (1, load.manifest.stamp, {load.stamp})
    assert state.is_adopting
    assert (state.next_ids, state.ceilings) == (load.manifest.ceilings, load.manifest.ceilings)
    assert _rows(target, "SELECT DISTINCT releases FROM cursor") == [(RELEASES_PER_EPOCH,)], (
        "above every count of the first epoch"
    )
    assert state.outbox_changes == 0
    assert RebuildDatabase(target).read_target().rebuild == load.rebuild
    assert _rows(target, "SELECT role, bucket FROM bucket_marker") == [("records", "records")]
    assert _rows(target, "SELECT count(*), min(next_sequence) FROM transaction_coordinator") == [
        (MAX_COORDINATORS, 7_000)
    ]


def _state(url: str) -> Any:
    from logstore.catalog.records.outbox import RecordOutbox  # noqa: PLC0415

    database = Database(url)
    try:
        return RecordOutbox(database).read_state()
    finally:
        database.close()


def test_rebuilt_catalog_has_the_indexes_and_triggers_of_a_new_one(
    lost: LostWorld, target: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """They are off while rows are loaded, and a change is recorded again behind the load, under a new version."""
    lost.fill()
    lost.flush()
    lost.rebuild(target, tmp_path / "rows")
    if target.startswith("sqlite"):
        assert _schema(target) == _schema(lost.url)
    else:
        server: PostgresServer = request.getfixturevalue("postgres")
        with server.database() as other:
            fresh = Database(server.url(other))
            migrate_or_copy_catalog(fresh)
            fresh.close()
            assert _schema(target) == _schema(server.url(other))
    highest = lost.rebuild_rows(tmp_path / "again").counts["version"]
    database = Database(target)
    database.write(lambda c: c.execute(update(t.topic).where(t.topic.c.topic_id == 1).values(retention_s=5)))
    database.write(lambda c: c.execute(insert(t.ledger_list).values(topic_id=1, component="X", owner="", version=0)))
    database.close()
    found = _rows(target, "SELECT kind, version FROM record_outbox ORDER BY version")
    assert [kind for kind, _ in found] == ["topic", "list"]
    assert found[0][1] > highest


def test_plainly_deleted_ledger_comes_back_unlisted_and_a_durably_deleted_one_does_not(
    lost: LostWorld, target: str, tmp_path: Path
) -> None:
    """Promise 5; its tombstone comes back too, with what the version that it covers tells of it."""
    lost.fill()
    lost.flush()
    listed = _rows(lost.url, "SELECT ledger_id, list_id FROM ledger WHERE place IS NOT NULL ORDER BY ledger_id")
    (plain, _), (durable, list_id) = listed[0], listed[3]
    expected = dump(lost.url)
    lost.do(lambda c: remove_ledger(c, plain))
    lost.do(lambda c: insert_ledger_tombstones(c, t.ledger.c.ledger_id == durable, now_us=123))
    lost.do(lambda c: remove_ledger(c, durable))
    lost.flush()
    lost.rebuild(target, tmp_path / "rows")
    ledgers = dict(_rows(target, "SELECT ledger_id, place FROM ledger"))
    assert ledgers == {row[0]: None if row[0] == plain else row[2] for row in expected["ledger"] if row[0] != durable}
    for name in ("segment", "ledger_copy", "buffer_hidden"):
        assert dump(target)[name] == [row for row in expected[name] if row[0] != durable]
    assert dump(target)["tombstone"] == dump(lost.url)["tombstone"]
    (row,) = _rows(target, "SELECT id, list_id, component, at_us FROM tombstone")
    assert row[:2] == (durable, list_id)
    assert row[2] in {"MANAGED_LEDGER", "MANAGED_CURSOR"}
    assert row[3] == 123


def test_tombstone_that_covers_nothing_is_kept(lost: LostWorld, target: str, tmp_path: Path) -> None:
    """Its ledger was made and deleted between two flushes: storage may hold its objects, and a raid judges that."""
    lost.fill()
    gone = _rows(lost.url, "SELECT ledger_id FROM ledger WHERE place IS NOT NULL")[0][0]
    lost.do(lambda c: insert_ledger_tombstones(c, t.ledger.c.ledger_id == gone, now_us=123))
    lost.do(lambda c: remove_ledger(c, gone))
    lost.flush()
    lost.rebuild(target, tmp_path / "rows")
    (row,) = _rows(target, "SELECT id, list_id, at_us FROM tombstone")
    assert row == (gone, None, 123)


def test_topic_takes_all_that_hangs_on_it_along(lost: LostWorld, target: str, tmp_path: Path) -> None:
    """Rows of a topic are removed without a trace of their own; its ledgers have tombstones."""
    lost.fill()
    lost.flush()
    gone = (1, 4)

    def work(connection: Any) -> None:
        for topic_id in gone:
            mine = t.ledger.c.list_id.in_(select(t.ledger_list.c.list_id).where(t.ledger_list.c.topic_id == topic_id))
            ids = connection.execute(select(t.ledger.c.ledger_id).where(mine)).scalars().all()
            insert_ledger_tombstones(connection, mine, now_us=5)
            insert_topic_tombstone(connection, topic_id, now_us=5)
            for ledger_id in ids:
                remove_ledger(connection, ledger_id)
            for name in ("ledger_list", "cursor", "schema_version", "producer_sequence", "delayed_index"):
                table = t.metadata.tables[name]
                connection.execute(delete(table).where(table.c.topic_id == topic_id))
            for table in (t.delayed_bucket, t.transaction_snapshot, t.topic):
                connection.execute(delete(table).where(table.c.topic_id == topic_id))

    lost.do(work)
    lost.flush()
    lost.rebuild(target, tmp_path / "rows")
    assert dump(target) == dump(lost.url)
    assert len(dump(target)["topic"]) == 4


def test_name_that_was_used_again_is_of_the_newer_record(lost: LostWorld, target: str, tmp_path: Path) -> None:
    """A topic, a list and a subscription that were deleted plainly give way to those that took their names."""
    lost.fill()
    lost.flush()
    (name,) = _rows(lost.url, "SELECT name FROM topic WHERE topic_id = 2")[0]

    def work(connection: Any) -> None:
        connection.execute(delete(t.topic).where(t.topic.c.topic_id == 2))
        connection.execute(insert(t.topic).values(name=name, state="ACTIVE", retention_s=1, created_us=2))
        cursor = {"topic_id": 1, "name": "a", "mark_ledger": 1, "mark_entry": 99, "acknowledged": b"", "created_us": 1}
        connection.execute(delete(t.cursor).where(t.cursor.c.topic_id == 1, t.cursor.c.name == "a"))
        connection.execute(insert(t.cursor).values(cursor_id=1_000, **cursor))

    lost.do(work)
    lost.flush()
    lost.rebuild(target, tmp_path / "rows")
    assert dump(target)["topic"] == dump(lost.url)["topic"]
    assert dump(target)["cursor"] == [row for row in dump(lost.url)["cursor"] if row[1] != 2]
    assert not [row for row in dump(target)["ledger_list"] if row[1] == 2]


def _damage(lost: LostWorld, kind: str, how: str) -> str:
    manifest = lost.log.read_newest_manifest()
    assert manifest
    key = next(block.key for block in manifest.blocks if block.kind == kind)
    body = lost.objects.get(key).body  # type: ignore[union-attr]
    lost.objects.delete([key])
    if how != "gone":
        damaged = body[:-9] if how == "cut" else body[:50] + bytes([body[50] ^ 1]) + body[51:]
        lost.objects.put_if_absent(key, damaged, metadata={})
    return key


@pytest.mark.parametrize("how", ["cut", "flipped", "gone"])
@pytest.mark.parametrize("kind", ["segment", "topic", "cursor"])
def test_unreadable_block_is_named_and_ends_the_job_unless_it_is_to_be_skipped(
    lost: LostWorld, tmp_path: Path, kind: str, how: str
) -> None:
    lost.fill()
    lost.flush()
    key = _damage(lost, kind, how)
    with pytest.raises((CorruptData, MissingData), match=key):
        lost.rebuild_rows(tmp_path / "rows")
    found = lost.rebuild_rows(tmp_path / "skipping", skip_unreadable=True)
    assert list(found.facts) == [f"{SKIPPED_BLOCK_PREFIX}{key}"]
    assert found.counts["skipped"] == 1
    assert found.counts.get(kind, 0) == 0


@pytest.mark.parametrize("how", ["cut", "flipped", "gone"])
@pytest.mark.parametrize("kind", ["transaction", "hidden"])
def test_unreadable_block_that_hides_messages_is_never_skipped(
    lost: LostWorld, tmp_path: Path, kind: str, how: str
) -> None:
    """Without it, consumers would get messages of open and of aborted transactions."""
    lost.fill()
    lost.flush()
    key = _damage(lost, kind, how)
    with pytest.raises((CorruptData, MissingData), match=f"{key}: .*never left out: .*Restore the object"):
        lost.rebuild_rows(tmp_path / "rows", skip_unreadable=True)


def test_newer_format_is_refused_even_where_blocks_are_skipped(
    lost: LostWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a newer build wrote says more than this one can read."""
    lost.fill()
    with monkeypatch.context() as newer:
        newer.setattr("logstore.records.block_files.RECORD_LOG_FORMAT", 2)
        lost.flush()
    with pytest.raises(Unsupported, match="format 1 at most, found 2"):
        lost.rebuild_rows(tmp_path / "rows", skip_unreadable=True)


def test_database_that_is_not_empty_is_refused(lost: LostWorld, target: str, tmp_path: Path) -> None:
    """And keeps what it has; an empty catalog, as `sexton catalog upgrade` leaves it, makes room."""
    lost.fill()
    lost.flush()
    database = Database(target)
    migrate_or_copy_catalog(database)
    topic = {"name": "persistent://a/b/c", "state": "ACTIVE", "retention_s": 0, "created_us": 1}
    database.write(lambda connection: connection.execute(insert(t.topic).values(topic)))
    database.close()
    with pytest.raises(PreconditionFailed, match="expected an empty one to rebuild into, found 1 rows of topic"):
        lost.rebuild(target, tmp_path / "rows")
    assert [row[1] for row in dump(target)["topic"]] == [topic["name"]]
    database = Database(target)
    database.write(lambda connection: connection.execute(delete(t.topic)))
    database.close()
    lost.rebuild(target, tmp_path / "more")
    assert dump(target) == dump(lost.url)


def test_load_that_dies_leaves_nothing_and_a_second_one_completes(lost: LostWorld, target: str, tmp_path: Path) -> None:
    """At each effect, before it and behind it; a load that was complete is not begun anew."""
    lost.fill()
    lost.flush()
    summary = lost.rebuild_rows(tmp_path / "rows")
    load, files = lost.load_of(target, summary), RowFilesFolder(tmp_path / "rows")
    deaths = 0
    for name in ("records.load_rows", "records.name_database"):
        for moment in ("before", "after"):
            arm(f"{name}.{moment}", "crash")
            try:
                RebuildDatabase(target).load_rows(load, files, lambda: None)
            except SimulatedCrash:
                deaths += 1
                assert RebuildDatabase(target).read_target().rebuild in {"", load.rebuild}
    assert deaths >= 2
    RebuildDatabase(target).load_rows(load, files, lambda: None)
    assert dump(target) == dump(lost.url)
    if target.startswith("sqlite"):
        assert [path.name for path in Path(target.removeprefix("sqlite:///")).parent.iterdir()] == ["catalog.db"]
    with pytest.raises(PreconditionFailed):
        RebuildDatabase(target).load_rows(replace(load, rebuild=f"{load.rebuild[:-8]}00000000"), files, lambda: None)
    RebuildDatabase(target).end_rebuild(load.rebuild)
    with pytest.raises(PreconditionFailed, match="expected an empty one"):
        RebuildDatabase(target).read_target()


def test_load_that_is_cancelled_leaves_nothing(lost: LostWorld, target: str, tmp_path: Path) -> None:
    lost.fill()
    lost.flush()
    summary = lost.rebuild_rows(tmp_path / "rows")

    def cancel() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        RebuildDatabase(target).load_rows(lost.load_of(target, summary), RowFilesFolder(tmp_path / "rows"), cancel)
    assert RebuildDatabase(target).read_target().rebuild == ""
