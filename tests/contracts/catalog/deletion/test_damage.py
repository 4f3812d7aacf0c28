"""Rows that a hand, or a disk, has damaged: listed as what they are, never acted on, and no obstacle to others."""

import pytest

from logstore.catalog.log.ledger_inspection import LedgerInspection
from logstore.deletion.intents import DeletionState, Outcome, find_refusal
from logstore.identity.bucket_markers import BucketRole
from logstore.log.ledgers import CopyKind, CopyState
from logstore.ports.catalog.deletion import AuditCause, Claim, IntentResult, IntentRowRange, UndeletedCopyCounts
from logstore.positions import LedgerId, TopicId
from tests.contracts.catalog.steps import filled, listed, new_topic, newborn
from tests.contracts.catalog.worlds import SqlWorld, claim

_ALL = IntentRowRange(first=0, last=2**62, rows=0)
_BROKEN = [
    ("keys", "{not json", "keys"),
    ("keys", "[1, 2]", "keys"),
    ("context", '"a string"', "context"),
    ("context", '{"uuid": ["one", "two"]}', "context"),
    ("context", '{"bucket": {"name": "b"}}', "context"),
    ("copy", "LEGDER", "copy"),
]


def _three(world: SqlWorld) -> list[int]:
    topic = new_topic(world)
    filled(world, topic.topic_id, 4)
    world.phase_one(topic.topic_id, batch_id="b")
    return [one.row_id for one in world.catalog.deletions.list_intents_in_range("b", _ALL)]


def _spoil(world: SqlWorld, row: int, column: str, value: str) -> None:
    cast = "CAST(:value AS json)" if column == "context" and not world.database.is_sqlite else ":value"
    world.sql(f"UPDATE pending_deletion SET {column} = {cast} WHERE row_id = :row", value=value, row=row)


@pytest.mark.postgres
@pytest.mark.parametrize(("column", "value", "named"), _BROKEN)
def test_damaged_row_is_read_as_invalid_beside_its_neighbours(
    sql_world: SqlWorld, column: str, value: str, named: str
) -> None:
    """One bad row in a range neither hides the others nor stops their chunk (YahooArchive/bookkeeper#17)."""
    first, bad, last = _three(sql_world)
    _spoil(sql_world, bad, column, value)
    found = sql_world.catalog.deletions.list_intents_in_range("b", _ALL)
    assert [one.row_id for one in found] == [first, bad, last]
    assert [one.damage is not None for one in found] == [False, True, False]
    refused = find_refusal(found[1])
    assert refused
    assert refused[0] is Outcome.INVALID
    assert refused[1].startswith(f"damaged {named} (found ")
    sql_world.catalog.deletions.record_outcomes(
        [IntentResult(row_id=bad, outcome=refused[0], error=refused[1])], holder="b"
    )
    assert sql_world.catalog.deletions.count_undeleted_copies() == UndeletedCopyCounts(
        estimated_inflight=2, dead_lettered=1
    )


@pytest.mark.postgres
def test_inflight_says_since_when_the_first_unfinished_row_is_filed(sql_world: SqlWorld) -> None:
    """Of rows that have ended it says nothing, however old they are."""
    ended, first, last = _three(sql_world)
    for row, filed_us in ((ended, 10), (first, 20), (last, 30)):
        sql_world.sql("UPDATE pending_deletion SET created_us = :filed WHERE row_id = :row", filed=filed_us, row=row)
    sql_world.catalog.deletions.record_outcomes([IntentResult(row_id=ended, outcome=Outcome.DELETED)], holder="b")
    assert sql_world.catalog.deletions.count_undeleted_copies().oldest_us == 20


