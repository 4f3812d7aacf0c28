"""`status` of services that were not started here, and of workers that were killed."""

import json
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from temporalio.api.taskqueue.v1 import PollerInfo
from temporalio.api.workflowservice.v1 import DescribeTaskQueueResponse
from temporalio.service import RPCError, RPCStatusCode

from infra.stack.home import StackHome
from infra.stack.workers import WorkerRecord, recorded
from workers.settings import Settings
from workers.stack import doctor, status


def test_status_of_services_elsewhere_asks_the_addresses_of_the_settings(tmp_path: Path) -> None:
    """A production set-up is not told that its home never saw a start, and looking creates nothing."""
    settings = Settings(home=tmp_path / "home", temporal_address="127.0.0.1:1", s3_endpoint="http://127.0.0.1:1")
    rows = {str(row["name"]): row for row in status(settings)}
    assert list(rows) == ["temporal", "object store", "database", "worker"]
    assert not any(row["ok"] for row in rows.values())
    assert "127.0.0.1:1" in str(rows["temporal"]["detail"])
    assert "http://127.0.0.1:1" in str(rows["object store"]["detail"])
    assert not (tmp_path / "home").exists()


def _remembering(*names: str) -> object:
    """A client whose server remembers these pollers."""
    now = Timestamp(seconds=int(time.time()))
    answer = DescribeTaskQueueResponse(pollers=[PollerInfo(identity=name, last_access_time=now) for name in names])

    async def describe(_: object) -> DescribeTaskQueueResponse:
        return answer

    return SimpleNamespace(namespace="default", workflow_service=SimpleNamespace(describe_task_queue=describe))


def test_status_does_not_count_a_killed_worker_that_temporal_remembers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process is known to be gone; one that lives here, or elsewhere, is counted."""
    settings = Settings(home=tmp_path, temporal_address="127.0.0.1:1", s3_endpoint="http://127.0.0.1:1")
    pollers = ["killed"]

    async def connect(_: Settings) -> object:
        return _remembering(*pollers)

    monkeypatch.setattr("workers.stack.connect_client", connect)
    _record_killed(StackHome.at(tmp_path), "killed")
    assert _worker(settings)["ok"] is False
    assert "none polls" in str(_worker(settings)["detail"])
    with recorded(StackHome.at(tmp_path), "here", "http://127.0.0.1:9464/metrics"):
        _record_killed(StackHome.at(tmp_path), "killed")
        pollers += ["here", "elsewhere"]
        assert _worker(settings)["detail"] == "elsewhere, here (http://127.0.0.1:9464/metrics)"


def test_status_and_doctor_tell_in_a_row_that_temporal_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A namespace that does not exist is not the end of the whole answer: every other row is still told."""
    settings = Settings(home=tmp_path, temporal_address="127.0.0.1:1", s3_endpoint="http://127.0.0.1:1")

    async def refuse(*_: object, **__: object) -> None:
        raise RPCError("Namespace nope is not found.", RPCStatusCode.NOT_FOUND, b"")

    async def connect(_: Settings) -> object:
        services = SimpleNamespace(describe_task_queue=refuse, get_system_info=refuse, list_search_attributes=refuse)
        return SimpleNamespace(namespace="nope", workflow_service=services, operator_service=services)

    for module in ("stack", "doctor"):
        monkeypatch.setattr(f"workers.{module}.connect_client", connect)
    assert _worker(settings)["detail"] == "cannot be told: temporal: Namespace nope is not found."
    rows = {str(row["name"]): row for row in doctor(settings)}
    assert not rows["search attributes"]["ok"]
    assert "nope is not found" in str(rows["search attributes"]["detail"])


def _worker(settings: Settings) -> dict[str, object]:
    return next(dict(row) for row in status(settings) if row["name"] == "worker")


def _record_killed(home: StackHome, worker_id: str) -> None:
    with subprocess.Popen([sys.executable, "-c", "pass"]) as ended:
        ended.wait()
    home.workers.mkdir(exist_ok=True)
    record = WorkerRecord(worker_id=worker_id, pid=ended.pid, started=1.0, metrics_url="")
    (home.workers / f"{ended.pid}.json").write_text(json.dumps(asdict(record)))
