"""Java as Spark needs it, told in one sentence where it is not there."""

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from logstore.errors import InvalidInput, ServiceFailed
from logstore.reconciliation.spark_master_url import require_spark_master_url
from spark.warm_session import SparkSettings, WarmSession, _make_properties


@pytest.fixture
def without_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A PATH of one empty folder."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def _refused(scratch: Path) -> str:
    with pytest.raises(ServiceFailed) as refused:
        WarmSession(SparkSettings(scratch=scratch)).get_or_restart_session()
    said = str(refused.value)
    assert said.count("\n") == 0
    assert not scratch.exists()
    return said


def test_missing_java_is_one_sentence(without_java: Path) -> None:
    assert "java: no Java was found" in _refused(without_java / "scratch")


def test_java_that_is_too_old_is_one_sentence(without_java: Path) -> None:
    java = without_java / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    java.chmod(0o755)
    assert f"{java} is Java 11, and 17 or newer is needed" in _refused(without_java / "scratch")


def test_log_that_is_closed_leaves_the_java_of_another_alone(warm: WarmSession, tmp_path: Path) -> None:
    """Logs are opened and closed in a process while a job of another one is at work."""
    session = warm.get_or_restart_session()
    WarmSession(SparkSettings(scratch=tmp_path)).close()
    assert warm.get_or_restart_session() is session


def test_session_on_a_cluster_gives_idle_cores_back(tmp_path: Path) -> None:
    """Every worker process has a session that stays; in one process there is nobody to give them to."""
    alone, shared = (
        _make_properties(SparkSettings(scratch=tmp_path, master=master)) for master in ("local[2]", "spark://a:7")
    )
    assert shared["spark.dynamicAllocation.enabled"] == "true"
    assert "spark.dynamicAllocation.enabled" not in alone


@pytest.mark.parametrize("master", ["spark://nope", "h:7077", "mesos://h:1", "spark://h:0", "local[0]", "k8s://", ""])
def test_master_of_an_unknown_form_is_refused_before_java_starts(master: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"^master: expected local\[N\], local\[\*\], spark://host:port, yarn or"):
        WarmSession(SparkSettings(scratch=tmp_path / "scratch", master=master)).get_or_restart_session()
    assert not (tmp_path / "scratch").exists()


@pytest.mark.parametrize(
    "master",
    [
        *("local", "local[2]", "local[*]", "local[2,4]", "yarn", "spark://h:7077", "spark://a.b:1,[::1]:65535"),
        *("k8s://https://h:6443", "k8s://h:443/prefix", "k8s://http://10.0.0.1:8080"),
    ],
)
def test_master_of_a_known_form_is_taken(master: str) -> None:
    require_spark_master_url(master)


def test_master_that_does_not_answer_is_one_sentence(tmp_path: Path) -> None:
    """No page of Java, and no minute of Spark's patience."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        master = f"spark://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(ServiceFailed) as refused:
        WarmSession(SparkSettings(scratch=tmp_path / "scratch", master=master)).get_or_restart_session()
    port = master.rpartition(":")[2]
    assert str(refused.value) == (
        f"spark: no session with {master}: 127.0.0.1:{port} does not answer (Connection refused);"
        " check the setting spark_master, or --master, and that its machines can reach this one"
    )


def test_master_that_fails_in_java_is_one_sentence_and_leaves_room_for_the_next(tmp_path: Path) -> None:
    """The Java that failed would be taken for that of the next master."""
    script = f"""
import pathlib, sys
from logstore.errors import ServiceFailed
from spark.warm_session import SparkSettings, WarmSession
def session(master):
    return WarmSession(SparkSettings(scratch=pathlib.Path({str(tmp_path)!r}), master=master, driver_memory="512m"))
try:
    session("k8s://https://127.0.0.1:1").get_or_restart_session()
except ServiceFailed as error:
    print(error)
other = session("local[1]")
print(other.get_or_restart_session().sparkContext.master)
other.close()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    assert first.startswith("spark: no session with k8s://https://127.0.0.1:1: io.fabric8")
    assert first.count("; ") == 1
    assert len(first) < 1_500
    assert second == "local[1,4]"


class _HungStart:
    """Starts of sessions that hang until `go_on` is set."""

    def __init__(self) -> None:
        self.hangs, self.go_on = threading.Event(), threading.Event()

    def start(self, _: SparkSettings) -> object:
        self.hangs.set()
        assert self.go_on.wait(60)
        return "a session"


@pytest.fixture
def hung(monkeypatch: pytest.MonkeyPatch) -> Iterator[_HungStart]:
    hung = _HungStart()
    monkeypatch.setattr("spark.warm_session._start_session", hung.start)
    monkeypatch.setattr("spark.warm_session._is_alive", lambda _: True)
    yield hung
    hung.go_on.set()


def _start_in_thread(session: WarmSession, hung: _HungStart) -> threading.Thread:
    """An attempt whose start hangs, and which its caller has left behind."""
    left = threading.Thread(target=session.get_or_restart_session, args=("local[3]",), daemon=True)
    left.start()
    assert hung.hangs.wait(60)
    return left


def test_start_that_hangs_fails_the_next_job_by_name(hung: _HungStart, tmp_path: Path) -> None:
    """The next job must not wait for ever with healthy heartbeats; once the start has ended, sessions are given."""
    session = WarmSession(SparkSettings(scratch=tmp_path), start_s=0.01)
    left = _start_in_thread(session, hung)
    with pytest.raises(ServiceFailed, match=r"spark: the start of a session with local\[3\] hangs .*; restart this"):
        session.get_or_restart_session("local[3]")
    hung.go_on.set()
    left.join(60)
    assert str(session.get_or_restart_session("local[3]")) == "a session"


def test_job_that_waits_for_a_start_that_hangs_can_be_stopped(hung: _HungStart, tmp_path: Path) -> None:
    """Its attempt is told so while it waits."""
    session = WarmSession(SparkSettings(scratch=tmp_path))
    _start_in_thread(session, hung)

    def stop() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        session.get_or_restart_session("local[3]", proceed=stop)


def test_start_that_hangs_does_not_keep_a_log_from_closing(
    hung: _HungStart, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    session = WarmSession(SparkSettings(scratch=tmp_path), close_s=0.01)
    _start_in_thread(session, hung)
    session.close()
    assert "the start of a session with local[3] hangs" in caplog.text
