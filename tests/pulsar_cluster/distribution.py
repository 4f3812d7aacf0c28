"""Pulsar's server distribution: download through Maven, check of the digests, and a folder that is unpacked once."""

import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from infra.stack.java_search import find_java
from logstore.errors import ServiceFailed

VERSION: Final = "4.0.8"

_NAME: Final = "pulsar-distribution"
_OFFLOADER: Final = f"tiered-storage-jcloud-{VERSION}.nar"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Artifact:
    coordinates: str  # of Maven
    file: str
    sha512: str


_SERVER: Final = _Artifact(
    coordinates=f"org.apache.pulsar:pulsar-server-distribution:{VERSION}:tar.gz:bin",
    file=f"pulsar-server-distribution-{VERSION}-bin.tar.gz",
    sha512=(
        "65b769b10696cdfebf7fc5bcdc95dd663702e27051e616c1a13cb100e91279525be35352171befe7b0011176330aab29bd0a6c8a0f2f0646"
        "641af46d2e33cbd6"
    ),
)
_S3_OFFLOADER: Final = _Artifact(  # Maven has the archive of the plug-in under the extension `jar`
    coordinates=f"org.apache.pulsar:tiered-storage-jcloud:{VERSION}",
    file=f"tiered-storage-jcloud-{VERSION}.jar",
    sha512=(
        "21567d99ae6b56ade7c8630263ce7b901e9a00f5f23e46de954f59538eb7d9d94729963eade00f2bba53ea9dfeb421eb615d3492e8f3ba26"
        "c99f1d995e167f91"
    ),
)


def prepare_distribution(on_progress: Callable[[str], None]) -> Path:
    """Return the folder of the unpacked distribution with its offloader. Download it if the cache has none.

    The cache is `sexton/pulsar` in XDG_CACHE_HOME, or else in `~/.cache`.

    Raises:
        ServiceFailed: Java, or Maven for a download, is missing, or a digest differs.
    """
    find_java()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sexton" / "pulsar"
    folder = cache / f"apache-pulsar-{VERSION}"
    if folder.exists():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as temporary:
        unpacked = _download_and_unpack(Path(temporary), on_progress)
        try:
            unpacked.rename(folder)
        except OSError:
            if not folder.exists():  # otherwise another process was faster
                raise
    return folder


def _download_and_unpack(temporary: Path, on_progress: Callable[[str], None]) -> Path:
    maven = shutil.which("mvn")
    if maven is None:
        raise ServiceFailed(_NAME, "the program `mvn` is missing", advice="install Maven; only the download needs it")
    for artifact in (_SERVER, _S3_OFFLOADER):
        on_progress(f"downloading {artifact.coordinates}")
        _download(maven, artifact, temporary)
        _require_digest(temporary / artifact.file, artifact.sha512)
    on_progress("unpacking Pulsar")
    with tarfile.open(temporary / _SERVER.file) as archive:
        archive.extractall(temporary, filter="data")
    unpacked = temporary / f"apache-pulsar-{VERSION}"
    (unpacked / "offloaders").mkdir()
    (temporary / _S3_OFFLOADER.file).rename(unpacked / "offloaders" / _OFFLOADER)
    return unpacked


def _download(maven: str, artifact: _Artifact, folder: Path) -> None:
    argv = [
        maven,
        "-q",
        "-B",
        "dependency:copy",
        f"-Dartifact={artifact.coordinates}",
        f"-DoutputDirectory={folder}",
        "-Dmdep.useBaseVersion=true",
    ]
    completed = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
    if completed.returncode:
        lines = (completed.stdout + completed.stderr).strip().splitlines()
        problem = f"Maven could not get {artifact.coordinates} ({lines[0] if lines else completed.returncode})"
        raise ServiceFailed(_NAME, problem, advice="check Maven's access to its repository, then try again")


def _require_digest(path: Path, sha512: str) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha512").hexdigest()
    if found != sha512:
        problem = f"{path.name}: expected SHA-512 {sha512[:16]}…, found {found[:16]}…"
        raise ServiceFailed(_NAME, problem, advice="remove the file from Maven's local repository, then try again")
