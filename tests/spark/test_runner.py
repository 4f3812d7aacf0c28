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
from logstore.reconciliation.jobs import BulkProgress, BulkSummary, ReadReferences
from spark.publication import Publication
from spark.runner import JobRun, Main, SparkJobs
from spark.session import WarmSession
from workers.hosting.interceptors import to_application_error

_JOB = ReadReferences(run_id="run-1")


class _Stop(Exception):
    pass


def _quiet(_: BulkProgress) -> None:
    pass


@pytest.fixture
def jobs(warm: WarmSession, tmp_path: Path) -> Callable[[Main], SparkJobs]:
    return lambda main: SparkJobs(warm, Publication(tmp_path / "bulk"), lambda: {_JOB.name: main})


def _squares(run: JobRun, job: ReadReferences) -> BulkSummary:
    return BulkSummary(counts={"sum": sum(run.spread("square", [1, 2, 3], lambda task: task * task))})


def test_job_runs_once_and_answers_the_same_again(jobs: Callable[[Main], SparkJobs]) -> None:
    done = jobs(_squares).run(_JOB, _quiet)
    assert done.counts == {"sum": 14}

    def never(run: JobRun, job: ReadReferences) -> BulkSummary:
        raise AssertionError

    assert jobs(never).run(_JOB, _quiet) == done


def test_what_is_loaded_is_spared_the_collection_after_every_task(jobs: Callable[[Main], SparkJobs]) -> None:
    def count(run: JobRun, job: ReadReferences) -> BulkSummary:
        return BulkSummary(counts={"n": min(run.spread("count", [1, 2], lambda _: gc.get_freeze_count()))})

    assert jobs(count).run(_JOB, _quiet).counts["n"] > 10_000


def test_refusal_in_an_executor_is_raised_as_what_it_is(jobs: Callable[[Main], SparkJobs], tmp_path: Path) -> None:
    def refuse(task: int) -> int:
        if task == 2:
            raise InvalidInput("inventory", expected="a manifest", found="none")
        return task

    with pytest.raises(InvalidInput, match=r"^inventory: expected a manifest, found 'none'$") as caught:
        jobs(lambda run, job: BulkSummary(counts={"n": len(run.spread("look", [1, 2], refuse))})).run(_JOB, _quiet)
    assert to_application_error(caught.value).details == ({"field": "inventory"},)
    assert list((tmp_path / "bulk/run-1/attempts").iterdir()) == []


def test_error_that_is_not_ours_is_one_sentence(jobs: Callable[[Main], SparkJobs]) -> None:
    def divide(task: int) -> float:
        return 1 / task

    with pytest.raises(StoreUnavailable, match=r"^spark: "):
        jobs(lambda run, job: BulkSummary(counts={"n": len(run.spread("divide", [0], divide))})).run(_JOB, _quiet)


def test_input_that_was_not_published_is_refused(jobs: Callable[[Main], SparkJobs]) -> None:
    with pytest.raises(PreconditionFailed, match="expected list-storage of run run-1"):
        jobs(lambda run, job: run.inputs("list-storage")).run(_JOB, _quiet)


def _sleeps(folder: Path) -> Callable[[int], int]:
    def sleep(task: int) -> int:
        (folder / f"began-{task}-{os.getpid()}").touch()
        time.sleep(60)
        return task

    return sleep


def test_error_of_the_watcher_cancels_the_job_and_what_it_submits_later(
    jobs: Callable[[Main], SparkJobs], warm: WarmSession, tmp_path: Path
) -> None:
    later: list[BaseException] = []

    def main(run: JobRun, job: ReadReferences) -> BulkSummary:
        try:
            run.spread("sleep", [1], _sleeps(tmp_path))
        except Exception as error:
            with pytest.raises(Exception, match="ancel") as refused:
                run.spread("later", [1], lambda task: task)
            later.append(refused.value)
            raise error from None
        return BulkSummary()

    def stop(_: BulkProgress) -> None:
        if list(tmp_path.glob("began-*")):
            raise _Stop

    with pytest.raises(_Stop):
        jobs(main).run(_JOB, stop)
    assert later
    assert warm.get().sparkContext.statusTracker().getActiveJobsIds() == []


def test_second_job_waits_for_the_first_and_may_be_cancelled_meanwhile(
    jobs: Callable[[Main], SparkJobs], warm: WarmSession
) -> None:
    """A worker may serve several queues, and each job may name a cluster of its own."""
    began, go_on = threading.Event(), threading.Event()

    def main(run: JobRun, job: ReadReferences) -> BulkSummary:
        began.set()
        go_on.wait(60)
        return BulkSummary(counts={"alive": int(run.spark is warm.get())})

    def stop(found: BulkProgress) -> None:
        assert found.stage == "read-references waits for another job"
        raise _Stop

    runner = jobs(main)
    with ThreadPoolExecutor(1) as thread:
        first = thread.submit(runner.run, _JOB, _quiet)
        began.wait(60)
        with pytest.raises(_Stop):
            runner.run(ReadReferences(run_id="run-2"), stop, master="local[1]")
        go_on.set()
        assert first.result().counts == {"alive": 1}


def test_task_whose_process_is_killed_is_done_again(jobs: Callable[[Main], SparkJobs], tmp_path: Path) -> None:
    def die_once(task: int) -> int:
        mark = tmp_path / "died"
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return task

    done = jobs(lambda run, job: BulkSummary(counts={"n": sum(run.spread("die", [1, 2], die_once))})).run(_JOB, _quiet)
    assert done.counts == {"n": 3}


def test_session_whose_java_died_is_started_again(
    warm: WarmSession, jobs: Callable[[Main], SparkJobs], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By the Java that was found, where JAVA_HOME leads to none."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    gateway = warm.get().sparkContext._gateway
    assert gateway
    process = gateway.proc
    psutil.Process(process.pid).kill()
    process.wait()
    assert jobs(_squares).run(_JOB, _quiet).counts == {"sum": 14}
