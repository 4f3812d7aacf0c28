"""What bulk jobs read of a catalog, compared with what its ports say."""

import json
import subprocess
import sys
from contextlib import AbstractContextManager
from typing import Any

import pytest
from sqlalchemy import Select

from logstore.catalog.engine import arrow_bulk
from logstore.catalog.reconciliation import bulk_queries
from logstore.deletion.intents import Outcome
from logstore.errors import CorruptData, InvalidInput
from logstore.log.ledgers import Component, CopyKind, CopyState
from logstore.ports.catalog.deletion import IntentResult
from logstore.ports.catalog.log import Topic, TopicState
from logstore.ports.catalog.transactions import BufferSnapshotReplacement
from logstore.positions import EARLIEST
from tests.contracts.catalog.delayed.steps import seal
from tests.contracts.catalog.log.component_steps import CURSOR, cursor_newborn, publish
from tests.contracts.catalog.offload.test_offloads import begin, offloaded
from tests.contracts.catalog.steps import NAME, append, at, filled, new_topic, newborn
from tests.contracts.catalog.worlds import SqlWorld, claim

pytestmark = pytest.mark.postgres

_ALL = (0, 2**62)


def _connect(world: SqlWorld) -> AbstractContextManager[arrow_bulk.ArrowReader]:
    """A file is opened by one of the two libraries at a time; the catalog opens it again when it is used again."""
    world.database.close()
    return arrow_bulk.open_arrow_reader(world.url)


def _read(world: SqlWorld, query: Select[Any]) -> list[dict[str, Any]]:
    with _connect(world) as reader:
        rows: list[dict[str, Any]] = reader.table(query).to_pylist()
        return rows


def _by_id(world: SqlWorld, query: Select[Any]) -> dict[int, dict[str, Any]]:
    return {row["ledger_id"]: row for row in _read(world, query)}


def _schema(world: SqlWorld, topic: Topic, digest: str) -> int:
    keys, schemas = {"schema": topic.name}, world.catalog.schemas
    born = world.catalog.components.create_component_ledger(
        topic.topic_id, Component.SCHEMA_STORAGE, keys, application="sexton"
    )
    made = schemas.publish_schema_version(
        topic.topic_id, born.ledger_id, digest=digest, content_bytes=7, size_bytes=900
    )
    assert made
    return made.ledger_id


def _buffer_snapshot(world: SqlWorld, topic: Topic) -> int:
    born = world.catalog.components.create_component_ledger(
        topic.topic_id, Component.TXN_SNAPSHOT, {}, application="sexton"
    ).ledger_id
    switch = BufferSnapshotReplacement(topic_id=topic.topic_id, expected=None, read_to=EARLIEST)
    assert world.catalog.transaction_snapshots.publish_snapshot(switch, born, size_bytes=5, sha256="ab")
    return born


def test_ledgers_say_what_the_catalog_says_of_each(sql_world: SqlWorld) -> None:
    """Every column of every row, ascending: rows, sizes, and what of them is stored."""
    topic = new_topic(sql_world)
    ids = filled(sql_world, topic.topic_id, 3)
    append(sql_world, topic.topic_id, ids[-1], size_bytes=50)
    born = newborn(sql_world, topic.topic_id)
    rows = _read(sql_world, bulk_queries.select_ledgers_with_flags(*_ALL, "sexton"))
    assert [row["ledger_id"] for row in rows] == [*ids, born]
    for known, row in zip(sql_world.catalog.ledgers.list_ledgers(topic.topic_id), rows, strict=False):
        names = ("ledger_id", "last_segment", "size_bytes", "created_us")
        assert [row[name] for name in names] == [getattr(known, name) for name in names]
    assert [(row["segments"], row["flags"]) for row in rows] == [(1, 2), (1, 2), (2, 2), (0, 1)]
    (catalogued,) = {row["list_id"] for row in rows}
    assert [row["list_id"] for row in _read(sql_world, bulk_queries.select_ledger_lists())] == [catalogued]
    offloaded(sql_world, ids[0], "u-0")
    sql_world.remove_copy(ids[1], CopyKind.LEDGER)
    copies = {(row["ledger_id"], row["flags"]) for row in _read(sql_world, bulk_queries.select_copies(*_ALL))}
    live, tiered = bulk_queries.LIVE, bulk_queries.LIVE | bulk_queries.TIERED
    assert copies == {(ids[0], live), (ids[0], tiered), (ids[2], live), (born, 0)}


