"""One Spark session a process, warm for as long as the process lives, and what its executors do before a task."""

import gc
import logging
import os
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from opentelemetry import trace

from infra.stack.java import find_java
from logstore.errors import ServiceFailed
from logstore.reconciliation.spark_master import check_master, standalone_addresses
from spark.failure_text import summarize_error

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)
_tracer = trace.get_tracer("sexton.spark")
_LOCAL: Final = "local"
_ELASTIC: Final = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "0",
    "spark.dynamicAllocation.executorIdleTimeout": "10s",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.timeout": "60s",  # what is needed after that is computed again
}
"""Of a cluster: a session that is warm and idle gives its cores back, or those of other workers would wait for ever."""
_CONNECT_S: Final = 5.0
_STOPPED: Final = "stopped SparkContext"
"""In Spark's words where it gave a master up while the session was being made."""
_START_S: Final = 300.0
"""For so long a session that another thread starts is waited for: ten times what a small and busy machine needs."""
_LOOK_S: Final = 1.0
_CLOSE_S: Final = 10.0
_TRIES: Final = 4  # of a task, where Spark's local mode would try once


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSettings:
    """How Spark is reached, and what it may use."""

    scratch: Path  # what it spills and shuffles goes here; made if absent
    master: str = "local[*]"
    driver_memory: str = "1g"
    more: dict[str, str] = field(default_factory=dict)  # any other property of Spark, by its own name


class WarmSession:
    """Starts Spark when it is first asked for, once; threads share it."""

    def __init__(self, settings: SparkSettings, *, start_s: float = _START_S, close_s: float = _CLOSE_S) -> None:
        """Start nothing yet.

        Args:
            settings: Of Spark.
            start_s: How long `get` waits for another thread that starts a session.
            close_s: How long `close` waits for it.
        """
        self._settings, self._start_s, self._close_s = settings, start_s, close_s
        self._lock = threading.Lock()  # held while a session is started or ended, which may hang in Java
        self._session: SparkSession | None = None
        self._master = self._started_master = ""

    def get(self, master: str = "", *, proceed: Callable[[], None] = lambda: None) -> "SparkSession":
        """The session, started anew if its Java process has died since, or if it is another master's.

        Args:
            master: Of the cluster; empty: that of the settings.
            proceed: Called before a session is ended or started, and each second of the wait for another thread;
                what it raises is raised, and nothing changes.

        Raises:
            InvalidInput: The master is of no form that is known.
            ServiceFailed: Java is missing or too old, the master cannot be reached, or the start of a session in
                another thread hangs.
        """
        master = master or self._settings.master
        check_master(master)
        with self._locked(proceed):
            proceed()
            if self._session is None or master != self._master or not _lives(self._session):
                self._started_master = master
                self._end()
                with _tracer.start_as_current_span("start Spark", attributes={"spark.master": master}):
                    self._session, self._master = _start(replace(self._settings, master=master)), master
            return self._session

    def close(self) -> None:
        """End the session and its Java process; a later `get` starts another one.

        A start that hangs is left alone: its Java ends with this process.
        """
        if not self._lock.acquire(timeout=self._close_s):
            _log.warning("Spark is not ended: the start of a session with %s hangs", self._started_master)
            return
        try:
            self._end()
        finally:
            self._lock.release()

    @contextmanager
    def _locked(self, proceed: Callable[[], None]) -> Iterator[None]:
        give_up_at_s = time.monotonic() + self._start_s
        while not self._lock.acquire(timeout=min(_LOOK_S, self._start_s)):
            proceed()
            if time.monotonic() >= give_up_at_s:
                problem = (
                    f"the start of a session with {self._started_master} hangs for {self._start_s:.0f} s or longer"
                )
                raise ServiceFailed("spark", problem, advice="restart this worker: nothing else ends that start")
        try:
            yield
        finally:
            self._lock.release()

    def _end(self) -> None:
        """Java is the whole process's: a log that started none leaves that of another one alone."""
        if self._session is None:
            return
        if _lives(self._session):
            self._session.stop()
        self._session = None
        _end_java()


def _start(settings: SparkSettings) -> "SparkSession":
    java = find_java()
    _require_answer(settings.master)
    settings.scratch.mkdir(parents=True, exist_ok=True)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if _on_loopback(settings.master):
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    _point_at(java.path.resolve())
    logging.getLogger("py4j").setLevel(logging.WARNING)
    from py4j.protocol import Py4JError  # noqa: PLC0415 - start-up time: pyspark takes half a second
    from pyspark.errors import PySparkException  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415

    builder = SparkSession.builder.appName("sexton").master(_retrying(settings.master))
    for name, value in (_properties(settings) | settings.more).items():
        builder = builder.config(name, value)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # pandas 3 is too new for a part of pyspark not used here
            session = builder.getOrCreate()
    except (Py4JError, PySparkException, OSError, RuntimeError) as error:
        refused = _unreached(settings.master, _why(error))
        _end_java()  # the context of the master that failed would be taken for that of the next
        raise refused from None
    session.sparkContext.setLogLevel("ERROR")
    return session