def test_context_that_is_no_json_is_read_as_invalid(sqlite_url: str) -> None:
    """Only SQLite stores such a text; PostgreSQL refuses it."""
    world = SqlWorld(sqlite_url)
    _, bad, _ = _three(world)
    _spoil(world, bad, "context", "{not json")
    assert [one.damage is not None for one in world.catalog.deletions.list_intents_in_range("b", _ALL)] == [
        False,
        True,
        False,
    ]
    row = world.catalog.deletions.list_intents(None, limit=9)[1]
    assert world.catalog.deletions.claim_intent(row.ledger_id, row.copy, row.generation, claim("w")).damage
    world.database.close()


@pytest.mark.parametrize("column", ["topic", "component", "copy", "keys", "context", "last_error", "batch_id"])
def test_text_that_is_no_utf_8_stops_no_neighbour(sqlite_url: str, column: str) -> None:
    """A bit that a disk has flipped: the row is listed with what can be read of it, beside the others."""
    world = SqlWorld(sqlite_url)
    first, bad, last = _three(world)
    old = f"CAST(COALESCE({column}, '') AS BLOB)"
    world.sql(f"UPDATE pending_deletion SET {column} = CAST({old} || x'ff' AS TEXT) WHERE row_id = :row", row=bad)
    assert {first, last} <= {one.row_id for one in world.catalog.deletions.list_intents_in_range("b", _ALL)}
    found = {one.row_id: one for one in world.catalog.deletions.list_intents(None, limit=9)}
    assert sorted(found) == [first, bad, last]
    assert "\N{REPLACEMENT CHARACTER}" in repr(found[bad])
    world.database.close()


def test_number_that_is_none_is_read_as_invalid(sqlite_url: str) -> None:
    """Only SQLite keeps it; it stops neither the batch's ranges nor its chunk."""
    world = SqlWorld(sqlite_url)
    first, bad, last = _three(world)
    _spoil(world, bad, "segments", "many")
    assert [part.rows for part in world.catalog.deletions.list_unfinished_ranges("b", after=0, rows=9, limit=9)] == [3]
    found = world.catalog.deletions.list_intents_in_range("b", _ALL)
    assert [(one.row_id, one.damage) for one in found] == [
        (first, None),
        (bad, "segments (found 'many')"),
        (last, None),
    ]
    world.database.close()


@pytest.mark.parametrize("column", ["batch_id", "application", "component", "topic", "ledger_id"])
def test_bytes_that_are_no_text_stop_no_neighbour_and_no_certificate(sqlite_url: str, column: str) -> None:
    """Only SQLite keeps them: the chunk goes on, the listing shows the row, its batch is closed and redriven."""
    world = SqlWorld(sqlite_url)
    first, bad, last = _three(world)
    world.sql(f"UPDATE pending_deletion SET {column} = x'ff' WHERE row_id = :row", row=bad)
    listing = {one.row_id: one for one in world.catalog.deletions.list_intents(None, limit=9)}
    assert sorted(listing) == [first, bad, last]
    refused = find_refusal(listing[bad])
    assert refused
    assert refused[0] is Outcome.INVALID
    assert refused[1].startswith(f"damaged {column} (found ")
    ended = [IntentResult(row_id=row, outcome=Outcome.DELETED) for row in (first, last)]
    world.catalog.deletions.record_outcomes(
        [*ended, IntentResult(row_id=bad, outcome=refused[0], error=refused[1])], holder="b"
    )
    cause = AuditCause(actor="tests", reason="", workflow_id="w")
    assert world.catalog.deletions.close_batch("b", cause).outcomes["DELETED"] == 2
    redriven = world.catalog.upkeep.redrive_dead_letters(None, batch_id="again", claim=claim("w"), cause=cause)
    assert redriven.intents == (0 if column == "batch_id" else 1)
    world.database.close()


def _with_tiered(world: SqlWorld, name: str, context: str) -> tuple[TopicId, LedgerId]:
    """A topic whose first of two ledgers has a tiered copy with this context, that is being written."""
    topic = new_topic(world, name)
    first, _ = filled(world, topic.topic_id, 2)
    world.add_copy(first, CopyState.WRITING)
    world.sql("UPDATE ledger_copy SET context = :context WHERE kind = 'OFFLOADED_LEDGER'", context=context)
    return topic.topic_id, first


