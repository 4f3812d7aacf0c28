"""Rows that a hand, or a disk, has damaged: listed as what they are, never acted on, and no obstacle to others."""

import pytest

from logstore.deletion import DeletionState, Outcome, refusal
from logstore.ports.catalog import Claim, Ended, Inflight, RowRange
from tests.contracts.catalog.steps import filled, new_topic
from tests.contracts.catalog.worlds import SqlWorld, claim

_ALL = RowRange(first=0, last=2**62, rows=0)
_BROKEN = [
    ("keys", "{not json", "keys"),
    ("keys", "[1, 2]", "keys"),
    ("context", '"a string"', "context"),
    ("copy", "LEGDER", "copy"),
]


def _three(world: SqlWorld) -> list[int]:
    topic = new_topic(world)
    filled(world, topic.topic_id, 4)
    world.phase_one(topic.topic_id, batch_id="b")
    return [one.row_id for one in world.catalog.deletions.intents("b", _ALL)]


def _spoil(world: SqlWorld, row: int, column: str, value: str) -> None:
    cast = "CAST(:value AS json)" if column == "context" and not world.database.is_sqlite else ":value"
    world.sql(f"UPDATE pending_deletion SET {column} = {cast} WHERE row_id = :row", value=value, row=row)


@pytest.mark.parametrize(("column", "value", "named"), _BROKEN)
def test_damaged_row_is_read_as_invalid_beside_its_neighbours(
    sql_world: SqlWorld, column: str, value: str, named: str
) -> None:
    """One bad row in a range neither hides the others nor stops their chunk (YahooArchive/bookkeeper#17)."""
    first, bad, last = _three(sql_world)
    _spoil(sql_world, bad, column, value)
    found = sql_world.catalog.deletions.intents("b", _ALL)
    assert [one.row_id for one in found] == [first, bad, last]
    assert [one.damage is not None for one in found] == [False, True, False]
    refused = refusal(found[1])
    assert refused
    assert refused[0] is Outcome.INVALID
    assert refused[1].startswith(f"damaged {named} (found ")
    sql_world.catalog.deletions.finish([Ended(row_id=bad, outcome=refused[0], error=refused[1])], holder="b")
    assert sql_world.catalog.deletions.inflight() == Inflight(estimated_inflight=2, dead_lettered=1)


def test_context_that_is_no_json_is_read_as_invalid(sqlite_url: str) -> None:
    """Only SQLite stores such a text; PostgreSQL refuses it."""
    world = SqlWorld(sqlite_url)
    _, bad, _ = _three(world)
    _spoil(world, bad, "context", "{not json")
    assert [one.damage is not None for one in world.catalog.deletions.intents("b", _ALL)] == [False, True, False]
    row = world.catalog.deletions.list(None, limit=9)[1]
    assert world.catalog.deletions.take(row.ledger_id, row.copy, row.generation, claim("w")).damage
    world.database.close()


def test_row_in_an_unknown_state_is_a_dead_letter_that_says_so(sql_world: SqlWorld) -> None:
    """It is counted, listed with its reason and never acted on; its batch's count speaks of it too."""
    _, bad, _ = _three(sql_world)
    _spoil(sql_world, bad, "state", "PENDNIG")
    deletions = sql_world.catalog.deletions
    found = deletions.intents("b", _ALL)
    assert [one.state for one in found] == [DeletionState.PENDING, DeletionState.DEAD_LETTERED, DeletionState.PENDING]
    assert (found[1].outcome, found[1].last_error) == (Outcome.INVALID, "damaged state (found 'PENDNIG')")
    assert deletions.list(DeletionState.DEAD_LETTERED, limit=9) == [found[1]]
    assert deletions.inflight() == Inflight(estimated_inflight=2, dead_lettered=1)
    assert deletions.tally("b").outcomes == {"INVALID": 1, "RETRYING": 2}
    taken = deletions.take(found[1].ledger_id, found[1].copy, found[1].generation, _nobody())
    assert taken.outcome is Outcome.INVALID


def test_row_with_an_unknown_outcome_is_what_its_state_says(sql_world: SqlWorld) -> None:
    """What ended stays ended."""
    gone, dead, _ = _three(sql_world)
    for row, state in ((gone, "DELETED"), (dead, "DEAD_LETTERED")):
        _spoil(sql_world, row, "state", state)
        _spoil(sql_world, row, "outcome", "VANISHED")
    assert sql_world.catalog.deletions.tally("b").outcomes == {"DEAD_LETTERED": 1, "DELETED": 1, "RETRYING": 1}


def _nobody() -> Claim:
    return claim("somebody")
