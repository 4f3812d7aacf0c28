"""Search for the Java that runs ZooKeeper and Spark."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from logstore.errors import ProgramMissing

MIN_JAVA_VERSION = 17  # Spark 4 and the ZooKeeper 3.9 that it brings are built for Java 17

_ADVICE = (
    "install a JDK or JRE 17 or newer and set JAVA_HOME, or put `java` on the PATH; `sexton doctor` says which is found"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaRuntime:
    path: Path
    version: int  # the feature release: 17, 21, ...


def find_java(environ: Mapping[str, str] | None = None) -> JavaRuntime:
    """Return the Java in JAVA_HOME, or else the first Java on the PATH.

    A JAVA_HOME without `bin/java` is skipped. A JAVA_HOME that is too old is an error, because Spark would use it.

    Raises:
        ProgramMissing: No Java exists, it does not run, or it is older than 17.
    """
    environ = os.environ if environ is None else environ
    path = _find_java_path(environ)
    if path is None:
        raise ProgramMissing("java", "no Java was found by JAVA_HOME or on the PATH", advice=_ADVICE)
    version = _read_java_version(path)
    if version is None:
        raise ProgramMissing("java", f"{path} does not tell its version", advice=_ADVICE)
    if version < MIN_JAVA_VERSION:
        raise ProgramMissing(
            "java", f"{path} is Java {version}, and {MIN_JAVA_VERSION} or newer is needed", advice=_ADVICE
        )
    return JavaRuntime(path=path, version=version)


def parse_java_version(text: str) -> int | None:
    """Return the feature release in the output of `java -version`: 17 for `17.0.15`, 8 for `1.8.0_392`."""
    match = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if match is None:
        return None
    first, second = match.groups()
    return int(second) if first == "1" and second else int(first)


def _find_java_path(environ: Mapping[str, str]) -> Path | None:
    if environ.get("JAVA_HOME"):
        candidate = Path(environ["JAVA_HOME"]) / "bin" / "java"
        if os.access(candidate, os.X_OK) and candidate.is_file():
            return candidate
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    return Path(on_path) if on_path else None


def _read_java_version(java: Path) -> int | None:
    try:
        completed = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_java_version(completed.stderr + completed.stdout)
