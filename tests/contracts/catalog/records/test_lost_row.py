"""A database that has lost the only row of a table is refused, by the name of the table."""

from collections.abc import Callable

import pytest

from logstore.errors import CorruptData
from tests.contracts.catalog.records.steps import high
from tests.contracts.catalog.steps import new_topic
from tests.contracts.catalog.world import claim
from tests.contracts.catalog.worlds import SqlWorld

pytestmark = pytest.mark.postgres

_CALLS: dict[str, Callable[[SqlWorld], object]] = {
    "known": lambda world: world.catalog.records.known(),
    "state": lambda world: world.catalog.records.state(),
    "claim": lambda world: world.catalog.records.claim(claim()),
    "begin": lambda world: world.catalog.records.begin("stamp"),
    "settle": lambda world: world.catalog.records.settle(number=1, stamp="stamp", ceilings=high()),
    "create a topic": new_topic,
}


@pytest.mark.parametrize("call", _CALLS)
def test_lost_row_of_the_record_log_is_named(sql_world: SqlWorld, call: str) -> None:
    """The message says how to get a whole catalog."""
    sql_world.sql("DELETE FROM record_log")
    with pytest.raises(CorruptData, match=r"^table record_log: expected 1 row, found none: .*sexton records rebuild"):
        _CALLS[call](sql_world)


@pytest.mark.parametrize("call", ["known", "state"])
def test_lost_row_of_the_catalog_is_named(sql_world: SqlWorld, call: str) -> None:
    """It is read with that of the record log."""
    sql_world.sql("DELETE FROM catalog")
    with pytest.raises(CorruptData, match=r"^table catalog: expected 1 row, found none: "):
        _CALLS[call](sql_world)
