"""The log store as tables of Spark, on real servers."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from spark.sources import data_sources
from spark.warm_session import WarmSession
from tests.spark.reconciliation.damage import Damaged, healthy
from workers.assembly.log_store import executor_catalog_and_bucket_addresses, open_log_store
from workers.settings import Settings

pytestmark = pytest.mark.external_service


@pytest.fixture
def store(settings: Settings) -> Iterator[Damaged]:
    with open_log_store(settings) as log:
        found = Damaged(settings=settings, log=log)
        healthy(found)
        yield found


@pytest.fixture
def spark(warm: WarmSession, settings: Settings) -> SparkSession:
    session = warm.get_or_restart_session()
    data_sources.register_data_sources(session, executor_catalog_and_bucket_addresses(settings))
    return session


def test_objects_are_those_of_the_listing_and_a_bucket_is_pushed_down(store: Damaged, spark: SparkSession) -> None:
    listed = {(one.key, one.size_bytes, one.modified_us) for one in store.bucket.list("ledgers/")}
    whole, objects = (spark.read.format("sexton_objects").load() for _ in range(2))
    mine = objects.where(objects.bucket == store.settings.primary_bucket)
    assert {(row.key, row.size_bytes, row.modified_us) for row in mine.collect()} == listed
    assert {row.bucket for row in whole.select("bucket").distinct().collect()} == {
        store.settings.primary_bucket,
        store.settings.tiered_bucket,
    }
    assert mine.rdd.getNumPartitions() < whole.rdd.getNumPartitions()


def test_ledgers_are_the_catalogs_and_bounds_are_pushed_down(store: Damaged, spark: SparkSession) -> None:
    ((count, last),) = store.sql("SELECT count(*), max(ledger_id) FROM ledger")
    ledgers = spark.read.format("sexton_ledgers").load()
    assert ledgers.count() == count
    some = ledgers.where((ledgers.ledger_id >= last - 1) & (ledgers.segments > 0))
    assert {row.ledger_id for row in some.collect()} <= {last - 1, last}
    assert ">=" not in some._jdf.queryExecution().executedPlan().toString()  # Spark filters by what is left


def test_entries_are_those_that_a_reader_sees(store: Damaged, spark: SparkSession) -> None:
    topic = store.topics[0]
    source = spark.read.format("sexton_entries").option("topic_id", topic.topic_id).option("columns", "payload")
    found = [(row.ledger_id, row.entry_id, bytes(row.payload)) for row in source.load().collect()]
    read = [(one.position.ledger_id, one.position.entry_id, one.payload) for one in store.log.topic_logs.scan(topic)]
    assert sorted(found) == read
    assert len(read) == 6


@pytest.mark.parametrize(
    ("options", "said"), [({"topic_id": "x"}, "topic_id"), ({"topic_id": "1", "columns": "no"}, "columns")]
)
def test_bad_option_is_named(spark: SparkSession, options: dict[str, str], said: str) -> None:
    with pytest.raises(Exception, match=f"{said}: expected"):
        spark.read.format("sexton_entries").options(**options).load().collect()
