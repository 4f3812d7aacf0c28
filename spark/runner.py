"""`BulkJobs` on Spark: one job group an attempt, progress once a second, cancellation of what comes later too.

An attempt has a thread of its own. Whoever runs the job can leave it behind: a thread that hangs in a system call, in
Java or in a file system that went away, ends neither by an exception nor by a signal.
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
from logstore.reconciliation.jobs import BulkJob, BulkProgress, BulkSummary
from spark.failure_text import summarize_error
from spark.job_spans import JobSpans
from spark.publication import Publication
from spark.session import WarmSession, spare_the_collector
from spark.shared_folder import SharedFolder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOK_S: Final = 1.0
_PATIENCE_S: Final = 10.0
"""For so long a stopped attempt is waited for; Spark interrupts tasks at once, and kills their processes after 2 s."""
_log = logging.getLogger(__name__)
_tracer = trace.get_tracer("sexton.spark")
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class JobRun:
    """The means of a job's main, in the driver."""

    spark: "SparkSession"
    folder: Path  # of this attempt: all output goes here
    shared: SharedFolder  # the same, as each executor proves that it sees it
    inputs: Callable[[str], BulkSummary]  # what an earlier job of the run has published, by its name
    spans: JobSpans

    def spread(self, what: str, tasks: Sequence[T], work: Callable[[T], R]) -> list[R]:
        """Do `work` on each task, in parallel, and answer in order; a task may run twice, and at once.

        Args:
            what: The stage in words, for progress and for Spark.
            tasks: Small values that can be pickled.
            work: Runs in an executor. An error of ours that it raises is raised here as the same class.

        Raises:
            PreconditionFailed: An executor does not see the folder of the attempt.
        """
        if not tasks:
            return []
        with _tracer.start_as_current_span(f"bulk step {what}", attributes={"sexton.tasks": len(tasks)}):
            context = self.spark.sparkContext
            context.setLocalProperty("spark.job.description", what)
            try:
                answers = context.parallelize(tasks, len(tasks)).map(_Guarded(work, self.shared)).collect()
            finally:
                self.spans.tell()
        for answer in answers:
            if isinstance(answer, _Failed):
                raise answer.as_error()
        return answers


Main = Callable[[JobRun, Any], BulkSummary]
"""The main of one job: it writes its output into the folder, and answers what it came to."""


@dataclass(frozen=True, slots=True)
class _Failed:
    """An error of ours in an executor, as it travels to the driver: its class, its sentence and its fields."""

    kind: type[SextonError]
    text: str
    fields: dict[str, Any]  # such as the name of what was bad input

    def as_error(self) -> SextonError:
        """The error again; not by its own constructor, which makes a sentence of other arguments."""
        found = self.kind.__new__(self.kind)
        Exception.__init__(found, self.text)
        vars(found).update(self.fields)
        return found


class _Guarded:
    """Work whose errors of ours are answers: Spark would try them again, and show them as a traceback."""

    def __init__(self, work: Callable[[Any], Any], shared: SharedFolder) -> None:
        self._work, self._shared = work, shared

    def __call__(self, task: Any) -> Any:  # noqa: ANN401
        spare_the_collector()
        try:
            self._shared.require()
            return self._work(task)
        except SextonError as error:
            return _Failed(type(error), str(error), vars(error))


