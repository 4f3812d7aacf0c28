"""Bulk jobs on Spark: one job group per attempt, progress once a second, and cancellation of the whole group.

Each attempt has its own thread, because nothing ends a thread that hangs in Java or in a dead file system.
"""

import logging
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import uuid4

from opentelemetry import trace

from logstore.errors import PreconditionFailed, SextonError, StoreUnavailable, Unsupported
from logstore.reconciliation.bulk_job_inputs_and_results import BulkJob, BulkJobProgress, BulkJobSummary
from spark.failure_text import summarize_error
from spark.job_spans import JobSpanRecorder
from spark.published_output import PublishedOutputs
from spark.shared_folder import SharedFolder
from spark.warm_session import WarmSession, exclude_loaded_objects_from_gc

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_POLL_INTERVAL_S: Final = 1.0
_STOP_TIMEOUT_S: Final = 10.0  # Spark interrupts tasks at once, and kills their processes after 2 s
_log = logging.getLogger(__name__)
_tracer = trace.get_tracer("sexton.spark")
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
