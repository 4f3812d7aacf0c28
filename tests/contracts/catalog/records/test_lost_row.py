"""A database that has lost the only row of a table is refused, by the name of the table."""

from collections.abc import Callable

import pytest

from logstore.catalog import Catalog
from logstore.catalog.identity import SqlCatalogIdentity
from logstore.errors import CorruptData
from logstore.positions import LedgerId, TopicId
from tests.contracts.catalog.records.steps import high
from tests.contracts.catalog.steps import new_topic, roll, segment
from tests.contracts.catalog.world import claim
from tests.contracts.catalog.worlds import SqlWorld

pytestmark = pytest.mark.postgres

_CALLS: dict[str, Callable[[SqlWorld], object]] = {
    "known": lambda world: world.catalog.records.read_known_manifest(),
    "state": lambda world: world.catalog.records.read_state(),
    "claim": lambda world: world.catalog.records.claim_record_log(claim()),
    "begin": lambda world: world.catalog.records.add_pending_stamp("stamp"),
    "settle": lambda world: world.catalog.records.settle_manifest(number=1, stamp="stamp", ceilings=high()),
    "create a topic": new_topic,
}


def _read_changes(catalog: Catalog) -> None:
    with catalog.records.read_changes(cursors=True):
        pass


_READS_OF_CATALOG: dict[str, Callable[[Catalog, TopicId, LedgerId], object]] = {
    "known": lambda catalog, *_: catalog.records.read_known_manifest(),
    "state": lambda catalog, *_: catalog.records.read_state(),
    "changes": lambda catalog, *_: _read_changes(catalog),
    "catalog id": lambda catalog, *_: SqlCatalogIdentity(catalog.database).catalog_id(),
    "create a ledger": lambda catalog, topic_id, _: catalog.ledgers.create_ledger(topic_id, application="sexton"),
    "append": lambda catalog, topic_id, ledger_id: catalog.commits.commit_writes([segment(topic_id, ledger_id, 0)]),
    "explain a ledger": lambda catalog, _, ledger_id: catalog.inspection.get_ledger_history(ledger_id, max_decisions=1),
    "plan": lambda catalog, *_: catalog.reconciliation.read_catalog_time_and_ids(),
    "count_bundles": lambda catalog, *_: catalog.fences.count_bundles(),
}


@pytest.mark.parametrize("call", _CALLS)
def test_lost_row_of_the_record_log_is_named(sql_world: SqlWorld, call: str) -> None:
    """The message says how to get a whole catalog."""
    sql_world.sql("DELETE FROM record_log")
    with pytest.raises(CorruptData, match=r"^table record_log: expected 1 row, found none: .*sexton records rebuild"):
        _CALLS[call](sql_world)


@pytest.mark.parametrize("call", _READS_OF_CATALOG)
def test_lost_row_of_the_catalog_is_named(sql_world: SqlWorld, call: str) -> None:
    """Each reader of it says how to get a whole catalog, and no write goes on without it."""
    topic_id = new_topic(sql_world).topic_id
    ledger_id = roll(sql_world, topic_id)
    sql_world.sql("DELETE FROM catalog")
    with pytest.raises(CorruptData, match=r"^table catalog: expected 1 row, found none: .*sexton records rebuild"):
        _READS_OF_CATALOG[call](sql_world.catalog, topic_id, ledger_id)
