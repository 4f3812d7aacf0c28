"""The suite's own economy: no engine compiles what an earlier one has compiled."""

from collections.abc import Callable

from sqlalchemy import Connection, select

from logstore.catalog import Database, migrate_catalog, tables

Connect = Callable[..., Database]


def test_engine_knows_what_an_earlier_one_compiled(url: str, connect: Connect) -> None:
    """Tests make thousands of engines; if each compiled its own statements, half of their time would be that."""
    migrate_catalog(connect(url))
    statement = select(tables.catalog.c.epoch)

    def was_known(connection: Connection) -> str:
        return connection.execute(statement).context.cache_hit.name

    connect(url).read(was_known)
    assert connect(url).read(was_known) == "CACHE_HIT"
