"""`deletion.next_ranges`, `hand_over_chunk` and `certify`: how a batch is walked and how it ends."""

import pytest

from activities.deletion.inputs_and_results import ChunkResult, RowRangesInput, RowRangesPage
from logstore import failpoints
from logstore.deletion.intents import BatchCertificate
from logstore.errors import ClaimHeld, StoreUnavailable
from tests.activities.activity_world import (
    BATCH_ID,
    World,
    make_certify_input,
    make_chunk_input,
    run,
    run_owner_routed_activity,
)


def next_page(world: World, *, after: int = 0, rows: int = 2, limit: int = 2, epoch: int = 1) -> RowRangesPage:
    request = RowRangesInput(batch_id=BATCH_ID, catalog_epoch=epoch, after=after, rows=rows, limit=limit)
    return run(world.deletion.list_ranges_and_renew_claim, request)


def hand_over(world: World, *, epoch: int = 1) -> ChunkResult:
    return run_owner_routed_activity(world.deletion.hand_over_chunk, make_chunk_input(epoch=epoch))


def certify(world: World) -> BatchCertificate:
    return run_owner_routed_activity(world.deletion.close_and_certify_batch, make_certify_input())


def test_ranges_cover_every_unfinished_row_once(world: World) -> None:
    """Pages follow on each other without a gap or an overlap, up to an empty one (YahooArchive/bookkeeper#17)."""
    world.fill(5)
    world.detach()
    first = next_page(world)
    second = next_page(world, after=first.ranges[-1].last)
    found = [(part.first, part.last, part.rows) for part in first.ranges + second.ranges]
    assert found == [(1, 2, 2), (3, 4, 2), (5, 5, 1)]
    assert next_page(world, after=5) == RowRangesPage(ranges=[])


def test_ranges_of_another_epoch_say_so(world: World) -> None:
    """STALE_CATALOG is told before anything is read as work."""
    world.fill(1)
    world.detach()
    assert next_page(world, epoch=2) == RowRangesPage(ranges=[], stale=True)


def test_ranges_of_a_batch_that_another_workflow_holds_are_refused(world: World) -> None:
    """Two workflows never drive one batch."""
    world.fill(1)
    world.detach()
    request = RowRangesInput(batch_id=BATCH_ID, catalog_epoch=1, after=0, rows=1, limit=1)
    with pytest.raises(ClaimHeld):
        run(world.deletion.list_ranges_and_renew_claim, request, workflow_id="delete-ledgers/impostor")


def test_ranges_of_a_batch_that_is_done_are_empty(world: World) -> None:
    """A batch that is driven once more after its end finds nothing to do, which is no error (PIP-186)."""
    world.fill(2)
    world.detach()
    run_owner_routed_activity(world.deletion.delete_chunk, make_chunk_input())
    first = certify(world)
    assert next_page(world) == RowRangesPage(ranges=[])
    assert certify(world) == first


def test_hand_over_gives_every_unfinished_row_a_workflow(world: World) -> None:
    """A chunk that gave up leaves no row without an owner (apache/pulsar#982)."""
    ledgers = world.fill(3)
    world.detach()
    result = hand_over(world)
    assert result.outcomes == {"RETRYING": 3}
    assert [one.ledger_id for one in result.alone] == ledgers
    assert [one.handed_to for one in world.intents()] == [f"delete-ledger/{one}/LEDGER/1" for one in ledgers]


@pytest.mark.parametrize("context", ["{not json", '{"uuid": ["one", "two"]}'])
def test_hand_over_ends_a_damaged_row_alone(world: World, context: str) -> None:
    """It gets no workflow, so nobody else would ever end it: it would be handed over again and again."""
    ledgers = world.fill(3)
    world.detach()
    world.sql("UPDATE pending_deletion SET context = :context WHERE ledger_id = :id", context=context, id=ledgers[1])
    result = hand_over(world)
    assert result.outcomes == {"INVALID": 1, "RETRYING": 2}
    assert [one.ledger_id for one in result.alone] == [ledgers[0], ledgers[2]]
    assert world.outcomes() == {"INVALID": 1, "RETRYING": 2}


def test_hand_over_run_twice_counts_one_attempt(world: World) -> None:
    """Rows handed over before keep their claim and are reported again (PIP-186)."""
    world.fill(2)
    world.detach()
    first = hand_over(world)
    assert hand_over(world) == first
    assert [one.attempts for one in world.intents()] == [1, 1]


def test_hand_over_of_another_epoch_changes_nothing(world: World) -> None:
    """STALE_CATALOG: no claim is moved."""
    world.fill(2)
    world.detach()
    assert hand_over(world, epoch=5).outcomes == {"STALE_CATALOG": 3}
    assert [one.handed_to for one in world.intents()] == [None, None]


def test_hand_over_keeps_rows_that_ended(world: World) -> None:
    """What the chunk did before it gave up stays done."""
    world.fill(2)
    world.detach()
    run_owner_routed_activity(world.deletion.delete_chunk, make_chunk_input())
    assert hand_over(world) == ChunkResult(outcomes={"DELETED": 2})


def test_certificate_counts_rows_once_and_is_audited_once(world: World) -> None:
    """Counts come from rows, so that repeated work counts once; one audit row says who, why and what (PIP-186)."""
    world.fill(3)
    world.detach()
    run_owner_routed_activity(world.deletion.delete_chunk, make_chunk_input())
    first = certify(world)
    assert (first.outcomes, first.objects, first.deleted) == ({"DELETED": 3}, 9, 3)
    assert certify(world) == first
    audits = world.sql("SELECT actor, reason, workflow_id FROM audit WHERE act='delete-ledgers'")
    assert [tuple(row) for row in audits] == [("tests", "a test", "delete-ledgers/batch-1")]


def test_certificate_names_rows_that_are_still_retried(world: World) -> None:
    """A batch never claims what is not confirmed: rows handed over stand as RETRYING."""
    world.fill(2)
    world.detach()
    hand_over(world)
    certificate = certify(world)
    assert (certificate.outcomes, certificate.deleted) == ({"RETRYING": 2}, 0)


def test_certificate_without_catalog_is_retried(world: World) -> None:
    """No certificate is made up."""
    world.fill(1)
    world.detach()
    failpoints.arm("catalog.close.before", "fail")
    with pytest.raises(StoreUnavailable):
        certify(world)
