"""`offload-ledger` and `offload-topic`: proved copies, nothing forgotten, whatever fails or comes between."""

import asyncio
import hashlib
from functools import partial
from typing import Any

import pytest
from temporalio import activity
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ChildWorkflowError

from activities.offload import PublishCopyInput
from logstore.deletion.intents import DeletionIntent, DeletionState
from logstore.log.ledgers import CopyKind
from logstore.offload.tiered_copy import CopyLengths, data_key, index_key, parse_lengths
from logstore.ports.catalog.offload import OffloadStartOutcome, ReadableCopies
from logstore.positions import LedgerId
from tests.fakes.object_store import Fault, FaultKind, StoreOperation
from tests.workflows.offload.offloading import (
    let_uploads_end,
    losing,
    offload,
    offload_all,
    removing_in_pages,
    take_away,
)
from tests.workflows.workflow_harness import (
    Gate,
    WorkflowHarness,
    assert_eventually,
    failure_type_and_message,
    query_current_details,
)
from workflows.offload import offload_topic
from workflows.offload.job_definitions import (
    OFFLOAD_LEDGER,
    OffloadAsk,
    OffloadLedgerResult,
    OffloadLimits,
    OffloadOutcome,
)
from workflows.offload.offload_ledger import OffloadLedger
from workflows.offload.offload_topic import OffloadTopic

ASK = OffloadAsk(actor="tests", reason="a test")


def put(ledger_id: LedgerId, kind: FaultKind, **more: Any) -> Fault:
    """A fault of one ledger's uploads."""
    end = f"-ledger-{ledger_id}"
    return Fault(operation=StoreOperation.PUT, kind=kind, matches=lambda key: key.endswith(end), **more)


def held(house: WorkflowHarness, ledger_id: LedgerId) -> Gate:
    """Holds the ledger's next upload."""
    gate = Gate()
    house.world.tiered.plan(put(ledger_id, FaultKind.CALL, action=gate.wait))
    return gate


def copies(house: WorkflowHarness, ledger_id: LedgerId) -> tuple[bool, bool]:
    """Whether the primary and the tiered copy are LIVE."""
    found = house.world.catalog.offloads.find_readable_copies(ledger_id) or ReadableCopies(primary=False)
    return found.primary, found.tiered is not None


def intents(house: WorkflowHarness) -> list[DeletionIntent]:
    return house.world.catalog.deletions.list_intents(None, limit=100)


def unnamed(house: WorkflowHarness) -> list[str]:
    """Tiered objects that neither a row nor an unfinished intent names."""
    rows = house.world.sql("SELECT json_extract(context, '$.uuid') FROM ledger_copy WHERE kind = 'OFFLOADED_LEDGER'")
    named = {row[0] for row in rows}
    named |= {one.context.get("uuid") for one in intents(house) if one.state is not DeletionState.DELETED}
    return [key for key in house.world.tiered.keys if key.partition("-ledger-")[0] not in named]


async def test_offload_ledger_answers_with_evidence(house: WorkflowHarness) -> None:
    """Length and SHA-256 of the object that is stored, and both copies LIVE (apache/pulsar#22839)."""
    (ledger,) = house.world.create_readable_ledgers(1)
    async with house.worker():
        handle = await offload(house, ledger)
        result = await handle.result()
        assert "OFFLOADED" in await query_current_details(handle)
        progress = await handle.query(OffloadLedger.progress)
    stored = house.world.tiered.get(f"{result.uuid}-ledger-{ledger}")
    assert stored
    assert (result.outcome, result.entries, result.size_bytes) == (OffloadOutcome.OFFLOADED, 20, len(stored.body))
    assert result.sha256 == hashlib.sha256(stored.body).hexdigest()
    assert copies(house, ledger) == (True, True)
    assert (progress.step, progress.turn, progress.size_bytes) == ("ended", 1, result.size_bytes)
    assert intents(house) == []


async def test_offload_ledger_states_the_lengths_of_what_it_stored(house: WorkflowHarness) -> None:
    """In the offload context: a plan finds by them an object that was cut."""
    (ledger,) = house.world.create_readable_ledgers(1)
    async with house.worker():
        result = await (await offload(house, ledger)).result()
    found = house.world.catalog.offloads.find_readable_copies(ledger)
    data, index = (house.world.tiered.get(name(result.uuid, ledger)) for name in (data_key, index_key))
    assert found
    assert found.tiered
    assert data
    assert index
    assert parse_lengths(found.tiered) == CopyLengths(data_bytes=len(data.body), index_bytes=len(index.body))


