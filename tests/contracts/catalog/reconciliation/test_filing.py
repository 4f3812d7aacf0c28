"""Findings become intents: each is looked at again under its locks, and what is not true any more is kept."""

import threading
from functools import partial

import pytest
from sqlalchemy import event

from logstore.deletion.intents import DeletionState, Outcome
from logstore.errors import InvalidInput, PreconditionFailed
from logstore.failpoints import SimulatedCrash, arm
from logstore.log.ledgers import Component, CopyKind, CopyState
from logstore.ports.catalog.deletion import FiledIntentCount, IntentResult
from logstore.ports.catalog.reconciliation import FiledCopyRow
from logstore.ports.catalog.transactions import BufferSnapshotReplacement
from logstore.positions import EARLIEST, LedgerId
from tests.contracts.catalog.delayed.steps import sealed
from tests.contracts.catalog.log.component_steps import CURSOR, publish
from tests.contracts.catalog.offload.test_offloads import begin, offloaded, remove
from tests.contracts.catalog.reconciliation.steps import (
    FilingResult,
    created_us,
    file,
    intents,
    lost,
    orphan,
    superseded,
    tiered_orphan,
)
from tests.contracts.catalog.steps import NAME, filled, listed, new_topic, newborn, race, roll
from tests.contracts.catalog.worlds import CAUSE, SqlWorld, World, claim

pytestmark = pytest.mark.postgres


def test_orphan_becomes_an_intent_that_says_what_storage_says(world: World) -> None:
    """Phase two compares that with storage again; the batch is held by who applies, and its rows are told of."""
    topic = new_topic(world)
    gone = lost(world)
    done = file(world, orphans=[orphan(topic, gone, number=7)])
    (intent,) = intents(world, gone)
    assert (done.kept, done.detached.batch_id, done.detached.ledgers, done.detached.intents) == ({}, "apply", 0, 1)
    assert done.detached.filed_counts == (FiledIntentCount(component="MANAGED_LEDGER", copy="LEDGER", rows=1),)
    assert (intent.state, intent.batch_id, intent.generation, intent.copy) == (
        DeletionState.PENDING, "apply", 1, CopyKind.LEDGER
    )  # fmt: skip
    assert intent.owner == orphan(topic, gone).statement.owner
    assert (intent.ledger_created_us, intent.epoch, intent.segments, intent.last_segment) == (5, 1, 0, -1)
    assert (intent.size_bytes, intent.actor, intent.reason) == (700, CAUSE.actor, CAUSE.reason)
    assert world.catalog.upkeep.count_sweep_backlog(older_than_s=0).stalled == 0
    (audited,) = world.audited("file-findings")
    told = {name: audited.detail[name] for name in ("orphans", "unreferenced", "stalled", "kept")}
    assert told == {"orphans": 1, "unreferenced": 0, "stalled": 0, "kept": 0}


def test_orphan_whose_intent_had_ended_gets_another_generation(world: World) -> None:
    """What ended stays as it is, for its certificate was given: the copy is deleted by a row of its own."""
    topic = new_topic(world)
    (first, _) = filled(world, topic.topic_id, 2)
    world.detach(topic.topic_id, [first])
    (ended,) = intents(world, first)
    end = IntentResult(row_id=ended.row_id, outcome=Outcome.DELETED, objects=2, size_bytes=9)
    world.catalog.deletions.record_outcomes([end], holder=ended.batch_id)
    again = orphan(topic, first, created_us=created_us(world, topic, first))
    assert file(world, orphans=[again]).detached.intents == 1
    old, new = intents(world, first)
    assert (old.state, old.generation, old.openings) == (DeletionState.DELETED, 1, 0)
    assert (new.state, new.generation, new.batch_id) == (DeletionState.PENDING, 2, "apply")