def test_ledgers_of_another_application_are_marked_and_named(sql_world: SqlWorld) -> None:
    topic = new_topic(sql_world)
    ids = filled(sql_world, topic.topic_id, 2)
    sql_world.sql("UPDATE ledger SET application = 'o''ther' WHERE ledger_id = :id", id=ids[1])
    assert [row["flags"] for row in _read(sql_world, bulk_queries.select_ledgers_with_flags(*_ALL, "sexton"))] == [2, 6]
    assert [row["flags"] for row in _read(sql_world, bulk_queries.select_ledgers_with_flags(*_ALL, "o'ther"))] == [6, 2]
    told = _by_id(sql_world, bulk_queries.select_ledgers_of_other_applications(*_ALL, "sexton"))
    assert {ledger_id: row["application"] for ledger_id, row in told.items()} == {ids[1]: "o'ther"}


def test_moments_of_ledgers_with_several_segments_are_summed_up(sql_world: SqlWorld) -> None:
    """By squares of numbers, so that sizes that change places show; a single segment has none."""
    topic = new_topic(sql_world)
    ids = filled(sql_world, topic.topic_id, 3)
    append(sql_world, topic.topic_id, ids[-1], size_bytes=50)
    append(sql_world, topic.topic_id, ids[-1], size_bytes=70_000)
    expected = 100 + 4 * 50 + 9 * (70_000 % bulk_queries.SIZE_MODULUS)
    assert _read(sql_world, bulk_queries.select_weighted_segment_sums(*_ALL)) == [
        {"ledger_id": ids[-1], "moment": expected}
    ]
    assert _read(sql_world, bulk_queries.select_weighted_segment_sums(0, ids[-1])) == []
    found = [_read(sql_world, bulk_queries.select_max_segments(0, end)) for end in (ids[-1] + 1, ids[-1], 0)]
    assert found == [[{"segments": 3}], [{"segments": 1}], [{"segments": 0}]]


def test_ledgers_are_those_of_a_half_open_range(sql_world: SqlWorld) -> None:
    """Ranges that meet hold each ledger once; one without a row is empty, with all of its columns."""
    topic = new_topic(sql_world)
    ids = filled(sql_world, topic.topic_id, 4)
    ranges = ((0, ids[2]), (ids[2], ids[3] + 1))
    parts = [_by_id(sql_world, bulk_queries.select_ledgers_with_flags(first, end, "sexton")) for first, end in ranges]
    assert [list(part) for part in parts] == [ids[:2], ids[2:]]
    with _connect(sql_world) as reader:
        empty = reader.table(bulk_queries.select_ledgers_with_flags(ids[3] + 1, 2**62, "sexton"))
    assert (empty.num_rows, empty.schema) == (
        0,
        arrow_bulk.build_arrow_schema(bulk_queries.select_ledgers_with_flags(0, 1, "sexton")),
    )


def test_component_ledgers_are_named_by_the_rows_of_their_components(sql_world: SqlWorld) -> None:
    """By a cursor's snapshot, a schema's version, a buffer's snapshot and a bucket, a place in the list or not."""
    topic = new_topic(sql_world)
    (data,) = filled(sql_world, topic.topic_id, 1)
    sql_world.catalog.cursors.create_subscription(topic.topic_id, CURSOR, latest=False)
    snapshot = publish(sql_world, topic.topic_id, (data, 5)).ledger_id
    version, forgotten = _schema(sql_world, topic, "a"), _schema(sql_world, topic, "b")
    sql_world.sql("DELETE FROM schema_version WHERE ledger_id = :id", id=forgotten)
    buffer = _buffer_snapshot(sql_world, topic)
    bucket = seal(sql_world, topic.topic_id, at(data, 0), at(data, 4)).bucket_id
    named = {
        (row["ledger_id"], row["component"])
        for row in _read(sql_world, bulk_queries.select_referenced_component_ledgers(*_ALL))
    }
    assert named == {
        (snapshot, "MANAGED_CURSOR"),
        (version, "SCHEMA_STORAGE"),
        (buffer, "TXN_SNAPSHOT"),
        (bucket, "DELAYED_INDEX"),
    }
    assert _read(sql_world, bulk_queries.select_referenced_component_ledgers(0, min(snapshot, version))) == []