@pytest.mark.parametrize("context", ["{not json", "", "[1]", '{"until_us": [1]}', '{"uuid": ["one", "two"]}'])
def test_copy_whose_context_cannot_be_read_stops_no_sweep_and_no_trim(sqlite_url: str, context: str) -> None:
    """Of its own topic or of another: the copy stays for a person to look at, everything else goes on."""
    world = SqlWorld(sqlite_url)
    damaged, kept = _with_tiered(world, "persistent://a/b/damaged", context)
    other = new_topic(world, "persistent://a/b/other")
    first, _ = filled(world, other.topic_id, 2)
    assert world.catalog.upkeep.count_sweep_backlog(older_than_s=60).uploads == 0
    assert world.catalog.upkeep.move_abandoned_work_to_batch(batch_id="sweep", claim=claim("w"), limit=9).intents == 0
    born = newborn(world, other.topic_id)
    world.age(born, seconds=601)
    assert world.catalog.upkeep.move_abandoned_work_to_batch(batch_id="next", claim=claim("w"), limit=9).ledgers == 1
    assert (world.phase_one(damaged).ledgers, world.phase_one(other.topic_id).ledgers) == (0, 1)
    assert kept in listed(world, damaged)
    assert first not in listed(world, other.topic_id)
    assert world.catalog.offloads.list_removable_primaries(damaged, None, after=LedgerId(-1), limit=9) == []
    world.database.close()


@pytest.mark.postgres
@pytest.mark.parametrize("sign", [r"\u0000", r"\ud800", r"\uDC00 \ud83d"])
@pytest.mark.parametrize("name", ["until_us", "comment"])
def test_context_with_an_escape_that_is_no_character_stops_nobody(sql_world: SqlWorld, name: str, sign: str) -> None:
    """PostgreSQL keeps such a text, and fails any statement that takes it apart."""
    world, context = sql_world, f'{{"uuid": "u-1", "bucket": "cold", "{name}": "{sign}"}}'
    topic = new_topic(world)
    first, second, _ = filled(world, topic.topic_id, 3)
    world.add_copy(first, CopyState.WRITING)
    value = ":context" if world.database.is_sqlite else "CAST(:context AS json)"
    world.sql(f"UPDATE ledger_copy SET context = {value} WHERE kind = 'OFFLOADED_LEDGER'", context=context)
    assert world.catalog.upkeep.count_sweep_backlog(older_than_s=60).uploads == 0
    world.age(newborn(world, topic.topic_id), seconds=601)
    assert world.catalog.upkeep.move_abandoned_work_to_batch(batch_id="sweep", claim=claim("w"), limit=9).ledgers == 1
    assert world.phase_one(topic.topic_id).ledgers == 0
    assert {first, second} <= set(listed(world, topic.topic_id))
    world.add_copy(second, CopyState.LIVE, uuid="u-2", bucket="cold")
    world.sql("UPDATE ledger_copy SET state = 'LIVE'")
    found = world.catalog.identities.list_expected_copies(BucketRole.TIERED, "cold", limit=9)
    assert second in {one.intent.ledger_id for one in found}


def test_live_copy_whose_context_is_no_json_hides_no_evidence(sqlite_url: str) -> None:
    """A bucket is adopted by the other copies, as if that one were not."""
    world = SqlWorld(sqlite_url)
    topic, _ = _with_tiered(world, "persistent://a/b/damaged", "{not json")
    *_, last = filled(world, topic, 1)
    world.add_copy(last, CopyState.LIVE, uuid="u-2", bucket="cold")
    world.sql("UPDATE ledger_copy SET state = 'LIVE'")
    found = world.catalog.identities.list_expected_copies(BucketRole.TIERED, "cold", limit=9)
    assert [one.intent.ledger_id for one in found] == [last]
    world.database.close()


