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
from tests.ownership.proxy import CuttableProxy
from tests.postgres import PostgresServer
from tests.soak.fault_plan import FaultPlan, ScheduledFault
from tests.soak.faulty_s3_proxy import FaultyS3Proxy
from tests.soak.members import Member
from tests.soak.soak_setup import REPLICA_BUCKET, SOAK_SETTINGS, create_lasting_topics, write_phase
from workers.assembly.log_store_from_settings import open_log_store
from workers.operations.embedded_stack import add_stack_addresses, prepare_catalog_and_namespace
from workers.settings import Settings

_MARK_VARIABLE: Final = "SOAK_PROCESS"  # in the environment of all that is started, and of what that starts
REPLICA_ROLE: Final = "replica"
"""The role of the command that follows the record log, and the name of its database."""

REBUILT_DATABASE: Final = "rebuilt"
"""The name of the database into which the catalog is rebuilt."""

_REFUSED_EXIT_CODE: Final = 3  # the command line's exit code
_POLL_INTERVAL_S: Final = 0.2
_MAX_SERVER_STARTS: Final = 3  # of a server that does not come


@dataclass
class Ground:
    """Everything that runs. `Ground.up` makes it, `down` ends it."""

    home: Path
    settings: Settings  # of workers and clients: S3 by the wire
    direct: Settings  # of the auditor: S3 itself
    wire: FaultyS3Proxy
    plan: FaultPlan
    options: embedded_stack.StackOptions
    postgres: PostgresServer | None
    mark: str
    members: dict[tuple[str, int], Member] = field(default_factory=dict)
    proxies: list[CuttableProxy] = field(default_factory=list)
    lives: int = 0  # of worker processes, for their failpoints
    arming: bool = True
    _stops_tending: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _threads: list[threading.Thread] = field(default_factory=list)

    @classmethod
    def up(
        cls,
        home: Path,
        plan: FaultPlan,
        *,
        database: str,
        workers: int,
        clients: int,
        before_start: Callable[["Ground"], None] = lambda _: None,
    ) -> "Ground":
        """Start servers, catalog, topics, workers and clients; `before_start` is called when the topics are there."""
        options = embedded_stack.StackOptions(home=home, ports=RequestedPorts.any_free())
        addresses = embedded_stack.start_stack(options)
        postgres = PostgresServer() if database == "postgresql" else None
        if postgres:
            for name in ("soak", REPLICA_ROLE, REBUILT_DATABASE):
                postgres.execute(f"CREATE DATABASE {name}")
        url = {"database_url": postgres.url("soak")} if postgres else {}
        direct_settings = add_stack_addresses(
            Settings.model_validate({"home": home, **SOAK_SETTINGS, **url}), addresses
        )
        options = embedded_stack.StackOptions(
            home=home,
            ports=RequestedPorts.any_free(),
            buckets=(
                direct_settings.primary_bucket,
                direct_settings.tiered_bucket,
                direct_settings.records_bucket,
                REPLICA_BUCKET,
            ),
        )
        embedded_stack.start_stack(options)
        wire = FaultyS3Proxy(direct_settings.s3_endpoint.removeprefix("http://"), seed=plan.seed)
        ground = cls(
            home=home,
            settings=direct_settings.model_copy(update={"s3_endpoint": f"http://{wire.address}"}),
            direct=direct_settings,
            wire=wire,
            plan=plan,
            options=options,
            postgres=postgres,
            mark=uuid4().hex,
        )
        try:
            ground._begin(workers, clients, before_start)
        except BaseException:
            ground.down()
            raise
        return ground

    def _begin(self, workers: int, clients: int, before_start: Callable[["Ground"], None]) -> None:
        prepare_catalog_and_namespace(self.direct)
        with open_log_store(self.settings) as log:
            for store in (log.objects, log.record_objects):
                store.require_ownership_once()
            create_lasting_topics(log)
        before_start(self)
        write_phase(self.home, "work")
        self.proxies = [CuttableProxy(self.settings.zookeeper) for _ in range(workers)]
        for role, count in (("worker", workers), ("client", clients), (REPLICA_ROLE, 1)):
            for number in range(count):
                self.members[role, number] = Member(role, number, self.home, self._spawn_member)
        tender = threading.Thread(target=self._restart_dead_members, daemon=True)
        tender.start()
        self._threads.append(tender)

    def _spawn_member(self, member: Member) -> subprocess.Popen[bytes]:
        """A process on its stepped clock, a worker also behind its own wire to ZooKeeper and with failpoints armed."""
        environment = {**os.environ, **self.settings.environment(), _MARK_VARIABLE: self.mark}
        if member.role == "worker":
            environment["SEXTON_ZOOKEEPER"] = self.proxies[member.number].address
            with self._lock:
                armed = self.plan.failpoints[self.lives % len(self.plan.failpoints)] if self.arming else ""
                self.lives += 1
            environment[failpoints.ENVIRONMENT_VARIABLE] = armed
            worker_id = f"worker-{member.number}-{time.time_ns():x}"
            argv = ["workers", "--home", str(self.home), "worker", "run", "--worker-id", worker_id]
        elif member.role == REPLICA_ROLE:
            seed_flags = ("--seed",) if member.exits[-1:] == [_REFUSED_EXIT_CODE] else ()  # raids had not waited for it
            argv = [*self.following(*seed_flags), "--watch"]
        else:
            argv = ["tests.soak.soak_client", str(member.number)]
        return self._start_python_module(
            member.log_file, ["tests.soak.stepped_clock_process", str(member.clock_file), *argv], environment
        )

    def _start_python_module(
        self, log_file: Path, argv: Sequence[str], environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
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
        environment = {**os.environ, **self.direct.environment(), _MARK_VARIABLE: self.mark}
        return self._start_python_module(self.home / "logs" / "commands.log", argv, environment)

    def following(self, *flags: str) -> list[str]:
        """The command that follows the record log."""
        return ["workers", "--home", str(self.home), "records", "follow", "--into", self.database(REPLICA_ROLE), *flags]

    def database(self, name: str) -> str:
        """The URL of a database beside the catalog's."""
        return self.postgres.url(name) if self.postgres else f"sqlite:///{self.home / name}.db"

    def _restart_dead_members(self) -> None:
        while not self._stops_tending.wait(_POLL_INTERVAL_S):
            for member in self.members.values():
                member.tend()

    def begin(self, fault: ScheduledFault) -> Callable[[], None]:
        """Let it go wrong; what is returned lifts it."""
        begin_by_kind: Mapping[str, Callable[[ScheduledFault], Callable[[], None]]] = {
            "kill": self._kill_target,
            "pause": self._pause_member,
            "cut": self._cut_zookeeper,
            "step": self._step_clock,
            "stop": self._stop_database,
            "s3": self._disturb_s3,
        }
        return begin_by_kind[fault.kind.partition("-")[0]](fault)

    def _target_member(self, fault: ScheduledFault) -> Member:
        return self.members[fault.kind.rpartition("-")[2], fault.target]

    def _kill_target(self, fault: ScheduledFault) -> Callable[[], None]:
        target = fault.kind.removeprefix("kill-")
        if target in {"worker", "client"}:
            member = self._target_member(fault)
            member.held = True
            member.signal(signal.SIGKILL)
            return lambda: setattr(member, "held", False)
        with self._lock:  # not in the middle of another start
            ServiceProcess(target, StackHome.at(self.home)).kill()
        return self.revive

    def revive(self) -> None:
        """Start what servers do not run."""
        with self._lock:
            for _ in range(_MAX_SERVER_STARTS):
                with suppress(ServiceFailed):  # on a busy machine a server may take longer than its start may
                    embedded_stack.start_stack(self.options)
                    return
            embedded_stack.start_stack(self.options)

    def _pause_member(self, fault: ScheduledFault) -> Callable[[], None]:
        member = self._target_member(fault)
        member.signal(signal.SIGSTOP)
        return lambda: member.signal(signal.SIGCONT)

    def _cut_zookeeper(self, fault: ScheduledFault) -> Callable[[], None]:
        proxy = self.proxies[fault.target]
        proxy.cut()
        return proxy.mend

    def _step_clock(self, fault: ScheduledFault) -> Callable[[], None]:
        path = self._target_member(fault).clock_file
        path.write_text(str(fault.amount), encoding="utf-8")
        return lambda: path.unlink(missing_ok=True)

    def _stop_database(self, fault: ScheduledFault) -> Callable[[], None]:
        """PostgreSQL dies as by a power cut; SQLite is locked by somebody else."""
        if self.postgres:
            self.postgres.crash()
            return self.postgres.start
        locking_connection = sqlite3.connect(
            self.direct.database_url.removeprefix("sqlite:///"),
            timeout=30,
            isolation_level=None,
            check_same_thread=False,
        )
        with suppress(sqlite3.OperationalError):
            locking_connection.execute("BEGIN EXCLUSIVE")
        return locking_connection.close

    def _disturb_s3(self, fault: ScheduledFault) -> Callable[[], None]:
        name = {"s3-errors": "errors", "s3-lost-answers": "lost", "s3-slow": "slow_s"}[fault.kind]
        setattr(self.wire.weather, name, fault.amount)
        return lambda: setattr(self.wire.weather, name, 0.0)

    def end_clients(self) -> None:
        """They have nothing more to say."""
        write_phase(self.home, "end")
        self._stops_tending.set()
        for thread in self._threads:
            thread.join()
        for (role, _), member in self.members.items():
            if role == REPLICA_ROLE:
                member.signal(signal.SIGKILL)
            if role == "client":
                member.exits.append(member.end(60))

    def end_workers(self) -> None:
        """Each drains, and says by its exit code that it did."""
        for (role, _), member in self.members.items():
            if role == "worker":
                member.exits.append(member.end(self.settings.drain_timeout + 30))

    def dump_databases(self) -> None:
        """Write PostgreSQL's databases into the home, as SQL; SQLite's are files there already."""
        if self.postgres:
            self.postgres.start()
            for name in ("soak", REPLICA_ROLE, REBUILT_DATABASE):
                self.postgres.dump(name, self.home / f"{name}.sql")

    def down(self) -> None:
        """End all at once, and remove what it left in memory and on disk but its home."""
        self._stops_tending.set()
        with ExitStack() as cleanups:
            cleanups.callback(self.wire.close)
            for proxy in self.proxies:
                cleanups.callback(proxy.close)
            if self.postgres:
                cleanups.callback(self.postgres.stop)
            cleanups.callback(embedded_stack.kill_stack, self.home)
            cleanups.callback(kill_marked_processes, _MARK_VARIABLE, self.mark)


def kill_marked_processes(variable: str, mark: str) -> None:
    """Kill every process whose environment says that it was started here, and wait until they are gone."""
    killed = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(variable) == mark:
                process.kill()
                killed.append(process)
    psutil.wait_procs(killed, timeout=10)


def create_soak_home() -> Path:
    """An empty folder with a short path, for there are sockets in it."""
    return Path(tempfile.mkdtemp(prefix="sx-", dir="/tmp"))


def remove_soak_home(home: Path) -> None:
    """Of a soak that found nothing."""
    shutil.rmtree(home, ignore_errors=True)


def query_rows(url: str, statement: str) -> list[dict[str, Any]]:
    """Rows of a statement by a connection of its own, by name."""
    if not url.startswith("sqlite"):
        import psycopg  # noqa: PLC0415 - only where it is asked for
        from psycopg.rows import dict_row  # noqa: PLC0415

        with psycopg.connect(url.replace("+psycopg", ""), row_factory=dict_row) as server:
            return server.execute(statement.encode()).fetchall()
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=60)) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(statement)]