def test_orphan_that_the_catalog_knows_is_kept(world: World) -> None:
    """A row, an unfinished intent, a dead letter, an id that was never given out, an epoch to come."""
    gone, topic = lost(world), new_topic(world)
    ids = filled(world, topic.topic_id, 4)
    born = newborn(world, topic.topic_id)
    world.detach(topic.topic_id, ids[:1])
    world.detach(topic.topic_id, ids[1:2])
    (dead,) = intents(world, ids[1])
    refused = IntentResult(row_id=dead.row_id, outcome=Outcome.METADATA_MISMATCH, error="another's")
    world.catalog.deletions.record_outcomes([refused], holder=dead.batch_id)
    before = world.intents()
    asked = [
        orphan(topic, ids[2], number=1),
        orphan(topic, born, number=2),
        orphan(topic, ids[0], number=3),
        orphan(topic, ids[1], number=4),
        orphan(topic, born + 1, number=5),
        orphan(topic, gone, number=6, epoch=2),
        orphan(topic, -1, number=7),
    ]
    done = file(world, orphans=asked)
    assert (done.detached.intents, sorted(done.kept)) == (0, [1, 2, 3, 4, 5, 6, 7])
    told = ["row names", "row names", "is PENDING", "is DEAD_LETTERED", "never gave out", "epoch 2", "never gave out"]
    assert [part in done.kept[number] for number, part in enumerate(told, 1)] == [True] * 7, done.kept
    assert world.intents() == before


def test_tiered_orphan_is_told_from_the_copy_that_is_named(world: World) -> None:
    """Two uploads of a ledger are two copies: the uuid that the row names stays, and so does one that is deleted."""
    topic = new_topic(world)
    ids = filled(world, topic.topic_id, 3)
    offloaded(world, ids[0], "live")
    begin(world, ids[1], "writing")
    first_us, second_us = (created_us(world, topic, one) for one in ids[:2])
    asked = [
        tiered_orphan(topic, ids[0], "live", number=1, created_us=first_us),
        tiered_orphan(topic, ids[0], "old", number=2, created_us=first_us),
        tiered_orphan(topic, ids[0], "older", number=3, created_us=first_us),
        tiered_orphan(topic, ids[0], "old", number=4, created_us=first_us),
        tiered_orphan(topic, ids[1], "writing", number=5, created_us=second_us),
        orphan(topic, ids[0], number=6, created_us=first_us),
    ]
    done = file(world, orphans=asked)
    assert (sorted(done.kept), done.detached.intents) == ([1, 4, 5, 6], 2)
    assert "names this copy twice" in done.kept[4] or "is PENDING" in done.kept[4]
    assert [(row.context["uuid"], row.generation) for row in intents(world, ids[0])] == [("old", 1), ("older", 2)]
    assert listed(world, topic.topic_id) == ids
    assert sorted(file(world, "again", orphans=asked).kept) == [1, 2, 3, 4, 5, 6]


def test_ledger_that_lives_on_is_detached_with_a_generation_above_its_orphans(world: World) -> None:
    """A ledger, a copy and a generation are one intent: a later detach meets no row that stands already."""
    topic = new_topic(world)
    ids = filled(world, topic.topic_id, 2)
    offloaded(world, ids[0])
    remove(world, topic, ids[0])
    at_us = created_us(world, topic, ids[0])
    asked = [
        tiered_orphan(topic, ids[0], uuid, number=at, created_us=at_us) for at, uuid in enumerate(("old", "older"))
    ]
    file(world, orphans=asked)
    world.detach(topic.topic_id, ids[:1])
    assert [row.generation for row in intents(world, ids[0])] == [1, 2, 3, 4]


def test_primary_orphan_of_a_ledger_that_lives_in_tiered_storage_is_filed(world: World) -> None:
    """Objects in the primary bucket that came back after their copy was removed are no copy of the ledger's."""
    topic = new_topic(world)
    ids = filled(world, topic.topic_id, 2)
    offloaded(world, ids[0])
    remove(world, topic, ids[0])
    (removed,) = intents(world, ids[0])
    world.catalog.deletions.record_outcomes(
        [IntentResult(row_id=removed.row_id, outcome=Outcome.DELETED)], holder=removed.batch_id
    )
    stray = orphan(topic, ids[0], created_us=created_us(world, topic, ids[0]))
    assert file(world, orphans=[stray]).kept == {}
    again = intents(world, ids[0])[-1]
    assert (again.generation, again.copy) == (2, CopyKind.LEDGER)
    chunk = world.catalog.deletions.list_unfinished_ranges("apply", after=0, rows=5, limit=1)[0]
    assert [row.referenced for row in world.catalog.deletions.list_intents_in_range("apply", chunk)] == [False]


_NAMES = {
    "ledger": "DELETE FROM ledger_copy WHERE ledger_id = :id",
    "ledger_copy": "DELETE FROM ledger WHERE ledger_id = :id",
    "segment": "DELETE FROM ledger_copy WHERE ledger_id = :id; DELETE FROM ledger WHERE ledger_id = :id",
}


