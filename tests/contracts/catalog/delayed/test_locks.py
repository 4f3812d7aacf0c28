"""Lists of buckets change under locks: a call that waited decides on what the one before it committed."""

from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from sqlalchemy import event, text

from logstore.ports.catalog.delayed import IndexBucketSwitch
from tests.contracts.catalog.blocking import await_blocked, behind
from tests.contracts.catalog.delayed.steps import bucket, delay, merge, newborn, seal_of, sealed, snapshots
from tests.contracts.catalog.steps import at, filled, new_topic
from tests.contracts.catalog.world import claim
from tests.contracts.catalog.worlds import SqlWorld

pytestmark = pytest.mark.postgres

_LIST = "UPDATE ledger_list SET version = version + 1 WHERE component = 'DELAYED_INDEX'"


def test_switch_behind_another_change_of_the_list_is_filed(sql_world: SqlWorld) -> None:
    """The version that it waited for is not the one that it saw (apache/pulsar#350)."""
    topic_id = new_topic(sql_world).topic_id
    filled(sql_world, topic_id, 1)
    pair = sealed(sql_world, topic_id, 2)
    made = newborn(sql_world, topic_id)
    switch = merge(sql_world.catalog.delayed.get_bucket_list(topic_id), (pair[0], pair[1]), made, topic_id)
    changed = "UPDATE delayed_index SET version = version + 1"
    assert behind(sql_world, [changed], lambda: sql_world.catalog.delayed.switch_buckets(switch)) is False
    assert sql_world.intents() == [made]
    assert sql_world.catalog.delayed.get_bucket_list(topic_id).buckets == tuple(pair)


def test_switch_behind_a_trim_that_took_its_newborn_lists_nothing(sql_world: SqlWorld) -> None:
    """It went while its writer waited for the list of snapshots."""
    topic_id = new_topic(sql_world).topic_id
    filled(sql_world, topic_id, 1)
    made = bucket(newborn(sql_world, topic_id), at(0, 0), at(0, 9))
    gone = f"DELETE FROM ledger WHERE ledger_id = {made.bucket_id}"
    switch = seal_of(topic_id, made, expected=0)
    assert behind(sql_world, [_LIST], lambda: sql_world.catalog.delayed.switch_buckets(switch), [gone]) is False
    assert sql_world.catalog.delayed.get_bucket_list(topic_id).buckets == ()


def test_trim_behind_a_switch_takes_no_bucket_that_was_listed(sql_world: SqlWorld) -> None:
    """A newborn past its time that is listed at the last moment stays (promise 1)."""
    topic_id = new_topic(sql_world).topic_id
    filled(sql_world, topic_id, 1)
    late = newborn(sql_world, topic_id)
    sql_world.age(late, seconds=601)
    listed = f"UPDATE ledger SET state = 'CLOSED', place = ledger_id WHERE ledger_id = {late}"
    behind(sql_world, [_LIST], lambda: sql_world.phase_one(topic_id), [listed])
    assert sql_world.intents() == []
    assert snapshots(sql_world, topic_id) == [late]


def test_switch_behind_the_begin_of_its_topics_deletion_is_filed(sql_world: SqlWorld) -> None:
    """It waits for what locks the topic's row, and then sees DELETING."""
    topic_id = new_topic(sql_world).topic_id
    filled(sql_world, topic_id, 1)
    made = bucket(newborn(sql_world, topic_id), at(0, 0), at(0, 9))
    held = ["SELECT state FROM topic FOR UPDATE"] if not sql_world.database.is_sqlite else []
    begun = "UPDATE topic SET state = 'DELETING'"
    switch = seal_of(topic_id, made, expected=0)
    assert behind(sql_world, [*held, begun], lambda: sql_world.catalog.delayed.switch_buckets(switch)) is False
    assert sql_world.intents() == [made.bucket_id]


