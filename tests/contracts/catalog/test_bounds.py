"""How much is read for a small question: statements and rows are counted, for they grow where time only wavers."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import event

from activities.deletion.trim_by_retention import RetentionPreparation
from logstore.catalog import Database
from logstore.cursors.cursor_state import CursorState, acknowledge
from logstore.errors import LedgerStillNeeded
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.log.services import RollPolicy
from logstore.ownership import BundleId
from logstore.ports.catalog.log import Topic
from logstore.positions import LedgerId, Position, TopicId
from tests.contracts.catalog.steps import acknowledge as acknowledged
from tests.contracts.catalog.steps import append, filled, new_topic, roll
from tests.contracts.catalog.worlds import MemoryWorld, SqlWorld, World
from tests.fakes.object_store import FakeObjectStore
from tests.open_topic_logs import open_topic_logs

_MANY = 40


@dataclass
class Read:
    """What was asked of the database, and how many rows it answered with."""

    statements: list[str] = field(default_factory=list)
    rows: int = 0

    def naming(self, column: str) -> list[str]:
        """Statements that read the column."""
        return [one for one in self.statements if column in one.partition(" FROM ")[0]]


@contextmanager
def counted(database: Database) -> Iterator[Read]:
    """Count what is read meanwhile, on SQLite, whose driver tells of each row."""
    read = Read()

    def told(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        read.statements.append(statement)

    def row(_cursor: sqlite3.Cursor, values: tuple[Any, ...]) -> tuple[Any, ...]:
        read.rows += 1
        return values

    def lent(connection: sqlite3.Connection, *_: Any) -> None:
        connection.row_factory = row

    event.listen(database.engine, "before_cursor_execute", told)
    event.listen(database.engine, "checkout", lent)
    yield read
    event.remove(database.engine, "before_cursor_execute", told)
    event.remove(database.engine, "checkout", lent)


@pytest.fixture
def sqlite_world(sqlite_url: str) -> Iterator[SqlWorld]:
    """A catalog whose reads can be counted."""
    world = SqlWorld(sqlite_url)
    yield world
    world.database.close()


def _with_holes(world: World, topic: Topic) -> LedgerId:
    """Subscriptions that have acknowledged single entries of the topic's last ledger."""
    last = filled(world, topic.topic_id, 3)[-1]
    for number in range(3):
        world.catalog.cursors.create_subscription(topic.topic_id, f"s{number}", latest=False)
        acknowledged(world, topic.topic_id, f"s{number}", (last, 3), (last, 5))
    return last


def test_phase_one_reads_no_bitmap_of_a_cursor_to_know_where_it_stands(sqlite_world: SqlWorld) -> None:
    """Under the lock of the list it reads three columns of each; what was acknowledged beyond may be megabytes."""
    topic = new_topic(sqlite_world)
    last = _with_holes(sqlite_world, topic)
    with counted(sqlite_world.database) as read:
        assert sqlite_world.phase_one(topic.topic_id).intents == 0
        with pytest.raises(LedgerStillNeeded):
            sqlite_world.phase_one(topic.topic_id, [last])
    assert read.naming("mark_entry")
    assert not read.naming("acknowledged")


def test_settling_reads_no_cursor_whose_state_is_in_its_row(sqlite_world: SqlWorld) -> None:
    """That there is nothing to settle is one statement without a row, for one topic and for many."""
    topic = new_topic(sqlite_world)
    _with_holes(sqlite_world, topic)
    with counted(sqlite_world.database) as read:
        assert sqlite_world.catalog.cursors.find_cursors_with_snapshot([topic.topic_id, TopicId(77)]) == {}
    assert (len(read.statements), read.rows) == (2, 0), "the transaction's begin is one"
    assert not read.naming("acknowledged")


class _Settles:
    """Of the cursors alone."""

    def __init__(self, world: World) -> None:
        self._world = world

    def select_topics_to_advance(self, topic_ids: Any) -> frozenset[TopicId]:
        return frozenset(self._world.catalog.cursors.find_cursors_with_snapshot(topic_ids))

    def advance_and_fold_cursors_with_snapshots(self, topic_id: TopicId) -> list[Any]:
        raise AssertionError(f"there is nothing to settle in topic {topic_id}")


