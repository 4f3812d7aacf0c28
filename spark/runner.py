"""`BulkJobs` on Spark: one job group an attempt, progress once a second, cancellation of what comes later too."""

import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar
from uuid import uuid4

from opentelemetry import trace

from logstore.errors import PreconditionFailed, SextonError, StoreUnavailable, Unsupported
from logstore.reconciliation.jobs import BulkJob, BulkProgress, BulkSummary
from spark.job_spans import JobSpans
from spark.publication import Publication
from spark.session import WarmSession, spare_the_collector

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOK_S: Final = 1.0
_tracer = trace.get_tracer("sexton.spark")
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class JobRun:
    """The means of a job's main, in the driver."""

    spark: "SparkSession"
    folder: Path  # of this attempt: all output goes here
    inputs: Callable[[str], BulkSummary]  # what an earlier job of the run has published, by its name
    spans: JobSpans

    def spread(self, what: str, tasks: Sequence[T], work: Callable[[T], R]) -> list[R]:
        """Do `work` on each task, in parallel, and answer in order; a task may run twice, and at once.

        Args:
            what: The stage in words, for progress and for Spark.
            tasks: Small values that can be pickled.
            work: Runs in an executor. An error of ours that it raises is raised here as the same class.
        """
        if not tasks:
            return []
        with _tracer.start_as_current_span(f"bulk step {what}", attributes={"sexton.tasks": len(tasks)}):
            context = self.spark.sparkContext
            context.setLocalProperty("spark.job.description", what)
            try:
                answers = context.parallelize(tasks, len(tasks)).map(_Guarded(work)).collect()
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

    def __init__(self, work: Callable[[Any], Any]) -> None:
        self._work = work

    def __call__(self, task: Any) -> Any:  # noqa: ANN401
        spare_the_collector()
        try:
            return self._work(task)
        except SextonError as error:
            return _Failed(type(error), str(error), vars(error))


class SparkJobs:
    """The port `BulkJobs`."""

    def __init__(self, session: WarmSession, publication: Publication, mains: Callable[[], Mapping[str, Main]]) -> None:
        """Run the mains that the back end has, by the names of their jobs; it is asked when the first one runs."""
        self._session, self._publication, self._mains = session, publication, cache(mains)
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
        main = self._mains().get(job.name)
        if main is None:
            raise Unsupported(f"bulk job {job.name}: this back end has none")
        with _tracer.start_as_current_span(f"bulk {job.name}", attributes={"sexton.run": job.run_id}):
            spark = self._session.get(master)
            folder = self._publication.attempt(job.run_id, job.name)
            try:
                summary = self._watched(spark, main, job, folder, on_progress)
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
            return self._publication.publish(job.run_id, job.name, folder, summary)

    def _watched(
        self,
        spark: "SparkSession",
        main: Main,
        job: BulkJob,
        folder: Path,
        on_progress: Callable[[BulkProgress], None],
    ) -> BulkSummary:
        with _Watch(spark, job, on_progress) as watch:
            run = JobRun(spark, folder, self._input(job), JobSpans(spark, watch.group))
            try:
                return _answered(lambda: main(run, job), watch)
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


def _answered(main: Callable[[], BulkSummary], watch: "_Watch") -> BulkSummary:
    """The main's answer; what ended the watching ends the job, and is raised in the place of Spark's own words."""
    from py4j.protocol import Py4JError  # noqa: PLC0415 - start-up time
    from pyspark.errors import PySparkException  # noqa: PLC0415

    try:
        return main()
    except (Py4JError, PySparkException, OSError) as error:
        if watch.stopped_by:
            raise watch.stopped_by from error
        raise StoreUnavailable(f"spark: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__


class _Watch(threading.Thread):
    """Tells of progress while the jobs of its block run as one group of Spark's.

    An error of the listener cancels the group, also the jobs that it submits later.
    """

    def __init__(self, spark: "SparkSession", job: BulkJob, on_progress: Callable[[BulkProgress], None]) -> None:
        super().__init__(name="bulk-progress", daemon=True)
        self._spark, self._stage, self._on_progress = spark, job.name, on_progress
        self.group = f"{job.run_id}/{job.name}/{uuid4().hex[:8]}"
        self._over = threading.Event()
        self.stopped_by: BaseException | None = None

    def __enter__(self) -> Self:
        self._spark.sparkContext.setJobGroup(self.group, self._stage, interruptOnCancel=True)
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()

    def run(self) -> None:
        while not self._over.wait(_LOOK_S):
            try:
                self._on_progress(self._progress())
            except BaseException as error:  # noqa: BLE001 - cancellation, however it is said
                self.stopped_by = error
                self._cancel()
                return

    def _progress(self) -> BulkProgress:
        tracker, done, tasks = self._spark.sparkContext.statusTracker(), 0, 0
        try:
            for job_id in tracker.getJobIdsForGroup(self.group):
                job = tracker.getJobInfo(job_id)
                for stage_id in job.stageIds if job else ():
                    stage = tracker.getStageInfo(stage_id)
                    if stage:
                        done, tasks = done + stage.numCompletedTasks, tasks + stage.numTasks
        except Exception:  # noqa: BLE001 - Java is gone: the job itself finds out
            return BulkProgress(stage=self._stage, done=0, tasks=0)
        return BulkProgress(stage=self._stage, done=done, tasks=tasks)

    def _cancel(self) -> None:
        try:
            self._spark.sparkContext._jsc.sc().cancelJobGroupAndFutureJobs(self.group)  # noqa: SLF001 - pyspark has no public name for it
        except Exception:  # noqa: BLE001 - Java is gone, and its jobs with it
            return
