"""Java as Spark needs it, told in one sentence where it is not there."""

from pathlib import Path

import pytest

from logstore.errors import ServiceFailed
from spark.session import SparkSettings, WarmSession, _properties


@pytest.fixture
def without_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A PATH of one empty folder."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def _refused(scratch: Path) -> str:
    with pytest.raises(ServiceFailed) as refused:
        WarmSession(SparkSettings(scratch=scratch)).get()
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
    session = warm.get()
    WarmSession(SparkSettings(scratch=tmp_path)).close()
    assert warm.get() is session


def test_session_on_a_cluster_gives_idle_cores_back(tmp_path: Path) -> None:
    """Every worker process has a session that stays; in one process there is nobody to give them to."""
    alone, shared = (
        _properties(SparkSettings(scratch=tmp_path, master=master)) for master in ("local[2]", "spark://a:7")
    )
    assert shared["spark.dynamicAllocation.enabled"] == "true"
    assert "spark.dynamicAllocation.enabled" not in alone
