"""Find the Java that ZooKeeper and Spark run on."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from logstore.errors import ProgramMissing

OLDEST_JAVA = 17  # Spark 4 and ZooKeeper 3.9 as shipped with it are built for it

_ADVICE = (
    "install a JDK or JRE 17 or newer and set JAVA_HOME, or put `java` on the PATH; `sexton doctor` says which is found"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaRuntime:
    """A `java` that is new enough."""

    path: Path
    version: int  # the feature release: 17, 21, ...


def find_java(environ: Mapping[str, str] | None = None) -> JavaRuntime:
    """The Java of JAVA_HOME, otherwise the one on the PATH.

    A JAVA_HOME without a `bin/java` is passed over; one that is too old is refused, since Spark would use it.

    Raises:
        ProgramMissing: There is none, it does not run, or it is older than 17.
    """
    environ = os.environ if environ is None else environ
    found = _locate(environ)
    if found is None:
        raise ProgramMissing("java", "no Java was found by JAVA_HOME or on the PATH", advice=_ADVICE)
    version = _version_of(found)
    if version is None:
        raise ProgramMissing("java", f"{found} does not tell its version", advice=_ADVICE)
    if version < OLDEST_JAVA:
        raise ProgramMissing("java", f"{found} is Java {version}, and {OLDEST_JAVA} or newer is needed", advice=_ADVICE)
    return JavaRuntime(path=found, version=version)


def parse_java_version(text: str) -> int | None:
    """The feature release in the output of `java -version`, or None: `17.0.15` is 17 and `1.8.0_392` is 8."""
    found = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if found is None:
        return None
    first, second = found.groups()
    return int(second) if first == "1" and second else int(first)


def _locate(environ: Mapping[str, str]) -> Path | None:
    if environ.get("JAVA_HOME"):
        candidate = Path(environ["JAVA_HOME"]) / "bin" / "java"
        if os.access(candidate, os.X_OK) and candidate.is_file():
            return candidate
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    return Path(on_path) if on_path else None


def _version_of(java: Path) -> int | None:
    try:
        shown = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_java_version(shown.stderr + shown.stdout)
