"""Phase two: no object goes before the record log knows of the deletion."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from temporalio.exceptions import ApplicationError

from logstore.deletion.intents import DeleteIntentResult, Outcome
from logstore.errors import StoreUnavailable, Unsupported
from logstore.positions import LedgerId
from logstore.records.manifest import MANIFEST_PREFIX
from tests.activities.activity_world import (
    World,
    make_chunk_input,
    make_delete_intent_input,
    open_activity_world,
    run,
    run_owner_routed_activity,
)
from tests.activities.test_offload import offloaded, remove_primaries
from tests.fakes.object_store import Fault, FaultKind, StoreOperation


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A fresh catalog and empty buckets."""
    found = open_activity_world(tmp_path)
    with found.opened:
        yield found


def _detach(world: World, ledger: LedgerId, policy: str | None) -> None:
    run_owner_routed_activity(
        world.deletion.detach, world.make_detach_input([ledger], force=True, durable_delete=policy)
    )


def _manifests(world: World) -> int:
    return sum(key.startswith(MANIFEST_PREFIX) for key in world.record_objects.keys)


def _record_log_down(world: World, *, times: int = 1_000) -> None:
    world.record_objects.plan(Fault(operation=StoreOperation.PUT, kind=FaultKind.BEFORE, times=times))


def test_chunk_of_durable_deletes_flushes_their_tombstones_first(world: World) -> None:
    """A catalog that is rebuilt right after it knows that they are gone."""
    (ledger,) = world.fill(1)
    _detach(world, ledger, "durable")
    assert world.catalog.records.find_unflushed_ledgers([ledger]) == {ledger}
    assert run_owner_routed_activity(world.deletion.delete_chunk, make_chunk_input()).outcomes == {"DELETED": 1}
    assert (_manifests(world), world.left_of(ledger)) == (1, [])


@pytest.mark.parametrize("by", ["command", "retention"])
def test_chunk_of_plain_deletes_flushes_their_intents_first(world: World, by: str) -> None:
    """A catalog that is rebuilt would list a ledger half of whose objects are gone, as if data were lost."""
    (ledger,) = world.fill(1)
    if by == "command":
        _detach(world, ledger, "plain")
    else:
        world.detach()
    assert world.catalog.records.find_unflushed_ledgers([ledger]) == {ledger}
    assert run_owner_routed_activity(world.deletion.delete_chunk, make_chunk_input()).outcomes == {"DELETED": 1}
    assert (_manifests(world), world.left_of(ledger)) == (1, [])


def test_chunk_whose_intents_are_in_the_log_flushes_nothing(world: World) -> None:
    """As those of a retry are, or those that the flusher came to first."""
    (ledger,) = world.fill(1)
    _detach(world, ledger, "plain")
    world.log.records.flusher.flush()
    assert run_owner_routed_activity(world.deletion.delete_chunk, make_chunk_input()).outcomes == {"DELETED": 1}
    assert _manifests(world) == 1


@pytest.mark.parametrize("policy", ["durable", "plain"])
def test_chunk_keeps_objects_whose_deletion_cannot_be_flushed(world: World, policy: str) -> None:
    """The record log is down: the chunk fails as a whole, and is tried again."""
    (ledger,) = world.fill(1)
    before = world.left_of(ledger)
    _detach(world, ledger, policy)
    _record_log_down(world)
    with pytest.raises(StoreUnavailable, match="the record log must know of the deletion first"):
        run(world.deletion.delete_chunk, make_chunk_input())
    assert world.left_of(ledger) == before
    assert world.outcomes() == {"RETRYING": 1}


def test_chunk_deletes_what_the_log_knows_of_beside_what_waits(world: World) -> None:
    """Those are handed over, and the others are gone."""
    first, second = world.fill(2)
    run_owner_routed_activity(
        world.deletion.detach,
        world.make_detach_input([second], batch_id="plain", force=True, durable_delete="plain"),
    )
    world.log.records.flusher.flush()
    _detach(world, first, "durable")
    world.sql("UPDATE pending_deletion SET batch_id = 'batch-1'")
    _record_log_down(world)
    result = run_owner_routed_activity(world.deletion.delete_chunk, make_chunk_input())
    assert result.outcomes == {"DELETED": 1, "RETRYING": 1}
    assert [key.ledger_id for key in result.alone] == [first]
    assert world.left_of(first)
    assert not world.left_of(second)


def test_primary_copy_stays_until_its_ledgers_tiered_copy_is_in_the_record_log(world: World) -> None:
    """A catalog that is rebuilt would look for the primary copy alone, and find nothing."""
    (ledger,) = offloaded(world, 1)
    before = world.left_of(ledger)
    assert remove_primaries(world) == 1
    _record_log_down(world, times=1)
    with pytest.raises(StoreUnavailable, match="the record log must know of the deletion first"):
        run(world.deletion.delete_chunk, make_chunk_input())
    assert world.left_of(ledger) == before
    assert run_owner_routed_activity(world.deletion.delete_chunk, make_chunk_input()).outcomes == {"DELETED": 1}
    assert (_manifests(world), world.left_of(ledger)) == (1, [])


def test_one_durable_delete_is_retried_until_its_tombstone_is_flushed(world: World) -> None:
    """The row keeps the error meanwhile."""
    (ledger,) = world.fill(1)
    _detach(world, ledger, "durable")
    key, name = world.key(ledger), f"delete-ledger/{ledger}/LEDGER/1"
    world.sql("UPDATE pending_deletion SET claim_workflow = :name, claim_until_us = 1", name=name)
    _record_log_down(world, times=1)
    with pytest.raises(ApplicationError, match="the record log must know of the deletion first"):
        run(world.deletion.claim_and_delete_copy, make_delete_intent_input(key), workflow_id=name)
    (intent,) = world.intents()
    assert "the record log must know" in (intent.last_error or "")
    answer = run_owner_routed_activity(
        world.deletion.claim_and_delete_copy, make_delete_intent_input(key), workflow_id=name
    )
    assert isinstance(answer, DeleteIntentResult)
    assert answer.outcome is Outcome.DELETED
    assert not world.left_of(ledger)


def test_detach_with_a_policy_that_this_build_does_not_know_is_refused(world: World) -> None:
    """To delete plainly instead would lose what was asked for."""
    (ledger,) = world.fill(1)
    with pytest.raises((Unsupported, ApplicationError), match="expected one of durable, plain, found 'archived'"):
        _detach(world, ledger, "archived")
    assert world.intents() == []
