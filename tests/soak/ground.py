"""The servers and processes of a soak, and what its faults do to them."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import psutil

from infra.stack import embedded_stack
from infra.stack.service_port_choice import RequestedPorts
from infra.stack.service_process import ServiceProcess
from infra.stack.stack_home import StackHome
from logstore import failpoints
from logstore.errors import ServiceFailed
from tests.ownership.proxy import Proxy
from tests.postgres import Postgres
from tests.soak.members import Member
from tests.soak.plan import Fault, Plan
from tests.soak.scene import QUICK, REPLICA_BUCKET, make_topics, set_phase
from tests.soak.wire import Wire
from workers.assembly.log_store_from_settings import open_log_store
from workers.operations.embedded_stack import add_stack_addresses, prepare_catalog_and_namespace
from workers.settings import Settings

_MARK: Final = "SOAK_PROCESS"  # in the environment of all that is started, and of what that starts
REPLICA: Final = "replica"
"""The role of the command that follows the record log, and the name of its database."""

REBUILT: Final = "rebuilt"
"""The name of the database into which the catalog is rebuilt."""

_REFUSED: Final = 3  # the command line's exit code
_LOOK_S: Final = 0.2
_STARTS: Final = 3  # of a server that does not come


@dataclass
class Ground:
    """Everything that runs. `Ground.up` makes it, `down` ends it."""

    home: Path
    settings: Settings  # of workers and clients: S3 by the wire
    direct: Settings  # of the auditor: S3 itself
    wire: Wire
    plan: Plan
    options: embedded_stack.StackOptions
    postgres: Postgres | None
    mark: str
    members: dict[tuple[str, int], Member] = field(default_factory=dict)
    proxies: list[Proxy] = field(default_factory=list)
    lives: int = 0  # of worker processes, for their failpoints
    arming: bool = True
    _tending: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _threads: list[threading.Thread] = field(default_factory=list)

    @classmethod
    def up(
        cls,
        home: Path,
        plan: Plan,
        *,
        database: str,
        workers: int,
        clients: int,
        before: Callable[["Ground"], None] = lambda _: None,
    ) -> "Ground":
        """Start servers, catalog, topics, workers and clients; `before` is called when the topics are there."""
        options = embedded_stack.StackOptions(home=home, ports=RequestedPorts.any_free())
        where = embedded_stack.start_stack(options)
        postgres = Postgres() if database == "postgresql" else None
        if postgres:
            for name in ("soak", REPLICA, REBUILT):
                postgres.execute(f"CREATE DATABASE {name}")
        url = {"database_url": postgres.url("soak")} if postgres else {}
        first = add_stack_addresses(Settings.model_validate({"home": home, **QUICK, **url}), where)
        options = embedded_stack.StackOptions(
            home=home,
            ports=RequestedPorts.any_free(),
            buckets=(first.primary_bucket, first.tiered_bucket, first.records_bucket, REPLICA_BUCKET),
        )
        embedded_stack.start_stack(options)
        wire = Wire(first.s3_endpoint.removeprefix("http://"), seed=plan.seed)
        ground = cls(
            home=home,
            settings=first.model_copy(update={"s3_endpoint": f"http://{wire.address}"}),
            direct=first,
            wire=wire,
            plan=plan,
            options=options,
            postgres=postgres,
            mark=uuid4().hex,
        )
        try:
            ground._begin(workers, clients, before)
        except BaseException:
            ground.down()
            raise
        return ground

    def _begin(self, workers: int, clients: int, before: Callable[["Ground"], None]) -> None:
        prepare_catalog_and_namespace(self.direct)
        with open_log_store(self.settings) as log:
            for store in (log.objects, log.record_objects):
                store.require_ownership_once()
            make_topics(log)
        before(self)
        set_phase(self.home, "work")
        self.proxies = [Proxy(self.settings.zookeeper) for _ in range(workers)]
        for role, count in (("worker", workers), ("client", clients), (REPLICA, 1)):
            for number in range(count):
                self.members[role, number] = Member(role, number, self.home, self._spawn)
        tender = threading.Thread(target=self._tend, daemon=True)
        tender.start()
        self._threads.append(tender)

    def _spawn(self, member: Member) -> subprocess.Popen[bytes]:
        """A process on its stepped clock, a worker also behind its own wire to ZooKeeper and with failpoints armed."""
        environment = {**os.environ, **self.settings.environment(), _MARK: self.mark}
        if member.role == "worker":
            environment["SEXTON_ZOOKEEPER"] = self.proxies[member.number].address
            with self._lock:
                armed = self.plan.failpoints[self.lives % len(self.plan.failpoints)] if self.arming else ""
                self.lives += 1
            environment[failpoints.ENVIRONMENT_VARIABLE] = armed
            identity = f"worker-{member.number}-{time.time_ns():x}"
            argv = ["workers", "--home", str(self.home), "worker", "run", "--worker-id", identity]
        elif member.role == REPLICA:
            anew = ("--seed",) if member.exits[-1:] == [_REFUSED] else ()  # raids had not waited for it
            argv = [*self.following(*anew), "--watch"]
        else:
            argv = ["tests.soak.client", str(member.number)]
        return self._started(member.log_file, ["tests.soak.clocked", str(member.clock_file), *argv], environment)

    def _started(self, log_file: Path, argv: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        with log_file.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", *argv],
                env=environment,
                cwd=Path(__file__).resolve().parents[2],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def command(self, *argv: str) -> subprocess.Popen[bytes]:
        """Start a command, with no wire before S3; its output goes to `logs/commands.log`."""
        environment = {**os.environ, **self.direct.environment(), _MARK: self.mark}
        return self._started(self.home / "logs" / "commands.log", argv, environment)

    def following(self, *flags: str) -> list[str]:
        """The command that follows the record log."""
        return ["workers", "--home", str(self.home), "records", "follow", "--into", self.database(REPLICA), *flags]

    def database(self, name: str) -> str:
        """The URL of a database beside the catalog's."""
        return self.postgres.url(name) if self.postgres else f"sqlite:///{self.home / name}.db"

    def _tend(self) -> None:
        while not self._tending.wait(_LOOK_S):
            for member in self.members.values():
                member.tend()

    def begin(self, fault: Fault) -> Callable[[], None]:
        """Let it go wrong; what is returned lifts it."""
        doing: Mapping[str, Callable[[Fault], Callable[[], None]]] = {
            "kill": self._kill,
            "pause": self._pause,
            "cut": self._cut,
            "step": self._step,
            "stop": self._stop_database,
            "s3": self._s3,
        }
        return doing[fault.kind.partition("-")[0]](fault)

    def _member(self, fault: Fault) -> Member:
        return self.members[fault.kind.rpartition("-")[2], fault.target]

    def _kill(self, fault: Fault) -> Callable[[], None]:
        what = fault.kind.removeprefix("kill-")
        if what in {"worker", "client"}:
            member = self._member(fault)
            member.held = True
            member.signal(signal.SIGKILL)
            return lambda: setattr(member, "held", False)
        with self._lock:  # not in the middle of another start
            ServiceProcess(what, StackHome.at(self.home)).kill()
        return self.revive

    def revive(self) -> None:
        """Start what servers do not run."""
        with self._lock:
            for _ in range(_STARTS):
                with suppress(ServiceFailed):  # on a busy machine a server may take longer than its start may
                    embedded_stack.start_stack(self.options)
                    return
            embedded_stack.start_stack(self.options)

    def _pause(self, fault: Fault) -> Callable[[], None]:
        member = self._member(fault)
        member.signal(signal.SIGSTOP)
        return lambda: member.signal(signal.SIGCONT)

    def _cut(self, fault: Fault) -> Callable[[], None]:
        proxy = self.proxies[fault.target]
        proxy.cut()
        return proxy.mend

    def _step(self, fault: Fault) -> Callable[[], None]:
        path = self._member(fault).clock_file
        path.write_text(str(fault.amount), encoding="utf-8")
        return lambda: path.unlink(missing_ok=True)

    def _stop_database(self, fault: Fault) -> Callable[[], None]:
        """PostgreSQL dies as by a power cut; SQLite is locked by somebody else."""
        if self.postgres:
            self.postgres.crash()
            return self.postgres.start
        held = sqlite3.connect(
            self.direct.database_url.removeprefix("sqlite:///"),
            timeout=30,
            isolation_level=None,
            check_same_thread=False,
        )
        with suppress(sqlite3.OperationalError):
            held.execute("BEGIN EXCLUSIVE")
        return held.close

    def _s3(self, fault: Fault) -> Callable[[], None]:
        name = {"s3-errors": "errors", "s3-lost-answers": "lost", "s3-slow": "slow_s"}[fault.kind]
        setattr(self.wire.weather, name, fault.amount)
        return lambda: setattr(self.wire.weather, name, 0.0)

    def end_clients(self) -> None:
        """They have nothing more to say."""
        set_phase(self.home, "end")
        self._tending.set()
        for thread in self._threads:
            thread.join()
        for (role, _), member in self.members.items():
            if role == REPLICA:
                member.signal(signal.SIGKILL)
            if role == "client":
                member.exits.append(member.end(60))

    def end_workers(self) -> None:
        """Each drains, and says by its exit code that it did."""
        for (role, _), member in self.members.items():
            if role == "worker":
                member.exits.append(member.end(self.settings.drain_timeout + 30))

    def keep_databases(self) -> None:
        """Write PostgreSQL's databases into the home, as SQL; SQLite's are files there already."""
        if self.postgres:
            self.postgres.start()
            for name in ("soak", REPLICA, REBUILT):
                self.postgres.dump(name, self.home / f"{name}.sql")

    def down(self) -> None:
        """End all at once, and remove what it left in memory and on disk but its home."""
        self._tending.set()
        with ExitStack() as every:
            every.callback(self.wire.close)
            for proxy in self.proxies:
                every.callback(proxy.close)
            if self.postgres:
                every.callback(self.postgres.stop)
            every.callback(embedded_stack.kill_stack, self.home)
            every.callback(end_marked, _MARK, self.mark)


def end_marked(variable: str, mark: str) -> None:
    """Kill every process whose environment says that it was started here, and wait until they are gone."""
    ours = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(variable) == mark:
                process.kill()
                ours.append(process)
    psutil.wait_procs(ours, timeout=10)


def new_home() -> Path:
    """An empty folder with a short path, for there are sockets in it."""
    return Path(tempfile.mkdtemp(prefix="sx-", dir="/tmp"))


def remove_home(home: Path) -> None:
    """Of a soak that found nothing."""
    shutil.rmtree(home, ignore_errors=True)


def query(url: str, statement: str) -> list[dict[str, Any]]:
    """Rows of a statement by a connection of its own, by name."""
    if not url.startswith("sqlite"):
        import psycopg  # noqa: PLC0415 - only where it is asked for
        from psycopg.rows import dict_row  # noqa: PLC0415

        with psycopg.connect(url.replace("+psycopg", ""), row_factory=dict_row) as server:
            return server.execute(statement.encode()).fetchall()
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=60)) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(statement)]
