"""Bulk jobs on Spark: one job group per attempt, progress once a second, and cancellation of the whole group.

Each attempt has its own thread, because nothing ends a thread that hangs in Java or in a dead file system.
"""

import logging
import os
import shutil
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import uuid4

from opentelemetry import trace
from opentelemetry.trace import Span, StatusCode

from logstore.errors import PreconditionFailed, SextonError, StoreUnavailable, Unsupported
from logstore.reconciliation.bulk_job_inputs_and_results import BulkJob, BulkJobProgress, BulkJobSummary
from spark.published_output import PublishedOutputs
from spark.warm_session import WarmSession, exclude_loaded_objects_from_gc, summarize_error, summarize_failure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)
_tracer = trace.get_tracer("sexton.spark")
_NONCE_FILE: Final = ".nonce"  # names that begin with a dot are not output


@dataclass(frozen=True, slots=True)
class SharedFolder:
    """Folder of one attempt, with the random content of its nonce file. An executor may not see the folder."""

    path: Path
    nonce: str

    @staticmethod
    def mark_with_nonce(path: Path) -> "SharedFolder":
        nonce = uuid4().hex
        (path / _NONCE_FILE).write_text(nonce, encoding="utf-8")
        return SharedFolder(path, nonce)

    def require_visible(self) -> None:
        """Raise `PreconditionFailed` unless this executor sees the folder and may write there. A success is cached."""
        _require_visible(self)


@lru_cache(maxsize=64)
def _require_visible(folder: SharedFolder) -> None:
    try:
        nonce = (folder.path / _NONCE_FILE).read_text(encoding="utf-8")
    except OSError as error:
        raise _unusable_folder(f"{error.strerror}: {folder.path}") from error
    if nonce != folder.nonce:
        raise _unusable_folder(f"another folder at {folder.path}")
    if not os.access(folder.path, os.W_OK):
        raise _unusable_folder(f"no right to write to {folder.path}")


def _unusable_folder(found: str) -> PreconditionFailed:
    return PreconditionFailed(
        "bulk_dir: expected a folder that every executor sees under the same path and may write to, found on"
        f" {socket.gethostname()}: {found}; mount it there too, or run with spark_master=local[*]"
    )


_EVENT_TIMEOUT_MS: Final = 5_000  # events reach Spark's status store with a delay


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


_POLL_INTERVAL_S: Final = 1.0
_STOP_TIMEOUT_S: Final = 10.0  # Spark interrupts tasks at once, and kills their processes after 2 s
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class JobContext:
    spark: "SparkSession"
    folder: Path  # folder of this attempt, for all output
    shared: SharedFolder  # the same folder, for checks in executors
    get_published_summary: Callable[
        [str], BulkJobSummary
    ]  # returns the published summary of an earlier job of the run, by job name
    spans: JobSpanRecorder

    def run_in_executors(self, description: str, tasks: Sequence[T], function: Callable[[T], R]) -> list[R]:
        """Run `function` on each task in executors, in parallel. Return the results in order.

        Tasks are small values that can be pickled. `function` may run twice for a task, even at the same time. A
        `SextonError` of `function` is raised here unchanged. `PreconditionFailed` means that an executor does not see
        the folder of the attempt.
        """
        if not tasks:
            return []
        with _tracer.start_as_current_span(f"bulk step {description}", attributes={"sexton.tasks": len(tasks)}):
            context = self.spark.sparkContext
            context.setLocalProperty("spark.job.description", description)
            try:
                results = (
                    context.parallelize(tasks, len(tasks)).map(_ErrorReturningTask(function, self.shared)).collect()
                )
            finally:
                self.spans.record_ended_jobs()
        for result in results:
            if isinstance(result, _TaskError):
                raise result.to_error()
        return results


JobMain = Callable[[JobContext, Any], BulkJobSummary]
"""Main function of a job, which writes output into the attempt's folder and returns the summary."""


@dataclass(frozen=True, slots=True)
class _TaskError:
    error_class: type[SextonError]
    text: str
    fields: dict[str, Any]

    def to_error(self) -> SextonError:
        error = self.error_class.__new__(self.error_class)  # the constructor would need other arguments than the text
        Exception.__init__(error, self.text)
        vars(error).update(self.fields)
        return error