def _require_answer(master: str) -> None:
    """Ask each machine of a standalone master for a connection: Spark itself would take a minute to give up.

    Raises:
        ServiceFailed: None of them takes one.
    """
    missed = []
    for host, port in standalone_addresses(master):
        try:
            socket.create_connection((host, port), timeout=_CONNECT_S).close()
        except OSError as error:
            missed.append(f"{host}:{port} does not answer ({error.strerror or error})")
        else:
            return
    if missed:
        raise _unreached(master, ", ".join(missed))


def _why(error: BaseException) -> str:
    told = summarize_error(error)
    return "the master does not answer" if _STOPPED in told else told


def _unreached(master: str, problem: str) -> ServiceFailed:
    advice = "check the setting spark_master, or --master, and that its machines can reach this one"
    return ServiceFailed("spark", f"no session with {master}: {problem}", advice=advice)


def _properties(settings: SparkSettings) -> dict[str, str]:
    """Properties that suit a small machine; on a cluster memory and cores are the cluster's own settings."""
    scratch = str(settings.scratch)
    common = {
        "spark.log.level": "ERROR",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": settings.driver_memory,
        "spark.local.dir": scratch,
        "spark.sql.warehouse.dir": f"{scratch}/warehouse",
        "spark.sql.autoBroadcastJoinThreshold": "-1",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.python.worker.reuse": "true",
        "spark.task.maxFailures": str(_TRIES),
        # Java hands out tasks, which Python does: to compile its code a second time costs as much as the whole start
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={scratch} -XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    }
    loopback = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
    elastic = {} if settings.master.startswith(_LOCAL) else _ELASTIC
    return common | elastic | (loopback if _on_loopback(settings.master) else {})


def _on_loopback(master: str) -> bool:
    """Whether nothing outside this machine takes part, so that nothing need be reached from there."""
    if master.startswith(_LOCAL):
        return True
    hosts = [address.rpartition(":")[0] for address in master.removeprefix("spark://").split(",")]
    return master.startswith("spark://") and all(host == "localhost" or host.startswith("127.") for host in hosts)


def _point_at(java: Path) -> None:
    """Let Spark's scripts start this very Java: they believe JAVA_HOME, even one without a Java."""
    home = java.parent.parent
    if (home / "bin" / "java").exists():
        os.environ["JAVA_HOME"] = str(home)
    else:
        os.environ.pop("JAVA_HOME", None)  # a script of a version manager: the PATH leads to it


def _retrying(master: str) -> str:
    """Local masters try a task once unless their name says otherwise: `local[4]` becomes `local[4,4]`."""
    inner = master.removeprefix(_LOCAL).removeprefix("[").removesuffix("]")
    if not master.startswith(_LOCAL) or master.startswith("local-cluster") or "," in inner:
        return master
    return f"{_LOCAL}[{inner or 1},{_TRIES}]"


def _lives(session: "SparkSession") -> bool:
    context = session.sparkContext
    process = getattr(context._gateway, "proc", None)  # noqa: SLF001 - pyspark has no public name for its Java process
    if process is not None and process.poll() is not None:
        return False
    try:
        return not context._jsc.sc().isStopped()  # noqa: SLF001
    except Exception:  # noqa: BLE001 - py4j raises what its broken socket gives
        return False


def _end_java() -> None:
    """Forget the gateway of this process, and end its Java."""
    from pyspark import SparkContext  # noqa: PLC0415 - start-up time
    from pyspark.sql import SparkSession  # noqa: PLC0415

    gateway = SparkContext._gateway  # noqa: SLF001
    if gateway is None:
        return
    process = getattr(gateway, "proc", None)
    if process is not None:
        process.kill()
        process.wait()
        process.stdin and process.stdin.close()
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None  # noqa: SLF001
    SparkSession._instantiatedSession = SparkSession._activeSession = None  # noqa: SLF001


def spare_the_collector() -> None:
    """Leave what is loaded by now to no later collection of garbage: it lives as long as the process.

    Spark's processes collect after every task. To look through all that our modules consist of takes some 60 ms of CPU
    each time, more than most tasks. Source: `gc.collect` in pyspark's `daemon.py`, and `gc.freeze` in Python's manual.
    """
    _freeze(len(sys.modules))


@cache
def _freeze(modules: int) -> None:  # noqa: ARG001 - again when a task has loaded more
    gc.freeze()