@pytest.mark.parametrize("table", [*_NAMES, "schema_version"])
@pytest.mark.parametrize("is_tiered", [False, True])
def test_copy_of_a_ledger_that_any_row_still_names_is_kept(sql_world: SqlWorld, table: str, is_tiered: bool) -> None:
    """The ledger is in use, or was: with the row of its copy lost, deleting the objects would lose the data."""
    topic = new_topic(sql_world)
    if table == "schema_version":
        keys = {"schema": topic.name}
        born = sql_world.catalog.components.create_component_ledger(
            topic.topic_id, Component.SCHEMA_STORAGE, keys, application="sexton"
        )
        sql_world.catalog.schemas.publish_schema_version(
            topic.topic_id, born.ledger_id, digest="a", content_bytes=7, size_bytes=900
        )
        damaged = born.ledger_id
        for lost_table in ("segment", "ledger_copy", "ledger"):
            sql_world.sql(f"DELETE FROM {lost_table} WHERE ledger_id = :id", id=damaged)
        at_us = 5
    else:
        damaged = filled(sql_world, topic.topic_id, 2)[0]
        at_us = created_us(sql_world, topic, damaged)
        for statement in _NAMES[table].split("; "):
            sql_world.sql(statement, id=damaged)
    stored = (
        tiered_orphan(topic, damaged, "u", created_us=at_us) if is_tiered else orphan(topic, damaged, created_us=at_us)
    )
    done = file(sql_world, orphans=[stored])
    assert done.detached.intents == 0
    assert "repair the catalog by hand" in done.kept[0]


def test_primary_copy_whose_removal_is_not_known_is_kept(sql_world: SqlWorld) -> None:
    """The ledger has a tiered copy; the row of its primary one may have been lost by hand."""
    topic = new_topic(sql_world)
    ids = filled(sql_world, topic.topic_id, 2)
    offloaded(sql_world, ids[0])
    sql_world.remove_copy(ids[0], CopyKind.LEDGER)
    stored = orphan(topic, ids[0], created_us=created_us(sql_world, topic, ids[0]))
    done = file(sql_world, orphans=[stored])
    assert (done.detached.intents, "no deletion of its primary copy is known" in done.kept[0]) == (0, True)


def test_objects_that_state_another_owner_than_the_catalog_s_own_history_are_kept(world: World) -> None:
    """The id was given out here, to another topic, or to this topic of another store: what stands there is theirs."""
    topic, other = new_topic(world), new_topic(world, "persistent://a/b/other")
    ids = filled(world, topic.topic_id, 3)
    at_us = [created_us(world, topic, one) for one in ids]
    world.detach(topic.topic_id, ids[:1])
    (row,) = intents(world, ids[0])
    world.catalog.deletions.record_outcomes(
        [IntentResult(row_id=row.row_id, outcome=Outcome.DELETED)], holder=row.batch_id
    )
    asked = [
        orphan(other, ids[0], number=1, created_us=at_us[0]),
        orphan(topic, ids[0], number=2, created_us=at_us[0] + 1),
        tiered_orphan(other, ids[1], "u", number=3, created_us=at_us[1]),
        tiered_orphan(topic, ids[1], "u", number=4, created_us=at_us[1] + 1),
    ]
    done = file(world, orphans=asked)
    assert (done.detached.intents, sorted(done.kept)) == (0, [1, 2, 3, 4])
    told = [
        f"deletion {row.row_id}: it is of {topic.name}",
        "creation time",
        "the ledger's row: it is of",
        "creation time",
    ]
    assert [part in done.kept[number] for number, part in enumerate(told, 1)] == [True] * 4, done.kept


def test_unreferenced_ledger_leaves_the_catalog_with_all_of_its_copies(sql_world: SqlWorld) -> None:
    """As phase one detaches: an intent for each copy, with what the row said."""
    topic = new_topic(sql_world)
    ids = filled(sql_world, topic.topic_id, 1)
    old = superseded(sql_world, topic.topic_id, (ids[0], 1))
    sql_world.add_copy(old, CopyState.LIVE)
    done = file(sql_world, unreferenced={4: old})
    assert (done.kept, done.detached.ledgers, done.detached.intents) == ({}, 1, 2)
    rows = intents(sql_world, old)
    assert [(row.copy.value, row.generation, row.batch_id) for row in rows] == [
        ("LEDGER", 1, "apply"), ("OFFLOADED_LEDGER", 1, "apply")
    ]  # fmt: skip
    assert {(row.segments, row.last_segment, row.size_bytes, row.reason) for row in rows} == {(1, 0, 50, "a test")}
    assert sql_world.rows().ledgers == [
        *ids,
        sql_world.catalog.cursors.get_cursor(topic.topic_id, CURSOR).snapshot_ledger,
    ]


