"""Tracing spans of Spark's jobs and stages, made afterwards from the times that Spark keeps."""

import logging
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import trace
from opentelemetry.trace import Span, StatusCode

from spark.failure_text import summarize_failure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EVENT_TIMEOUT_MS: Final = 5_000  # events reach Spark's status store with a delay
_tracer = trace.get_tracer("sexton.spark")
_log = logging.getLogger(__name__)


class JobSpanRecorder:
    """Recorder of one span for each job of a job group. Not thread-safe: only the thread that submits jobs uses it."""

    def __init__(self, spark: "SparkSession", group: str) -> None:
        self._context, self._group = spark.sparkContext, group
        self._recorded_job_ids: set[int] = set()

    def record_ended_jobs(self) -> None:
        """Make spans of the jobs that ended since the last call, under the current span. This method never raises."""
        if not trace.get_current_span().is_recording():
            return
        try:
            spark = self._context._jsc.sc()  # noqa: SLF001 - pyspark has no public name for Java's context
            spark.listenerBus().waitUntilEmpty(_EVENT_TIMEOUT_MS)
            job_ids = self._context.statusTracker().getJobIdsForGroup(self._group)
            for job_id in sorted(set(job_ids) - self._recorded_job_ids):
                self._recorded_job_ids.add(job_id)
                _record_job_span(spark.statusStore(), job_id)
        except Exception as fault:  # noqa: BLE001 - Java died, or forgot the jobs: the bulk job itself reports that
            _log.debug("spark: no spans of %s: %s", self._group, fault)


def _record_job_span(store: Any, job_id: int) -> None:  # noqa: ANN401 - an object of Java
    job = store.job(job_id)
    stages = [store.lastStageAttempt(job.stageIds().apply(index)) for index in range(job.stageIds().size())]
    run_stages = [stage for stage in stages if stage.submissionTime().isDefined()]  # Spark skips stages with output
    description = job.description().get() if job.description().isDefined() else job.name()
    span = _start_span(f"Spark job {description}", job, {"spark.job": job_id})
    with trace.use_span(span, end_on_exit=False):
        for stage in run_stages if len(run_stages) > 1 else ():
            name = f"Spark stage {stage.stageId()}: {str(stage.name()).partition(' at ')[0]}"
            _end_span(_start_span(name, stage, {"spark.stage": stage.stageId()}), stage, _failure_of_stage(stage))
    has_failed = str(job.status()) == "FAILED"
    _end_span(span, job, next(filter(None, map(_failure_of_stage, stages)), "FAILED") if has_failed else "")


def _start_span(name: str, job_or_stage: Any, ids: dict[str, int]) -> Span:  # noqa: ANN401
    attributes = {**ids, "sexton.tasks": job_or_stage.numTasks()}
    if failed_tasks := job_or_stage.numFailedTasks():
        attributes["spark.failed_tasks"] = failed_tasks
    return _tracer.start_span(name, attributes=attributes, start_time=_to_ns(job_or_stage.submissionTime()))


def _end_span(span: Span, job_or_stage: Any, failure: str) -> None:  # noqa: ANN401
    if failure:
        span.set_status(StatusCode.ERROR, failure)
    span.end(end_time=_to_ns(job_or_stage.completionTime()))


def _failure_of_stage(stage: Any) -> str:  # noqa: ANN401
    reason = stage.failureReason()
    return summarize_failure(str(reason.get())) if reason.isDefined() else ""


def _to_ns(moment: Any) -> int | None:  # noqa: ANN401
    return int(moment.get().getTime()) * 1_000_000 if moment.isDefined() else None
