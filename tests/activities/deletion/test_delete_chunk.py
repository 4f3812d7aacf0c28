"""`deletion.delete_chunk`: phase two for many rows, whatever storage, catalog and crashes do."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from activities import heartbeats
from activities.deletion.deletion_pace import DeletionPace
from activities.deletion.inputs_and_results import ChunkResult
from activities.deletion.phase_two_steps import IntentExamination, remove_examined_copies
from activities.heartbeats import ClaimRenewingHeartbeats
from logstore.deletion.intents import CopyVerdict, DeletionIntent, DeletionState, IntentKey, StoredCopy
from logstore.errors import (
    AlreadyExists,
    CatalogMismatch,
    ClaimHeld,
    ServiceRefused,
    SextonError,
    StoreUnavailable,
)
from logstore.log.ledger_object_keys import SHARDS, ledger_prefix, meta_key, segment_key, shard_prefix
from logstore.log.ledgers import Component, LedgerOwner, LedgerStatement
from logstore.ports.object_storage import CopyRemovalResult
from logstore.positions import LedgerId, TopicId
from tests.activities.activity_world import (
    World,
    encoded_payload_bytes,
    make_activity_environment,
    make_chunk_input,
    run_owner_routed_activity,
)
from tests.fakes.object_store import Fault, FaultKind, StoreOperation


def delete(world: World) -> ChunkResult:
    """The whole batch as one chunk."""
    return run_owner_routed_activity(world.deletion.delete_chunk, make_chunk_input())


def down(*operations: StoreOperation) -> list[Fault]:
    """A store that answers none of these."""
    return [Fault(operation=operation, kind=FaultKind.BEFORE, times=1000) for operation in operations]


def at(ledger_id: LedgerId, operation: StoreOperation, kind: FaultKind, **more: object) -> Fault:
    """A fault of one ledger's objects."""
    prefix = ledger_prefix(ledger_id)
    return Fault(operation=operation, kind=kind, matches=lambda key: key.startswith(prefix), **more)  # type: ignore[arg-type]


def test_chunk_of_own_ledgers_is_deleted_and_confirmed(world: World) -> None:
    """DELETED: objects are gone, counted per key, and what the topic still lists is untouched (promises 1, 2)."""
    ledgers = world.fill(3)
    kept = [key for key in world.objects.keys if not any(key.startswith(ledger_prefix(one)) for one in ledgers)]
    world.detach()
    assert delete(world) == ChunkResult(outcomes={"DELETED": 3}, objects=9, size_bytes=delete_size(world))
    assert world.objects.keys == kept
    assert kept


def delete_size(world: World) -> int:
    """What the catalog recorded as deleted."""
    return world.catalog.deletions.tally_batch("batch-1").size_bytes


def test_chunk_of_neighbours_ends_each_as_if_it_were_alone(world: World) -> None:
    """Ledgers of one shard share a listing, and nothing else: each is judged, and deleted, by its own objects."""
    whole, gone, strange, short, kept, late = world.fill(6, in_one_shard=True)
    world.detach([whole, gone, strange, short, late])
    world.objects.delete([key for key in world.objects.keys if key.startswith(ledger_prefix(gone))])
    world.objects.put_if_absent(f"{ledger_prefix(strange)}stranger", b"", metadata={})
    world.objects.blind(segment_key(short, 1).__eq__, listings=1)
    appears = meta_key(late, world.intents()[-1].owner)
    stored = world.objects.get(appears)
    assert stored
    world.objects.delete([appears])  # so that its listing is short, and is not believed

    def put_late() -> None:
        for ledger in (late, kept):
            world.objects.put_if_absent(segment_key(ledger, 2), b"x", metadata=stored.metadata)

    world.objects.plan(Fault(operation=StoreOperation.DELETE, kind=FaultKind.CALL, action=put_late))
    world.objects.calls.clear()
    expected = {"ALREADY_GONE": 1, "DELETED": 2, "METADATA_MISMATCH": 1, "RETRYING": 1}
    assert delete(world).outcomes == expected
    names = [name for operation, name in world.objects.calls if operation is StoreOperation.LIST]
    assert names.count(shard_prefix(whole % SHARDS)) == 1
    assert names.count(ledger_prefix(whole)) == 0
    assert [len(world.left_of(one)) for one in (whole, gone, strange, short, kept, late)] == [0, 0, 4, 0, 4, 1]