def test_unlisted_data_ledger_leaves_the_catalog_only_if_nothing_was_registered_in_it(sql_world: SqlWorld) -> None:
    """Entries were answered in a listed ledger, and nothing takes a ledger out of its list but its deletion."""
    topic = new_topic(sql_world)
    (ledger,) = filled(sql_world, topic.topic_id, 1)
    empty, counted, summed = (roll(sql_world, topic.topic_id) for _ in range(3))
    sql_world.sql("UPDATE ledger SET segments = 1, entries = 1, size_bytes = 1 WHERE ledger_id = :id", id=counted)
    columns = "ledger_id, number, first_entry, entries, size_bytes"
    sql_world.sql(f"INSERT INTO segment ({columns}) VALUES (:id, 0, 0, 1, 1)", id=summed)
    unlisted = (ledger, empty, counted, summed)
    for ledger_id in unlisted:
        sql_world.unlist(ledger_id)
    done = file(sql_world, unreferenced=dict(enumerate(unlisted)))
    lost = "the row of ledger_list that named the ledger is lost; repair the catalog by hand"
    assert done.kept == {at: f"ledger {one}: {lost}" for at, one in ((0, ledger), (2, counted), (3, summed))}
    assert [row.ledger_id for row in intents(sql_world, empty)] == [empty]
    assert sql_world.rows().ledgers == [ledger, counted, summed]


def test_unreferenced_ledger_that_is_named_creating_or_gone_is_kept(world: World) -> None:
    """It may have been listed since the plan; a newborn is its creator's; what is gone has its intent."""
    topic = new_topic(world)
    ids = filled(world, topic.topic_id, 3)
    born = newborn(world, topic.topic_id)
    world.detach(topic.topic_id, ids[:1])
    world.catalog.cursors.create_subscription(topic.topic_id, CURSOR, latest=False)
    snapshot = publish(world, topic.topic_id, (ids[1], 0)).ledger_id
    before = world.rows().ledgers
    done = file(world, unreferenced={1: ids[1], 2: born, 3: ids[0], 4: snapshot})
    assert (sorted(done.kept), done.detached.intents) == ([1, 2, 3, 4], 0)
    told = ["something names it", "being created", "left the catalog", "something names it"]
    assert [part in done.kept[number] for number, part in enumerate(told, 1)] == [True] * 4, done.kept
    assert world.rows().ledgers == before


@pytest.mark.parametrize("table", ["schema_version", "cursor", "delayed_bucket", "transaction_snapshot"])
def test_ledger_whose_referring_row_is_lost_is_kept(table: str, sql_world: SqlWorld) -> None:
    """It was published with that row, and only its deletion takes the row away."""
    topic = new_topic(sql_world)
    ids, topic_id = filled(sql_world, topic.topic_id, 1), topic.topic_id
    components, keys = sql_world.catalog.components, {"schema": topic.name}
    made = components.create_component_ledger(topic_id, Component.SCHEMA_STORAGE, keys, application="sexton").ledger_id
    sql_world.catalog.schemas.publish_schema_version(topic_id, made, digest="a", content_bytes=7, size_bytes=900)
    sql_world.catalog.cursors.create_subscription(topic_id, CURSOR, latest=False)
    buffer = components.create_component_ledger(topic_id, Component.TXN_SNAPSHOT, {}, application="sexton").ledger_id
    switch = BufferSnapshotReplacement(topic_id=topic_id, expected=None, read_to=EARLIEST)
    assert sql_world.catalog.transaction_snapshots.publish_snapshot(switch, buffer, size_bytes=5, sha256="ab")
    ledgers = {
        "schema_version": made,
        "cursor": publish(sql_world, topic_id, (ids[0], 0)).ledger_id,
        "delayed_bucket": sealed(sql_world, topic_id, 1)[0].bucket_id,
        "transaction_snapshot": buffer,
    }
    assert file(sql_world, "early", unreferenced={0: ledgers[table]}).kept == {
        0: f"ledger {ledgers[table]}: something names it"
    }
    sql_world.sql(f"DELETE FROM {table}")
    before = sql_world.rows().ledgers
    kept = file(sql_world, unreferenced=dict(enumerate(ledgers.values()))).kept
    lost = f"ledger {ledgers[table]}: the row of {table} that named the ledger is lost; repair the catalog by hand"
    assert (kept[list(ledgers).index(table)], len(kept)) == (lost, 4)
    assert sql_world.rows().ledgers == before


