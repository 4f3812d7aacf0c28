"""The same job on a cluster of Spark's own kind: one master and two workers."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from logstore.catalog import Database
from logstore.catalog.records.outbox import RecordOutbox
from logstore.catalog.records.rebuild_loading import RebuildDatabase
from logstore.identity.bucket_markers import BucketRole
from logstore.records.rebuild_job import RowFilesFolder, WriteCatalogRowsJob
from logstore.records.services.record_log import RecordLog
from spark.job_mains import record_log_job_mains
from spark.job_runner import SparkBulkJobs
from spark.published_output import PublishedOutputs
from spark.warm_session import SparkSettings, WarmSession
from tests.servers import CATALOG_ID
from tests.spark.cluster import PROPERTIES, standalone
from tests.spark.records.lost import Filling, dump, flush_all, load_from
from workers.assembly.log_store_from_settings import executor_bucket_address, open_log_store
from workers.settings import Settings

pytestmark = [pytest.mark.external_service, pytest.mark.timeout(600)]


@pytest.mark.all_faults  # the plan on a cluster always runs, and so does the rebuild on this machine
def test_rebuild_on_a_standalone_cluster_is_exact(settings: Settings, warm: WarmSession, tmp_path: Path) -> None:
    warm.close()  # a process has one session, and another test of this process may have started it
    database = Database(settings.database_url)
    database.write(lambda connection: Filling(connection).all())
    with open_log_store(settings) as log:
        manifest = flush_all(RecordOutbox(database), RecordLog(log.record_objects), ceiling=1_000_000)
    database.close()
    job = WriteCatalogRowsJob(run_id="rebuild", catalog_id=CATALOG_ID, manifest=manifest.number)
    mains = record_log_job_mains(executor_bucket_address(settings, BucketRole.RECORDS, settings.records_bucket))
    with standalone(tmp_path) as master:
        cluster = SparkSettings(
            scratch=tmp_path / "scratch", master=master, driver_memory="512m", extra_properties=PROPERTIES
        )
        session = WarmSession(cluster)
        try:
            summary = SparkBulkJobs(session, PublishedOutputs(tmp_path / "bulk"), lambda: mains).run_job(
                job, lambda _: None
            )
            assert session.get_or_restart_session().sparkContext.master == master
        finally:
            session.close()
    target = f"sqlite:///{tmp_path / 'rebuilt.db'}"
    RebuildDatabase(target).load_rows(
        load_from(manifest, target, summary), RowFilesFolder(Path(summary.folder)), lambda: None
    )
    assert dump(target) == dump(settings.database_url)


_COUNT = """
import json, sys
import json
import subprocess
import sys
from pathlib import Path
from spark.warm_session import SparkSettings, WarmSession

scratch, master, more = sys.argv[1:]
session = WarmSession(SparkSettings(scratch=Path(scratch), master=master, driver_memory="512m", more=json.loads(more)))
print(session.get_or_restart_session().range(10).count())
session.close()
"""


@pytest.mark.all_faults  # starts a cluster and two drivers
def test_warm_session_that_is_idle_leaves_the_cluster_to_another_process(warm: WarmSession, tmp_path: Path) -> None:
    """Every worker process has a session of its own; with one that kept its cores the other would wait for ever."""
    warm.close()
    with standalone(tmp_path) as master:
        settings = SparkSettings(
            scratch=tmp_path / "one", master=master, driver_memory="512m", extra_properties=PROPERTIES
        )
        session = WarmSession(settings)
        try:
            assert session.get_or_restart_session().range(10).count() == 10
            other = [sys.executable, "-c", _COUNT, str(tmp_path / "two"), master, json.dumps(PROPERTIES)]
            done = subprocess.run(other, capture_output=True, text=True, timeout=300, check=False)
            assert (done.returncode, done.stdout) == (0, "10\n"), done.stderr[-2_000:]
            assert session.get_or_restart_session().range(20).count() == 20, "it takes cores again"
        finally:
            session.close()