class _ErrorReturningTask:
    """Wrapper that returns a `SextonError` as a value. Spark would retry a raised error and show a traceback."""

    def __init__(self, function: Callable[[Any], Any], shared: SharedFolder) -> None:
        self._function, self._shared = function, shared

    def __call__(self, task: Any) -> Any:  # noqa: ANN401
        exclude_loaded_objects_from_gc()
        try:
            self._shared.require_visible()
            return self._function(task)
        except SextonError as error:
            return _TaskError(type(error), str(error), vars(error))


class SparkBulkJobs:
    """`BulkJobRunner` that runs one job at a time, because a session for another master ends the current session.

    `mains` is called once, when the first job runs. A call waits at most `stop_timeout_s` for a stopped attempt.
    """

    def __init__(
        self,
        session: WarmSession,
        publication: PublishedOutputs,
        mains: Callable[[], Mapping[str, JobMain]],
        *,
        stop_timeout_s: float = _STOP_TIMEOUT_S,
    ) -> None:
        self._session, self._publication, self._mains = session, publication, cache(mains)
        self._stop_timeout_s = stop_timeout_s
        self._lock = threading.Lock()

    def find_published_summary(self, run_id: str, name: str) -> BulkJobSummary | None:
        return self._publication.read_summary(run_id, name)

    def run_job(
        self, job: BulkJob, on_progress: Callable[[BulkJobProgress], None], *, master: str = ""
    ) -> BulkJobSummary:
        while not self._lock.acquire(timeout=_POLL_INTERVAL_S):
            on_progress(BulkJobProgress(stage=f"{job.name} waits for another job", done=0, tasks=0))
        try:
            return self.find_published_summary(job.run_id, job.name) or self._run_attempt(job, on_progress, master)
        finally:
            self._lock.release()

    def _run_attempt(self, job: BulkJob, on_progress: Callable[[BulkJobProgress], None], master: str) -> BulkJobSummary:
        main = self._mains().get(getattr(job, "main", job.name))  # the jobs of many pages share one main function
        if main is None:
            raise Unsupported(f"bulk job {job.name}: this back end has none")
        attempt = _JobAttempt(job, lambda attempt: self._run_and_publish(attempt, main, job, master))
        return attempt.run_watched(on_progress, self._stop_timeout_s)

    def _run_and_publish(self, attempt: "_JobAttempt", main: JobMain, job: BulkJob, master: str) -> BulkJobSummary:
        with _tracer.start_as_current_span(f"bulk {job.name}", attributes={"sexton.run": job.run_id}):
            spark = self._session.get_or_restart_session(master, proceed=attempt.require_not_stopped)
            folder = self._publication.create_attempt_folder(job.run_id, job.name)
            try:
                summary = self._call_main(attempt, spark, main, job, folder)
                attempt.require_not_stopped()
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
            return self._publication.publish(job.run_id, job.name, folder, summary)

    def _call_main(
        self, attempt: "_JobAttempt", spark: "SparkSession", main: JobMain, job: BulkJob, folder: Path
    ) -> BulkJobSummary:
        from py4j.protocol import Py4JError  # noqa: PLC0415 - start-up time
        from pyspark.errors import PySparkException  # noqa: PLC0415

        def require_published(name: str) -> BulkJobSummary:
            summary = self.find_published_summary(job.run_id, name)
            if summary is None:
                raise PreconditionFailed(f"{job.name}: expected {name} of run {job.run_id} to be published")
            return summary

        attempt.join_job_group_and_watch(spark)
        context = JobContext(
            spark,
            folder,
            SharedFolder.mark_with_nonce(folder),
            require_published,
            JobSpanRecorder(spark, attempt.group),
        )
        try:
            return main(context, job)
        except (Py4JError, PySparkException, OSError) as error:
            raise StoreUnavailable(f"spark: {summarize_error(error)}") from None
        finally:
            context.spans.record_ended_jobs()

    def list_run_ids(self) -> list[str]:
        return self._publication.list_runs()

    def create_run_folder(self, run_id: str) -> Path:
        return self._publication.create_kept_folder(run_id)

    def remove_run(self, run_id: str) -> None:
        self._publication.remove_run_outputs(run_id)


