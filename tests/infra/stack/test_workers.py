"""Which workers of a home run."""

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from infra.stack.stack_home import (
    StackHome,
    WorkerRecord,
    find_crashed_worker_ids,
    keep_worker_record,
    read_live_workers,
)

_URL = "http://127.0.0.1:9464/metrics"


def test_worker_is_recorded_while_it_serves(tmp_path: Path) -> None:
    """Found while it serves, gone afterwards; a home that never was is simply empty."""
    home = StackHome.at(tmp_path / "home")
    assert read_live_workers(home) == []
    with keep_worker_record(home, "w/1", metrics_url=_URL):
        (found,) = read_live_workers(home)
        assert (found.worker_id, found.metrics_url) == ("w/1", _URL)
    assert read_live_workers(home) == []


def test_worker_that_was_killed_is_not_shown_and_its_record_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record outlives SIGKILL: its pid proves nothing, not even where another process has it by now.

    And it outlives the start of the next worker, which may be killed as well while Temporal still tells of both.
    """
    home = StackHome.at(tmp_path)
    home.workers.mkdir()
    with subprocess.Popen([sys.executable, "-c", "pass"]) as ended:
        ended.wait()
    started = psutil.Process().create_time()
    gone = WorkerRecord(worker_id="gone", pid=ended.pid, started=started, metrics_url=_URL)
    reused = WorkerRecord(worker_id="reused", pid=psutil.Process().ppid(), started=1.0, metrics_url=_URL)
    for number, record in enumerate((gone, reused)):
        fields = {name: getattr(record, name) for name in WorkerRecord.__slots__}
        (home.workers / f"{number}.json").write_text(json.dumps(fields))
    (home.workers / "half.json").write_text('{"worker_id"')
    assert read_live_workers(home) == []
    assert find_crashed_worker_ids(home) == {"gone", "reused"}
    for again in ("w", "x"):
        with keep_worker_record(home, again, metrics_url=_URL):
            assert [one.worker_id for one in read_live_workers(home)] == [again]
            assert find_crashed_worker_ids(home) == {"gone", "reused"}
    monkeypatch.setattr("infra.stack.stack_home._POLLER_RETENTION_S", 0.0)
    with keep_worker_record(home, "y", metrics_url=_URL):
        assert len(list(home.workers.glob("*.json"))) == 1


def test_worker_of_a_home_that_cannot_be_written_works_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Where its metrics are is worth a line in the log, and no more."""
    (tmp_path / "home").write_text("a file where the home should be")
    with keep_worker_record(StackHome.at(tmp_path / "home"), "w", metrics_url=_URL):
        assert _URL in caplog.text
