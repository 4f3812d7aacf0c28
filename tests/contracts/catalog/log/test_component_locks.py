"""Component ledgers are listed and retired under locks: whoever waited sees what the one before it committed."""

import pytest

from logstore.log.ledgers import Component
from logstore.ports.catalog.log import SchemaVersion
from logstore.positions import LedgerId
from tests.contracts.catalog.blocking import behind
from tests.contracts.catalog.log.component_steps import CURSOR, change_of, cursor_newborn, publish, snapshot
from tests.contracts.catalog.steps import acknowledge, filled, new_topic
from tests.contracts.catalog.worlds import SqlWorld

pytestmark = pytest.mark.postgres

_CURSOR_LIST = "UPDATE ledger_list SET version = version + 1 WHERE component = 'MANAGED_CURSOR'"


@pytest.mark.parametrize(
    "meanwhile", ["UPDATE cursor SET seeks = seeks + 1", "UPDATE cursor SET snapshot_ledger = 77", "DELETE FROM cursor"]
)
def test_snapshot_behind_a_change_of_its_cursor_is_filed(sql_world: SqlWorld, meanwhile: str) -> None:
    """A seek or another snapshot committed while this one waited for the cursor counts (apache/pulsar#350)."""
    topic = new_topic(sql_world)
    (ledger,) = filled(sql_world, topic.topic_id, 1)
    sql_world.catalog.cursors.create_subscription(topic.topic_id, CURSOR, latest=False)
    change = change_of(sql_world, topic.topic_id)
    made = snapshot(cursor_newborn(sql_world, topic.topic_id), (ledger, 5))
    answer = behind(
        sql_world, [meanwhile], lambda: sql_world.catalog.cursors.publish_snapshot(change, made, size_bytes=1)
    )
    assert answer is False
    assert sql_world.intents() == [made.ledger_id]


def test_snapshot_behind_an_acknowledgement_keeps_it(sql_world: SqlWorld) -> None:
    """What was acknowledged while the snapshot waited for the cursor stays in the row."""
    topic = new_topic(sql_world)
    (ledger,) = filled(sql_world, topic.topic_id, 1)
    sql_world.catalog.cursors.create_subscription(topic.topic_id, CURSOR, latest=False)
    change = change_of(sql_world, topic.topic_id)
    acknowledge(sql_world, topic.topic_id, CURSOR, (ledger, 5), (ledger, 7))
    made = snapshot(cursor_newborn(sql_world, topic.topic_id), (ledger, 5))
    held = "UPDATE cursor SET mark_entry = 2"
    answer = behind(sql_world, [held], lambda: sql_world.catalog.cursors.publish_snapshot(change, made, size_bytes=1))
    assert answer is True
    row = sql_world.catalog.cursors.get_cursor(topic.topic_id, CURSOR)
    assert (row.state.mark_delete.entry_id, list(row.state.acknowledged[ledger])) == (2, [7])


def test_trim_behind_a_publication_takes_no_ledger_that_was_listed(sql_world: SqlWorld) -> None:
    """A newborn past its time that is listed at the last moment stays (promise 1)."""
    topic = new_topic(sql_world)
    filled(sql_world, topic.topic_id, 1)
    sql_world.catalog.cursors.create_subscription(topic.topic_id, CURSOR, latest=False)
    late = cursor_newborn(sql_world, topic.topic_id)
    sql_world.age(late, seconds=601)
    listed = f"UPDATE ledger SET state = 'CLOSED', place = ledger_id WHERE ledger_id = {late}"
    behind(sql_world, [_CURSOR_LIST], lambda: sql_world.phase_one(topic.topic_id), [listed])
    assert sql_world.intents() == []
    assert late in sql_world.rows().ledgers


def test_publication_behind_a_trim_that_took_its_newborn_lists_nothing(sql_world: SqlWorld) -> None:
    """The other way round: the newborn went while its creator waited for the list."""
    topic = new_topic(sql_world)
    (ledger,) = filled(sql_world, topic.topic_id, 1)
    sql_world.catalog.cursors.create_subscription(topic.topic_id, CURSOR, latest=False)
    change = change_of(sql_world, topic.topic_id)
    made = snapshot(cursor_newborn(sql_world, topic.topic_id), (ledger, 5))
    gone = f"DELETE FROM ledger WHERE ledger_id = {made.ledger_id}"
    answer = behind(
        sql_world,
        [_CURSOR_LIST],
        lambda: sql_world.catalog.cursors.publish_snapshot(change, made, size_bytes=1),
        [gone],
    )
    assert answer is False
    assert sql_world.catalog.cursors.get_cursor(topic.topic_id, CURSOR).snapshot_ledger is None


def test_fold_behind_another_fold_retires_nothing_twice(sql_world: SqlWorld) -> None:
    """Of two who would retire the same ledger the second finds that the row names it no more."""
    topic = new_topic(sql_world)
    (ledger,) = filled(sql_world, topic.topic_id, 1)
    sql_world.catalog.cursors.create_subscription(topic.topic_id, CURSOR, latest=False)
    held = publish(sql_world, topic.topic_id, (ledger, 5))
    change = change_of(sql_world, topic.topic_id)
    folded = ["UPDATE cursor SET snapshot_ledger = NULL"]
    cursors = sql_world.catalog.cursors
    assert behind(sql_world, folded, lambda: cursors.move_snapshot_into_row(change, held, limit_bytes=1000)) is False
    assert sql_world.intents() == []


def test_schema_behind_another_version_takes_the_next_number(sql_world: SqlWorld) -> None:
    """Versions are counted under the lock of their list."""
    topic = new_topic(sql_world)
    keys = {"schema": topic.name}
    made = sql_world.catalog.components.create_component_ledger(
        topic.topic_id, Component.SCHEMA_STORAGE, keys, application="sexton"
    )
    other = f"INSERT INTO schema_version VALUES ({topic.topic_id}, 0, 77, 'other', 1, 0)"

    def work() -> SchemaVersion | None:
        return sql_world.catalog.schemas.publish_schema_version(
            topic.topic_id, LedgerId(made.ledger_id), digest="mine", content_bytes=1, size_bytes=1
        )

    held = "UPDATE ledger_list SET version = version + 1 WHERE component = 'SCHEMA_STORAGE'"
    answer = behind(sql_world, [held], work, [other])
    assert isinstance(answer, SchemaVersion)
    assert (answer.version, answer.ledger_id) == (1, made.ledger_id)