class SparkJobs:
    """The port `BulkJobs`."""

    def __init__(
        self,
        session: WarmSession,
        publication: Publication,
        mains: Callable[[], Mapping[str, Main]],
        *,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        """Run the mains that the back end has, by the names of their jobs; it is asked when the first one runs.

        Args:
            session: Spark.
            publication: Where output is published.
            mains: By the names of their jobs.
            patience_s: How long a stopped attempt is waited for before it is left behind.
        """
        self._session, self._publication, self._mains = session, publication, cache(mains)
        self._patience_s = patience_s
        self._turn = threading.Lock()

    def published(self, run_id: str, name: str) -> BulkSummary | None:
        """See `BulkJobs.published`."""
        return self._publication.summary(run_id, name)

    def run(self, job: BulkJob, on_progress: Callable[[BulkProgress], None], *, master: str = "") -> BulkSummary:
        """See `BulkJobs.run`; one at a time, because the session of one master ends that of another with its jobs."""
        while not self._turn.acquire(timeout=_LOOK_S):
            on_progress(BulkProgress(stage=f"{job.name} waits for another job", done=0, tasks=0))
        try:
            return self.published(job.run_id, job.name) or self._run(job, on_progress, master)
        finally:
            self._turn.release()

    def _run(self, job: BulkJob, on_progress: Callable[[BulkProgress], None], master: str) -> BulkSummary:
        main = self._mains().get(getattr(job, "main", job.name))  # the jobs of many pages share one
        if main is None:
            raise Unsupported(f"bulk job {job.name}: this back end has none")
        attempt = _Attempt(job, lambda own: self._complete(own, main, job, master))
        return attempt.run_watched(on_progress, self._patience_s)

    def _complete(self, attempt: "_Attempt", main: Main, job: BulkJob, master: str) -> BulkSummary:
        """In the thread of the attempt: all of the job, from Spark's start to the publication."""
        with _tracer.start_as_current_span(f"bulk {job.name}", attributes={"sexton.run": job.run_id}):
            spark = self._session.get(master, proceed=attempt.require_wanted)
            folder = self._publication.attempt(job.run_id, job.name)
            try:
                summary = self._output(attempt, spark, main, job, folder)
                attempt.require_wanted()
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
            return self._publication.publish(job.run_id, job.name, folder, summary)

    def _output(
        self, attempt: "_Attempt", spark: "SparkSession", main: Main, job: BulkJob, folder: Path
    ) -> BulkSummary:
        from py4j.protocol import Py4JError  # noqa: PLC0415 - start-up time
        from pyspark.errors import PySparkException  # noqa: PLC0415

        attempt.submit_jobs_to(spark)
        run = JobRun(spark, folder, SharedFolder.mark(folder), self._input(job), JobSpans(spark, attempt.group))
        try:
            return main(run, job)
        except (Py4JError, PySparkException, OSError) as error:
            raise StoreUnavailable(f"spark: {summarize_error(error)}") from None
        finally:
            run.spans.tell()

    def _input(self, job: BulkJob) -> Callable[[str], BulkSummary]:
        def published(name: str) -> BulkSummary:
            found = self.published(job.run_id, name)
            if found is None:
                raise PreconditionFailed(f"{job.name}: expected {name} of run {job.run_id} to be published")
            return found

        return published

    def runs(self) -> list[str]:
        """See `BulkJobs.runs`."""
        return self._publication.runs()

    def folder(self, run_id: str) -> Path:
        """See `BulkJobs.folder`."""
        return self._publication.beside(run_id)

    def forget(self, run_id: str) -> None:
        """See `BulkJobs.forget`."""
        self._publication.forget(run_id)


class _Abandoned(Exception):
    """Ends the thread of an attempt that was stopped; nobody waits for it."""


class _Attempt:
    """One attempt at a job, in a thread of its own.

    Its Spark jobs are one group, which is cancelled together with what it submits later.
    """

    def __init__(self, job: BulkJob, work: Callable[["_Attempt"], BulkSummary]) -> None:
        self.group = f"{job.run_id}/{job.name}/{uuid4().hex[:8]}"
        self._job_name, self._work, self._context = job.name, work, copy_context()
        self._over, self._stopped = threading.Event(), threading.Event()
        self._progress = BulkProgress(stage=f"{job.name}: starting Spark", done=0, tasks=0)
        self._spark: SparkSession | None = None
        self._summary: BulkSummary | None = None
        self._error: BaseException | None = None

    def run_watched(self, on_progress: Callable[[BulkProgress], None], patience_s: float) -> BulkSummary:
        """Run the attempt, and tell `on_progress` about once a second how far it is.

        What `on_progress` raises stops the attempt and is raised here, at the latest after `patience_s`.
        """
        threading.Thread(target=self._run, name=f"bulk {self._job_name}", daemon=True).start()
        while not self._over.wait(_LOOK_S):
            try:
                on_progress(self._progress)
            except BaseException:
                self._stop(patience_s)
                raise
        if self._error is not None:
            raise self._error
        assert self._summary is not None, "an attempt that is over has a summary or an error"
        return self._summary

    def require_wanted(self) -> None:
        """Raise unless somebody waits for the attempt."""
        if self._stopped.is_set():
            raise _Abandoned

    def submit_jobs_to(self, spark: "SparkSession") -> None:
        """Let the jobs of this thread be of the attempt's group."""
        spark.sparkContext.setJobGroup(self.group, self._job_name, interruptOnCancel=True)
        self._spark = spark
        self.require_wanted()  # one that was stopped in between has cancelled nothing
        # another thread: where Java does not answer, whoever waits for the attempt can stop it all the same
        threading.Thread(target=self._watch, name="bulk-progress", daemon=True).start()

    def _run(self) -> None:
        try:
            self._summary = self._context.run(self._work, self)
        except BaseException as error:  # noqa: BLE001 - it is raised where the attempt is waited for
            self._error = error
        finally:
            self._over.set()

    def _watch(self) -> None:
        while not self._over.wait(_LOOK_S):
            assert self._spark is not None, "it is watched once it has a session"
            done = tasks = 0
            try:
                tracker = self._spark.sparkContext.statusTracker()
                for job_id in tracker.getJobIdsForGroup(self.group):
                    job = tracker.getJobInfo(job_id)
                    for stage_id in job.stageIds if job else ():
                        stage = tracker.getStageInfo(stage_id)
                        if stage:
                            done, tasks = done + stage.numCompletedTasks, tasks + stage.numTasks
            except Exception:  # noqa: BLE001 - Java is gone: the job itself finds out
                return
            self._progress = BulkProgress(stage=self._job_name, done=done, tasks=tasks)

    def _stop(self, patience_s: float) -> None:
        self._stopped.set()
        if self._spark is not None:
            # in a thread: Java may not answer either
            threading.Thread(target=_cancel, args=(self._spark, self.group), name="bulk-cancel", daemon=True).start()
        if not self._over.wait(patience_s):
            _log.warning("%s: left behind; it has not ended %.0f s after it was stopped", self.group, patience_s)


def _cancel(spark: "SparkSession", group: str) -> None:
    try:
        spark.sparkContext._jsc.sc().cancelJobGroupAndFutureJobs(group)  # noqa: SLF001 - pyspark has no public name for it
    except Exception:  # noqa: BLE001 - Java is gone, and its jobs with it
        return
