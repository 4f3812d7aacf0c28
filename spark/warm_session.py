"""The one Spark session of a process, which is kept between bulk jobs."""

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

from infra.stack.java_search import find_java
from logstore.errors import ServiceFailed
from logstore.reconciliation.spark_master_url import require_spark_master_url, standalone_addresses

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_log = logging.getLogger(__name__)
_tracer = trace.get_tracer("sexton.spark")
_MAX_CHARS: Final = 1_000
_CALL_PREFIX: Final = "An error occurred while calling "
_CAUSE_PREFIX: Final = "Caused by: "
_TRACEBACK_HEADER: Final = "Traceback (most recent call last)"


def summarize_failure(text: str) -> str:
    """Return one line of at most 1,000 characters, or an empty text for an empty text.

    The line of a Python error is the last line of the traceback. The line of a Java error is the first sentence and, if
    there are causes, the last cause.
    """
    if _TRACEBACK_HEADER in text:
        frames = text[text.index(_TRACEBACK_HEADER) :].partition("\n SQLSTATE")[0].partition("\n\tat ")[0]
        lines = [line for line in frames.splitlines() if line.strip() and not line[0].isspace()]
        return lines[-1].strip()[:_MAX_CHARS]
    lines = [line.strip().removeprefix(": ") for line in text.splitlines() if line.strip()]
    sentences = [line for line in lines if not line.startswith((_CALL_PREFIX, "at ", "... "))]
    if not sentences:
        return ""
    causes = [line.removeprefix(_CAUSE_PREFIX) for line in sentences[1:] if line.startswith(_CAUSE_PREFIX)]
    cause = f" (caused by {causes[-1]})" if causes else ""
    return f"{sentences[0][: _MAX_CHARS // 2]}{cause[: _MAX_CHARS // 2]}"


def summarize_error(error: BaseException) -> str:
    """Return one line for an error of Spark or py4j: the text, or at least the class name.

    The caller must not chain `error` as a cause, because an error of py4j asks Java for its text when it is printed.
    """
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - py4j raises any error of its broken socket
        return type(error).__name__
    _log.debug("spark: %s", text)
    return summarize_failure(text) or type(error).__name__


_LOCAL: Final = "local"
# On a cluster, an idle session must release cores. Otherwise jobs of other workers would wait for ever.
_DYNAMIC_ALLOCATION: Final = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "0",
    "spark.dynamicAllocation.executorIdleTimeout": "10s",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.timeout": "60s",  # later reads of the shuffle compute it again
}
_CONNECT_TIMEOUT_S: Final = 5.0
_STOPPED_CONTEXT: Final = "stopped SparkContext"  # in Spark's error if the master is lost during the start
_START_TIMEOUT_S: Final = 300.0  # ten times what a small, busy machine needs
_POLL_INTERVAL_S: Final = 1.0
_CLOSE_TIMEOUT_S: Final = 10.0
_MAX_TASK_ATTEMPTS: Final = 4  # Spark's local mode would try once


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSettings:
    scratch: Path  # folder for spills and shuffles; created if absent
    master: str = "local[*]"
    driver_memory: str = "1g"
    extra_properties: dict[str, str] = field(default_factory=dict)  # Spark properties by name; they override all others


class WarmSession:
    """The Spark session of this process, started on first use and shared by all threads.

    If another thread starts a session, `get_or_restart_session` waits at most `start_s`, and `close` at most `close_s`.
    """

    def __init__(
        self, settings: SparkSettings, *, start_s: float = _START_TIMEOUT_S, close_s: float = _CLOSE_TIMEOUT_S
    ) -> None:
        self._settings, self._start_s, self._close_s = settings, start_s, close_s
        self._lock = threading.Lock()  # held while a session starts or ends, which may hang in Java
        self._session: SparkSession | None = None
        self._master = self._started_master = ""

    def get_or_restart_session(self, master: str = "", *, proceed: Callable[[], None] = lambda: None) -> "SparkSession":
        """Return a session with the master, or with the master of the settings. Start a new session if necessary.

        `proceed` is called before a session ends or starts, and once a second while another thread starts a session. If
        `proceed` raises, nothing has changed.

        Raises:
            InvalidInput: The master has an unknown form.
            ServiceFailed: Java is missing or too old, the master cannot be reached, or another thread hangs in a start.
        """
        master = master or self._settings.master
        require_spark_master_url(master)
        with self._hold_lock(proceed):
            proceed()
            if self._session is None or master != self._master or not _is_alive(self._session):
                self._started_master = master
                self._end_session_and_java()
                with _tracer.start_as_current_span("start Spark", attributes={"spark.master": master}):
                    self._session, self._master = _start_session(replace(self._settings, master=master)), master
            return self._session

    def close(self) -> None:
        """End the session and the Java process. Do nothing if a start hangs in another thread."""
        if not self._lock.acquire(timeout=self._close_s):
            _log.warning("Spark is not ended: the start of a session with %s hangs", self._started_master)
            return
        try:
            self._end_session_and_java()
        finally:
            self._lock.release()

    @contextmanager
    def _hold_lock(self, proceed: Callable[[], None]) -> Iterator[None]:
        deadline_s = time.monotonic() + self._start_s
        while not self._lock.acquire(timeout=min(_POLL_INTERVAL_S, self._start_s)):
            proceed()
            if time.monotonic() >= deadline_s:
                problem = (
                    f"the start of a session with {self._started_master} hangs for {self._start_s:.0f} s or longer"
                )
                raise ServiceFailed("spark", problem, advice="restart this worker: nothing else ends that start")
        try:
            yield
        finally:
            self._lock.release()

    def _end_session_and_java(self) -> None:
        if self._session is None:  # another `WarmSession` of this process may own the Java process
            return
        if _is_alive(self._session):
            self._session.stop()
        self._session = None
        _end_java()


