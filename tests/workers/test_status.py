"""`status` of services that were not started here, and of workers that were killed."""

import json
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from temporalio.api.taskqueue.v1 import PollerInfo
from temporalio.api.workflowservice.v1 import DescribeTaskQueueResponse
from temporalio.service import RPCError, RPCStatusCode

from infra.catalog import Database, upgrade
from infra.catalog.fences import SqlFences
from infra.coordination.directory import LiveWorker
from infra.stack.home import StackHome
from infra.stack.ports import ChosenPorts, record_ports
from infra.stack.workers import WorkerRecord, recorded
from logstore.ownership import BundleId, OwnerNode, WorkerLoad
from workers.doctor import _checked, _ownership
from workers.settings import Settings
from workers.stack import doctor, status


def test_status_of_services_elsewhere_asks_the_addresses_of_the_settings(tmp_path: Path) -> None:
    """A production set-up is not told that its home never saw a start, and looking creates nothing."""
    settings = Settings(home=tmp_path / "home", temporal_address="127.0.0.1:1", s3_endpoint="http://127.0.0.1:1")
    rows = {str(row["name"]): row for row in status(settings)}
    assert list(rows) == ["temporal", "object store", "zookeeper", "database", "identity", "worker"]
    assert not any(row["ok"] for row in rows.values())
    assert "127.0.0.1:1" in str(rows["temporal"]["detail"])
    assert "http://127.0.0.1:1" in str(rows["object store"]["detail"])
    assert "SEXTON_ZOOKEEPER" in str(rows["zookeeper"]["detail"])
    assert not (tmp_path / "home").exists()
    alone = settings.model_copy(update={"ownership": "single"})
    assert "zookeeper" not in {row["name"] for row in status(alone)}, "by that setting there is none"


def test_status_of_a_home_looks_at_the_zookeeper_of_the_settings(tmp_path: Path) -> None:
    """Workers dial what the settings say: that the home's own one is well says nothing of it."""
    home = StackHome.at(tmp_path / "home")
    home.prepare()
    record_ports(home, ChosenPorts(zookeeper=1))
    home.ensure_credentials()
    own = Settings(home=tmp_path / "home", zookeeper="127.0.0.1:1")
    there = Settings(home=tmp_path / "home", zookeeper="127.0.0.1:2/nope")
    details = [[row["detail"] for row in status(one) if row["name"] == "zookeeper"] for one in (own, there)]
    assert [len(found) for found in details] == [1, 1]
    assert "127.0.0.1:2/nope" not in str(details[0])
    assert "127.0.0.1:2/nope" in str(details[1])


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


def test_doctor_says_whether_anybody_takes_part_in_ownership(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bundles without an owner are told; that no worker has a session is not well, with what to do."""
    settings = Settings(home=tmp_path, zookeeper="127.0.0.1:1")
    database = Database(settings.database_url)
    upgrade(database, bundles=4)
    SqlFences(database).raise_fences([BundleId(1)], "w")
    database.close()
    live = {"w": LiveWorker(session=7, load=WorkerLoad())}
    nodes = {BundleId(1): OwnerNode(worker_id="w", session=7, version=0)}
    found = SimpleNamespace(owners=lambda: nodes, live_workers=lambda: live, sessions=lambda: {7})
    monkeypatch.setattr("workers.doctor.open_directory", lambda *_: nullcontext(found))
    assert _checked("ownership", _ownership, settings) == {
        "name": "ownership",
        "ok": True,
        "detail": "4 bundles, 3 without an owner; workers: w",
    }
    live.clear()
    row = _checked("ownership", _ownership, settings)
    assert row["ok"] is False
    assert "no worker has a session; start one" in str(row["detail"])
    alone = settings.model_copy(update={"ownership": "single"})
    assert _ownership(alone) == "4 bundles, 3 without an owner; ownership=single"
