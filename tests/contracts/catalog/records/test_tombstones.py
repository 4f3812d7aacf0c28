"""Durable deletes leave tombstones, in the transaction that removes what they stand for; raids take them away."""

from typing import Any

import pytest

from logstore.catalog.records.tombstone_rows import Tombstones
from logstore.log.ledgers import CopyState
from logstore.ports.catalog.log import TopicState
from logstore.ports.catalog.records import TombstonedRecordId
from logstore.positions import TopicId
from logstore.records.record_kinds import COLUMNS_BY_KIND, RecordKind
from tests.contracts.catalog.records.steps import flush, of
from tests.contracts.catalog.steps import filled, new_topic, roll
from tests.contracts.catalog.worlds import CAUSE, SqlWorld, claim

pytestmark = pytest.mark.postgres

_LATER = 2**60
"""A time behind every tombstone's."""


def _detach(world: SqlWorld, topic_id: TopicId, ledger_ids: list[Any] | None, durable: bool | None = None) -> None:
    world.batches += 1
    world.catalog.phase_one.detach_ledgers(
        topic_id,
        ledger_ids,
        force=ledger_ids is not None,
        batch_id=f"batch-{world.batches}",
        claim=claim(),
        cause=CAUSE,
        durable=durable,
    )


def _delete_topic(world: SqlWorld, topic_id: TopicId, durable: bool | None = None) -> None:
    phase_one = world.catalog.phase_one
    phase_one.begin_topic_deletion(topic_id, world.catalog.topics.get_topic_by_id(topic_id).name, CAUSE)
    phase_one.detach_whole_topic(topic_id, batch_id=f"all-{topic_id}", claim=claim(), cause=CAUSE, durable=durable)
    assert phase_one.remove_topic(topic_id, CAUSE, durable=durable)


def _mark(stones: Tombstones, run_id: str, *, before_us: int) -> int:
    """All of them, in pages of two; how many were marked."""
    marked, after = stones.mark_raid_candidates(run_id, before_us=before_us, after=None, limit=2)
    while after is not None:
        more, after = stones.mark_raid_candidates(run_id, before_us=before_us, after=after, limit=2)
        marked += more
    return marked


def _stones(world: SqlWorld) -> set[tuple[str, int]]:
    return {(row.kind, row.id) for row in world.sql("SELECT kind, id FROM tombstone")}


def _durable(world: SqlWorld) -> set[int]:
    return {row.durable for row in world.sql("SELECT durable FROM pending_deletion")}


@pytest.mark.parametrize(
    ("topic", "asked", "left"),
    [(None, None, True), (None, False, False), (False, None, False), (False, True, True), (True, False, False)],
)
def test_explicit_delete_is_durable_unless_the_command_or_else_the_topic_says_otherwise(
    sql_world: SqlWorld, topic: bool | None, asked: bool | None, left: bool
) -> None:
    """The command wins, then the topic; the default is durable."""
    topic_id = sql_world.catalog.topics.create_topic(
        "persistent://a/b/c", new_topic(sql_world).policy, durable_delete=topic
    ).topic_id
    first, _ = filled(sql_world, topic_id, 2)
    _detach(sql_world, topic_id, [first], asked)
    assert _stones(sql_world) == ({("ledger", first)} if left else set())
    assert _durable(sql_world) == {int(left)}


def test_finished_deletions_of_ledgers_tell_the_names_of_their_objects(sql_world: SqlWorld) -> None:
    """Of those that are asked for, and of no deletion that is unfinished."""
    topic_id = new_topic(sql_world).topic_id
    first, second, third = filled(sql_world, topic_id, 3)[:3]
    _detach(sql_world, topic_id, [first, second])
    records = sql_world.catalog.records
    assert records.list_finished_deletions([first, second, third]) == []
    sql_world.sql("UPDATE pending_deletion SET state = 'DELETED'")
    assert {one.ledger_id for one in records.list_finished_deletions([first, second, third])} == {first, second}
    (one,) = records.list_finished_deletions([second])
    assert (one.ledger_id, one.owner.topic_id, one.last_segment) == (second, topic_id, 0)
    sql_world.sql("UPDATE pending_deletion SET copy = 'OFFLOADED_LEDGER' WHERE ledger_id = :id", id=first)
    assert records.list_finished_deletions([first]) == []