def _start_session(settings: SparkSettings) -> "SparkSession":
    java = find_java()
    _require_master_answers(settings.master)
    settings.scratch.mkdir(parents=True, exist_ok=True)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if _uses_only_loopback(settings.master):
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    _set_java_home(java.path.resolve())
    logging.getLogger("py4j").setLevel(logging.WARNING)
    from py4j.protocol import Py4JError  # noqa: PLC0415 - start-up time: pyspark takes half a second
    from pyspark.errors import PySparkException  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415

    builder = SparkSession.builder.appName("sexton").master(allow_task_retries(settings.master))
    for name, value in (_make_properties(settings) | settings.extra_properties).items():
        builder = builder.config(name, value)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # pandas 3 is too new for a part of pyspark not used here
            session = builder.getOrCreate()
    except (Py4JError, PySparkException, OSError, RuntimeError) as error:
        text = summarize_error(error)  # before Java ends: an error of py4j asks Java for its text
        _end_java()  # Spark would reuse the context of the failed master for the next session
        raise _session_error(
            settings.master, "the master does not answer" if _STOPPED_CONTEXT in text else text
        ) from None
    session.sparkContext.setLogLevel("ERROR")
    return session


def _require_master_answers(master: str) -> None:
    """Raise `ServiceFailed` if no address of a standalone master answers. Spark would give up only after a minute."""
    problems = []
    for host, port in standalone_addresses(master):
        try:
            socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT_S).close()
        except OSError as error:
            problems.append(f"{host}:{port} does not answer ({error.strerror or error})")
        else:
            return
    if problems:
        raise _session_error(master, ", ".join(problems))


def _session_error(master: str, problem: str) -> ServiceFailed:
    advice = "check the setting spark_master, or --master, and that its machines can reach this one"
    return ServiceFailed("spark", f"no session with {master}: {problem}", advice=advice)


def _make_properties(settings: SparkSettings) -> dict[str, str]:
    """Return properties for a small machine. A cluster decides about memory and cores of executors."""
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
        "spark.task.maxFailures": str(_MAX_TASK_ATTEMPTS),
        # Python does the work, so Java's second compiler would cost as much as the whole start and gain nothing
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={scratch} -XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    }
    loopback = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
    allocation = {} if settings.master.startswith(_LOCAL) else _DYNAMIC_ALLOCATION
    return common | allocation | (loopback if _uses_only_loopback(settings.master) else {})


def _uses_only_loopback(master: str) -> bool:
    if master.startswith(_LOCAL):
        return True
    hosts = [address.rpartition(":")[0] for address in master.removeprefix("spark://").split(",")]
    return master.startswith("spark://") and all(host == "localhost" or host.startswith("127.") for host in hosts)


def _set_java_home(java: Path) -> None:
    """Make Spark's scripts start this Java. The scripts prefer JAVA_HOME, even if it names a folder without Java."""
    home = java.parent.parent
    if (home / "bin" / "java").exists():
        os.environ["JAVA_HOME"] = str(home)
    else:
        os.environ.pop("JAVA_HOME", None)  # `java` is the script of a version manager, which Spark finds by PATH


def allow_task_retries(master: str) -> str:
    """Add the number of attempts to a local master: `local[4]` becomes `local[4,4]`. The default is one attempt."""
    threads = master.removeprefix(_LOCAL).removeprefix("[").removesuffix("]")
    if not master.startswith(_LOCAL) or master.startswith("local-cluster") or "," in threads:
        return master
    return f"{_LOCAL}[{threads or 1},{_MAX_TASK_ATTEMPTS}]"


def _is_alive(session: "SparkSession") -> bool:
    context = session.sparkContext
    process = getattr(context._gateway, "proc", None)  # noqa: SLF001 - pyspark has no public name for its Java process
    if process is not None and process.poll() is not None:
        return False
    try:
        return not context._jsc.sc().isStopped()  # noqa: SLF001
    except Exception:  # noqa: BLE001 - py4j raises any error of its broken socket
        return False


def _end_java() -> None:
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


def exclude_loaded_objects_from_gc() -> None:
    """Exclude all objects loaded so far from garbage collection. Python processes of Spark collect after every task.

    A collection that visits all imported modules takes 60 ms, more than most tasks. Source: pyspark's `daemon.py`.
    """
    _freeze(len(sys.modules))


@cache
def _freeze(module_count: int) -> None:  # noqa: ARG001 - key of the cache: freeze again after more imports
    gc.freeze()