def test_copies_of_given_ledgers(sql_world: SqlWorld) -> None:
    topic = new_topic(sql_world)
    ids = filled(sql_world, topic.topic_id, 2)
    offloaded(sql_world, ids[0], "u-0")
    found = {
        (row["ledger_id"], row["kind"]) for row in _read(sql_world, bulk_queries.select_copies_with_context(ids[:1]))
    }
    assert found == {(ids[0], "LEDGER"), (ids[0], "OFFLOADED_LEDGER")}


def test_lists_tell_owner_and_topic(sql_world: SqlWorld) -> None:
    """The name is empty where the topic's row is gone; what owns a list is JSON."""
    topic, other = new_topic(sql_world), new_topic(sql_world, "persistent://a/b/100%25")
    filled(sql_world, topic.topic_id, 1)
    sql_world.catalog.cursors.create_subscription(topic.topic_id, 'o"dd', latest=False)
    cursor_newborn(sql_world, topic.topic_id, 'o"dd')
    found = [
        (row["topic_id"], row["component"], json.loads(row["owner"]), row["topic"])
        for row in _read(sql_world, bulk_queries.select_ledger_lists())
    ]
    assert sorted(found, key=lambda row: (row[0], row[1] != "MANAGED_LEDGER")) == [
        (topic.topic_id, "MANAGED_LEDGER", {}, NAME),
        (topic.topic_id, "MANAGED_CURSOR", {"cursor": 'o"dd'}, NAME),
        (other.topic_id, "MANAGED_LEDGER", {}, "persistent://a/b/100%25"),
    ]
    sql_world.remove_topic(topic.topic_id)
    assert {
        row["topic"]
        for row in _read(sql_world, bulk_queries.select_ledger_lists())
        if row["topic_id"] == topic.topic_id
    } == {""}


def test_tiered_copies_tell_their_contexts_as_found(sql_world: SqlWorld) -> None:
    """Those being written too, those with a damaged context, and those whose ledger has no row."""
    topic = new_topic(sql_world)
    ids = filled(sql_world, topic.topic_id, 4)
    offloaded(sql_world, ids[0], "u-0")
    begin(sql_world, ids[1], "u-1")
    sql_world.add_copy(ids[2], CopyState.LIVE)
    damaged = "'\"no object\"'" if sql_world.database.is_sqlite else "'\"no object\"'::json"
    sql_world.sql(f"UPDATE ledger_copy SET context = {damaged} WHERE ledger_id = :id AND kind <> 'LEDGER'", id=ids[2])
    sql_world.sql("DELETE FROM ledger WHERE ledger_id = :id", id=ids[1])
    found = _by_id(sql_world, bulk_queries.select_tiered_copies(*_ALL))
    assert list(found) == ids[:3]
    assert [row["state"] for row in found.values()] == ["LIVE", "WRITING", "LIVE"]
    assert [json.loads(found[one]["context"])["uuid"] for one in ids[:2]] == ["u-0", "u-1"]
    assert found[ids[2]]["context"] == '"no object"'
    assert [row["size_bytes"] for row in found.values()] == [100, None, 100]
    assert list(_by_id(sql_world, bulk_queries.select_tiered_copies(ids[1], ids[2]))) == [ids[1]]


def test_intents_are_those_with_something_left_and_say_who_is_at_work(sql_world: SqlWorld) -> None:
    """Deleted ones are left out; stalled are those of which the claim, or the batch's, has ended."""
    topic = new_topic(sql_world)
    filled(sql_world, topic.topic_id, 5)
    sql_world.phase_one(topic.topic_id, batch_id="b", ttl_s=60)
    rows = sorted(sql_world.catalog.deletions.list_intents(None, limit=10), key=lambda one: one.row_id)
    ended = [
        IntentResult(row_id=rows[0].row_id, outcome=Outcome.DELETED),
        IntentResult(row_id=rows[1].row_id, outcome=Outcome.METADATA_MISMATCH, error="another's"),
    ]
    sql_world.catalog.deletions.record_outcomes(ended, holder="b")
    sql_world.catalog.deletions.move_to_own_workflows({rows[2].row_id: "own"}, batch_id="b", error_by_row={}, ttl_s=-1)
    found = _read(sql_world, bulk_queries.select_undeleted_intents(*_ALL))
    assert [(row["row_id"], row["ledger_id"]) for row in found] == [(one.row_id, one.ledger_id) for one in rows[1:]]
    assert [(row["state"], row["stalled"]) for row in found] == [("DEAD_LETTERED", 0), ("PENDING", 1), ("PENDING", 0)]
    assert [(row["copy"], row["topic"], row["context"]) for row in found] == [("LEDGER", NAME, "{}")] * 3
    assert {row["size_bytes"] for row in found} == {100}
    sql_world.lapse("b")
    assert [row["stalled"] for row in _read(sql_world, bulk_queries.select_undeleted_intents(*_ALL))] == [0, 1, 1]
    sql_world.sql("UPDATE run SET paused_us = 1")
    assert [row["stalled"] for row in _read(sql_world, bulk_queries.select_undeleted_intents(*_ALL))] == [0, 1, 0]
    assert [
        row["row_id"] for row in _read(sql_world, bulk_queries.select_undeleted_intents(rows[2].row_id, rows[3].row_id))
    ] == [rows[2].row_id]