def test_chunk_of_a_ledger_gone_already_counts_as_success(world: World) -> None:
    """ALREADY_GONE: not found counts as done (PIP-186, idempotency)."""
    (ledger,) = world.fill(1)
    world.detach()
    world.objects.delete([key for key in world.objects.keys if key.startswith(ledger_prefix(ledger))])
    assert delete(world).outcomes == {"ALREADY_GONE": 1}


def test_chunk_absent_from_a_store_that_is_not_the_catalogs_is_not_gone(world: World) -> None:
    """An empty answer of another store certifies nothing: the rows wait, and what is there now is deleted."""
    gone, there = world.fill(2)
    world.detach()
    world.objects.delete([key for key in world.objects.keys if key.startswith(ledger_prefix(gone))])
    world.objects.refusal = CatalogMismatch("bucket b", expected="ours", found="no marker", advice="look")
    result = delete(world)
    assert result.outcomes == {"DELETED": 1, "RETRYING": 1}
    (row,) = [one for one in world.intents() if one.ledger_id == gone]
    assert (row.state, row.last_error) == (
        DeletionState.PENDING,
        "CatalogMismatch: bucket b: expected ours, found no marker; look",
    )
    assert world.left_of(there) == []


def test_chunk_asks_whose_store_it_is_once_and_only_where_something_is_absent(world: World) -> None:
    """One more request for a chunk, however many of its ledgers are gone."""
    asked: list[int] = []
    object.__setattr__(world.objects, "require_ownership_now", lambda: asked.append(1))
    ledgers = world.fill(3)
    world.detach()
    delete(world)
    assert asked == []
    world.sql("UPDATE pending_deletion SET state = 'PENDING', outcome = NULL")
    assert world.left_of(ledgers[0]) == []
    assert delete(world).outcomes == {"ALREADY_GONE": 3}
    assert asked == [1]


def test_chunk_run_twice_ends_the_same(world: World) -> None:
    """Running it twice equals running it once: outcomes and counters stand in rows (PIP-186)."""
    world.fill(3)
    world.detach()
    first = delete(world)
    tally = world.catalog.deletions.tally_batch("batch-1")
    again = delete(world)
    assert again.outcomes == first.outcomes
    assert world.catalog.deletions.tally_batch("batch-1") == tally


def test_chunk_concurrent_attempts_lose_nothing(world: World) -> None:
    """Attempts that overlap agree that nothing is left (temporalio/sdk-python#1048)."""
    ledgers = world.fill(4)
    world.detach()
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: delete(world), range(4)))
    assert all(sum(result.outcomes.values()) == 4 and not result.alone for result in results)
    assert not any(world.left_of(ledger) for ledger in ledgers)
    assert set(world.outcomes()) <= {"DELETED", "ALREADY_GONE"}


def test_chunk_copy_still_listed_is_refused(world: World) -> None:
    """STILL_IN_USE: phase two re-reads the list just before it deletes (PIP-186, first phase; promise 1)."""
    used, free = world.fill(2)
    world.detach()
    world.sql(
        "INSERT INTO ledger (ledger_id, list_id, place, application, state, entries, size_bytes, segments,"
        " last_segment, generation, epoch, created_us) VALUES (:id, 1, :id, 'sexton', 'CLOSED', 1, 1, 1, 0, 0, 1, 1)",
        id=used,
    )
    world.sql("INSERT INTO ledger_copy (ledger_id, kind, state, context) VALUES (:id, 'LEDGER', 'LIVE', '{}')", id=used)
    result = delete(world)
    assert result.outcomes == {"DELETED": 1, "STILL_IN_USE": 1}
    assert [one.ledger_id for one in result.alone] == [used]
    assert len(world.left_of(used)) == 3
    assert not world.left_of(free)
    assert world.catalog.deletions.count_undeleted_copies().dead_lettered == 1