@pytest.mark.parametrize("topic", [None, True])
def test_retention_deletes_plainly_unless_the_topic_says_otherwise(sql_world: SqlWorld, topic: bool | None) -> None:
    """What a limit takes may return when the catalog is rebuilt, and is taken again."""
    policy = new_topic(sql_world).policy
    topic_id = sql_world.catalog.topics.create_topic("persistent://a/b/c", policy, durable_delete=topic).topic_id
    first, _ = filled(sql_world, topic_id, 2)
    _detach(sql_world, topic_id, None)
    assert _stones(sql_world) == ({("ledger", first)} if topic else set())
    assert _durable(sql_world) == {int(bool(topic))}


@pytest.mark.parametrize("durable", [None, False])
def test_topic_deleted_durably_leaves_a_tombstone_of_each_of_its_ledgers(
    sql_world: SqlWorld, durable: bool | None
) -> None:
    """Open and newborn ones too."""
    topic_id = new_topic(sql_world).topic_id
    ledgers = filled(sql_world, topic_id, 2)
    _delete_topic(sql_world, topic_id, durable)
    stones = {("topic", topic_id), *(("ledger", one) for one in ledgers)}
    assert _stones(sql_world) == (set() if durable is False else stones)


def test_tombstone_is_a_version_without_content_of_the_next_generation(sql_world: SqlWorld) -> None:
    """It covers every older version of its record."""
    topic_id = new_topic(sql_world).topic_id
    first, _ = filled(sql_world, topic_id, 2)
    before = flush(sql_world)[of(RecordKind.LEDGER, first)]
    _detach(sql_world, topic_id, [first])
    after = flush(sql_world)[of(RecordKind.LEDGER, first)]
    assert after["tombstone"]
    assert after["version"] > before["version"]
    assert after["generation"] == before["generation"] + 1
    assert {after[name] for name, _ in COLUMNS_BY_KIND[RecordKind.LEDGER]} == {None}
    assert after["at_us"] == sql_world.sql("SELECT at_us FROM tombstone")[0].at_us


def test_deletion_is_unflushed_until_it_is_settled(sql_world: SqlWorld) -> None:
    """Its ledger's objects stay until then, whether it leaves a tombstone or an intent alone."""
    topic_id = new_topic(sql_world).topic_id
    first, second, _ = filled(sql_world, topic_id, 3)
    _detach(sql_world, topic_id, [first])
    _detach(sql_world, topic_id, [second], False)
    records = sql_world.catalog.records
    assert records.find_unflushed_ledgers([first, second]) == {first, second}
    flush(sql_world)
    assert records.find_unflushed_ledgers([first, second]) == frozenset()
    sql_world.sql("UPDATE pending_deletion SET state = 'DELETED' WHERE ledger_id = :id", id=first)
    sql_world.sql("UPDATE pending_deletion SET state = 'DEAD_LETTERED' WHERE ledger_id = :id", id=second)
    assert records.find_unflushed_ledgers([first, second]) == {second}, "what has ended for good waits for nothing"


def test_ledger_that_has_got_another_copy_is_unflushed_until_that_is_settled(sql_world: SqlWorld) -> None:
    """Its primary copy may go then: a catalog that is rebuilt would not know of the tiered one."""
    (ledger_id, _) = filled(sql_world, new_topic(sql_world).topic_id, 2)
    records = sql_world.catalog.records
    flush(sql_world)
    assert records.find_unflushed_ledgers([ledger_id]) == frozenset()
    sql_world.add_copy(ledger_id, CopyState.LIVE, bucket="cold")
    assert records.find_unflushed_ledgers([ledger_id]) == {ledger_id}
    flush(sql_world)
    assert records.find_unflushed_ledgers([ledger_id]) == frozenset()


