"""`status` of services that were not started here, and of workers that were killed."""

import asyncio
import json
import re
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, nullcontext
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from temporalio.api.failure.v1 import Failure
from temporalio.api.taskqueue.v1 import PollerInfo
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.api.workflowservice.v1 import DescribeTaskQueueResponse
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from infra.coordination.ownership_nodes import LiveWorker
from infra.stack.service_port_choice import ChosenPorts, write_ports
from infra.stack.stack_home import StackHome, WorkerRecord, keep_worker_record
from logstore.catalog import Database
from logstore.catalog.ownership.fences import Fences
from logstore.deletion.intents import RequestRefusal
from logstore.identity.bucket_markers import PROBE_PREFIX
from logstore.ownership import BundleId, BundleOwnerNode, WorkerLoad
from tests.infra.objects.peer import Answer, Request, deleted, fault, listing, scripted
from tests.logstore.records.world import RecordsWorld
from tests.migrated_catalogs import migrate_or_copy_catalog
from workers.operations.service_checks import (
    _check_ownership,
    check_flushes_as_row,
    check_installation,
    check_services,
    find_flush_failure,
    run_check_as_row,
)
from workers.operations.worker_builds import WorkerDeployment
from workers.settings import Settings


def test_status_of_services_elsewhere_asks_the_addresses_of_the_settings(tmp_path: Path) -> None:
    """A production set-up is not told that its home never saw a start, and looking creates nothing."""
    settings = Settings(home=tmp_path / "home", temporal_address="127.0.0.1:1", s3_endpoint="http://127.0.0.1:1")
    rows = {str(row["name"]): row for row in check_services(settings)}
    assert list(rows) == ["temporal", "object store", "zookeeper", "database", "identity", "record log", "worker"]
    assert not any(row["ok"] for row in rows.values())
    assert "127.0.0.1:1" in str(rows["temporal"]["detail"])
    assert "http://127.0.0.1:1" in str(rows["object store"]["detail"])
    assert "SEXTON_ZOOKEEPER" in str(rows["zookeeper"]["detail"])
    assert not (tmp_path / "home").exists()
    alone = settings.model_copy(update={"ownership": "single"})
    assert "zookeeper" not in {row["name"] for row in check_services(alone)}, "by that setting there is none"


def test_status_of_a_home_asks_what_the_settings_name_and_not_the_servers_of_the_home(tmp_path: Path) -> None:
    """Commands and workers dial what the settings say: that the home's own servers are well says nothing of it."""
    home = StackHome.at(tmp_path / "home")
    home.create_directories_and_check_space()
    write_ports(home, ChosenPorts(temporal=1, s3=1, zookeeper=1))
    home.ensure_credentials()
    there = {"temporal_address": "127.0.0.1:2", "s3_endpoint": "http://127.0.0.1:2", "zookeeper": "127.0.0.1:2/nope"}
    rows = {
        row["name"]: str(row["detail"]) for row in check_services(Settings.model_validate({"home": home.root} | there))
    }
    for name, address in zip(("temporal", "object store", "zookeeper"), there.values(), strict=True):
        assert address in rows[name]
        assert "127.0.0.1:1" not in rows[name]


def _remembering(*names: str) -> object:
    """A client whose server remembers these pollers."""
    now = Timestamp(seconds=int(time.time()))
    answer = DescribeTaskQueueResponse(pollers=[PollerInfo(identity=name, last_access_time=now) for name in names])

    async def describe(*_: object, **__: object) -> DescribeTaskQueueResponse:
        return answer

    async def nothing(*_: object, **__: object) -> SimpleNamespace:
        return SimpleNamespace(server_version="1")

    async def untold(*_: object, **__: object) -> None:
        raise RPCError("unknown method ListWorkers", RPCStatusCode.UNIMPLEMENTED, b"")

    service = SimpleNamespace(
        describe_task_queue=describe, describe_namespace=nothing, get_system_info=nothing, list_workers=untold
    )
    return SimpleNamespace(namespace="default", workflow_service=service)