def test_preparing_a_page_of_topics_asks_for_all_of_them_at_once(sqlite_world: SqlWorld) -> None:
    """As many statements for twelve topics as for two, where nothing is to be rolled or settled."""
    topics = [new_topic(sqlite_world, f"persistent://a/b/t{number}") for number in range(12)]
    for topic in topics:
        filled(sqlite_world, topic.topic_id, 2)
    with open_topic_logs(sqlite_world.catalog, FakeObjectStore()) as topic_logs:
        idle = RetentionPreparation(
            topics=sqlite_world.catalog.topics, roller=topic_logs, settler=_Settles(sqlite_world)
        )
        asked = []
        for some in (topics[:2], topics):
            with counted(sqlite_world.database) as read:
                assert idle.select_topics_to_prepare(some) == []
            asked.append(len(read.statements))
    assert asked == [4, 4]


@pytest.mark.postgres
def test_topics_that_are_due_are_those_that_would_roll(world: World) -> None:
    """Past an age, with entries; a topic without ledgers, and an empty ledger, are not."""
    old, empty, bare, young = (new_topic(world, f"persistent://a/b/{name}") for name in ("o", "e", "b", "y"))
    filled(world, old.topic_id, 2)
    filled(world, empty.topic_id, 1)
    roll(world, empty.topic_id)
    filled(world, young.topic_id, 1, entries=1)
    ids = [topic.topic_id for topic in (old, empty, bare, young)]
    found = world.catalog.ledgers.last_ledgers(ids)
    assert {one.topic_id: one for one in found} == {
        topic_id: last for topic_id in ids if (last := world.catalog.ledgers.last_ledger(topic_id))
    }
    with open_topic_logs(
        world.catalog, FakeObjectStore(), policy=RollPolicy(max_entries=5, max_age_s=10**12)
    ) as topic_logs:
        assert topic_logs.select_topics_to_roll(ids) == {old.topic_id}


