"""Every record of a catalog in its outbox once more: what a flush then takes is the whole catalog."""

from sqlalchemy import Connection

from logstore.catalog.engine.dialect_sql import DatabaseClock
from logstore.catalog.records.recorded_tables import RECORDED_TABLES


def put_all_records_into_outbox(connection: Connection) -> None:
    """Insert an outbox row for each record."""
    clock = DatabaseClock().compile(dialect=connection.dialect)
    for kind, recorded in RECORDED_TABLES.items():
        sub = recorded.sub or "''"
        sub_as_text = f"CAST({sub} AS TEXT)" if recorded.has_integer_sub else sub
        connection.exec_driver_sql(
            "INSERT INTO record_outbox (kind, id, sub, at_us)"
            f" SELECT '{kind.value}', {recorded.id}, {sub_as_text}, {clock} FROM \"{recorded.table}\""
        )
