"""What is not the catalog's fault: no disk, no server, no such place; each in one clear sentence."""

import os
import sqlite3
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Connection, event, text

from logstore.catalog import Catalog, Database, mask_passwords, migrate_catalog
from logstore.deletion.retention import RetentionPolicy
from logstore.errors import InvalidInput, OutcomeUnknown, ServiceFailed, SextonError, StoreUnavailable
from tests.all_topics import list_all_topics
from tests.migrated_catalogs import migrate_or_copy_catalog
from tests.postgres import PostgresServer

Connect = Callable[..., Database]


def _one(connection: Connection) -> int:
    return int(connection.execute(text("SELECT 1")).scalar_one())


def _bump(connection: Connection) -> None:
    connection.execute(text("UPDATE catalog SET next_ledger_id = next_ledger_id + 1"))


def _count(database: Database) -> int:
    return database.read(lambda c: int(c.execute(text("SELECT next_ledger_id FROM catalog")).scalar_one()))


def _sentence(error: BaseException) -> str:
    shown = str(error)
    assert shown
    assert "\n" not in shown
    assert "sqlalche.me" not in shown
    return shown


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:hunter2@db/x",
        "postgresql+psycopg2://me:hunter2@db/x",
        "mysql://me:hunter2@db/x",
        "postgresql+psycopg//me:hunter2@db/x",
        "postgresql+psycopg://me:hunter2@db:port/x",
        "sqlite://me:hunter2@host/path",
        "me:hunter2@db",
        "postgresql://db/x?password=hunter2",
        "postgresql+psycopg://me:hun/ter2:hunter2@db:nine/x",
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:///file:x.db?mode=ro&uri=true",
        "",
    ],
)
def test_database_bad_url_is_invalid_input_and_shows_no_password(url: str) -> None:
    """The message helps, and nothing that is logged, traceback included, gives the password away."""
    with pytest.raises(InvalidInput, match="database_url: expected sqlite:///PATH or postgresql") as caught:
        Database(url)
    _sentence(caught.value)
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in "".join(traceback.format_exception_only(caught.value))
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["fifo", "device"])
def test_sqlite_in_a_fifo_or_a_device_is_refused_without_being_opened(
    tmp_path: Path, make: Callable[[Path], object]
) -> None:
    """SQLite would wait for the first bytes of a FIFO without end."""
    make(tmp_path / "catalog.db")
    with pytest.raises(InvalidInput, match="database_url: expected SQLite in a regular file"):
        Database(f"sqlite:///{tmp_path / 'catalog.db'}")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql+psycopg://u:pa/ss@h/db", "postgresql+psycopg://u:***@h/db"),
        ("postgresql+psycopg://u:p@ss@h/db", "postgresql+psycopg://u:***@h/db"),
        ("postgresql+psycopg://u@h:p?:x@h:1/db?a=b@c", "postgresql+psycopg://u@h:***@h:1/db?a=b@c"),
        ("postgresql+psycopg:/u:pw@h/db", "postgresql+psycopg:/u:***@h/db"),
        ("u:pw@h/db", "u:***@h/db"),
        (
            "postgresql+psycopg://h:5432/db?sslpassword=pw&user=u",
            "postgresql+psycopg://h:5432/db?sslpassword=***&user=u",
        ),
        ("postgresql+psycopg://h/db?oauth_client_secret=pw", "postgresql+psycopg://h/db?oauth_client_secret=***"),
        ("sqlite:////home/me@corp/x:1.db", "sqlite:////home/me@corp/x:1.db"),
    ],
)
def test_url_is_shown_without_its_password_whatever_signs_are_in_it(url: str, shown: str) -> None:
    """Signs that should have been encoded, and words of libpq that hold secrets; nothing else is hidden."""
    assert mask_passwords(url) == shown


def test_sqlite_folder_that_cannot_be_made_is_invalid_input(tmp_path: Path) -> None:
    """A file stands where a folder should be."""
    (tmp_path / "taken").write_text("")
    with pytest.raises(InvalidInput, match="a file in a folder that can be made") as caught:
        migrate_catalog(Database(f"sqlite:///{tmp_path}/taken/deeper/catalog.db"))
    _sentence(caught.value)


