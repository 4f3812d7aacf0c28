"""The same jobs on a cluster of Spark's own kind, with an executor that is killed."""

from pathlib import Path

import psutil
import pytest

from spark.warm_session import SparkSettings, WarmSession
from tests.spark.cluster import PROPERTIES, deadly, standalone
from tests.spark.reconciliation import damage
from tests.spark.reconciliation.conftest import planner
from tests.spark.reconciliation.damage import Damaged
from workers.assembly.log_store_from_settings import executor_catalog_and_bucket_addresses

pytestmark = [pytest.mark.external_service, pytest.mark.timeout(600)]


def test_plan_on_a_standalone_cluster_is_exact_although_an_executor_is_killed(
    store: Damaged, warm: WarmSession, tmp_path: Path
) -> None:
    warm.close()  # a process has one session, and another test of this process may have started it
    damage.healthy(store)
    for one in damage.EVERY:
        one(store)
    mark = tmp_path / "killed"
    with standalone(tmp_path) as master:
        settings = SparkSettings(
            scratch=tmp_path / "scratch", master=master, driver_memory="512m", extra_properties=PROPERTIES
        )
        session = WarmSession(settings)
        try:
            found = planner(store, session, tmp_path / "bulk")(
                addresses=deadly(executor_catalog_and_bucket_addresses(store.settings), mark)
            )
            context = session.get_or_restart_session().sparkContext
            assert context.master == master
            assert context.getConf().get("spark.driver.host") == "127.0.0.1"
        finally:
            session.close()
    assert {(one.kind, one.ledger_id, one.key) for one in found} == store.truth
    assert len(found) == len(store.truth)
    assert not psutil.pid_exists(int(mark.read_text()))