def test_reading_one_entry_looks_up_few_ledgers(sqlite_world: SqlWorld) -> None:
    """However long the list is, and wherever in it the reader begins."""
    topic = new_topic(sqlite_world)
    with open_topic_logs(sqlite_world.catalog, FakeObjectStore(), policy=RollPolicy(max_entries=1)) as topic_logs:
        appended = [topic_logs.append(topic, _entry(number)).last for number in range(_MANY)]
        written = [one for one in appended if one is not None]
        for at in (None, written[0], written[_MANY // 2]):
            with counted(sqlite_world.database) as read:
                (entry,) = topic_logs.read(topic, max_entries=1, from_position=at)
            assert entry.position == (at or written[0])
            assert read.rows < _MANY // 2
        with counted(sqlite_world.database) as read:
            (entry,) = topic_logs.read(topic, max_entries=1, cursor_state=CursorState(written[-3]))
        assert entry.position == written[-2]
        assert read.rows < _MANY // 2
        assert [one.position for one in topic_logs.scan(topic)] == written


def _entry(number: int) -> ProducedEntries:
    return ProducedEntries(entries=[NewEntry(payload=b"%d" % number)])


def test_what_a_topic_comes_to_is_read_as_few_rows(sqlite_world: SqlWorld) -> None:
    """`topic list` tells of every topic: rows of ledgers do not travel for it."""
    topic = new_topic(sqlite_world)
    ledgers = filled(sqlite_world, topic.topic_id, _MANY, entries=10)
    state = CursorState(Position(ledgers[1], 4))
    with counted(sqlite_world.database) as read:
        totals = sqlite_world.catalog.ledgers.get_topic_totals(topic.topic_id)
        behind = sqlite_world.catalog.ledgers.count_backlogs(topic.topic_id, [state])
    assert (totals.ledgers, totals.entries, totals.size_bytes) == (_MANY, 10 * _MANY, 100 * _MANY)
    assert behind == [10 * (_MANY - 1) - 5]
    assert read.rows == 3


def test_page_of_topics_asks_for_all_of_them_at_once(sqlite_world: SqlWorld) -> None:
    """As many statements for twelve topics with subscriptions as for two: `topic list` may show a thousand."""
    for number in range(12):
        _with_holes(sqlite_world, new_topic(sqlite_world, f"persistent://a/b/t{number}"))
    asked = []
    for limit in (2, 12):
        with counted(sqlite_world.database) as read:
            page = sqlite_world.catalog.topics.list_topic_summaries(limit=limit)
        assert len(page.topics) == limit
        asked.append(len(read.statements))
    assert asked == [10, 10], (
        "begin, page, how many there are, cursors, two for buffers, two for totals, two for backlogs"
    )


@pytest.mark.postgres
def test_totals_name_the_first_and_the_last_entry(world: World) -> None:
    """Of ledgers that have any."""
    topic = new_topic(world)
    assert world.catalog.ledgers.get_topic_totals(topic.topic_id).last is None
    roll(world, topic.topic_id)
    assert world.catalog.ledgers.get_topic_totals(topic.topic_id).first is None
    first_of, last = filled(world, topic.topic_id, 2, entries=3)
    first = Position(first_of, 0)
    found = world.catalog.ledgers.get_topic_totals(topic.topic_id)
    assert (found.ledgers, found.entries, found.first, found.last) == (3, 6, first, Position(last, 2))


@pytest.mark.postgres
def test_listed_tells_a_page_from_any_id_on(world: World) -> None:
    """Inclusive, whether that one is listed or not."""
    topic = new_topic(world)
    a, b, c, _ = filled(world, topic.topic_id, 4)
    world.detach(topic.topic_id, [b])
    listed = world.catalog.ledgers.list_ledgers
    assert [one.ledger_id for one in listed(topic.topic_id, from_ledger=b, limit=1)] == [c]
    assert [one.ledger_id for one in listed(topic.topic_id, limit=2)] == [a, c]
    assert listed(topic.topic_id, from_ledger=LedgerId(99)) == []


@given(sizes=st.lists(st.integers(0, 6), min_size=1, max_size=5), data=st.data())
def test_backlog_in_memory_counts_what_a_cursor_does_not_cover(sizes: list[int], data: st.DataObject) -> None:
    """Any acknowledgements."""
    _require_backlog(MemoryWorld(), sizes, data.draw(st.sets(st.tuples(st.integers(0, 4), st.integers(0, 5)))))


@pytest.mark.postgres
@pytest.mark.parametrize("acked", [set(), {(0, 0), (0, 1), (2, 4)}, {(1, 0), (3, 2), (3, 0)}])
def test_backlog_counts_what_a_cursor_does_not_cover(world: World, acked: set[tuple[int, int]]) -> None:
    """Nothing, a prefix with a hole behind it, and holes alone."""
    _require_backlog(world, [2, 3, 6, 3], acked)


def _require_backlog(world: World, sizes: list[int], acked: set[tuple[int, int]]) -> None:
    topic = new_topic(world)
    for size in sizes:
        ledger_id = roll(world, topic.topic_id)
        if size:
            append(world, topic.topic_id, ledger_id, entries=size)
    spans = [one.span for one in world.catalog.ledgers.list_ledgers(topic.topic_id)]
    every = [Position(span.ledger_id, entry) for span in spans for entry in range(span.entries)]
    wanted = {Position(spans[at].ledger_id, entry) for at, entry in acked if at < len(spans)} & set(every)
    state = acknowledge(CursorState(Position(spans[0].ledger_id, -1)), wanted, spans)
    assert world.catalog.ledgers.count_backlogs(topic.topic_id, [state, state]) == [len(every) - len(wanted)] * 2


def test_fence_of_one_bundle_is_one_row(sqlite_world: SqlWorld) -> None:
    """Who waits for a raise looks five times a second, and needs none of the others."""
    fences = sqlite_world.catalog.fences
    fences.raise_fences([BundleId(one) for one in range(_MANY)], "w")
    with counted(sqlite_world.database) as read:
        found = fences.get_newest_lease(BundleId(7))
    assert found
    assert (found.bundle, found.fence, found.worker_id, read.rows) == (7, 1, "w", 1)
    assert fences.get_newest_lease(BundleId(_MANY)) is None