@pytest.mark.parametrize("context", ["{not json", '{"uuid": ["one", "two"]}'])
def test_detached_copy_whose_context_cannot_be_read_ends_alone(sqlite_url: str, context: str) -> None:
    """Its row is INVALID beside the ledger's primary copy, which goes; a person can look at it before and after."""
    world = SqlWorld(sqlite_url)
    topic, first = _with_tiered(world, "persistent://a/b/damaged", context)
    world.sql("UPDATE ledger_copy SET state = 'LIVE'")
    found = LedgerInspection(world.database).get_ledger_history(first, max_decisions=9).copies
    assert [copy.intent.damage is not None for copy in found] == [False, True]
    copies = world.catalog.offloads.find_readable_copies(first)
    assert copies
    assert copies.primary
    assert world.phase_one(topic, batch_id="b").intents == 2
    refused = {one.copy: find_refusal(one) for one in world.catalog.deletions.list_intents_in_range("b", _ALL)}
    assert refused[CopyKind.LEDGER] is None
    tiered = refused[CopyKind.OFFLOADED_LEDGER]
    assert tiered
    assert tiered[0] is Outcome.INVALID
    world.database.close()


def test_intent_of_a_copy_that_may_be_the_listed_one_is_refused(sqlite_url: str) -> None:
    """What the list names cannot be read, so nothing of its kind is deleted (promise 1)."""
    world = SqlWorld(sqlite_url)
    topic, first = _with_tiered(world, "persistent://a/b/damaged", "{not json")
    row = _detached(world, topic)
    world.forge(row, first, CopyKind.OFFLOADED_LEDGER, uuid="u-1", bucket="tiered")
    (found,) = world.catalog.deletions.list_intents_in_range("b", _ALL)
    assert found.referenced
    world.database.close()


def _detached(world: SqlWorld, topic: TopicId) -> int:
    """The row of a ledger that is appended to the topic and deleted."""
    third = filled(world, topic, 2)[0]
    world.phase_one(topic, [third], batch_id="b", force=True)
    (row,) = world.catalog.deletions.list_intents_in_range("b", _ALL)
    return row.row_id


def test_row_in_an_unknown_state_is_a_dead_letter_that_says_so(sql_world: SqlWorld) -> None:
    """It is counted, listed with its reason and never acted on; its batch's count speaks of it too."""
    _, bad, _ = _three(sql_world)
    _spoil(sql_world, bad, "state", "PENDNIG")
    deletions = sql_world.catalog.deletions
    found = deletions.list_intents_in_range("b", _ALL)
    assert [one.state for one in found] == [DeletionState.PENDING, DeletionState.DEAD_LETTERED, DeletionState.PENDING]
    assert (found[1].outcome, found[1].last_error) == (Outcome.INVALID, "damaged state (found 'PENDNIG')")
    assert deletions.list_intents(DeletionState.DEAD_LETTERED, limit=9) == [found[1]]
    assert deletions.count_undeleted_copies() == UndeletedCopyCounts(estimated_inflight=2, dead_lettered=1)
    assert deletions.tally_batch("b").outcomes == {"INVALID": 1, "RETRYING": 2}
    taken = deletions.claim_intent(found[1].ledger_id, found[1].copy, found[1].generation, _nobody())
    assert taken.outcome is Outcome.INVALID


@pytest.mark.postgres
def test_row_with_an_unknown_outcome_is_what_its_state_says(sql_world: SqlWorld) -> None:
    """What ended stays ended."""
    gone, dead, _ = _three(sql_world)
    for row, state in ((gone, "DELETED"), (dead, "DEAD_LETTERED")):
        _spoil(sql_world, row, "state", state)
        _spoil(sql_world, row, "outcome", "VANISHED")
    assert sql_world.catalog.deletions.tally_batch("b").outcomes == {"DEAD_LETTERED": 1, "DELETED": 1, "RETRYING": 1}


def _nobody() -> Claim:
    return claim("somebody")