@pytest.mark.parametrize(
    ("change", "missing"),
    [
        ("component=''", "component"),
        ("component='NO_SUCH'", "component"),
        ("topic=''", "topic"),
        ("application=''", "application"),
        ("component='MANAGED_CURSOR'", "key 'cursor'"),
        ("component='SCHEMA_STORAGE'", "key 'schema'"),
        ("component='MANAGED_CURSOR', keys='no json'", "damaged keys"),
        ("copy='OFFLOADED_LEDGER'", "uuid of the offload context"),
    ],
)
def test_chunk_row_without_an_essential_property_is_invalid(world: World, change: str, missing: str) -> None:
    """INVALID: an intent that does not say enough deletes nothing, and says what it lacks (PIP-186; step 4)."""
    bad, good = world.fill(2)
    world.detach()
    world.sql(f"UPDATE pending_deletion SET {change} WHERE ledger_id=:id", id=bad)
    assert delete(world).outcomes == {"DELETED": 1, "INVALID": 1}
    assert len(world.left_of(bad)) == 3
    assert not world.left_of(good)
    assert missing in (world.intents()[0].last_error or "")


def _foreign_meta(world: World, ledger_id: LedgerId) -> None:
    """Another topic's statement beside ours."""
    owner = LedgerOwner(
        application="sexton", component=Component.MANAGED_LEDGER, topic_id=TopicId(99), topic="other", keys={}
    )
    world.objects.put_if_absent(meta_key(ledger_id, owner), b"{}", metadata={})


def _unknown_file(world: World, ledger_id: LedgerId) -> None:
    world.objects.put_if_absent(f"{ledger_prefix(ledger_id)}notes.txt", b"mine", metadata={})


def _known_name_below(world: World, ledger_id: LedgerId) -> None:
    world.objects.put_if_absent(f"{ledger_prefix(ledger_id)}backup/00000000.parquet", b"mine", metadata={})


def _forged(world: World, ledger_id: LedgerId) -> None:
    """No `meta.json`, and segments that state another topic."""
    owner = LedgerOwner(
        application="sexton", component=Component.MANAGED_LEDGER, topic_id=TopicId(99), topic="other", keys={}
    )
    facts = LedgerStatement(owner=owner, ledger_id=ledger_id, created_us=1, epoch=1).to_metadata()
    _replace_segments(world, ledger_id, facts)


def _stating_nothing(world: World, ledger_id: LedgerId) -> None:
    """No `meta.json`, and segments without metadata."""
    _replace_segments(world, ledger_id, {})


def _replace_segments(world: World, ledger_id: LedgerId, facts: dict[str, str]) -> None:
    world.objects.delete([f"{ledger_prefix(ledger_id)}{name}" for name in world.left_of(ledger_id)])
    world.objects.put_if_absent(segment_key(ledger_id, 0), b"mine", metadata=facts)


@pytest.mark.parametrize("spoil", [_foreign_meta, _unknown_file, _known_name_below, _forged, _stating_nothing])
def test_chunk_of_somebody_elses_objects_deletes_nothing(
    world: World, spoil: Callable[[World, LedgerId], None]
) -> None:
    """METADATA_MISMATCH: storage contradicts the intent, so all of it stays (promise 3)."""
    theirs, ours = world.fill(2)
    world.detach()
    spoil(world, theirs)
    before = world.left_of(theirs)
    assert delete(world).outcomes == {"DELETED": 1, "METADATA_MISMATCH": 1}
    assert world.left_of(theirs) == before
    assert not world.left_of(ours)
    assert world.catalog.deletions.count_undeleted_copies().dead_lettered == 1