class _AttemptStopped(Exception):
    """Raised in the thread of a stopped attempt to end it."""


class _JobAttempt:
    """Attempt at a job, in its own thread. After a stop, Spark also cancels jobs that the attempt starts later."""

    def __init__(self, job: BulkJob, body: Callable[["_JobAttempt"], BulkJobSummary]) -> None:
        self.group = f"{job.run_id}/{job.name}/{uuid4().hex[:8]}"
        self._job_name, self._body, self._context = job.name, body, copy_context()
        self._ended, self._stopped = threading.Event(), threading.Event()
        self._progress = BulkJobProgress(stage=f"{job.name}: starting Spark", done=0, tasks=0)
        self._spark: SparkSession | None = None
        self._summary: BulkJobSummary | None = None
        self._error: BaseException | None = None

    def run_watched(self, on_progress: Callable[[BulkJobProgress], None], stop_timeout_s: float) -> BulkJobSummary:
        """Run the attempt and report its progress about once a second.

        If `on_progress` raises, stop the attempt, wait at most `stop_timeout_s` for the end, and raise the error.
        """
        threading.Thread(target=self._run_body, name=f"bulk {self._job_name}", daemon=True).start()
        while not self._ended.wait(_POLL_INTERVAL_S):
            try:
                on_progress(self._progress)
            except BaseException:
                self._stop_and_wait(stop_timeout_s)
                raise
        if self._error is not None:
            raise self._error
        assert self._summary is not None, "an attempt that has ended has a summary or an error"
        return self._summary

    def require_not_stopped(self) -> None:
        if self._stopped.is_set():
            raise _AttemptStopped

    def join_job_group_and_watch(self, spark: "SparkSession") -> None:
        """Put the Spark jobs of this thread into the attempt's group, and watch their progress."""
        spark.sparkContext.setJobGroup(self.group, self._job_name, interruptOnCancel=True)
        self._spark = spark
        self.require_not_stopped()  # a stop before this line has cancelled no Spark job
        # A separate thread, so that the caller can stop the attempt even if Java does not answer.
        threading.Thread(target=self._watch_progress, name="bulk-progress", daemon=True).start()

    def _run_body(self) -> None:
        try:
            self._summary = self._context.run(self._body, self)
        except BaseException as error:  # noqa: BLE001 - raised in `run_watched`
            self._error = error
        finally:
            self._ended.set()

    def _watch_progress(self) -> None:
        while not self._ended.wait(_POLL_INTERVAL_S):
            assert self._spark is not None, "`join_job_group_and_watch` starts this thread"
            done = tasks = 0
            try:
                tracker = self._spark.sparkContext.statusTracker()
                for job_id in tracker.getJobIdsForGroup(self.group):
                    job = tracker.getJobInfo(job_id)
                    for stage_id in job.stageIds if job else ():
                        stage = tracker.getStageInfo(stage_id)
                        if stage:
                            done, tasks = done + stage.numCompletedTasks, tasks + stage.numTasks
            except Exception:  # noqa: BLE001 - Java is dead: the job itself reports that
                return
            self._progress = BulkJobProgress(stage=self._job_name, done=done, tasks=tasks)

    def _stop_and_wait(self, stop_timeout_s: float) -> None:
        self._stopped.set()
        if self._spark is not None:
            # A separate thread, because Java may not answer.
            threading.Thread(
                target=_cancel_group, args=(self._spark, self.group), name="bulk-cancel", daemon=True
            ).start()
        if not self._ended.wait(stop_timeout_s):
            _log.warning("%s: left behind; it has not ended %.0f s after it was stopped", self.group, stop_timeout_s)


def _cancel_group(spark: "SparkSession", group: str) -> None:
    try:
        spark.sparkContext._jsc.sc().cancelJobGroupAndFutureJobs(group)  # noqa: SLF001 - pyspark has no public name for it
    except Exception:  # noqa: BLE001 - Java is dead, and its jobs with it
        return
