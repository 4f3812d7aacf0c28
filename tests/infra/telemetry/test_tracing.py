"""Spans: written once, readable, joined in one trace, and never in the way of the work."""

import json
import logging
import os
import random
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import SQLAlchemyError
from temporalio.exceptions import WorkflowAlreadyStartedError

from infra.telemetry import client_spans
from infra.telemetry.tracing import Provider, SpanFileExporter, create_tracer_provider
from logstore.errors import AlreadyExists, StoreUnavailable
from tests.infra.objects.peer import Answer, deleted, fault, listing, scripted
from tests.infra.objects.test_store import OK, found, in_turn, store_at
from tests.observed_engines import trace_sql_statements


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[Provider]:
    """A provider of the test's own, writing under `tmp_path`."""
    made = create_tracer_provider("sexton-test", traces_dir=tmp_path / "traces")
    yield made
    made.shutdown()


@pytest.fixture
def spans(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """What S3 clients and SQL engines report, at once."""
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(client_spans, "_s3_tracer", provider.get_tracer("test"))
    monkeypatch.setattr(client_spans, "_sql_tracer", provider.get_tracer("test"))
    with trace_sql_statements():
        client_spans.trace_all_sql_statements()
        yield exporter


@pytest.fixture
def engine(spans: InMemorySpanExporter) -> Iterator[Engine]:
    """An SQLite in memory with one table."""
    made = create_engine("sqlite://")
    with made.begin() as connection:
        connection.execute(text("create table ledger (id integer primary key, secret text)"))
    spans.clear()
    yield made
    made.dispose()


def test_nested_spans_are_written_once_each_in_one_trace(provider: Provider, tmp_path: Path) -> None:
    """The file holds every span once, a child names its parent, and other threads join with their context."""
    tracer = provider.get_tracer("test")
    with tracer.start_as_current_span("outer", attributes={"ledger": 7}) as outer:
        outer.add_event("seen", {"n": 1})
        with tracer.start_as_current_span("inner"), ThreadPoolExecutor(1) as threads:
            threads.submit(copy_context().run, lambda: tracer.start_span("elsewhere").end()).result()
    assert provider.force_flush()
    provider.shutdown()
    path = tmp_path / "traces" / f"sexton-test-{os.getpid()}.jsonl"
    written = {row["name"]: row for row in rows(path)}
    assert len(rows(path)) == len(written) == 3
    assert {row["trace_id"] for row in written.values()} == {f"{outer.get_span_context().trace_id:032x}"}
    assert written["outer"]["parent_id"] is None
    assert written["inner"]["parent_id"] == written["outer"]["span_id"]
    assert written["elsewhere"]["parent_id"] == written["inner"]["span_id"]
    assert written["outer"]["attributes"] == {"ledger": 7}
    assert written["outer"]["events"][0]["name"] == "seen"
    assert written["outer"]["kind"] == "internal"
    assert written["outer"]["status"]["code"] == "unset"
    assert written["outer"]["resource"]["service.name"] == "sexton-test"
    assert written["outer"]["start_ns"] <= written["inner"]["start_ns"] <= written["inner"]["end_ns"]


@pytest.mark.parametrize("workflows", [False, True])
def test_ids_do_not_repeat_in_a_program_that_seeds_random(workflows: bool) -> None:
    """Simulations and tests do: two runs of one would be one trace."""
    tracer = create_tracer_provider("sexton-test", traces_dir=None, runs_workflows=workflows).get_tracer("test")
    made = list[trace.SpanContext]()
    for _ in range(2):
        random.seed(7)
        with tracer.start_as_current_span("a step") as span:
            made.append(span.get_span_context())
    assert len({context.trace_id for context in made}) == 2
    assert len({context.span_id for context in made}) == 2
    assert all(context.is_valid for context in made)


def test_span_file_is_the_owners_alone_and_appended_to(tmp_path: Path) -> None:
    """Spans name topics and keys: mode 0600; a restart with the same process id keeps what is there."""
    for _ in range(2):
        made = create_tracer_provider("sexton-test", traces_dir=tmp_path)
        made.get_tracer("test").start_span("one").end()
        made.shutdown()
    (path,) = tmp_path.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(rows(path)) == 2


def test_a_failed_span_tells_its_error(provider: Provider, tmp_path: Path) -> None:
    """Status and exception are in the row."""
    with (
        pytest.raises(StoreUnavailable),
        provider.get_tracer("test").start_as_current_span("work"),
    ):
        raise StoreUnavailable("down")
    provider.shutdown()
    (row,) = rows(next((tmp_path / "traces").iterdir()))
    assert row["status"]["code"] == "error"
    assert row["events"][0]["attributes"]["exception.type"] == "logstore.errors.StoreUnavailable"


def test_an_expected_already_started_is_no_error_span(provider: Provider, tmp_path: Path) -> None:
    """Field case 118: whoever starts a job that runs already joins it; a real error beside it stays one."""
    tracer = provider.get_tracer("test")
    for error in (WorkflowAlreadyStartedError("trim-topic/7", "trim-topic"), StoreUnavailable("down")):
        # As the SDK's interceptor does it.
        with tracer.start_as_current_span("StartChildWorkflow:x", set_status_on_exception=False) as started:
            started.set_status(trace.StatusCode.ERROR, f"{type(error).__name__}: {error}")
    provider.shutdown()
    told = [row["status"] for row in rows(next((tmp_path / "traces").iterdir()))]
    assert told == [
        {"code": "unset", "description": None},
        {"code": "error", "description": "StoreUnavailable: down"},
    ]


def test_a_traces_dir_that_cannot_be_written_does_not_disturb_the_work(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Spans are lost, which is said once; nothing is raised, at the end neither."""
    (tmp_path / "file").write_text("in the way")
    made = create_tracer_provider("sexton-test", traces_dir=tmp_path / "file" / "traces")
    for _ in range(3):
        with made.get_tracer("test").start_as_current_span("work"):
            pass
        made.force_flush()
    made.shutdown()
    assert [r.levelno for r in caplog.records if "spans are lost" in r.message] == [logging.WARNING]


def test_no_traces_dir_and_no_collector_writes_nothing(tmp_path: Path) -> None:
    """Tracing without a destination is legal."""
    made = create_tracer_provider("sexton-test", traces_dir=None)
    made.get_tracer("test").start_span("one").end()
    made.shutdown()
    assert list(tmp_path.iterdir()) == []


def test_a_collector_in_the_environment_receives_the_spans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The standard variable alone switches OTLP on."""
    received: list[tuple[str, int]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append((self.path, len(self.rfile.read(int(self.headers["Content-Length"])))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    try:
        made = create_tracer_provider("sexton-test", traces_dir=None)
        made.get_tracer("test").start_span("one").end()
        made.shutdown()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert [path for path, size in received if size] == ["/v1/traces"]


def test_start_tracing_makes_the_process_trace_and_is_done_once(tmp_path: Path) -> None:
    """Through the global provider, S3 and SQL spans of one piece of work share its trace; a second start joins."""
    with scripted(in_turn(OK)) as peer:
        program = f"""
import sys
from pathlib import Path
from opentelemetry import trace
from sqlalchemy import create_engine, text
from infra.objects.s3_store import S3ObjectStore, create_s3_client
store = S3ObjectStore(create_s3_client({peer.endpoint!r}, "us-east-1", "access", "very-secret"), "bucket")
assert "temporalio" not in sys.modules and "opentelemetry.sdk.trace" not in sys.modules
from infra.telemetry.tracing import start_tracing
tracing = start_tracing("sexton-cli", traces_dir=Path({str(tmp_path)!r}))
assert start_tracing("other", traces_dir=None) is tracing
with trace.get_tracer("cli").start_as_current_span("command"):
    store.put_if_absent("key", b"payload-bytes", metadata={{}})
    with create_engine("sqlite://").connect() as connection:
        connection.execute(text("select 1 as one"))
tracing.shutdown()
tracing.shutdown()
assert "temporalio" not in sys.modules, "half a second of a command that asks the catalog alone"
"""
        subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=60)
    (path,) = tmp_path.iterdir()
    assert path.name.startswith("sexton-cli-")
    written = {row["name"]: row for row in rows(path)}
    assert len(rows(path)) == len(written)
    assert {"command", "S3.PutObject", "SELECT"} <= written.keys()
    assert len({row["trace_id"] for row in written.values()}) == 1
    assert written["S3.PutObject"]["parent_id"] == written["command"]["span_id"]
    assert "payload" not in path.read_text()
    assert "very-secret" not in path.read_text()


def test_s3_spans_tell_method_bucket_and_key_or_counts(spans: InMemorySpanExporter) -> None:
    """One span per call, without payloads."""
    answers = in_turn(OK, found(b"payload"), listing("p/a", "p/b"), deleted("p/a", errors={"p/b": "AccessDenied"}))
    with scripted(answers) as peer:
        store = store_at(peer)
        store.put_if_absent("key", b"payload", metadata={"a": "b"})
        store.get("key")
        list(store.list("p/"))
        store.delete(["p/a", "p/b"])
    put, get, listed, removed = spans.get_finished_spans()
    assert [s.name for s in (put, get, listed, removed)] == [
        "S3.PutObject",
        "S3.GetObject",
        "S3.ListObjectsV2",
        "S3.DeleteObjects",
    ]
    assert put.attributes is not None
    assert listed.attributes is not None
    assert removed.attributes is not None
    assert dict(put.attributes) == {
        "rpc.system": "aws-api",
        "rpc.service": "S3",
        "rpc.method": "PutObject",
        "aws.s3.bucket": "bucket",
        "aws.s3.key": "key",
        "sexton.bytes": 7,
        "http.response.status_code": 200,
    }
    assert (listed.attributes["aws.s3.prefix"], listed.attributes["sexton.found"]) == ("p/", 2)
    counts = {name: removed.attributes[f"sexton.{name}"] for name in ("keys", "deleted", "failed")}
    assert counts == {"keys": 2, "deleted": 1, "failed": 1}


def test_s3_spans_of_expected_answers_are_no_errors(spans: InMemorySpanExporter) -> None:
    """Field case 118: an absent key and a key already taken are answers; a fault and a lost connection are errors."""
    answers = in_turn(fault(404, "NoSuchKey"), fault(412, "PreconditionFailed"), found(b"other"),
                      fault(503, "SlowDown"), Answer(0), fault(404, "NoSuchKey"))  # fmt: skip
    with scripted(answers) as peer:
        store = store_at(peer)
        assert store.get("key") is None
        with pytest.raises(AlreadyExists):
            store.put_if_absent("key", b"", metadata={})
        assert store.get("key") is None
    seen = [(span.name, span.status.status_code.name, span.status.description) for span in spans.get_finished_spans()]
    assert seen == [
        ("S3.GetObject", "UNSET", None),
        ("S3.PutObject", "UNSET", None),
        ("S3.HeadObject", "UNSET", None),
        ("S3.GetObject", "ERROR", "SlowDown"),
        ("S3.GetObject", "ERROR", "ConnectionClosedError"),
        ("S3.GetObject", "UNSET", None),
    ]


def test_sql_spans_tell_verb_table_and_rows_and_no_text(spans: InMemorySpanExporter, engine: Engine) -> None:
    """One span per statement; neither its literals nor its parameters are in it."""
    with engine.begin() as connection:
        insert = text("insert into ledger (id, secret) values (:id, :secret)")
        connection.execute(insert, [{"id": 1, "secret": "s3cr3t"}, {"id": 2, "secret": "s3cr3t"}])
        connection.execute(text("update ledger set secret = 's3cr3t' where id = :id"), {"id": 1})
        connection.execute(text("SELECT id FROM ledger WHERE secret = 's3cr3t'")).all()
    inserted, updated, selected = spans.get_finished_spans()
    assert [s.name for s in (inserted, updated, selected)] == ["INSERT ledger", "UPDATE ledger", "SELECT ledger"]
    assert inserted.attributes is not None
    assert updated.attributes is not None
    assert (inserted.attributes["db.operation.batch.size"], inserted.attributes["sexton.rows"]) == (2, 2)
    assert updated.attributes["sexton.rows"] == 1
    assert "s3cr3t" not in "".join(span.to_json() for span in spans.get_finished_spans())


def test_sql_span_of_a_failed_statement_is_an_error_without_its_text(
    spans: InMemorySpanExporter, engine: Engine
) -> None:
    """The error's class says enough; its message may hold values."""
    with engine.connect() as connection, pytest.raises(SQLAlchemyError):
        connection.execute(text("select 's3cr3t' from no_such_table"))
    (span,) = spans.get_finished_spans()
    assert (span.status.status_code, span.status.description) == (trace.StatusCode.ERROR, "OperationalError")
    assert "s3cr3t" not in span.to_json()


def test_sql_span_of_a_writer_that_waits_for_another_is_no_error(spans: InMemorySpanExporter, tmp_path: Path) -> None:
    """The transaction is tried again; a job that gives up says so in its own span."""
    observed = create_engine(f"sqlite:///{tmp_path}/store.db", connect_args={"timeout": 0, "isolation_level": None})
    with observed.connect() as holder, observed.connect() as waiter:
        holder.exec_driver_sql("BEGIN IMMEDIATE")
        with pytest.raises(SQLAlchemyError, match="locked"):
            waiter.exec_driver_sql("BEGIN IMMEDIATE")
    seen = [(span.status.status_code.name, dict(span.attributes or {})) for span in spans.get_finished_spans()]
    assert [status for status, _ in seen] == ["UNSET", "UNSET"]
    assert [facts.get("db.response.status_code") for _, facts in seen] == [None, "SQLITE_BUSY"]


def test_span_file_exporter_names_another_file_after_a_fork(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes never share a file."""
    exporter = SpanFileExporter(tmp_path, "sexton")
    first = exporter.path
    monkeypatch.setattr(os, "getpid", lambda: 1)
    assert exporter.path != first