def test_chunk_of_another_epoch_changes_nothing(world: World) -> None:
    """STALE_CATALOG: a request from before a rebuild neither deletes nor writes."""
    ledgers = world.fill(2)
    world.detach()
    world.sql("UPDATE catalog SET epoch=2")
    assert delete(world).outcomes == {"STALE_CATALOG": 3}
    assert all(len(world.left_of(ledger)) == 3 for ledger in ledgers)
    assert all(one.outcome is None and one.attempts == 0 for one in world.intents())


def test_chunk_row_that_fails_is_handed_over_and_disturbs_no_other(world: World) -> None:
    """One bad ledger neither spares nor stops its neighbours (YahooArchive/bookkeeper#17)."""
    first, bad, last = world.fill(3)
    world.detach()
    world.objects.plan(at(bad, StoreOperation.LIST, FaultKind.BEFORE))
    result = delete(world)
    assert result.outcomes == {"DELETED": 2, "RETRYING": 1}
    assert result.alone == [IntentKey(ledger_id=bad, copy="LEDGER", generation=1)]
    assert len(world.left_of(bad)) == 3
    assert not world.left_of(first)
    assert not world.left_of(last)
    row = world.intents()[1]
    assert (row.handed_to, row.attempts) == (f"delete-ledger/{bad}/LEDGER/1", 1)
    assert row.last_error == "StoreUnavailable: planned fault: 503 SlowDown"


def test_chunk_row_handed_over_is_reported_again_and_left_alone(world: World) -> None:
    """A retry of the chunk names the row again, so that its workflow is started, and does not act on it."""
    bad, _ = world.fill(2)
    world.detach()
    world.objects.plan(at(bad, StoreOperation.LIST, FaultKind.BEFORE))
    first = delete(world)
    world.objects.calls.clear()
    again = delete(world)
    assert (again.outcomes, again.alone) == (first.outcomes, first.alone)
    assert not world.objects.calls
    assert world.intents()[0].attempts == 1


def test_chunk_error_for_one_key_keeps_its_meta_and_its_row(world: World) -> None:
    """An error for one key inside a 200 answer is an error of that ledger (apache/pulsar#14693)."""
    bad, good = world.fill(2)
    world.detach()
    world.objects.plan(at(bad, StoreOperation.DELETE, FaultKind.REPORT_KEY_FAILED))
    result = delete(world)
    assert result.outcomes == {"DELETED": 1, "RETRYING": 1}
    assert len(world.left_of(bad)) == 2
    assert any(name.endswith(".meta.json") for name in world.left_of(bad))
    assert not world.left_of(good)
    assert "DeletionIncomplete: 1 keys kept" in (world.intents()[0].last_error or "")


@pytest.mark.parametrize(
    "operations", [[StoreOperation.LIST], [StoreOperation.DELETE], [StoreOperation.LIST, StoreOperation.DELETE]]
)
def test_chunk_with_the_store_down_fails_as_a_whole_and_deletes_nothing(
    world: World, operations: list[StoreOperation]
) -> None:
    """A store that is down fails the chunk, not each ledger: no row is handed over, counted or ended (PIP-186)."""
    world.fill(3)
    world.detach()
    before = world.objects.keys
    world.objects.plan(*down(*operations))
    with pytest.raises(StoreUnavailable):
        delete(world)
    assert world.objects.keys == before
    assert all((one.outcome, one.handed_to, one.attempts) == (None, None, 0) for one in world.intents())


def test_chunk_with_the_store_down_beside_a_refusal_still_fails_as_a_whole(world: World) -> None:
    """A refusal comes from the catalog alone and says nothing of the store; it is kept, the rest is retried."""
    bad, _ = world.fill(2)
    world.detach()
    world.sql("UPDATE pending_deletion SET topic='' WHERE ledger_id=:id", id=bad)
    world.objects.plan(*down(StoreOperation.LIST))
    with pytest.raises(StoreUnavailable):
        delete(world)
    assert [(one.outcome, one.handed_to) for one in world.intents()][1] == (None, None)
    assert world.outcomes() == {"INVALID": 1, "RETRYING": 1}