def test_tombstones_are_told_by_topic_and_counted(sql_world: SqlWorld) -> None:
    """For listings, which skip them unless asked, and for statistics."""
    topic_id = new_topic(sql_world).topic_id
    first, second, _ = filled(sql_world, topic_id, 3)
    _detach(sql_world, topic_id, [second, first])
    stones = sql_world.catalog.tombstones
    assert [(one.id, one.component, one.generation) for one in stones.list_topic_tombstones(topic_id)] == [
        (first, "MANAGED_LEDGER", 1),
        (second, "MANAGED_LEDGER", 1),
    ]
    assert stones.list_topic_tombstones(topic_id, component="SCHEMA_STORAGE") == []
    assert [one.id for one in stones.list_topic_tombstones(topic_id, limit=1)] == [first]
    assert [one.id for one in stones.list_topic_tombstones(topic_id, after=first, limit=1)] == [second]
    assert stones.list_topic_tombstones(topic_id, after=second, limit=1) == []
    counts = stones.count_tombstones()
    assert (counts.by_kind, counts.candidates) == ({"ledger": 2}, 0)
    assert counts.oldest_us == stones.list_topic_tombstones(topic_id)[0].at_us
    assert (
        sql_world.catalog.inspection.get_ledger_history(first, max_decisions=5).tombstone
        == stones.list_topic_tombstones(topic_id)[0]
    )


def test_mark_takes_old_flushed_tombstones_whose_deletion_has_ended(sql_world: SqlWorld) -> None:
    """Everything else may still be needed."""
    topic_id = new_topic(sql_world).topic_id
    first, second, _ = filled(sql_world, topic_id, 3)
    _detach(sql_world, topic_id, [first, second])
    stones = sql_world.catalog.tombstones
    assert _mark(stones, "raid", before_us=_LATER) == 0, "neither flushed nor ended"
    flush(sql_world)
    assert _mark(stones, "raid", before_us=_LATER) == 0, "not ended"
    sql_world.sql("UPDATE pending_deletion SET state = 'DEAD_LETTERED' WHERE ledger_id = :id", id=first)
    sql_world.sql("UPDATE pending_deletion SET state = 'DELETED' WHERE ledger_id = :id", id=second)
    flush(sql_world)
    assert _mark(stones, "raid", before_us=0) == 0, "too young"
    assert _mark(stones, "raid", before_us=_LATER) == 1
    assert stones.list_raid_candidates("raid", after=None, limit=10) == [
        TombstonedRecordId(kind=RecordKind.LEDGER, id=second)
    ]
    assert _mark(stones, "next", before_us=_LATER) == 1
    assert stones.list_raid_candidates("raid", after=None, limit=10) == [], "a raid has the only candidates"


def test_raid_removes_candidates_that_it_does_not_keep(sql_world: SqlWorld) -> None:
    """Page by page; one that was changed since it was marked stays."""
    topic_id = new_topic(sql_world).topic_id
    ledgers = filled(sql_world, topic_id, 5)[:4]
    _detach(sql_world, topic_id, [*ledgers])
    sql_world.sql("UPDATE pending_deletion SET state = 'DELETED'")
    flush(sql_world)
    stones = sql_world.catalog.tombstones
    assert _mark(stones, "raid", before_us=_LATER) == 4
    page = stones.list_raid_candidates("raid", after=TombstonedRecordId(kind=RecordKind.LEDGER, id=ledgers[0]), limit=2)
    assert [one.id for one in page] == [ledgers[1], ledgers[2]]
    stones.unmark_raid_candidates("raid", [page[0]])
    sql_world.sql("UPDATE tombstone SET at_us = at_us + 1 WHERE id = :id", id=ledgers[2])  # as a later version of it
    assert stones.remove_raid_candidates("raid", before_us=_LATER, limit=2) == 1
    assert stones.remove_raid_candidates("raid", before_us=_LATER, limit=2) == 1
    assert stones.list_raid_candidates("raid", after=None, limit=10) == []
    assert _stones(sql_world) == {("ledger", ledgers[1]), ("ledger", ledgers[2])}


