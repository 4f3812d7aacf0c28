"""`broadcast-transaction`: one transaction is told to the end, however long a participant is away."""

import pytest
from temporalio import activity

from activities.transactions.coordinate_transactions import BroadcastInput
from logstore.ports.catalog.deletion import AuditCause
from logstore.transactions.transaction_ids_and_states import (
    BroadcastState,
    Participant,
    TransactionId,
    TransactionState,
)
from tests.workflows.transactions.parties import Parties, owing, pauses
from tests.workflows.workflow_harness import WorkflowHarness, query_current_details
from workflows.transactions.broadcast_transaction import BroadcastTransaction

_CAUSE = AuditCause(actor="tests", reason="the topic never comes back", workflow_id="")


async def test_broadcast_tries_with_growing_pauses_until_the_participant_is_back(
    house: WorkflowHarness, parties: Parties
) -> None:
    """Twice as long each time, up to a bound; what was told is not told again."""
    txn = parties.decided()
    near, far = parties.topics
    parties.away.add(far.topic_id)
    real = house.world.activities.coordination.tell_owed_participants
    calls: list[BroadcastState] = []

    @activity.defn(name="transactions.tell")
    def tell(request: BroadcastInput) -> BroadcastState:
        if len(calls) == 6:
            parties.away.clear()
        calls.append(real(request))
        return calls[-1]

    async with house.worker(replacements=[tell]):
        handle = await parties.broadcast(txn, pause_s=1.0, most_pause_s=10.0)
        result = await handle.result()
    assert [round(pause) for pause in pauses(house, "transactions.tell")] == [1, 2, 4, 8, 10, 10]
    assert (result.state, result.settled, result.owed_count, result.attempts) == ("COMMITTED", 2, 0, 7)
    assert parties.hows(txn) == ["MARKED", "MARKED"]
    stored = [parties.log.catalog.ledgers.list_ledgers(topic.topic_id)[0].entries for topic in (near, far)]
    assert stored == [2, 2], "a message and one marker"


async def test_retry_signal_ends_the_pause(house: WorkflowHarness, parties: Parties) -> None:
    """Long before it is over."""
    txn = parties.decided()
    parties.away.add(parties.topics[1].topic_id)
    real = house.world.activities.coordination.tell_owed_participants

    @activity.defn(name="transactions.tell")
    def tell(request: BroadcastInput) -> BroadcastState:
        told = real(request)
        parties.away.clear()
        return told

    async with house.worker(replacements=[tell]):
        handle = await parties.broadcast(txn, pause_s=3_600.0, most_pause_s=3_600.0)
        await handle.signal(BroadcastTransaction.retry)
        await handle.result()
    (pause,) = pauses(house, "transactions.tell")
    assert pause < 60


async def test_participant_that_is_resolved_by_hand_ends_it(house: WorkflowHarness, parties: Parties) -> None:
    """The topic stays away."""
    txn = parties.decided(commit=False)
    far = parties.topics[1]
    parties.away.add(far.topic_id)
    async with house.worker():
        handle = await parties.broadcast(txn)
        await owing(handle)
        assert f"{far.name}" in await query_current_details(handle)
        parties.log.catalog.transactions.settle_untold_participant(txn, Participant(far.topic_id), _CAUSE)
        result = await handle.result()
    assert (result.state, result.owed_count) == ("ABORTED", 0)
    assert parties.hows(txn) == ["MARKED", "RESOLVED"]
    assert parties.seen(far) == []


@pytest.mark.parametrize("whole", [False, True], ids=["being deleted", "deleted"])
async def test_participant_that_is_deleted_in_the_middle_counts_as_gone(
    house: WorkflowHarness, parties: Parties, *, whole: bool
) -> None:
    """While it was owed."""
    txn = parties.decided()
    far = parties.topics[1]
    parties.away.add(far.topic_id)
    async with house.worker():
        handle = await parties.broadcast(txn)
        await owing(handle)
        house.world.sql("UPDATE topic SET state = 'DELETING' WHERE topic_id = :id", id=far.topic_id)
        if whole:
            _remove(house, far.topic_id)
        parties.away.clear()
        result = await handle.result()
    assert (result.state, result.settled) == ("COMMITTED", 2)
    assert parties.hows(txn) == ["MARKED", "GONE"]


def _remove(house: WorkflowHarness, topic_id: int) -> None:
    for table in ("segment", "ledger_copy"):
        of = "SELECT l.ledger_id FROM ledger l JOIN ledger_list USING (list_id) WHERE topic_id = :id"
        house.world.sql(f"DELETE FROM {table} WHERE ledger_id IN ({of})", id=topic_id)
    house.world.sql("DELETE FROM buffer_range WHERE topic_id = :id", id=topic_id)
    lists = "SELECT list_id FROM ledger_list WHERE topic_id = :id"
    house.world.sql(f"DELETE FROM ledger WHERE list_id IN ({lists})", id=topic_id)
    for table in ("ledger_list", "topic"):
        house.world.sql(f"DELETE FROM {table} WHERE topic_id = :id", id=topic_id)


async def test_broadcast_of_what_is_final_answers_its_end(house: WorkflowHarness, parties: Parties) -> None:
    """And appends nothing."""
    txn = parties.decided()
    async with house.worker():
        first = await (await parties.broadcast(txn)).result()
        again = await (await parties.broadcast(txn)).result()
    assert (again.state, again.settled, again.owed_count) == (first.state, first.settled, 0)
    (ledger,) = parties.log.catalog.ledgers.list_ledgers(parties.topics[0].topic_id)
    assert ledger.entries == 2


async def test_broadcast_of_an_open_or_unknown_transaction_fails_and_changes_nothing(
    house: WorkflowHarness, parties: Parties
) -> None:
    """By name, at once."""
    txn = parties.begin()
    kind, told = await house.failed(parties.broadcast(txn))
    assert (kind, "OPEN" in told or "open" in told) == ("TransactionNotDecided", True)
    assert (await house.failed(parties.broadcast(TransactionId(9, 9))))[0] == "UnknownObject"
    assert parties.state(txn) is TransactionState.OPEN
