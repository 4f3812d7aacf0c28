"""The database's clock within a statement."""

from sqlalchemy import BigInteger
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement


class Clock(FunctionElement[int]):
    """Microseconds since 1970 by the database's clock; SQLite's tells milliseconds. See `Database.now_us`."""

    type = BigInteger()
    inherit_cache = True


@compiles(Clock)
def _of_a_server(*_: object, **__: object) -> str:
    return "CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS BIGINT)"


@compiles(Clock, "sqlite")
def _of_this_machine(*_: object, **__: object) -> str:
    return "CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000"