async def test_offload_ledger_whose_store_fails_at_first_takes_a_new_uuid(house: WorkflowHarness) -> None:
    """Transient, then success: each failed attempt has an intent, and nothing it sent is without a name."""
    (ledger,) = house.world.create_readable_ledgers(1)
    house.world.tiered.plan(put(ledger, FaultKind.AFTER, times=2))
    result = await house.done(offload(house, ledger))
    assert result.outcome is OffloadOutcome.OFFLOADED
    assert len(house.attempts("offload.upload")) == 3
    failed = {one.context["uuid"] for one in intents(house)}
    assert (len(failed), result.uuid in failed) == (2, False)
    assert unnamed(house) == []


async def test_offload_ledger_whose_upload_leaves_nothing_fails_in_the_end(house: WorkflowHarness) -> None:
    """A store that answers and keeps nothing is no success, however often (apache/pulsar#22839)."""
    (ledger,) = house.world.create_readable_ledgers(1)
    house.world.tiered.plan(put(ledger, FaultKind.LOST, times=3))
    async with house.worker():
        handle = await offload(house, ledger, attempts=3)
        with pytest.raises(WorkflowFailureError) as failed:
            await handle.result()
    assert failure_type_and_message(failed.value)[0] == "UploadUnproven"
    assert copies(house, ledger) == (True, False)
    house.world.acknowledge(ledger)
    assert house.world.detach().ledgers == 1  # what failed does not keep its ledger


async def test_offload_ledger_that_cannot_be_is_refused_at_once(house: WorkflowHarness) -> None:
    """Terminal: an open ledger is not tried again."""
    house.world.create_readable_ledgers(1)
    last = house.world.catalog.ledgers.last_ledger(house.world.topic.topic_id)
    assert last
    assert (await house.failed(offload(house, last.ledger_id)))[0] == "PreconditionFailed"
    assert len(house.attempts("offload.upload")) == 1


async def test_offload_ledger_that_was_deleted_ends_as_gone(house: WorkflowHarness) -> None:
    """Retention came first: no half object is left, and that is no failure (apache/pulsar#13219)."""
    (ledger,) = house.world.create_readable_ledgers(1)
    house.world.detach([ledger])
    result = await house.done(offload(house, ledger))
    assert result == OffloadLedgerResult(outcome=OffloadOutcome.GONE)
    assert house.world.tiered.keys == []


async def test_offload_ledger_that_outlived_its_time_loses_to_a_delete(house: WorkflowHarness) -> None:
    """The loser ends cleanly: its pair has an intent that waits for nothing, and is deleted (apache/pulsar#13219)."""
    (ledger,) = house.world.create_readable_ledgers(1)

    def trim() -> None:
        let_uploads_end(house)
        assert house.world.detach().intents == 2

    async with house.worker(replacements=[losing(house, trim)]):
        result = await (await offload(house, ledger)).result()
        assert result.outcome is OffloadOutcome.GONE
        assert unnamed(house) == []
        certificate = await (await house.trim()).result()
    assert house.world.tiered.keys == []
    assert set(certificate.outcomes) <= {"DELETED", "ALREADY_GONE"}


async def test_offload_ledger_that_lost_to_another_attempt_begins_again(house: WorkflowHarness) -> None:
    """A copy taken away as abandoned while the ledger stays: the next turn succeeds."""
    (ledger,) = house.world.create_readable_ledgers(1)
    house.world.catalog.cursors.create_subscription(house.world.topic.topic_id, "slow", latest=False)

    async with house.worker(replacements=[losing(house, partial(take_away, house))]):
        handle = await offload(house, ledger)
        result = await handle.result()
        assert (await handle.query(OffloadLedger.progress)).turn == 2
    assert result.outcome is OffloadOutcome.OFFLOADED
    assert copies(house, ledger) == (True, True)
    assert unnamed(house) == []


