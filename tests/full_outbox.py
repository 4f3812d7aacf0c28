"""Every record of a catalog in its outbox once more: what a flush then takes is the whole catalog."""

from sqlalchemy import Connection

from logstore.catalog.engine.dialect_sql import DatabaseClock
from logstore.catalog.records.outbox_rows import SOURCES


def put_all_records_into_outbox(connection: Connection) -> None:
    """Insert an outbox row for each record."""
    clock = DatabaseClock().compile(dialect=connection.dialect)
    for kind, source in SOURCES.items():
        sub = source.sub or "''"
        sub_as_text = f"CAST({sub} AS TEXT)" if source.number else sub
        connection.exec_driver_sql(
            "INSERT INTO record_outbox (kind, id, sub, at_us)"
            f" SELECT '{kind.value}', {source.id}, {sub_as_text}, {clock} FROM \"{source.table}\""
        )
