"""A standalone cluster of one master and two workers on loopback, from the installed pyspark."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
import pyspark

from infra.objects.s3_store import BucketAddress
from infra.stack.java_search import find_java
from spark.sources.store_addresses import CatalogAddresses
from tests.logstore.eventually import assert_eventually

_SPARK_CLASS = Path(str(pyspark.__file__)).parent / "bin" / "spark-class"
_ROOT = Path(__file__).parents[2]

_QUICK_JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"  # as in `spark/warm_session.py`

PROPERTIES = {
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.executor.extraJavaOptions": _QUICK_JAVA,
    "spark.executorEnv.PYTHONPATH": str(_ROOT),  # tasks of tests are modules of tests
    "spark.executorEnv.SPARK_LOCAL_IP": "127.0.0.1",
}
"""What a session needs here."""


@contextmanager
def standalone(folder: Path) -> Iterator[str]:
    """The URL of the master; both workers join it by themselves, and all of it is killed at the end."""
    port = _free_port()
    master = f"spark://127.0.0.1:{port}"
    with ExitStack() as stack:
        own = ["--port", str(port), "--webui-port", "0"]
        stack.enter_context(_running(folder, "master", ["org.apache.spark.deploy.master.Master", *own]))
        assert_eventually(lambda: _accepts(port))
        for number in range(2):
            more = ["--cores", "1", "--memory", "512m", "--webui-port", "0", "--work-dir", str(folder / f"w{number}")]
            stack.enter_context(
                _running(folder, f"worker-{number}", ["org.apache.spark.deploy.worker.Worker", *more, master])
            )
        yield master


@contextmanager
def _running(folder: Path, name: str, command: list[str]) -> Iterator[None]:
    home = find_java().path.resolve().parent.parent
    settled = {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "128m",
        "SPARK_DAEMON_JAVA_OPTS": _QUICK_JAVA,
        "JAVA_HOME": str(home),
    }
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [str(_SPARK_CLASS), *command[:1], "--host", "127.0.0.1", *command[1:]],
            env={**os.environ, **settled, "PYSPARK_PYTHON": sys.executable},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            yield
        finally:
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
            process.kill()
            process.wait()


def _accepts(port: int) -> bool:
    """Whether the master takes connections: a session is refused before."""
    with socket.socket() as asked:
        return asked.connect_ex(("127.0.0.1", port)) == 0


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@dataclass(frozen=True, slots=True)
class DeadlyAddress(BucketAddress):
    """A bucket at which the first executor that asks is killed, in the middle of its task."""

    mark: str = field(default="", kw_only=True)

    def store(self):  # type: ignore[no-untyped-def]  # noqa: ANN201
        try:
            Path(self.mark).touch(exist_ok=False)
        except FileExistsError:
            return BucketAddress(*(getattr(self, name) for name in BucketAddress.__slots__)).store()
        executors = [
            one for one in psutil.Process().parents() if "CoarseGrainedExecutorBackend" in " ".join(one.cmdline())
        ]
        Path(self.mark).write_text(str(executors[0].pid))
        executors[0].kill()
        executors[0].wait(60)
        raise AssertionError("the executor is dead")


def deadly(addresses: CatalogAddresses, mark: Path) -> CatalogAddresses:
    """The same, but that the primary bucket kills the first executor that asks it; `mark` then names its pid."""
    address = addresses.primary
    known = {name: getattr(address, name) for name in BucketAddress.__slots__}
    return replace(addresses, primary=DeadlyAddress(**known, mark=str(mark)))