def test_sqlite_path_that_is_a_folder_is_store_unavailable(tmp_path: Path, connect: Connect) -> None:
    """It cannot be opened now; somebody may clear the place."""
    with pytest.raises(StoreUnavailable, match=r"cannot be opened: it is a folder; correct SEXTON_") as caught:
        migrate_catalog(connect(f"sqlite:///{tmp_path}"))
    _sentence(caught.value)


def test_sqlite_file_that_is_no_database_is_named_and_left_as_it_is(tmp_path: Path, connect: Connect) -> None:
    """Nothing is written over it."""
    path = tmp_path / "catalog.db"
    path.write_bytes(b"these are not the pages you are looking for" * 100)
    with pytest.raises(ServiceFailed, match=f"database: {path} is no SQLite database; correct") as caught:
        migrate_catalog(connect(f"sqlite:///{path}"))
    _sentence(caught.value)
    assert path.read_bytes().startswith(b"these are not")


@pytest.mark.parametrize(("pragma", "problem"), [("max_page_count=1", "disk is full"), ("query_only=1", "read only")])
def test_sqlite_that_cannot_write_is_store_unavailable_and_recovers(
    sqlite_url: str, connect: Connect, pragma: str, problem: str
) -> None:
    """A full or read-only disk: nothing happened, reading goes on, and so does writing once there is room."""
    healthy, poor = connect(sqlite_url), connect(sqlite_url)
    migrate_or_copy_catalog(healthy)

    @event.listens_for(poor.engine, "connect")
    def limit(connection: sqlite3.Connection, _: object) -> None:
        connection.execute(f"PRAGMA {pragma}")

    def grow(connection: Connection) -> None:
        row = {"name": "persistent://a/b/" + "x" * 100_000}
        connection.execute(
            text("INSERT INTO topic (name, state, retention_s, created_us) VALUES (:name, 'ACTIVE', 0, 0)"), row
        )

    with pytest.raises(StoreUnavailable, match=problem) as caught:
        poor.write(grow)
    _sentence(caught.value)
    assert list_all_topics(Catalog(poor).topics) == []
    healthy.write(grow)
    assert len(list_all_topics(Catalog(poor).topics)) == 1


def test_write_that_dies_while_committing_is_rolled_back(url: str, connect: Connect) -> None:
    """A connection whose commit was cut off is not handed out again with its transaction open."""
    database = connect(url, pool_size=1)
    migrate_or_copy_catalog(database)
    armed = [True]

    @event.listens_for(database.engine, "commit")
    def die(_: Connection) -> None:
        if armed.pop() if armed else False:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        database.write(_bump)
    assert _count(database) == 0
    database.write(_bump)
    assert _count(database) == 1


def test_bug_in_sql_stays_what_it_is(url: str, connect: Connect) -> None:
    """Wrong SQL is not taken for a service that is away, which would be retried for ever."""
    database = connect(url)
    database.create_folder()
    with pytest.raises(Exception, match="no_such_table") as caught:
        database.read(lambda connection: connection.execute(text("SELECT * FROM no_such_table")))
    assert not isinstance(caught.value, SextonError)


@pytest.mark.parametrize(
    "place", ["postgresql+psycopg://me:hunter2@127.0.0.1:1/x", "postgresql+psycopg://me:hunter2@/x?host=/nowhere"]
)
def test_postgres_unreachable_is_store_unavailable(place: str, connect: Connect) -> None:
    """Nobody there: one sentence, without the password."""
    with pytest.raises(StoreUnavailable, match=r"no PostgreSQL answers at (127.0.0.1:1|/nowhere:5432);") as caught:
        connect(place).read(_one)
    assert "hunter2" not in _sentence(caught.value)


@pytest.mark.external_service
def test_postgres_unknown_database_is_store_unavailable(postgres: PostgresServer, connect: Connect) -> None:
    """A server without our database."""
    with pytest.raises(StoreUnavailable, match="there is no database no_such_database at ") as caught:
        connect(postgres.url("no_such_database")).read(_one)
    _sentence(caught.value)


def _kill(postgres: PostgresServer, connection: Connection) -> None:
    backend = connection.connection.driver_connection.info.backend_pid  # type: ignore[union-attr]  # psycopg's own
    postgres.execute(f"SELECT pg_terminate_backend({backend}, 10000)")