def test_status_does_not_count_a_killed_worker_that_temporal_remembers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process is known to be gone; one that lives here, or elsewhere, is counted."""
    settings = Settings(home=tmp_path, temporal_address="127.0.0.1:1", s3_endpoint="http://127.0.0.1:1")
    pollers = ["killed"]

    async def connect(_: Settings) -> object:
        return _remembering(*pollers)

    monkeypatch.setattr("workers.client.temporal_connection.connect_client", connect)
    _record_killed(StackHome.at(tmp_path), "killed")
    assert _worker(settings)["ok"] is False
    assert "none polls" in str(_worker(settings)["detail"])
    with keep_worker_record(StackHome.at(tmp_path), "here", metrics_url="http://127.0.0.1:9464/metrics"):
        _record_killed(StackHome.at(tmp_path), "killed")
        pollers += ["here", "elsewhere"]
        assert _worker(settings)["detail"] == "elsewhere, here (http://127.0.0.1:9464/metrics)"


def test_doctor_says_that_no_worker_of_a_build_polls_that_gets_new_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would wait, all or the share that ramps; workers whose processes are gone from this home do not count."""
    settings = Settings(home=tmp_path, temporal_address="127.0.0.1:1", deployment_name="store")
    unserved: dict[str, list[str]] = {"b2": [], "b3": ["sexton"]}
    ramp: dict[str, Any] = {"ramping": "b3", "ramp_percent": 0.0}

    async def connect(_: Settings) -> object:
        return _remembering()

    async def read(_: object, name: str) -> WorkerDeployment:
        return WorkerDeployment(name=name, current="b2", **ramp)

    async def ask(_: object, name: str, build_id: str, *, dead_identities: set[str]) -> list[str]:
        assert (name, dead_identities) == ("store", {"killed"})
        return unserved[build_id]

    monkeypatch.setattr("workers.client.temporal_connection.connect_client", connect)
    monkeypatch.setattr("workers.operations.service_checks.read_worker_deployment", read)
    monkeypatch.setattr("workers.operations.service_checks.find_unserved_queues", ask)
    with keep_worker_record(StackHome.at(tmp_path), "here"):
        _record_killed(StackHome.at(tmp_path), "killed")
        assert _named(settings, "deployment") == {
            "name": "deployment",
            "ok": True,
            "detail": "store: b2 is current, b3 ramps at 0 %",
        }
        ramp["ramp_percent"] = 10.0
        ramping = _named(settings, "deployment")
        unserved["b2"] = ["sexton"]
        current = _named(settings, "deployment")
    assert not ramping["ok"]
    assert "b3 ramps at 10 %, and no worker of b3 polls sexton; start one of that build" in str(ramping["detail"])
    assert "and no worker of b2 polls sexton; start one of that build" in str(current["detail"])


def test_status_and_doctor_tell_in_a_row_that_temporal_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A namespace that does not exist is not the end of the whole answer: every other row is still told."""
    settings = Settings(home=tmp_path, temporal_address="127.0.0.1:1", s3_endpoint="http://127.0.0.1:1")

    async def refuse(*_: object, **__: object) -> None:
        raise RPCError("Namespace nope is not found.", RPCStatusCode.NOT_FOUND, b"")

    async def connect(_: Settings) -> object:
        names = ("describe_namespace", "describe_task_queue", "get_system_info", "list_search_attributes")
        services = SimpleNamespace(**dict.fromkeys(names, refuse))
        schedule = SimpleNamespace(describe=refuse)
        return SimpleNamespace(
            namespace="nope",
            workflow_service=services,
            operator_service=services,
            get_schedule_handle=lambda _: schedule,
        )

    monkeypatch.setattr("workers.client.temporal_connection.connect_client", connect)
    assert _worker(settings)["detail"] == "cannot be told: temporal: Namespace nope is not found."
    rows = {str(row["name"]): row for row in check_installation(settings)}
    assert not rows["search attributes"]["ok"]
    assert "nope is not found" in str(rows["search attributes"]["detail"])


def _worker(settings: Settings) -> dict[str, object]:
    return _named(settings, "worker")


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
    migrate_or_copy_catalog(database, bundles=4)
    Fences(database).raise_fences([BundleId(1)], "w")
    database.close()
    live = {"w": LiveWorker(session=7, load=WorkerLoad())}
    nodes = {BundleId(1): BundleOwnerNode(worker_id="w", session=7, version=0)}
    found = SimpleNamespace(
        read_owner_nodes=lambda: nodes, read_live_workers=lambda: live, read_live_sessions=lambda: {7}
    )
    monkeypatch.setattr("workers.operations.service_checks.open_directory", lambda *_: nullcontext(found))
    assert run_check_as_row("ownership", _check_ownership, settings) == {
        "name": "ownership",
        "ok": True,
        "detail": "4 bundles, 3 without an owner; workers: w",
    }
    live.clear()
    row = run_check_as_row("ownership", _check_ownership, settings)
    assert row["ok"] is False
    assert "no worker has a session; start one" in str(row["detail"])
    alone = settings.model_copy(update={"ownership": "single"})
    assert _check_ownership(alone) == "4 bundles, 3 without an owner; ownership=single"


def test_status_says_of_a_stack_that_is_down_in_one_short_sentence_whose_it_cannot_tell(tmp_path: Path) -> None:
    """Why each service cannot be asked stands in its own row, in words that are not a vendor's."""
    settings = _upgraded(tmp_path, s3_access_key="k", s3_secret_key="s")
    rows = {str(row["name"]): str(row["detail"]) for row in check_services(settings)}
    assert "cannot be told of primary bucket sexton-primary, tiered bucket" in rows["identity"]
    assert rows["identity"].count("no answer") == 1
    assert "nobody answers at http://127.0.0.1:1; run `sexton up`" in rows["object store"]
    assert not re.search(r"[A-Z][a-z]+Error|Could not connect", " ".join(rows.values())), rows
    assert rows["database"].startswith("this build's version")