def test_append_behind_a_seal_counts_what_the_seal_could_not_see(sql_world: SqlWorld) -> None:
    """The seal sets the count to what it sees; what waits for the row is added to that."""
    topic_id = new_topic(sql_world).topic_id
    (ledger,) = filled(sql_world, topic_id, 1)
    delay(sql_world, topic_id, ledger, 5)
    counted = "UPDATE delayed_index SET unsealed = 2"
    behind(sql_world, [counted], lambda: delay(sql_world, topic_id, ledger, 3))
    assert sql_world.sql("SELECT unsealed FROM delayed_index") == [(5,)]


def test_append_waits_for_a_seal_that_has_read_the_list(sql_world: SqlWorld) -> None:
    """From there to its end nothing is counted behind its back."""
    topic_id = new_topic(sql_world).topic_id
    (ledger,) = filled(sql_world, topic_id, 1)
    end = delay(sql_world, topic_id, ledger, 5)
    begun: list[Future[object]] = []
    with ThreadPoolExecutor(1) as pool:

        @event.listens_for(sql_world.database.engine, "before_cursor_execute")
        def between(_: object, __: object, statement: str, *___: object) -> None:
            if statement.startswith("UPDATE delayed_index") and not begun:
                begun.append(pool.submit(delay, sql_world, topic_id, ledger, 3))
                await_blocked(sql_world, begun[0])

        assert sql_world.catalog.delayed.switch_buckets(IndexBucketSwitch(topic_id=topic_id, expected=0, sealed_to=end))
        begun[0].result(timeout=60)
    assert sql_world.sql("SELECT version, unsealed FROM delayed_index") == [(1, 3)]


def test_trim_locks_the_list_before_cursors_as_a_group_commit_does(sql_world: SqlWorld) -> None:
    """In another order the two could wait for each other: one commit may append and acknowledge."""
    topic_id = new_topic(sql_world).topic_id
    first, second = filled(sql_world, topic_id, 2)
    delay(sql_world, topic_id, second, 5)
    sql_world.catalog.cursors.create_subscription(topic_id, "s", latest=False)
    with ThreadPoolExecutor(2) as pool:
        with sql_world.database.engine.connect() as connection, connection.begin():
            connection.execute(text("UPDATE cursor SET seeks = seeks"))
            trim = pool.submit(sql_world.detach, topic_id, [first])
            await_blocked(sql_world, trim)
            append = pool.submit(delay, sql_world, topic_id, second, 3)
            await_blocked(sql_world, append, waiting=2)
        trim.result(timeout=60)
        append.result(timeout=60)
    assert sql_world.sql("SELECT unsealed FROM delayed_index") == [(8,)]


def test_claim_behind_another_is_refused(sql_world: SqlWorld) -> None:
    """Also where the other one has just made the row."""
    topic_id = new_topic(sql_world).topic_id
    made = (
        "INSERT INTO delayed_index (topic_id, version, sealed_ledger, sealed_entry, unsealed, claim_workflow,"
        f" claim_until_us) VALUES ({topic_id}, 0, -1, -1, 0, 'other', {2**62})"
    )
    assert behind(sql_world, [made], lambda: sql_world.catalog.delayed.claim_bucket_list(topic_id, claim())) is False


def test_first_switch_behind_the_first_count_changes_the_row_that_this_made(sql_world: SqlWorld) -> None:
    """Both make the topic's row; neither is lost."""
    topic_id = new_topic(sql_world).topic_id
    filled(sql_world, topic_id, 1)
    columns = "topic_id, version, sealed_ledger, sealed_entry, unsealed"
    made = f"INSERT INTO delayed_index ({columns}) VALUES ({topic_id}, 0, -1, -1, 4)"
    switch = IndexBucketSwitch(topic_id=topic_id, expected=0, sealed_to=at(0, 9))
    assert behind(sql_world, [made], lambda: sql_world.catalog.delayed.switch_buckets(switch)) is True
    assert sql_world.sql("SELECT version, unsealed FROM delayed_index") == [(1, 0)]
