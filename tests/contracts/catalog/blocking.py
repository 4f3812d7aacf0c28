"""Running into a lock that another transaction holds, and seeing that one waits for it."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from sqlalchemy import text

from tests.contracts.catalog.worlds import SqlWorld

_WAITING = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()")


def behind(
    world: SqlWorld, held: Sequence[str], work: Callable[[], object], then: Sequence[str] = ()
) -> object | Exception:
    """What `work` answers if it runs into a transaction that did `held`, and does `then` before it commits."""
    with ThreadPoolExecutor(1) as pool:
        with world.database.engine.connect() as connection, connection.begin():
            for statement in held:
                connection.execute(text(statement))
            future = pool.submit(work)
            try:
                await_blocked(world, future)
            finally:
                for statement in then:
                    connection.execute(text(statement))
        wait([future], timeout=60)
        return future.exception(timeout=0) or future.result(timeout=0)


def await_blocked(world: SqlWorld, future: "Future[Any]", *, waiting: int = 1) -> None:
    """Wait until it waits, and so many in all: PostgreSQL tells, on SQLite it is only seen that it does not end."""
    if world.database.is_sqlite:
        assert not wait([future], timeout=0.05).done
        return
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with world.database.engine.connect() as connection:
            if connection.execute(_WAITING).scalar_one() >= waiting:
                return
        assert not wait([future], timeout=0.005).done, "it should have waited for the lock"
    raise AssertionError("it neither ended nor waited")
