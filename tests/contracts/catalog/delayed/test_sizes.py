"""What a bulk build reads of a catalog: which topics have delayed messages."""

from collections import Counter

import pytest

from logstore.catalog.delayed.delayed_index import build_delayed_and_bucket_topic_queries
from logstore.catalog.engine import arrow_bulk
from tests.contracts.catalog.delayed.steps import delay, sealed
from tests.contracts.catalog.steps import NAME, append, filled, new_topic, roll
from tests.contracts.catalog.worlds import SqlWorld

pytestmark = pytest.mark.postgres


def _found(world: SqlWorld) -> Counter[int]:
    world.database.close()  # a file is opened by one of the two libraries at a time
    found = Counter[int]()
    with arrow_bulk.open_arrow_reader(world.url) as reader:
        for query in build_delayed_and_bucket_topic_queries():
            for row in reader.table(query).to_pylist():
                found[row["topic_id"]] += row["size"]
    return found


def test_topics_with_delayed_entries_or_buckets_are_told_with_how_many(sql_world: SqlWorld) -> None:
    """A topic without any is not told, nor are ledgers of its components."""
    some, buckets, plain = (new_topic(sql_world, f"{NAME}-{number}") for number in range(3))
    for count in (4, 3):
        delay(sql_world, some.topic_id, roll(sql_world, some.topic_id), count)
    filled(sql_world, buckets.topic_id, 1)
    sealed(sql_world, buckets.topic_id, 1)
    append(sql_world, plain.topic_id, roll(sql_world, plain.topic_id))

    assert _found(sql_world) == {some.topic_id: 7, buckets.topic_id: 0}
