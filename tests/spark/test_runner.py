"""Bulk jobs on a real Spark: published once, cancelled whole, tried again when a process dies."""

import gc
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from logstore.errors import InvalidInput, PreconditionFailed, StoreUnavailable
from logstore.reconciliation.bulk_job_inputs_and_results import (
    BulkJobProgress,
    BulkJobSummary,
    ReadLedgersAndIntentsJob,
)
from spark.job_runner import JobContext, JobMain, SparkBulkJobs
from spark.published_output import PublishedOutputs
from spark.warm_session import WarmSession
from workers.hosting.error_and_subject_interceptors import to_application_error

_JOB = ReadLedgersAndIntentsJob(run_id="run-1")


class _Stop(Exception):
    pass


def _quiet(_: BulkJobProgress) -> None:
    pass


@pytest.fixture
def jobs(warm: WarmSession, tmp_path: Path) -> Callable[[JobMain], SparkBulkJobs]:
    return lambda main: SparkBulkJobs(warm, PublishedOutputs(tmp_path / "bulk"), lambda: {_JOB.name: main})


def _squares(run: JobContext, job: ReadLedgersAndIntentsJob) -> BulkJobSummary:
    return BulkJobSummary(counts={"sum": sum(run.run_in_executors("square", [1, 2, 3], lambda task: task * task))})


def test_job_runs_once_and_answers_the_same_again(jobs: Callable[[JobMain], SparkBulkJobs]) -> None:
    done = jobs(_squares).run_job(_JOB, _quiet)
    assert done.counts == {"sum": 14}

    def never(run: JobContext, job: ReadLedgersAndIntentsJob) -> BulkJobSummary:
        raise AssertionError

    assert jobs(never).run_job(_JOB, _quiet) == done


def test_what_is_loaded_is_spared_the_collection_after_every_task(jobs: Callable[[JobMain], SparkBulkJobs]) -> None:
    def count(run: JobContext, job: ReadLedgersAndIntentsJob) -> BulkJobSummary:
        return BulkJobSummary(counts={"n": min(run.run_in_executors("count", [1, 2], lambda _: gc.get_freeze_count()))})

    assert jobs(count).run_job(_JOB, _quiet).counts["n"] > 10_000


def test_refusal_in_an_executor_is_raised_as_what_it_is(
    jobs: Callable[[JobMain], SparkBulkJobs], tmp_path: Path
) -> None:
    def refuse(task: int) -> int:
        if task == 2:
            raise InvalidInput("inventory", expected="a manifest", found="none")
        return task

    with pytest.raises(InvalidInput, match=r"^inventory: expected a manifest, found 'none'$") as caught:
        jobs(lambda run, job: BulkJobSummary(counts={"n": len(run.run_in_executors("look", [1, 2], refuse))})).run_job(
            _JOB, _quiet
        )
    assert to_application_error(caught.value).details == ({"field": "inventory"},)
    assert list((tmp_path / "bulk/run-1/attempts").iterdir()) == []


def test_error_that_is_not_ours_is_one_sentence(jobs: Callable[[JobMain], SparkBulkJobs]) -> None:
    """Of a traceback the last line, which says what is wrong."""

    def divide(task: int) -> float:
        return 1 / task

    with pytest.raises(StoreUnavailable, match=r"^spark: ZeroDivisionError: division by zero$"):
        jobs(lambda run, job: BulkJobSummary(counts={"n": len(run.run_in_executors("divide", [0], divide))})).run_job(
            _JOB, _quiet
        )


def test_input_that_was_not_published_is_refused(jobs: Callable[[JobMain], SparkBulkJobs]) -> None:
    with pytest.raises(PreconditionFailed, match="expected list-storage of run run-1"):
        jobs(lambda run, job: run.get_published_summary("list-storage")).run_job(_JOB, _quiet)


def _sleeps(folder: Path) -> Callable[[int], int]:
    def sleep(task: int) -> int:
        (folder / f"began-{task}-{os.getpid()}").touch()
        time.sleep(60)
        return task

    return sleep


def test_error_of_the_watcher_cancels_the_job_and_what_it_submits_later(
    jobs: Callable[[JobMain], SparkBulkJobs], warm: WarmSession, tmp_path: Path
) -> None:
    later: list[BaseException] = []

    def main(run: JobContext, job: ReadLedgersAndIntentsJob) -> BulkJobSummary:
        try:
            run.run_in_executors("sleep", [1], _sleeps(tmp_path))
        except Exception as error:
            with pytest.raises(Exception, match="ancel") as refused:
                run.run_in_executors("later", [1], lambda task: task)
            later.append(refused.value)
            raise error from None
        return BulkJobSummary()

    def stop(_: BulkJobProgress) -> None:
        if list(tmp_path.glob("began-*")):
            raise _Stop

    with pytest.raises(_Stop):
        jobs(main).run_job(_JOB, stop)
    assert later
    assert warm.get_or_restart_session().sparkContext.statusTracker().getActiveJobsIds() == []


def test_second_job_waits_for_the_first_and_may_be_cancelled_meanwhile(
    jobs: Callable[[JobMain], SparkBulkJobs], warm: WarmSession
) -> None:
    """A worker may serve several queues, and each job may name a cluster of its own."""
    began, go_on = threading.Event(), threading.Event()

    def main(run: JobContext, job: ReadLedgersAndIntentsJob) -> BulkJobSummary:
        began.set()
        go_on.wait(60)
        return BulkJobSummary(counts={"alive": int(run.spark is warm.get_or_restart_session())})

    def stop(found: BulkJobProgress) -> None:
        assert found.stage == "read-references waits for another job"
        raise _Stop

    runner = jobs(main)
    with ThreadPoolExecutor(1) as thread:
        first = thread.submit(runner.run_job, _JOB, _quiet)
        began.wait(60)
        with pytest.raises(_Stop):
            runner.run_job(ReadLedgersAndIntentsJob(run_id="run-2"), stop, master="local[1]")
        go_on.set()
        assert first.result().counts == {"alive": 1}