async def test_offload_ledger_that_loses_again_and_again_gives_up(house: WorkflowHarness) -> None:
    """Somebody else is at work on it: let it be."""
    (ledger,) = house.world.create_readable_ledgers(1)

    @activity.defn(name="offload.publish")
    def publish(_: PublishCopyInput) -> OffloadStartOutcome:
        return OffloadStartOutcome.BEGUN

    async with house.worker(replacements=[publish]):
        with pytest.raises(WorkflowFailureError) as failed:
            await (await offload(house, ledger)).result()
    assert failure_type_and_message(failed.value)[0] == "OffloadOvertaken"
    assert len(house.attempts("offload.upload")) == 3


async def test_offload_ledger_cancelled_in_its_upload_gives_the_ledger_back(house: WorkflowHarness) -> None:
    """Its copy is an intent at once, not after the whole time of an upload."""
    (ledger,) = house.world.create_readable_ledgers(1)
    gate = held(house, ledger)
    async with house.run_until_gate(gate, offload(house, ledger)) as handle:
        await handle.cancel()
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        await assert_eventually(lambda: len(intents(house)) == 1)
        gate.open()
    assert (await handle.describe()).status is WorkflowExecutionStatus.CANCELED
    assert copies(house, ledger) == (True, False)
    assert unnamed(house) == []


async def test_offload_topic_copies_every_closed_ledger(house: WorkflowHarness) -> None:
    """Each by a workflow of its own; the open one is left; primary copies stay unless asked for."""
    ledgers = house.world.create_readable_ledgers(3)
    async with house.worker():
        handle = await offload_all(house, ASK)
        result = await handle.result()
        assert "3 ledgers offloaded" in await query_current_details(handle)
    assert (result.offloaded, result.failed, result.removed) == (3, 0, 0)
    assert result.size_bytes == sum(len(house.world.tiered._held[key].body) for key in data_keys(house))
    assert [copies(house, one) for one in ledgers] == [(True, True)] * 3


def data_keys(house: WorkflowHarness) -> list[str]:
    return [key for key in house.world.tiered.keys if not key.endswith("-index")]


async def test_offload_topic_with_delete_primary_leaves_one_copy_of_each(house: WorkflowHarness) -> None:
    """Phase one and two for primary copies alone; the ledgers stay listed, and both acts are audited."""
    ledgers = house.world.create_readable_ledgers(3)
    ask = OffloadAsk(actor="tests", reason="cold", delete_primary=True)
    result = await house.done(offload_all(house, ask))
    assert (result.offloaded, result.removed, result.outcomes) == (3, 3, {"DELETED": 3})
    assert [copies(house, one) for one in ledgers] == [(False, True)] * 3
    assert [house.world.left_of(one) for one in ledgers] == [[]] * 3
    listed = house.world.catalog.ledgers.list_ledgers(house.world.topic.topic_id)
    assert [one.ledger_id for one in listed][:3] == ledgers
    told = house.world.sql("SELECT act, reason FROM audit ORDER BY audit_id")
    assert [tuple(row) for row in told] == [("remove-primaries", "cold"), ("delete-ledgers", "cold")]


async def test_offload_topic_keeps_the_primary_of_what_failed(house: WorkflowHarness) -> None:
    """One bad ledger keeps no other from going on, and its only copy stays (promise 1)."""
    ledgers = house.world.create_readable_ledgers(3)
    house.world.tiered.plan(put(ledgers[1], FaultKind.BEFORE, times=100))
    ask = OffloadAsk(actor="tests", reason="cold", delete_primary=True)
    result = await house.done(offload_all(house, ask, policy=OffloadLimits(attempts=2)))
    assert (result.offloaded, result.failed, result.removed) == (2, 1, 2)
    assert list(result.errors) == [ledgers[1]]
    assert "StoreUnavailable" in result.errors[ledgers[1]]
    assert copies(house, ledgers[1]) == (True, False)
    assert len(house.world.left_of(ledgers[1])) == 3


async def test_offload_topic_never_removes_a_primary_whose_tiered_copy_was_lost(house: WorkflowHarness) -> None:
    """Offloaded in March, lost in May, --delete-primary in June: the last copy stays (promise 1)."""
    ledgers = house.world.create_readable_ledgers(3)
    async with house.worker():
        await (await offload_all(house, ASK)).result()
        lost = next(key for key in house.world.tiered.keys if key.endswith(f"-ledger-{ledgers[1]}"))
        house.world.tiered.delete([lost])
        ask = OffloadAsk(actor="tests", reason="cold", delete_primary=True)
        result = await (await offload_all(house, ask)).result()
    assert (result.removed, result.unproved, list(result.doubts)) == (2, 1, [ledgers[1]])
    assert [len(house.world.left_of(one)) for one in ledgers] == [0, 3, 0]
    assert copies(house, ledgers[1]) == (True, True)


