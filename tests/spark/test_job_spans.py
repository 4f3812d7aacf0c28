"""What Spark did for a bulk job is in the job's trace: each of its jobs, when it ran, with its tasks and its error."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from logstore.errors import StoreUnavailable
from logstore.reconciliation.bulk_job_inputs_and_results import (
    BulkJobProgress,
    BulkJobSummary,
    ReadLedgersAndIntentsJob,
)
from spark import job_runner
from spark import warm_session as sessions
from spark.job_runner import JobContext, JobMain, SparkBulkJobs
from spark.published_output import PublishedOutputs
from spark.warm_session import WarmSession

_JOB = ReadLedgersAndIntentsJob(run_id="run-1")


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """Spans of bulk jobs while the test runs."""
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    for module in (job_runner, sessions):
        monkeypatch.setattr(module, "_tracer", provider.get_tracer("test"))
    yield exporter
    provider.shutdown()


def _run(warm: WarmSession, folder: Path, main: JobMain) -> None:
    SparkBulkJobs(warm, PublishedOutputs(folder / "bulk"), lambda: {_JOB.name: main}).run_job(_JOB, _quiet)


def _quiet(_: BulkJobProgress) -> None:
    pass


def _above(span: ReadableSpan, spans: InMemorySpanExporter) -> str:
    """The name of its parent."""
    by_id = {trace.format_span_id(one.context.span_id): one for one in spans.get_finished_spans() if one.context}
    return by_id[trace.format_span_id(span.parent.span_id)].name if span.parent else ""


def test_spark_jobs_are_spans_below_the_step_that_submitted_them(
    warm: WarmSession, tmp_path: Path, spans: InMemorySpanExporter
) -> None:
    """Of a step the one job; of what the main does by itself each job, with its stages where there are several."""
    warm.get_or_restart_session()
    spans.clear()

    def main(run: JobContext, job: ReadLedgersAndIntentsJob) -> BulkJobSummary:
        run.run_in_executors("square", [1, 2, 3], lambda task: task * task)
        pairs = run.spark.sparkContext.parallelize([(1, 1), (2, 2)], 2)
        return BulkJobSummary(counts={"n": len(pairs.reduceByKey(lambda one, other: one + other).collect())})

    began_ns = time.time_ns()
    _run(warm, tmp_path, main)
    found = spans.get_finished_spans()
    below = [(one.name.partition(" 1")[0].partition(" 2")[0].partition(" 3")[0], _above(one, spans)) for one in found]
    assert ("bulk read-references", "") in below
    assert ("bulk step square", "bulk read-references") in below
    assert ("Spark job square", "bulk step square") in below
    assert ("Spark job square", "bulk read-references") in below, "the description stays until another step is begun"
    stages = [one for one in found if one.name.startswith("Spark stage")]
    assert {_above(one, spans) for one in stages} == {"Spark job square"}
    assert [(one.attributes or {})["sexton.tasks"] for one in stages] == [2, 2]
    jobs = [one for one in found if one.name.startswith("Spark job")]
    assert sorted(int(str((one.attributes or {})["sexton.tasks"])) for one in jobs) == [3, 4]
    for one in (*jobs, *stages):
        assert one.start_time is not None
        assert one.end_time is not None
        assert began_ns - 1_000_000 <= one.start_time <= one.end_time <= time.time_ns(), "the times that Spark knows"


def test_spark_job_that_failed_says_why_and_how_often_it_was_tried(
    warm: WarmSession, tmp_path: Path, spans: InMemorySpanExporter
) -> None:
    """In one sentence, without the traceback."""

    def divide(task: int) -> float:
        return 1 / task

    def main(run: JobContext, job: ReadLedgersAndIntentsJob) -> BulkJobSummary:
        return BulkJobSummary(counts={"n": len(run.run_in_executors("divide", [0], divide))})

    with pytest.raises(StoreUnavailable):
        _run(warm, tmp_path, main)
    (job,) = [one for one in spans.get_finished_spans() if one.name == "Spark job divide"]
    assert (_above(job, spans), job.status.status_code) == ("bulk step divide", StatusCode.ERROR)
    assert (job.attributes or {})["spark.failed_tasks"] == 4
    assert job.status.description == "ZeroDivisionError: division by zero"


def test_spark_that_cannot_tell_of_its_jobs_fails_no_bulk_job(
    warm: WarmSession, tmp_path: Path, spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spans are for people; work goes on without them."""

    def forget(*_: object) -> None:
        raise RuntimeError("no such job")

    monkeypatch.setattr(job_runner, "_record_job_span", forget)
    _run(warm, tmp_path, lambda run, job: BulkJobSummary(counts={"n": len(run.run_in_executors("square", [2], abs))}))
    assert [one.name for one in spans.get_finished_spans()][-1] == "bulk read-references"