@pytest.mark.parametrize("submits", [True, False])
def test_attempt_that_hangs_is_left_behind_and_publishes_nothing(
    submits: bool, warm: WarmSession, tmp_path: Path
) -> None:
    """The lane is free: the next job runs. What hung goes on later, runs nothing and publishes nothing."""
    hangs, go_on = threading.Event(), threading.Event()
    waited: list[bool] = []
    done: list[int] = []

    def main(run: JobContext, job: ReadLedgersAndIntentsJob) -> BulkJobSummary:
        if job.run_id == "run-2":
            return _squares(run, job)
        hangs.set()
        waited.append(go_on.wait(60))
        if submits:
            done.extend(run.run_in_executors("later", [1], lambda task: task))
        return BulkJobSummary()

    def stop(_: BulkJobProgress) -> None:
        if hangs.is_set():
            raise _Stop

    runner = SparkBulkJobs(warm, PublishedOutputs(tmp_path / "bulk"), lambda: {_JOB.name: main}, stop_timeout_s=0.1)
    with pytest.raises(_Stop):
        runner.run_job(_JOB, stop)
    (left,) = (one for one in threading.enumerate() if one.name == f"bulk {_JOB.name}")
    assert runner.run_job(ReadLedgersAndIntentsJob(run_id="run-2"), _quiet).counts == {"sum": 14}
    go_on.set()
    left.join(60)
    assert waited == [True]
    assert done == []
    assert runner.find_published_summary("run-1", _JOB.name) is None
    assert list((tmp_path / "bulk/run-1/attempts").iterdir()) == []


def test_attempt_that_is_stopped_while_spark_starts_ends_without_a_session(
    warm: WarmSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What starts Spark may take minutes. The next job waits for it, and may be stopped as well."""
    asked, go_on, ended = threading.Event(), threading.Event(), threading.Event()
    began: list[str] = []
    refused: list[str] = []
    start = warm.get_or_restart_session

    def slow(master: str = "", *, proceed: Callable[[], None]) -> object:
        asked.set()
        go_on.wait(60)
        try:
            return start(master, proceed=proceed)
        except Exception as error:
            refused.append(type(error).__name__)
            raise
        finally:
            ended.set()

    def main(run: JobContext, job: ReadLedgersAndIntentsJob) -> BulkJobSummary:
        began.append(job.run_id)
        return BulkJobSummary()

    def stop(_: BulkJobProgress) -> None:
        if asked.is_set():
            raise _Stop

    runner = SparkBulkJobs(warm, PublishedOutputs(tmp_path / "bulk"), lambda: {_JOB.name: main}, stop_timeout_s=0.1)
    monkeypatch.setattr(warm, "get_or_restart_session", slow)
    with pytest.raises(_Stop):
        runner.run_job(_JOB, stop)
    monkeypatch.undo()
    go_on.set()
    ended.wait(60)
    assert runner.run_job(ReadLedgersAndIntentsJob(run_id="run-2"), _quiet).counts == {}
    assert began == ["run-2"]
    assert refused == ["_AttemptStopped"], "no session is ended or started for a job that nobody waits for"


def test_folder_that_an_executor_does_not_see_is_refused_by_name(
    jobs: Callable[[JobMain], SparkBulkJobs], tmp_path: Path
) -> None:
    """At once and terminally: no further attempt mounts it."""

    def unseen(run: JobContext, job: ReadLedgersAndIntentsJob) -> BulkJobSummary:
        (run.folder / ".nonce").rename(run.folder / ".elsewhere")
        return BulkJobSummary(counts={"n": len(run.run_in_executors("look", [1], lambda task: task))})

    said = r"^bulk_dir: expected a folder that every executor sees under the same path .*, found on \S+: No such file"
    with pytest.raises(PreconditionFailed, match=said):
        jobs(unseen).run_job(_JOB, _quiet)


def test_folder_of_the_same_name_on_another_machine_is_refused(jobs: Callable[[JobMain], SparkBulkJobs]) -> None:
    """It is there, and it is not the one to which the driver writes."""

    def other(run: JobContext, job: ReadLedgersAndIntentsJob) -> BulkJobSummary:
        (run.folder / ".nonce").write_text("another")
        return BulkJobSummary(counts={"n": len(run.run_in_executors("look", [1], lambda task: task))})

    with pytest.raises(PreconditionFailed, match=r"^bulk_dir: .*: another folder at .*; mount it there too"):
        jobs(other).run_job(_JOB, _quiet)


def test_task_whose_process_is_killed_is_done_again(jobs: Callable[[JobMain], SparkBulkJobs], tmp_path: Path) -> None:
    def die_once(task: int) -> int:
        mark = tmp_path / "died"
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return task

    done = jobs(
        lambda run, job: BulkJobSummary(counts={"n": sum(run.run_in_executors("die", [1, 2], die_once))})
    ).run_job(_JOB, _quiet)
    assert done.counts == {"n": 3}


def test_session_whose_java_died_is_started_again(
    warm: WarmSession, jobs: Callable[[JobMain], SparkBulkJobs], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By the Java that was found, where JAVA_HOME leads to none."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    gateway = warm.get_or_restart_session().sparkContext._gateway
    assert gateway
    process = gateway.proc
    psutil.Process(process.pid).kill()
    process.wait()
    assert jobs(_squares).run_job(_JOB, _quiet).counts == {"sum": 14}