REFUSALS = [AlreadyExists("AccessDenied"), ServiceRefused("S3", "403 AccessDenied", advice="check")]


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda one: type(one).__name__)
def test_chunk_bucket_that_refuses_every_delete_fails_as_a_whole(world: World, refusal: SextonError) -> None:
    """A missing permission is the whole chunk's: tried again, then handed over, and none is lost (promise 2)."""
    world.fill(2)
    world.detach()
    refused = Fault(operation=StoreOperation.DELETE, kind=FaultKind.BEFORE, error=lambda: refusal)
    world.objects.plan(refused)
    with pytest.raises(StoreUnavailable, match="AccessDenied"):
        delete(world)
    assert delete(world).outcomes == {"DELETED": 2}


def test_chunk_listing_that_breaks_off_keeps_the_ledger(world: World) -> None:
    """A listing that raises midway is no listing: nothing of that ledger is deleted (apache/bookkeeper#870)."""
    bad, good = world.fill(2)
    world.detach()
    world.objects.plan(at(bad, StoreOperation.LIST, FaultKind.MIDWAY, after_objects=1))
    assert delete(world).outcomes == {"DELETED": 1, "RETRYING": 1}
    assert len(world.left_of(bad)) == 3
    assert not world.left_of(good)


def test_chunk_of_a_batch_that_another_workflow_holds_is_not_touched(world: World) -> None:
    """Work is taken by claiming: a second workflow is told so and deletes nothing."""
    ledgers = world.fill(1)
    world.detach()
    with pytest.raises(ClaimHeld):
        run_owner_routed_activity(
            world.deletion.delete_chunk, make_chunk_input(), workflow_id="delete-ledgers/impostor"
        )
    assert len(world.left_of(ledgers[0])) == 3