def test_stalled_is_what_a_sweep_would_take(sql_world: SqlWorld) -> None:
    """One rule: what the reconciliation calls stalled is what `adopt` moves."""
    topic = new_topic(sql_world)
    filled(sql_world, topic.topic_id, 4)
    sql_world.phase_one(topic.topic_id, batch_id="b", ttl_s=-1)
    stalled = [
        row["row_id"] for row in _read(sql_world, bulk_queries.select_undeleted_intents(*_ALL)) if row["stalled"]
    ]
    assert len(stalled) == 3
    asked = bulk_queries.select_stalled_intents([*stalled[:2], 10**9])
    assert sorted(row["row_id"] for row in _read(sql_world, asked)) == stalled[:2]
    assert sql_world.catalog.upkeep.count_sweep_backlog(older_than_s=0).stalled == 3
    sql_world.catalog.upkeep.move_abandoned_work_to_batch(batch_id="sweep", claim=claim(), limit=100)
    assert not any(row["stalled"] for row in _read(sql_world, bulk_queries.select_undeleted_intents(*_ALL)))
    assert _read(sql_world, asked) == []


def test_unreferenced_ledgers_are_those_asked_for_that_nothing_names(sql_world: SqlWorld) -> None:
    """A plan reads table by table: what was published between two reads looks unreferenced, until it is asked for."""
    topic = new_topic(sql_world)
    ids = filled(sql_world, topic.topic_id, 3)
    sql_world.catalog.cursors.create_subscription(topic.topic_id, CURSOR, latest=False)
    snapshot = publish(sql_world, topic.topic_id, (ids[2], 5)).ledger_id
    version, forgotten = _schema(sql_world, topic, "a"), _schema(sql_world, topic, "b")
    sql_world.sql("DELETE FROM schema_version WHERE ledger_id = :id", id=forgotten)
    born = newborn(sql_world, topic.topic_id)
    sql_world.unlist(ids[1])
    buffer, lost = (_buffer_snapshot(sql_world, one) for one in (topic, new_topic(sql_world, f"{NAME}-2")))
    sql_world.sql("UPDATE transaction_snapshot SET ledger_id = NULL WHERE ledger_id = :id", id=lost)
    bucket, dropped = (seal(sql_world, topic.topic_id, at(ids[0], one), at(ids[0], one)).bucket_id for one in (0, 1))
    sql_world.sql("DELETE FROM delayed_bucket WHERE ledger_id = :id", id=dropped)
    components = [buffer, lost, bucket, dropped, snapshot, version, forgotten]
    asked = bulk_queries.select_unreferenced_ledgers([*ids, *components, born, 10**9])
    assert sorted(row["ledger_id"] for row in _read(sql_world, asked)) == [ids[1], forgotten, lost, dropped]


def test_segments_are_those_of_the_ledgers_asked_for(sql_world: SqlWorld) -> None:
    """By ledger and number; none for no ledger, and no more ledgers than a statement should name."""
    topic = new_topic(sql_world)
    ids = filled(sql_world, topic.topic_id, 3)
    append(sql_world, topic.topic_id, ids[2], size_bytes=7)
    found = [tuple(row.values()) for row in _read(sql_world, bulk_queries.select_segments([ids[2], ids[0]]))]
    assert found == [(ids[0], 0, 100), (ids[2], 0, 100), (ids[2], 1, 7)]
    assert _read(sql_world, bulk_queries.select_segments([])) == []
    most = range(ids[0], ids[0] + bulk_queries.MAX_LEDGERS_PER_QUERY)
    assert len(_read(sql_world, bulk_queries.select_segments(most))) == 4
    with pytest.raises(InvalidInput, match="ledger ids: expected at most 5,000, found 5001"):
        bulk_queries.select_segments(range(bulk_queries.MAX_LEDGERS_PER_QUERY + 1))