async def test_offload_topic_removes_primaries_page_by_page(house: WorkflowHarness) -> None:
    """Each page is a batch of its own, and a page that was taken by an earlier attempt is looked at again."""
    ledgers = house.world.create_readable_ledgers(5)
    ask = OffloadAsk(actor="tests", reason="cold", delete_primary=True)
    async with house.worker(replacements=[removing_in_pages(house, limit=2)]):
        result = await (await offload_all(house, ask)).result()
    assert (result.offloaded, result.removed, result.outcomes) == (5, 5, {"DELETED": 5})
    assert [house.world.left_of(one) for one in ledgers] == [[]] * 5


@pytest.mark.parametrize(
    ("after", "expected"), [(-1, [1, 2]), (1, [2, 3]), (2, [3]), (3, [])], ids=["first", "next", "last", "none"]
)
def test_page_holds_only_what_is_asked_for_and_not_yet_visited(after: int, expected: list[int]) -> None:
    """At most a page's worth travels, whatever the order of the ids (temporalio/sdk-python#1285)."""
    assert offload_topic._next_ids([3, 1, 2, 3], after, 2) == expected
    assert offload_topic._next_ids(None, after, 2) is None


async def test_offload_topic_of_given_ledgers_leaves_the_others(house: WorkflowHarness) -> None:
    """Copies and primaries alike."""
    ledgers = house.world.create_readable_ledgers(3)
    ask = OffloadAsk(actor="tests", reason="cold", ledger_ids=[ledgers[1]], delete_primary=True)
    result = await house.done(offload_all(house, ask))
    assert (result.offloaded, result.removed) == (1, 1)
    assert [copies(house, one) for one in ledgers] == [(True, False), (False, True), (True, False)]


async def test_offload_topic_counts_ledgers_that_are_gone_and_does_the_rest(house: WorkflowHarness) -> None:
    """Detached between the ask and its turn, on whichever page: nobody else's ask suffers from it."""
    ledgers = house.world.create_readable_ledgers(2)
    asked = OffloadAsk(actor="tests", reason="", ledger_ids=[1, ledgers[0], *range(10**9, 10**9 + 60)])
    result = await house.done(offload_all(house, asked, ASK))
    assert (result.offloaded, result.gone, result.refused) == (2, 61, 0)
    assert len(house.attempts("offload.candidates")) == 4  # two pages of the first ask, and the last one finds nothing


async def test_offload_topic_whose_one_ask_is_refused_does_the_others(house: WorkflowHarness) -> None:
    """An open ledger cannot be offloaded; the result says so, and what others asked for is done."""
    ledgers = house.world.create_readable_ledgers(2)
    last = house.world.catalog.ledgers.last_ledger(house.world.topic.topic_id)
    assert last
    bad = OffloadAsk(actor="tests", reason="", ledger_ids=[last.ledger_id], delete_primary=True)
    result = await house.done(offload_all(house, bad, ASK))
    assert (result.offloaded, result.removed, result.refused) == (2, 0, 1)
    assert result.refusals[0].startswith("PreconditionFailed: ")
    assert [copies(house, one) for one in ledgers] == [(True, True)] * 2


async def test_offload_topic_refuses_asks_that_it_could_not_carry(house: WorkflowHarness) -> None:
    """What waits stays far below the limit of a payload, and who is refused is told (temporalio/sdk-python#1285)."""
    ledgers = house.world.create_readable_ledgers(1)
    many = OffloadAsk(actor="somebody", reason="", ledger_ids=[ledgers[0], *range(10**18, 10**18 + 3_999)])
    handle = await offload_all(house, many)
    for ask in (many, OffloadAsk(actor="a", reason="", ledger_ids=many.ledger_ids), many):
        await handle.signal(OffloadTopic.ask, ask)
    async with house.worker():
        progress = await handle.query(OffloadTopic.progress)
        await handle.cancel()
        with pytest.raises(WorkflowFailureError):
            await handle.result()
    assert progress.refused == 3
    assert "somebody" in progress.refusals[0]