def test_chunk_heartbeats_count_ledgers_and_confirmed_objects(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Signs of life per ledger and per page, so that a killed worker is noticed (dust-tt/dust#4272)."""
    monkeypatch.setattr(heartbeats, "_MIN_BEAT_INTERVAL_S", 0.0)
    world.fill(2)
    world.detach()
    env = make_activity_environment()
    beats: list[tuple[object, ...]] = []
    env.on_heartbeat = lambda *details: beats.append(details)
    env.run(world.deletion.delete_chunk, make_chunk_input())
    assert beats == [(1, 0), (2, 0), (2, 4), (2, 6)]


def test_chunk_result_of_failures_only_stays_below_256_kb() -> None:
    """A thousand rows that all fail, with the longest ids, fit in one payload (temporalio/sdk-python#1285)."""
    worst = [IntentKey(ledger_id=2**63 - 1, copy="OFFLOADED_LEDGER", generation=2**31) for _ in range(1000)]
    assert encoded_payload_bytes(ChunkResult(outcomes={"RETRYING": 1000}, alone=worst)) < 128_000


@pytest.mark.parametrize(
    ("column", "value", "outcome"),
    [
        ("keys", "{not json", "INVALID"),
        ("context", "{not json", "INVALID"),
        ("context", '{"uuid": ["one", "two"]}', "INVALID"),
        ("copy", "LEGDER", "INVALID"),
        ("state", "PENDNIG", "INVALID"),
    ],
)
def test_chunk_damaged_row_does_not_keep_its_neighbours(world: World, column: str, value: str, outcome: str) -> None:
    """One bad row neither deletes nor spares the others (YahooArchive/bookkeeper#17)."""
    ledgers = world.fill(3)
    world.detach()
    world.sql(f"UPDATE pending_deletion SET {column} = :value WHERE ledger_id = :id", value=value, id=ledgers[1])
    result = delete(world)
    assert (result.outcomes, result.alone) == ({"DELETED": 2, outcome: 1}, [])
    assert [bool(world.left_of(ledger)) for ledger in ledgers] == [False, True, False]
    assert world.outcomes() == {"DELETED": 2, outcome: 1}
    (letter,) = world.catalog.deletions.list_intents(DeletionState.DEAD_LETTERED, limit=9)
    assert (letter.last_error or "").startswith(f"damaged {column} (found ")


def test_chunk_of_a_store_that_confirms_and_keeps_ends_no_row_and_goes_on_row_by_row(world: World) -> None:
    """No `DELETED` on a mere answer: each row has an error with a key, and a workflow of its own to try again."""
    ledgers = world.fill(20)
    stored = world.objects.keys
    world.detach()
    world.objects.plan(Fault(operation=StoreOperation.DELETE, kind=FaultKind.LOST, times=1_000))
    result = delete(world)
    assert result.outcomes == {"RETRYING": 20}
    assert len(result.alone) == 20
    assert world.objects.keys == stored
    assert all("still has it" in (row.last_error or "") for row in world.intents())
    assert len(ledgers) == 20


def test_chunk_of_ledgers_that_are_gone_ends_those_alone_of_which_every_name_is(world: World) -> None:
    """They are proved together, and judged one by one: a segment that no listing shows keeps its ledger's row open."""
    ledgers = world.fill(4)
    world.detach()
    hidden = segment_key(ledgers[2], 1)
    gone = [key for ledger in ledgers for key in world.objects.keys if key.startswith(ledger_prefix(ledger))]
    world.objects.delete([key for key in gone if key != hidden])
    world.objects.blind(hidden.__eq__, listings=99)
    assert delete(world).outcomes == {"ALREADY_GONE": 3, "RETRYING": 1}
    (row,) = [row for row in world.intents() if row.outcome is None]
    assert (row.ledger_id, hidden in (row.last_error or "")) == (ledgers[2], True)


def test_remove_that_lost_its_claim_judges_no_row(world: World) -> None:
    """Another workflow took the work over while storage deleted: no row gets an error or an outcome from us."""
    world.fill(1)
    world.detach()
    (intent,) = world.intents()
    found = IntentExamination(own_copies={intent.row_id: (intent, StoredCopy(verdict=CopyVerdict.OWN))})

    class TakenOver:
        def inspect_copy(self, intent: DeletionIntent) -> StoredCopy:
            raise NotImplementedError

        def prepare_inspection(self, intents: object) -> Callable[[DeletionIntent], StoredCopy]:
            raise NotImplementedError

        def prove_absence(self, absent: object) -> dict[int, SextonError]:
            raise NotImplementedError

        def read_statement(self, intent: DeletionIntent) -> None:
            raise NotImplementedError

        def remove_copies(self, copies: object, *, on_progress: Callable[[int], None]) -> dict[int, CopyRemovalResult]:
            raise ClaimHeld("taken over")

    with pytest.raises(ClaimHeld, match="taken over"):
        make_activity_environment().run(
            remove_examined_copies,
            found,
            {intent.copy.value: TakenOver()},
            ClaimRenewingHeartbeats(lambda: None),
            DeletionPace(),
        )


def test_chunk_whose_rows_another_batch_took_up_meanwhile_ends_none_of_them(world: World) -> None:
    """A zombie of an old batch may delete what is ours anyway, and leaves the rows to whoever has them now."""
    (ledger,) = world.fill(1)
    world.detach()
    adopt = "UPDATE pending_deletion SET batch_id = 'other'"
    world.objects.plan(at(ledger, StoreOperation.LIST, FaultKind.CALL, action=lambda: void(world.sql(adopt))))
    delete(world)
    (row,) = world.intents("other")
    assert (row.state, row.outcome, row.attempts) == (DeletionState.PENDING, None, 0)


def void(_: object) -> None:
    """Return nothing, as an action must."""
