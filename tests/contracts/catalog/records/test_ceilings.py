"""Ids end below the ceilings of the newest manifest, so that a rebuilt catalog gives none of them out again."""

import pytest

from logstore.errors import IdsExhausted
from logstore.ports.catalog.log import BeginTransactionWrite
from logstore.records.manifest import IdCeilings
from tests.contracts.catalog.records.steps import high
from tests.contracts.catalog.steps import NAME, new_topic, newborn
from tests.contracts.catalog.worlds import SqlWorld

pytestmark = pytest.mark.postgres


def _lower(world: SqlWorld, column: str, ceiling: int) -> None:
    world.sql(f"UPDATE record_log SET {column} = :ceiling", ceiling=ceiling)


def test_ledger_at_the_ceiling_is_refused_until_a_manifest_raises_it(sql_world: SqlWorld) -> None:
    """Nothing is taken by who is refused."""
    topic_id = new_topic(sql_world).topic_id
    _lower(sql_world, "ledger_ceiling", 2)
    assert [newborn(sql_world, topic_id), newborn(sql_world, topic_id)] == [0, 1]
    for _ in range(2):
        with pytest.raises(IdsExhausted, match="flush the record log"):
            newborn(sql_world, topic_id)
    sql_world.catalog.records.settle_manifest(number=1, stamp="s", ceilings=high())
    assert newborn(sql_world, topic_id) == 2


def test_topic_at_the_ceiling_is_refused_until_a_manifest_raises_it(sql_world: SqlWorld) -> None:
    """Its name stays free."""
    _lower(sql_world, "topic_ceiling", 2)
    assert new_topic(sql_world).topic_id == 1
    with pytest.raises(IdsExhausted, match="topic ids: expected one below 2, found 2; flush the record log"):
        new_topic(sql_world, f"{NAME}-2")
    sql_world.catalog.records.settle_manifest(number=1, stamp="s", ceilings=high())
    assert new_topic(sql_world, f"{NAME}-2").topic_id >= 2


def test_transactions_at_the_ceiling_are_refused_until_a_manifest_raises_it(sql_world: SqlWorld) -> None:
    """All that are begun together fit, or none is begun."""
    _lower(sql_world, "transaction_ceiling", 3)
    begin = BeginTransactionWrite(tc_id=0, timeout_s=60)
    assert len(sql_world.catalog.commits.commit_writes([begin, begin])) == 2
    with pytest.raises(IdsExhausted, match="coordinator 0: expected 2 ids below the ceiling"):
        sql_world.catalog.commits.commit_writes([begin, begin])
    assert len(sql_world.catalog.commits.commit_writes([begin])) == 1
    sql_world.catalog.records.settle_manifest(number=1, stamp="s", ceilings=high())
    assert len(sql_world.catalog.commits.commit_writes([begin, begin])) == 2


def test_ceilings_never_fall(sql_world: SqlWorld) -> None:
    """Ids below them are given out already."""
    records = sql_world.catalog.records
    records.settle_manifest(number=1, stamp="s", ceilings=high())
    records.settle_manifest(number=2, stamp="t", ceilings=IdCeilings(ledger=1, topic=1, transaction=1))
    assert records.read_state().ceilings == high()