@pytest.mark.parametrize("change", ["created_us = created_us + 1000000000", "snapshot_ledger = NULL"])
def test_cursor_that_does_not_prove_a_newer_snapshot_keeps_the_older_one(change: str, sql_world: SqlWorld) -> None:
    """A cursor that came later under the same name is another one; one without a snapshot proves nothing."""
    topic = new_topic(sql_world)
    (ledger,) = filled(sql_world, topic.topic_id, 1)
    old = superseded(sql_world, topic.topic_id, (ledger, 1))
    sql_world.sql(f"UPDATE cursor SET {change}")
    assert "the row of cursor that named the ledger is lost" in file(sql_world, unreferenced={0: old}).kept[0]


def test_cursor_of_another_name_or_topic_proves_nothing(sql_world: SqlWorld) -> None:
    topic, other = new_topic(sql_world), new_topic(sql_world, f"{NAME}-2")
    (ledger,) = filled(sql_world, topic.topic_id, 1)
    old = superseded(sql_world, topic.topic_id, (ledger, 1))
    for column, value in (("name", "'else'"), ("topic_id", str(other.topic_id))):
        sql_world.sql(f"UPDATE cursor SET {column} = {value}")
        done = file(sql_world, f"apply-{column}", unreferenced={0: old})
        assert "the row of cursor that named the ledger is lost" in done.kept[0]


def test_buffer_snapshot_that_a_newer_one_replaced_is_detached(sql_world: SqlWorld) -> None:
    """Its topic has one row, which names the newer one."""
    topic_id = new_topic(sql_world).topic_id
    ids = []
    for _ in range(2):
        made = sql_world.catalog.components.create_component_ledger(
            topic_id, Component.TXN_SNAPSHOT, {}, application="sexton"
        )
        switch = BufferSnapshotReplacement(topic_id=topic_id, expected=None, read_to=EARLIEST)
        assert sql_world.catalog.transaction_snapshots.publish_snapshot(
            switch, made.ledger_id, size_bytes=5, sha256="ab"
        )
        ids.append(made.ledger_id)
        if len(ids) == 1:
            sql_world.sql("UPDATE transaction_snapshot SET ledger_id = NULL")
    assert file(sql_world, unreferenced={0: ids[0]}).detached.ledgers == 1
    assert [row.component for row in intents(sql_world, ids[0])] == ["TXN_SNAPSHOT"]


def test_ledger_whose_list_or_copies_have_no_row_is_kept(sql_world: SqlWorld) -> None:
    """Nothing can be filed for it, so nothing of it is taken away."""
    topic = new_topic(sql_world)
    ids = [roll(sql_world, topic.topic_id) for _ in range(2)]
    sql_world.unlist(ids[0])
    sql_world.remove_copy(ids[0], CopyKind.LEDGER)
    done = file(sql_world, unreferenced={0: ids[0]})
    assert done.kept == {0: f"ledger {ids[0]}: its copies, its list or its topic have no row"}
    assert sql_world.rows().ledgers == ids


def test_copy_whose_context_cannot_be_read_may_be_any(sql_world: SqlWorld) -> None:
    """What a damaged row names is not known: every tiered copy of the ledger stays."""
    topic = new_topic(sql_world)
    ids = filled(sql_world, topic.topic_id, 2)
    sql_world.add_copy(ids[0], CopyState.LIVE)
    damaged = "'\"no object\"'" if sql_world.database.is_sqlite else "'\"no object\"'::json"
    sql_world.sql(f"UPDATE ledger_copy SET context = {damaged} WHERE kind <> 'LEDGER'")
    assert sorted(file(sql_world, orphans=[tiered_orphan(topic, ids[0], "old")]).kept) == [0]