def test_what_changes_behind_a_raids_look_is_neither_marked_nor_removed(
    sql_world: SqlWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks without any lock: the statement that writes decides, whatever the look had found."""
    topic_id = new_topic(sql_world).topic_id
    first, second, third = filled(sql_world, topic_id, 4)[:3]
    _detach(sql_world, topic_id, [first, second, third])
    sql_world.sql("UPDATE pending_deletion SET state = 'DELETED'")
    flush(sql_world)
    stones, look = sql_world.catalog.tombstones, Tombstones._read_page

    def then(change: str, **values: object) -> None:
        def overtaken(self: Tombstones, *asked: Any) -> Any:
            found = look(self, *asked)
            sql_world.sql(change, **values)
            return found

        monkeypatch.setattr(Tombstones, "_read_page", overtaken)

    then("UPDATE tombstone SET at_us = at_us + 1 WHERE id = :id", id=first)  # as a later version of it
    assert stones.mark_raid_candidates("raid", before_us=_LATER, after=None, limit=9)[0] == 2
    then("UPDATE pending_deletion SET state = 'DEAD_LETTERED' WHERE ledger_id = :id", id=second)
    assert stones.remove_raid_candidates("raid", before_us=_LATER, limit=9) == 1
    assert stones.list_raid_candidates("raid", after=None, limit=9) == [], "what it may not remove is let go"
    assert _stones(sql_world) == {("ledger", first), ("ledger", second)}


def test_mark_of_an_earlier_raid_is_taken_from_what_may_stay_no_candidate(sql_world: SqlWorld) -> None:
    """It would be removed by that raid's next page once its deletion has ended again."""
    topic_id = new_topic(sql_world).topic_id
    first, second, _ = filled(sql_world, topic_id, 3)
    _detach(sql_world, topic_id, [first, second])
    sql_world.sql("UPDATE pending_deletion SET state = 'DELETED'")
    flush(sql_world)
    stones = sql_world.catalog.tombstones
    assert _mark(stones, "raid", before_us=_LATER) == 2
    sql_world.sql("UPDATE pending_deletion SET state = 'PENDING' WHERE ledger_id = :id", id=first)
    flush(sql_world)
    assert _mark(stones, "next", before_us=_LATER) == 1
    assert stones.list_raid_candidates("raid", after=None, limit=9) == []


def test_topic_with_an_unfinished_deletion_keeps_its_tombstone(sql_world: SqlWorld) -> None:
    """Whatever ledger of it that is of."""
    topic_id = new_topic(sql_world).topic_id
    roll(sql_world, topic_id)
    _delete_topic(sql_world, topic_id)
    flush(sql_world)
    assert _mark(sql_world.catalog.tombstones, "raid", before_us=_LATER) == 0
    sql_world.sql("UPDATE pending_deletion SET state = 'DELETED'")
    flush(sql_world)
    assert _mark(sql_world.catalog.tombstones, "raid", before_us=_LATER) == 2


def test_tombstones_are_written_with_the_removal_or_not_at_all(sql_world: SqlWorld) -> None:
    """Dead before any statement of the detach, or its commit: the ledger is listed, or it has intent and tombstone."""
    topic_id = new_topic(sql_world).topic_id
    first, _ = filled(sql_world, topic_id, 2)

    def step() -> None:
        sql_world.catalog.phase_one.detach_ledgers(
            topic_id, [first], force=True, batch_id="b", claim=claim(), cause=CAUSE, durable=True
        )

    for _ in sql_world.deaths_in(step):
        there = {row.ledger_id for row in sql_world.sql("SELECT ledger_id FROM ledger")}
        assert (first in there) != (("ledger", first) in _stones(sql_world))
    assert _stones(sql_world) == {("ledger", first)}
    assert sql_world.catalog.topics.get_topic_by_id(topic_id).state is TopicState.ACTIVE
