"""The command of a replica's database on real servers: killed half way, it goes on; and reads what its source has."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from logstore.errors import CatalogAdopting
from logstore.failpoints import ENVIRONMENT_VARIABLE
from logstore.records.services.record_log import RecordLog
from tests.spark.records.lost import dump
from tests.workers.hosting.test_rebuilding import read, write
from workers.assembly.log_store_from_settings import open_log_store
from workers.settings import Settings

pytestmark = [pytest.mark.external_service, pytest.mark.timeout(600)]

_SOME: Final = (("records.apply.after", ()),)
_ALL: Final = (
    ("records.register.before", ()),
    ("records.register.after", ()),
    ("records.pin.after", ()),
    ("records.apply.before", ()),
    ("records.apply.after", ()),
    ("records.acknowledge.after", ()),  # it was seeded by the run before, and this one says so
    ("records.unpin.before", ("--seed",)),
)


def _command(settings: Settings, url: str, *flags: str, dies_at: str = "") -> "subprocess.CompletedProcess[str]":
    foreign = {name: value for name, value in os.environ.items() if not name.startswith("SEXTON_")}
    armed = {ENVIRONMENT_VARIABLE: f"{dies_at}=kill"} if dies_at else {}
    argv = [sys.executable, "-m", "workers", "--json", "records", "follow", "--into", url, *flags]
    return subprocess.run(
        argv, env=foreign | settings.environment() | armed, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.parametrize(
    "deaths", [pytest.param(_SOME, id="some"), pytest.param(_ALL, id="all", marks=pytest.mark.all_faults)]
)
@pytest.mark.sigkill
def test_command_that_is_killed_goes_on_when_it_is_run_again(
    settings: Settings, tmp_path: Path, deaths: tuple[tuple[str, tuple[str, ...]], ...]
) -> None:
    """The replica has every row of its source, serves its reads, refuses its writes, and is known to raids."""
    topic = write(settings)
    with open_log_store(settings) as log:
        log.records.flusher.flush(cursors=True)
    url = f"sqlite:///{tmp_path / 'replica.db'}"
    for death, flags in deaths:
        died = _command(settings, url, *flags, dies_at=death)
        assert died.returncode == -signal.SIGKILL, (death, died.stdout, died.stderr)
    done = _command(settings, url)
    assert done.returncode == 0, done.stderr
    assert dump(url) == dump(settings.database_url)
    replica = settings.model_copy(update={"database_url": url})
    assert read(replica, topic) == read(settings, topic)
    with open_log_store(replica) as log, pytest.raises(CatalogAdopting, match="REPLICA"):
        log.topic_logs.roll(topic)
    with open_log_store(settings) as log:
        (word,) = RecordLog(log.record_objects).list_lowest_acknowledgements()
        newest = RecordLog(log.record_objects).read_newest_manifest()
        assert newest
        assert (word.replica_id, word.manifest) == (json.loads(done.stdout)["replica"], newest.number)
    _refused(settings, url, tmp_path)


def _refused(settings: Settings, url: str, folder: Path) -> None:
    """What is no replica's database is refused at once, and a replica that nobody waits for by its job: in words."""
    with open_log_store(settings) as log:
        records = RecordLog(log.record_objects)
        for one in records.list_lowest_acknowledgements():
            records.forget_replica(one.replica_id)
    (folder / "text.db").write_text("no database")
    for found, code, told in (
        (url, 3, "expected its acknowledgement in the bucket of the source"),
        (f"sqlite:///{folder / 'text.db'}", 4, "is no SQLite database"),
    ):
        done = _command(settings, found)
        assert (done.returncode, told in done.stderr, "Traceback" in done.stderr) == (code, True, False), done.stderr
