"""Spark's own jobs as spans: when each began and ended, its tasks, and why it failed.

Spark keeps that of its last thousand jobs, and tells it after the fact: the spans are made when the work that submitted
the jobs is over, with the times that Spark knows.
"""

import logging
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import trace
from opentelemetry.trace import Span, StatusCode

from spark.failure_text import summarize_failure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HEARD_WITHIN_MS: Final = 5_000  # Spark tells its status store a moment later
_tracer = trace.get_tracer("sexton.spark")
_log = logging.getLogger(__name__)


class JobSpans:
    """Makes a span of each job of one group, once. For the thread that submits them."""

    def __init__(self, spark: "SparkSession", group: str) -> None:
        """Of the group of that name."""
        self._context, self._group = spark.sparkContext, group
        self._told: set[int] = set()

    def tell(self) -> None:
        """Make spans, under the present one, of the jobs that ended since the last time; nothing of it may fail."""
        if not trace.get_current_span().is_recording():
            return
        try:
            spark = self._context._jsc.sc()  # noqa: SLF001 - pyspark has no public name for what Java knows
            spark.listenerBus().waitUntilEmpty(_HEARD_WITHIN_MS)
            ids = self._context.statusTracker().getJobIdsForGroup(self._group)
            for job_id in sorted(set(ids) - self._told):
                self._told.add(job_id)
                _job(spark.statusStore(), job_id)
        except Exception as fault:  # noqa: BLE001 - Java is gone, or forgot them: the job itself has found that out
            _log.debug("spark: no spans of %s: %s", self._group, fault)


def _job(store: Any, job_id: int) -> None:  # noqa: ANN401 - of Java
    job = store.job(job_id)
    stages = [store.lastStageAttempt(job.stageIds().apply(at)) for at in range(job.stageIds().size())]
    ran = [stage for stage in stages if stage.submissionTime().isDefined()]  # others had their output already
    about = {"spark.job": job_id, **_tasks(job)}
    described = job.description().get() if job.description().isDefined() else job.name()
    span = _begun(f"Spark job {described}", job, about)
    with trace.use_span(span, end_on_exit=False):
        for stage in ran if len(ran) > 1 else ():
            name = f"Spark stage {stage.stageId()}: {str(stage.name()).partition(' at ')[0]}"
            _ended(_begun(name, stage, {"spark.stage": stage.stageId(), **_tasks(stage)}), stage, _reason(stage))
    failed = str(job.status()) == "FAILED"
    _ended(span, job, next(filter(None, map(_reason, stages)), "FAILED") if failed else "")


def _tasks(of: Any) -> dict[str, int]:  # noqa: ANN401
    failed = of.numFailedTasks()
    return {"sexton.tasks": of.numTasks(), **({"spark.failed_tasks": failed} if failed else {})}


def _begun(name: str, of: Any, about: dict[str, int]) -> Span:  # noqa: ANN401
    since = of.submissionTime()
    return _tracer.start_span(name, attributes=about, start_time=_ns(since) if since.isDefined() else None)


def _ended(span: Span, of: Any, error: str) -> None:  # noqa: ANN401
    if error:
        span.set_status(StatusCode.ERROR, error)
    until = of.completionTime()
    span.end(end_time=_ns(until) if until.isDefined() else None)


def _reason(stage: Any) -> str:  # noqa: ANN401
    """The sentence of a stage that failed."""
    reason = stage.failureReason()
    return summarize_failure(str(reason.get())) if reason.isDefined() else ""


def _ns(moment: Any) -> int:  # noqa: ANN401
    return int(moment.get().getTime()) * 1_000_000
