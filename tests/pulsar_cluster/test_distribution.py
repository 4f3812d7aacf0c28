"""The download of Pulsar: what is missing is named, and other bytes than the expected ones are refused."""

import os
import shutil
from pathlib import Path
from typing import Final

import pytest

from logstore.errors import ServiceFailed
from tests.pulsar_cluster.distribution import prepare_distribution

_FAKE_MAVEN: Final = """#!/bin/sh
for argument in "$@"; do
  case "$argument" in
    -DoutputDirectory=*) echo other > "${argument#*=}/pulsar-server-distribution-4.0.8-bin.tar.gz" ;;
  esac
done
"""


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_missing_maven_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = shutil.which("java")
    assert java
    (tmp_path / "java").symlink_to(java)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServiceFailed, match="the program `mvn` is missing"):
        prepare_distribution(lambda _: None)


def test_missing_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(ServiceFailed, match="no Java was found"):
        prepare_distribution(lambda _: None)


def test_a_download_with_another_digest_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maven = tmp_path / "mvn"
    maven.write_text(_FAKE_MAVEN, encoding="utf-8")
    maven.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(ServiceFailed, match=r"tar.gz: expected SHA-512 65b769b1"):
        prepare_distribution(lambda _: None)
    assert not list((tmp_path / "cache" / "sexton" / "pulsar").iterdir()), "nothing stays in the cache"