@pytest.mark.parametrize("held", [True, False])
def test_status_sees_that_the_write_ahead_file_is_gone(tmp_path: Path, held: bool) -> None:
    """Looking does not put an empty file in its place; a worker that has it open is named even when another did."""
    settings = _upgraded(tmp_path)
    log = tmp_path / "catalog.db-wal"
    with closing(sqlite3.connect(tmp_path / "catalog.db")) as worker:
        worker.execute("UPDATE catalog SET bundles = bundles")
        worker.commit()
        with (
            keep_worker_record(StackHome.at(tmp_path), "w", metrics_url="http://127.0.0.1:1/metrics")
            if held
            else nullcontext()
        ):
            assert _named(settings, "database")["ok"] is True
            log.unlink()
            for _ in range(2):
                row = _named(settings, "database")
                assert (row["ok"], f"{log} was removed" in str(row["detail"])) == (False, True)
                assert not log.exists()
            assert ("under process" in str(row["detail"])) is held
            if held:
                log.touch()
                assert _named(settings, "database")["ok"] is False


def test_status_sees_that_the_database_takes_no_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that another process holds is told too, and not waited for without end."""
    settings = _upgraded(tmp_path)
    monkeypatch.setattr("logstore.catalog.engine.catalog_version._PATIENCE_S", 0.01)
    with closing(sqlite3.connect(tmp_path / "catalog.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        row = _named(settings, "database")
    assert (row["ok"], "contended" in str(row["detail"])) == (False, True)


class _StoreInMemory:
    """Script of an object store that may confirm deletes without doing them, or refuse to store."""

    def __init__(self, *, swallows_deletes: bool = False, refuses_puts: bool = False) -> None:
        self._swallows_deletes, self._refuses_puts = swallows_deletes, refuses_puts
        self.body_by_path: dict[str, bytes] = {}
        self.methods: list[str] = []

    def __call__(self, request: Request) -> Answer:
        self.methods.append("DeleteObjects" if request.is_bulk_delete else request.method)
        if request.is_bulk_delete:
            if not self._swallows_deletes:
                for key in request.bulk_keys:
                    self.body_by_path.pop(f"{request.key}/{key}", None)
            return deleted(*request.bulk_keys)
        if "list-type" in request.query:
            start = f"{request.key}/{request.query.get('prefix', '')}"
            paths = sorted(path for path in self.body_by_path if path.startswith(start))
            return listing(*(path.removeprefix(f"{request.key}/") for path in paths))
        if request.method == "PUT":
            if self._refuses_puts:
                return fault(403, "AccessDenied")
            self.body_by_path[request.key] = request.body
            return Answer(headers={"ETag": '"0"'})
        body = self.body_by_path.get(request.key)
        return fault(404, "NoSuchKey") if body is None else Answer(200, body, {"ETag": '"0"'})


def _deletes_row(home: Path, store: _StoreInMemory) -> dict[str, object]:
    with scripted(store) as peer:
        settings = _upgraded(home, s3_endpoint=peer.endpoint, s3_access_key="k", s3_secret_key="s")
        return next(dict(row) for row in check_installation(settings) if row["name"] == "deletes")


def test_doctor_tests_in_each_bucket_that_a_delete_removes_the_object(tmp_path: Path) -> None:
    store = _StoreInMemory()
    row = _deletes_row(tmp_path, store)
    assert row["ok"], row
    assert (
        str(row["detail"]) == "a probe object is gone after its delete in sexton-primary, sexton-tiered, sexton-records"
    )
    assert store.methods.count("PUT") == store.methods.count("DeleteObjects") == 3
    assert store.body_by_path == {}


def test_doctor_refuses_a_store_that_confirms_deletes_and_keeps_the_objects(tmp_path: Path) -> None:
    store = _StoreInMemory(swallows_deletes=True)
    row = _deletes_row(tmp_path, store)
    assert not row["ok"]
    assert "bucket sexton-primary: the store confirmed a delete that it did not do" in str(row["detail"])
    assert "HEAD and LIST find it" in str(row["detail"])
    assert "Sexton supports no such store" in str(row["detail"])
    assert all(path.partition("/")[2].startswith(PROBE_PREFIX) for path in store.body_by_path)


def test_doctor_says_that_the_store_refuses_to_store_the_probe(tmp_path: Path) -> None:
    """Credentials that may only read say nothing of deletes."""
    row = _deletes_row(tmp_path, _StoreInMemory(refuses_puts=True))
    assert not row["ok"]
    assert "bucket sexton-primary: deletes cannot be tested" in str(row["detail"])
    assert "AccessDenied" in str(row["detail"])


def test_doctor_puts_no_probe_into_the_bucket_of_another_catalog(tmp_path: Path) -> None:
    store = _StoreInMemory()
    marker = json.dumps({"catalog_id": "00000000-0000-4000-8000-000000000000"}).encode()
    store.body_by_path["sexton-primary/sexton-catalog.json"] = marker
    row = _deletes_row(tmp_path, store)
    assert not row["ok"]
    assert store.methods.count("PUT") == 2
    assert store.body_by_path == {"sexton-primary/sexton-catalog.json": marker}


def _upgraded(home: Path, **changes: object) -> Settings:
    told = {"home": home, "temporal_address": "127.0.0.1:1", "s3_endpoint": "http://127.0.0.1:1", "ownership": "single"}
    settings = Settings.model_validate(told | changes)
    database = Database(settings.database_url)
    migrate_or_copy_catalog(database)
    database.close()
    return settings


def _named(settings: Settings, name: str) -> dict[str, object]:
    return next(dict(row) for row in check_services(settings) if row["name"] == name)


class _Described:
    """A handle on `flush-records` that Temporal knows like this."""

    def __init__(self, status: WorkflowExecutionStatus, *pending: PendingActivityInfo, refused: object = None) -> None:
        self._found = SimpleNamespace(status=status, raw_description=SimpleNamespace(pending_activities=pending))
        self._result = SimpleNamespace(refused=refused)

    async def describe(self) -> SimpleNamespace:
        return self._found

    async def result(self) -> SimpleNamespace:
        return self._result


_SLOW = Failure(message="503 SlowDown")


@pytest.mark.parametrize(
    ("handle", "told"),
    [
        (_Described(WorkflowExecutionStatus.RUNNING, PendingActivityInfo(attempt=1)), None),
        (
            _Described(
                WorkflowExecutionStatus.RUNNING,
                PendingActivityInfo(
                    attempt=8,
                    last_started_time=Timestamp(seconds=60),
                    last_failure=Failure(message="x", cause=Failure(message="503 SlowDown")),
                ),
            ),
            "flushes fail, 7 attempts so far, the last one at 1970-01-01T00:01:00Z: 503 SlowDown",
        ),
        (
            _Described(
                WorkflowExecutionStatus.RUNNING,
                PendingActivityInfo(attempt=2, last_attempt_complete_time=Timestamp(seconds=61), last_failure=_SLOW),
            ),
            "flushes fail, 1 attempts so far, the last one at 1970-01-01T00:01:01Z: 503 SlowDown",
        ),
        (
            _Described(WorkflowExecutionStatus.RUNNING, PendingActivityInfo(attempt=8, last_failure=_SLOW)),
            "flushes fail, 7 attempts so far: 503 SlowDown",
        ),
        (
            _Described(
                WorkflowExecutionStatus.COMPLETED,
                refused=RequestRefusal(type="CatalogOutdated", message="the database is older"),
            ),
            "flushes are refused: CatalogOutdated: the database is older",
        ),
    ],
)
def test_record_log_tells_why_flushes_fail(handle: _Described, told: str | None) -> None:
    """From what Temporal knows of the one workflow: nothing else is kept of a failure."""
    client = SimpleNamespace(get_workflow_handle=lambda *_, **__: handle)
    assert asyncio.run(find_flush_failure(cast("Client", client))) == told


def test_record_log_tells_what_waits_and_what_no_block_can_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new change is well; one that is old, or that cannot be flushed, is not."""
    world = RecordsWorld(tmp_path)
    try:
        monkeypatch.setattr("workers.operations.service_checks.run_with_client", lambda *_: None)
        settings = Settings(home=tmp_path, database_url=f"sqlite:///{tmp_path / 'catalog.db'}")
        ledger_id = world.create()
        assert check_flushes_as_row(settings)["ok"]
        world.sql("UPDATE segment SET size_bytes = 1e19")
        row = check_flushes_as_row(settings)
        assert (row["ok"], f"segment {ledger_id} 0: size_bytes" in str(row["detail"])) == (False, True)
        world.sql("UPDATE segment SET size_bytes = 1")
        world.sql("UPDATE record_outbox SET at_us = 1")
        assert "0 deletions wait" in str(check_flushes_as_row(settings)["detail"])
        world.sql("DELETE FROM record_outbox")
        assert check_flushes_as_row(settings) == {
            "name": "record log",
            "ok": True,
            "detail": "manifest 0 has all changes",
        }
    finally:
        world.database.close()
