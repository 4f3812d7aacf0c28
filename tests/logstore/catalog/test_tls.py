"""PostgreSQL behind TLS, as `database_url` asks for it: for transactions and for bulk reads alike.

The server that tests run is built without TLS: what ends it stands before it, as a connection pooler does.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import URL, make_url, text

from logstore.catalog import Database
from logstore.catalog.engine.arrow_bulk import open_arrow_reader
from logstore.catalog.engine.database_connections import describe_lost_server
from logstore.catalog.reconciliation import bulk_queries
from logstore.errors import StoreUnavailable
from tests.migrated_catalogs import migrate_or_copy_catalog
from tests.postgres import PostgresServer
from tests.tls_servers import HOST, TlsCertificateAuthority, TlsProxy
from workers.operations.service_checks import _check_catalog_database, run_check_as_row
from workers.settings import Settings

pytestmark = pytest.mark.external_service
_PASSWORD = "hunter2"

At = Callable[..., str]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> TlsCertificateAuthority:
    return TlsCertificateAuthority(tmp_path_factory.mktemp("ca"))


@pytest.fixture
def secured(postgres: PostgresServer, authority: TlsCertificateAuthority) -> Iterator[At]:
    """URLs of a catalog behind mutual TLS, with words of libpq in the place of the right ones."""
    foreign = authority.pair("foreign", "elsewhere.test")
    ours = authority.pair("client", "sexton")
    with postgres.database() as name:
        socket = make_url(postgres.url(name)).query["host"]
        front, other = (
            TlsProxy(f"{socket}/.s.PGSQL.5432", pair, client_ca=authority.ca) for pair in (authority.server(), foreign)
        )
        plain = Database(postgres.url(name))
        migrate_or_copy_catalog(plain)
        plain.close()

        def at(host: str = HOST, *, misnamed: bool = False, **words: str) -> str:
            right = {"sslmode": "verify-full", "sslrootcert": str(authority.ca)}
            given = right | {"sslcert": str(ours.cert), "sslkey": str(ours.key)} | words
            port = int((other if misnamed else front).address.rpartition(":")[2])
            query = {word: value for word, value in given.items() if value}
            return URL.create("postgresql+psycopg", "postgres", _PASSWORD, host, port, name, query).render_as_string(
                hide_password=False
            )

        yield at
        front.close()
        other.close()


def _reads(url: str) -> tuple[bool, int]:
    """By both drivers: whether the connection is encrypted, and how many lists there are."""
    database = Database(url)
    try:
        database.read(lambda found: found.execute(text("SELECT 1")))
        with database.engine.connect() as connection:
            encrypted = bool(connection.connection.driver_connection.pgconn.ssl_in_use)  # type: ignore[union-attr]
    finally:
        database.close()
    with open_arrow_reader(url) as reader:
        return encrypted, reader.table(bulk_queries.select_ledger_lists()).num_rows


def test_catalog_is_reached_by_mutual_tls(secured: At) -> None:
    """By the name in the certificate as well as by the address."""
    assert _reads(secured()) == (True, 0)
    assert _reads(secured("localhost", sslmode="verify-full")) == (True, 0)


def test_database_that_is_not_trusted_or_does_not_trust_us_is_told_without_the_password(
    secured: At, authority: TlsCertificateAuthority, tmp_path: Path
) -> None:
    """Both drivers say it, and so does `doctor`."""
    other = TlsCertificateAuthority(tmp_path)
    gone = str(tmp_path / "gone")
    told = {
        "certificate verify failed": secured(sslrootcert=str(other.ca)),
        "does not match host name": secured(misnamed=True),
        "root certificate file": secured(sslrootcert=gone),
        "private key file": secured(sslkey=gone),
        "no trusted connection": secured(sslcert=gone, sslkey=gone),
    }
    for part, url in told.items():
        with pytest.raises(StoreUnavailable) as refused:
            Database(url).read(lambda found: found.execute(text("SELECT 1")))
        with pytest.raises(StoreUnavailable) as bulk, open_arrow_reader(url):
            pass
        row = run_check_as_row("database", _check_catalog_database, Settings(home=tmp_path, database_url=url))
        for said in (str(refused.value), str(bulk.value), str(row["detail"])):
            assert part in said, said
            assert "no trusted connection to 127.0.0.1:" in said, said
            assert "check sslmode, sslrootcert, sslcert and sslkey in SEXTON_DATABASE_URL" in said, said
            assert _PASSWORD not in said


@pytest.mark.parametrize(
    "said",
    [
        "connection to server failed: SSL SYSCALL error: EOF detected",
        "could not receive data from server: Connection reset by peer",
        "server closed the connection unexpectedly",
    ],
)
def test_database_that_ends_a_connection_by_tls_may_not_trust_us(said: str) -> None:
    """The alert that says so may be lost with the connection; without TLS, or later, it says nothing of trust."""
    url = make_url("postgresql+psycopg://u@db.example/s?sslmode=verify-full")
    assert "no trusted connection to db.example:5432: it ended the connection" in describe_lost_server(
        said, url, was_connected=False
    )
    assert "no trusted" not in describe_lost_server(said, url, was_connected=True)
    assert "no trusted" not in describe_lost_server(said, url.set(query={}), was_connected=False)