@pytest.fixture
def served(postgres_url: str, connect: Connect) -> Database:
    """A catalog on PostgreSQL."""
    database = connect(postgres_url)
    migrate_or_copy_catalog(database)
    return database


@pytest.mark.external_service
def test_postgres_connection_lost_while_idle_goes_unnoticed(postgres: PostgresServer, served: Database) -> None:
    """A connection that died in the pool is replaced: nothing was under way, so nobody needs to know."""
    for _ in range(3):
        with served.engine.connect() as connection:
            _kill(postgres, connection)
        served.write(_bump)
    assert _count(served) == 3


@pytest.mark.external_service
def test_postgres_connection_lost_in_the_middle_is_retried_once(postgres: PostgresServer, served: Database) -> None:
    """Before its commit a transaction has done nothing: it is run again, and its effect is there once."""
    runs: list[int] = []

    def work(connection: Connection) -> None:
        _bump(connection)
        runs.append(1)
        if len(runs) == 1:
            _kill(postgres, connection)
            _bump(connection)

    served.write(work)
    assert (len(runs), _count(served)) == (2, 1)


@pytest.mark.external_service
def test_postgres_connection_lost_every_time_is_store_unavailable(postgres: PostgresServer, served: Database) -> None:
    """The second loss is told, and nothing happened."""

    def work(connection: Connection) -> None:
        _bump(connection)
        _kill(postgres, connection)
        _bump(connection)

    with pytest.raises(StoreUnavailable) as caught:
        served.write(work)
    _sentence(caught.value)
    assert _count(served) == 0


@pytest.mark.external_service
def test_postgres_connection_lost_while_committing_is_outcome_unknown(
    postgres: PostgresServer, served: Database
) -> None:
    """Nobody can tell whether it landed: the caller re-reads, and the next call works."""
    armed = [True]

    @event.listens_for(served.engine, "commit")
    def lose(connection: Connection) -> None:
        if armed:
            armed.clear()
            _kill(postgres, connection)

    with pytest.raises(OutcomeUnknown, match="while committing") as caught:
        served.write(_bump)
    _sentence(caught.value)
    assert _count(served) == 0
    served.write(_bump)
    assert _count(served) == 1


@pytest.mark.external_service
def test_postgres_killed_and_back_serves_what_was_committed(own_postgres: PostgresServer, connect: Connect) -> None:
    """While it is down everything is StoreUnavailable; when it is back the same catalog goes on."""
    database = connect(own_postgres.url("postgres"))
    migrate_or_copy_catalog(database)
    catalog = Catalog(database)
    topic = catalog.topics.create_topic("persistent://a/b/c", RetentionPolicy())
    own_postgres.crash()
    try:
        for ask in (
            lambda: list_all_topics(catalog.topics),
            lambda: catalog.ledgers.create_ledger(topic.topic_id, application="sexton"),
        ):
            with pytest.raises(StoreUnavailable) as caught:
                ask()
            _sentence(caught.value)
    finally:
        own_postgres.start()
    assert list_all_topics(catalog.topics) == [topic]
    assert catalog.ledgers.create_ledger(topic.topic_id, application="sexton").ledger_id == 0


def test_number_that_no_database_holds_is_invalid_input(url: str, connect: Connect) -> None:
    """SQLite's driver and PostgreSQL refuse it each in their own way; the caller reads one sentence, and no bug."""
    database = connect(url)
    migrate_or_copy_catalog(database)

    def store(connection: Connection) -> None:
        connection.execute(text("UPDATE catalog SET next_ledger_id = :number"), {"number": 2**70})

    with pytest.raises(InvalidInput, match="value: expected") as caught:
        database.write(store)
    _sentence(caught.value)
    assert _count(database) == 0
    database.write(_bump)
    assert _count(database) == 1


@pytest.mark.external_service
def test_text_that_postgres_cannot_hold_is_invalid_input(served: Database) -> None:
    """A character 0 in a name is bad input, not a database that is away: asking again would not help."""
    with pytest.raises(InvalidInput, match="one that the catalog can hold") as caught:
        Catalog(served).topics.create_topic("persistent://a/b/\x00", RetentionPolicy())
    _sentence(caught.value)
    assert list_all_topics(Catalog(served).topics) == []