def test_stalled_deletion_joins_the_batch_unless_somebody_works_on_it(world: World) -> None:
    """One that was taken up since the plan, or has ended, is left to its own end."""
    topic = new_topic(world)
    ids = filled(world, topic.topic_id, 5)
    world.phase_one(topic.topic_id, ids[:3], force=True, batch_id="dead", ttl_s=-1)
    world.phase_one(topic.topic_id, ids[3:4], force=True, batch_id="alive")
    first, second, third, fourth = (intents(world, one)[0].row_id for one in ids[:4])
    world.catalog.deletions.record_outcomes([IntentResult(row_id=third, outcome=Outcome.DELETED)], holder="dead")
    done = file(world, stalled={1: first, 2: second, 3: third, 4: fourth, 5: fourth + 1_000})
    assert (sorted(done.kept), done.detached.intents, done.detached.filed_counts) == ([3, 4, 5], 2, ())
    assert [intents(world, one)[0].batch_id for one in ids[:4]] == ["apply", "apply", "dead", "alive"]
    assert [one.row_id for one in world.catalog.reconciliation.list_filed_copies("apply", after=0, limit=9)] == [
        first,
        second,
    ]


def test_file_repeated_answers_the_same_and_changes_nothing(world: World) -> None:
    """Its answer may have been lost; also what was kept, and why, is told again."""
    topic = new_topic(world)
    ids, gone = filled(world, topic.topic_id, 2), lost(world)
    asked = [orphan(topic, gone, number=1), orphan(topic, ids[0], number=2)]
    first = file(world, orphans=asked)
    before = world.everything()
    again = file(world, orphans=asked)
    assert again == first
    assert (sorted(again.kept), again.detached.intents, again.detached.filed_counts) == ([2], 1, ())
    assert world.everything() == before
    with pytest.raises(PreconditionFailed, match="batch apply: expected a name never used"):
        file(world, orphans=asked[:1])
    with pytest.raises(InvalidInput, match="batch_id"):
        file(world, "", orphans=asked)


@pytest.mark.parametrize("point", ["before=crash", "after=crash", "reported_failed=fail"])
def test_file_interrupted_and_repeated_is_done_once(world: World, point: str) -> None:
    """Killed before, killed after, or done and reported as failed."""
    topic = new_topic(world)
    gone = lost(world)
    moment, action = point.split("=")
    arm(f"catalog.file_findings.{moment}", action)
    with pytest.raises((SimulatedCrash, Exception)):
        file(world, orphans=[orphan(topic, gone)])
    assert file(world, orphans=[orphan(topic, gone)]).detached.intents == 1
    assert len(intents(world, gone)) == 1
    assert len(world.audited("file-findings")) == 1


def test_file_that_finds_nothing_true_leaves_no_intent(world: World) -> None:
    """Its batch stands, so that a repeated call answers the same, and is forgotten like any other."""
    topic = new_topic(world)
    ids = filled(world, topic.topic_id, 1)
    assert file(world, orphans=[orphan(topic, ids[0])]).detached.intents == 0
    world.catalog.deletions.close_batch("apply", CAUSE)
    world.end_earlier(days=9)
    assert world.catalog.upkeep.remove_finished_rows(older_than_s=86_400, limit=9, cause=CAUSE).runs == 1


def test_batch_of_an_apply_that_died_is_taken_over_by_a_sweep(world: World) -> None:
    """It is an ordinary batch: nothing of it is forgotten (promise 2)."""
    topic = new_topic(world)
    gone = lost(world)
    file(world, orphans=[orphan(topic, gone)])
    world.lapse("apply")
    assert world.catalog.upkeep.move_abandoned_work_to_batch(batch_id="sweep", claim=claim(), limit=10).intents == 1
    assert [row.batch_id for row in intents(world, gone)] == ["sweep"]


def test_two_appliers_at_once_file_each_finding_once(world: World) -> None:
    """Two plans may name the same orphan: whoever comes second finds an intent and keeps its hands off."""
    topic = new_topic(world)
    gone = [lost(world) for _ in range(3)]
    asked = [orphan(topic, one, number=number) for number, one in enumerate(gone)]
    done = race(lambda number: file(world, f"apply-{number}", orphans=asked), 8)
    assert all(isinstance(one, FilingResult) for one in done), done
    counts = sorted(one.detached.intents for one in done if isinstance(one, FilingResult))
    assert sum(counts) == 3
    assert [len(intents(world, one)) for one in gone] == [1, 1, 1]