async def test_offload_topic_counts_a_child_that_was_cancelled_as_failed(house: WorkflowHarness) -> None:
    """Somebody cancels the offload of one ledger: the topic's goes on."""
    ledgers = house.world.create_readable_ledgers(2)
    gate = held(house, ledgers[0])
    async with house.run_until_gate(gate, offload_all(house, ASK)) as handle:
        await house.client.get_workflow_handle(OFFLOAD_LEDGER.id(ledgers[0])).cancel()
        result = await handle.result()
        gate.open()
    assert (result.offloaded, result.failed, list(result.errors)) == (1, 1, [ledgers[0]])
    assert copies(house, ledgers[1]) == (True, True)


async def test_offload_topic_asked_twice_does_both(house: WorkflowHarness) -> None:
    """A duplicate start joins, and what it asks for is not swallowed: first without, then with the removal."""
    ledgers = house.world.create_readable_ledgers(2)
    gate = held(house, ledgers[0])
    async with house.run_until_gate(gate, offload_all(house, ASK)) as first:
        second = await offload_all(house, OffloadAsk(actor="tests", reason="then", delete_primary=True))
        assert second.first_execution_run_id == first.first_execution_run_id
        gate.open()
        result = await first.result()
    assert (result.offloaded, result.removed) == (2, 2)


async def test_offload_topic_of_many_ledgers_continues_as_new(house: WorkflowHarness) -> None:
    """Totals, what is still to be asked and the place reached are carried over; each ledger is counted once."""
    house.world.create_readable_ledgers(24)  # some 8 events each: the server suggests it from 100 on
    ask = OffloadAsk(actor="tests", reason="", delete_primary=True)
    async with house.worker():
        handle = await offload_all(house, ASK, ask)
        result = await handle.result()
        last = (await handle.describe()).run_id
    assert (result.offloaded, result.already, result.removed) == (24, 0, 24)
    assert last != handle.result_run_id


async def test_offload_topic_leaves_a_ledger_that_another_works_on(house: WorkflowHarness) -> None:
    """Counted as running, and the rest goes on."""
    ledgers = house.world.create_readable_ledgers(2)
    gate = held(house, ledgers[0])
    async with house.run_until_gate(gate, offload(house, ledgers[0])) as alone:
        result = await (await offload_all(house, ASK)).result()
        gate.open()
        assert (await alone.result()).outcome is OffloadOutcome.OFFLOADED
    assert (result.offloaded, result.running) == (1, 1)


async def test_offload_topic_cancelled_gives_up_what_is_under_way(house: WorkflowHarness) -> None:
    """Ledgers that are done stay done; the upload under way is an intent."""
    ledgers = house.world.create_readable_ledgers(2)
    gate = held(house, ledgers[1])
    async with house.worker():
        handle = await offload_all(house, ASK)
        await assert_eventually(lambda: gate.reached.is_set() and copies(house, ledgers[0]) == (True, True))
        await handle.cancel()
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        await assert_eventually(lambda: len(intents(house)) == 1)
        gate.open()
    assert copies(house, ledgers[1]) == (True, False)
    assert unnamed(house) == []


async def test_trims_deletes_and_offloads_of_one_topic_at_once_forget_nothing(house: WorkflowHarness) -> None:
    """However they race, every tiered object has a name, and what is listed has a copy (promises 1 and 2)."""
    ledgers = house.world.create_readable_ledgers(6)
    async with house.worker():
        jobs: list[WorkflowHandle[Any, Any]] = [
            await offload_all(house, OffloadAsk(actor="tests", reason="", delete_primary=True)),
            await house.delete(ledgers[4:5]),
            await house.trim(),
        ]
        ended = await asyncio.gather(*(job.result() for job in jobs), return_exceptions=True)
        assert not [one for one in ended if isinstance(one, ChildWorkflowError)]
        await (await house.trim()).result()
    assert unnamed(house) == []
    listed = house.world.catalog.ledgers.list_ledgers(house.world.topic.topic_id)
    assert all(one.copies for one in listed)
    for one in listed:
        if CopyKind.LEDGER in one.copies:
            assert house.world.left_of(one.ledger_id)