def test_sizes_of_topics_are_their_segments(sql_world: SqlWorld) -> None:
    """Of each that is not being deleted, one without ledgers too; ledgers of components do not count."""
    large, small, bare, gone = (new_topic(sql_world, f"{NAME}-{number}") for number in range(4))
    for topic, count in ((large, 3), (small, 1), (gone, 2)):
        filled(sql_world, topic.topic_id, count)
    _buffer_snapshot(sql_world, bare)
    sql_world.set_state(gone.topic_id, TopicState.DELETING)
    found = {
        row["topic_id"]: row["size"] for row in _read(sql_world, bulk_queries.select_active_topic_segment_counts())
    }
    assert found == {large.topic_id: 3, small.topic_id: 1, bare.topic_id: 0}


def test_bounds_tell_both_ends_of_each_key(sql_world: SqlWorld) -> None:
    """The ranges of a whole read come from them; an empty catalog has ranges without a row."""
    none = {"first_ledger": 0, "last_ledger": -1, "ledgers": 0, "first_row": 0, "last_row": -1}
    assert _read(sql_world, bulk_queries.select_ledger_and_intent_bounds()) == [none]
    topic = new_topic(sql_world)
    ids = filled(sql_world, topic.topic_id, 5)
    sql_world.detach(topic.topic_id, ids[:2])
    found = _read(sql_world, bulk_queries.select_ledger_and_intent_bounds())[0]
    rows = [one.row_id for one in sql_world.catalog.deletions.list_intents(None, limit=10)]
    assert (found["first_ledger"], found["last_ledger"], found["ledgers"]) == (ids[2], ids[4], 3)
    assert (found["first_row"], found["last_row"]) == (min(rows), max(rows))


def test_row_that_holds_what_its_column_cannot_ends_the_read(sql_world: SqlWorld) -> None:
    """A reference set that cannot be read whole is none (ClickHouse#114194)."""
    if not sql_world.database.is_sqlite:  # a server lets no such value in
        return
    topic = new_topic(sql_world)
    ids = filled(sql_world, topic.topic_id, 2)
    sql_world.sql("UPDATE ledger SET size_bytes = 'many' WHERE ledger_id = :id", id=ids[1])
    with pytest.raises(CorruptData, match="database: a row holds what its column cannot"):
        _read(sql_world, bulk_queries.select_ledgers_with_flags(*_ALL, "sexton"))
    sql_world.sql("UPDATE ledger SET size_bytes = 1, application = CAST(x'ff41' AS TEXT)")
    with pytest.raises(CorruptData, match="database: a row holds what its column cannot"):
        _read(sql_world, bulk_queries.select_ledgers_of_other_applications(*_ALL, "sexton"))


_WRITER = """
import sys
from sqlalchemy import text
from logstore.catalog import Database
database = Database(sys.argv[1])
database.write(lambda c: c.execute(text("UPDATE ledger SET size_bytes = 77")))
database.close()
"""


def test_bulk_read_holds_no_writer_up(sql_world: SqlWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is half drawn stays what it was at its beginning; what is committed meanwhile the next read sees."""
    monkeypatch.setattr(arrow_bulk, "_BATCH_ROWS", 1)
    topic = new_topic(sql_world)
    filled(sql_world, topic.topic_id, 3)
    with _connect(sql_world) as reader:
        rows = reader.batches(bulk_queries.select_ledgers_with_flags(*_ALL, "sexton"))
        sizes = next(rows)["size_bytes"].to_pylist()
        subprocess.run([sys.executable, "-c", _WRITER, sql_world.url], check=True, timeout=60)
        sizes += [size for batch in rows for size in batch["size_bytes"].to_pylist()]
        assert sizes == [100] * 3
        assert set(reader.table(bulk_queries.select_ledgers_with_flags(*_ALL, "sexton"))["size_bytes"].to_pylist()) == {
            77
        }