def test_two_calls_with_one_batch_id_at_once_are_one(world: World) -> None:
    """An activity that is tried again while its first try still runs."""
    topic = new_topic(world)
    ids, gone = filled(world, topic.topic_id, 2), lost(world)
    asked = [orphan(topic, gone, number=1), orphan(topic, ids[0], number=2)]
    done = race(lambda _: file(world, orphans=asked), 8)
    results = [one for one in done if isinstance(one, FilingResult)]
    assert [(result.detached.intents, sorted(result.kept)) for result in results] == [(1, [2])] * 8
    assert len(intents(world, gone)) == 1


def test_orphan_and_creators_at_once_never_meet(world: World) -> None:
    """An id is given out with its row: no apply ever takes a ledger that is just being created."""
    topic = new_topic(world)
    first = lost(world)

    def work(number: int) -> object:
        if number % 2:
            return newborn(world, topic.topic_id)
        orphans = [orphan(topic, first + 1 + ahead, number=ahead) for ahead in range(12)]
        return file(world, f"apply-{number}", orphans=orphans).detached.intents

    done = race(work, 12)
    assert [one for number, one in enumerate(done) if number % 2 == 0] == [0] * 6
    assert world.intents() == []


@pytest.mark.external_service
def test_ledger_that_is_created_between_two_reads_is_kept(postgres_url: str) -> None:
    """The ids that were given out are read before the rows: one that comes in between is above them."""
    world = SqlWorld(postgres_url)  # SQLite lets no other writer come between
    topic, born = new_topic(world), list[LedgerId]()
    next_id = world.catalog.reconciliation.read_catalog_time_and_ids().next_ledger_id

    @event.listens_for(world.database.engine, "before_cursor_execute")
    def between(_: object, __: object, statement: str, *___: object) -> None:
        if statement.startswith("SELECT pending_deletion") and not born:
            thread = threading.Thread(target=lambda: born.append(newborn(world, topic.topic_id)))
            thread.start()
            thread.join()

    done = file(world, orphans=[orphan(topic, next_id)], with_preview=False)
    assert born == [next_id]
    assert (sorted(done.kept), world.intents()) == ([0], [])
    assert world.rows().ledgers == born
    world.database.close()


def test_unreferenced_ledger_detached_by_two_at_once_goes_once(world: World) -> None:
    """A trim, a second apply: its row is one, and so is its intent."""
    topic = new_topic(world)
    ids = [roll(world, topic.topic_id) for _ in range(2)]
    world.unlist(ids[0])
    done = race(lambda number: file(world, f"apply-{number}", unreferenced={0: ids[0]}).detached.ledgers, 6)
    assert sorted(map(str, done)) == ["0"] * 5 + ["1"]
    assert len(intents(world, ids[0])) == 1


def test_filed_rows_say_how_they_ended(world: World) -> None:
    """By row id, in pages; objects and bytes are those that storage confirmed."""
    topic = new_topic(world)
    gone, tiered = lost(world), lost(world)
    file(world, orphans=[orphan(topic, gone), tiered_orphan(topic, tiered, "u", number=1)])
    rows = world.catalog.reconciliation.list_filed_copies("apply", after=0, limit=10)
    assert [(one.ledger_id, one.copy.value, one.uuid, one.outcome) for one in rows] == [
        (gone, "LEDGER", "", None), (tiered, "OFFLOADED_LEDGER", "u", None)
    ]  # fmt: skip
    ended = partial(IntentResult, row_id=rows[0].row_id, objects=3, size_bytes=30)
    world.catalog.deletions.record_outcomes([ended(outcome=Outcome.METADATA_MISMATCH, error="other")], holder="apply")
    (first,) = world.catalog.reconciliation.list_filed_copies("apply", after=0, limit=1)
    assert first == FiledCopyRow(
        row_id=rows[0].row_id,
        ledger_id=LedgerId(gone),
        copy=CopyKind.LEDGER,
        uuid="",
        outcome=Outcome.METADATA_MISMATCH,
        error="other",
        objects=3,
        size_bytes=30,
    )
    assert world.catalog.reconciliation.list_filed_copies("apply", after=rows[0].row_id, limit=9) == rows[1:]
    assert world.catalog.reconciliation.list_filed_copies("nobody", after=0, limit=9) == []
