"""Finding Java, or saying in one sentence why there is none."""

from pathlib import Path

import pytest

from infra.stack.java_search import find_java, parse_java_version
from logstore.errors import ProgramMissing


def _install(folder: Path, banner: str) -> Path:
    """A `java` that prints the banner as the real one does, on stderr."""
    folder.mkdir(parents=True)
    java = folder / "java"
    java.write_text(f"#!/bin/sh\ncat >&2 <<'EOF'\n{banner}\nEOF\n")
    java.chmod(0o755)
    return java


@pytest.mark.parametrize(
    ("banner", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime', 17),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ('Picked up JAVA_TOOL_OPTIONS: -Dx="1"\nopenjdk version "21.0.2"', 21),
        ("Error: could not find libjava.so", None),
    ],
)
def test_version_of_each_vendor_spelling_is_read(banner: str, version: int | None) -> None:
    """The feature release is found in the old and the new numbering."""
    assert parse_java_version(banner) == version


def test_java_home_beside_a_path_wins(tmp_path: Path) -> None:
    """JAVA_HOME is what Spark uses, so it comes first."""
    chosen = _install(tmp_path / "jdk" / "bin", 'openjdk version "21.0.1"')
    _install(tmp_path / "path", 'openjdk version "17.0.1"')
    environ = {"JAVA_HOME": str(tmp_path / "jdk"), "PATH": f"{tmp_path / 'path'}:/usr/bin:/bin"}
    found = find_java(environ)
    assert (found.path, found.version) == (chosen, 21)


def test_java_home_that_is_empty_falls_back_to_the_path(tmp_path: Path) -> None:
    """A JAVA_HOME that points nowhere is no obstacle."""
    on_path = _install(tmp_path / "path", 'openjdk version "17.0.1"')
    environ = {"JAVA_HOME": str(tmp_path / "gone"), "PATH": f"{tmp_path / 'path'}:/usr/bin:/bin"}
    assert find_java(environ).path == on_path


def test_java_absent_is_one_clear_sentence(tmp_path: Path) -> None:
    """Without Java the user reads what to install."""
    with pytest.raises(ProgramMissing, match=r"^java: no Java was found.*; install a JDK or JRE 17 or newer"):
        find_java({"PATH": str(tmp_path)})


def test_java_too_old_is_named_with_its_version(tmp_path: Path) -> None:
    """An old Java is named by path and version instead of failing inside a server."""
    java = _install(tmp_path / "jdk" / "bin", 'openjdk version "11.0.2"')
    with pytest.raises(ProgramMissing, match=f"{java} is Java 11, and 17 or newer is needed"):
        find_java({"JAVA_HOME": str(tmp_path / "jdk"), "PATH": "/usr/bin:/bin"})


def test_java_that_does_not_run_is_named(tmp_path: Path) -> None:
    """A broken Java is named too."""
    java = _install(tmp_path / "jdk" / "bin", "Error: could not find libjava.so")
    with pytest.raises(ProgramMissing, match=f"{java} does not tell its version"):
        find_java({"JAVA_HOME": str(tmp_path / "jdk")})
