"""What a flush reads: the versions of the records that have changed, all of one moment."""

import json
from collections.abc import Sequence
from dataclasses import asdict

import pyarrow as pa
import pytest
from pyroaring import BitMap64
from sqlalchemy import Connection

from logstore.catalog.records import outbox
from logstore.catalog.records.recorded_tables import remove_outbox_rows
from logstore.errors import StoreUnavailable
from logstore.log.ledgers import CopyState
from logstore.ports.catalog.records import KnownManifest
from logstore.positions import Position
from logstore.records.manifest import Block
from logstore.records.record_kinds import RecordKind
from tests.contracts.catalog.records.steps import drawn, flush, high, of, recorded
from tests.contracts.catalog.steps import NAME, acknowledge, append, filled, new_topic, newborn, roll
from tests.contracts.catalog.transactions.steps import begin, end, hold
from tests.contracts.catalog.worlds import CAUSE, SqlWorld, claim

pytestmark = pytest.mark.postgres


def test_new_catalog_has_nothing_to_flush(sql_world: SqlWorld) -> None:
    """Its ids begin below the ceilings, and it knows of no manifest."""
    state = sql_world.catalog.records.read_state()
    assert (state.manifest, state.stamp, state.pending_stamps, state.outbox_changes) == (0, "", frozenset(), 0)
    assert (state.next_ids.ledger, state.next_ids.topic, state.next_ids.transaction) == (0, 1, 0)
    assert (state.oldest_change_us, state.oldest_cursor_change_us, state.is_adopting) == (None, None, False)
    assert drawn(sql_world) == ({}, [])
    assert _known(sql_world) == KnownManifest(
        catalog_id=state.catalog_id, epoch=state.epoch, manifest=0, stamp="", pending_stamps=frozenset()
    )


def _known(world: SqlWorld) -> KnownManifest:
    """What every removal asks for, which is what the whole state says."""
    known, state = world.catalog.records.read_known_manifest(), world.catalog.records.read_state()
    assert asdict(known).items() <= asdict(state).items()
    return known


def test_flush_holds_the_rows_of_what_changed(sql_world: SqlWorld) -> None:
    """A ledger with its list, its topic and its copies; a list with its ledgers."""
    topic_id = new_topic(sql_world, retention_s=5).topic_id
    first, second = filled(sql_world, topic_id, 2)
    sql_world.add_copy(first, CopyState.LIVE, bucket="cold")
    found = flush(sql_world)
    (topic,) = [row for key, row in found.items() if key[0] == "topic"]
    assert (topic["name"], topic["state"], topic["retention_s"], topic["durable_delete"]) == (NAME, "ACTIVE", 5, None)
    (listed,) = [row for key, row in found.items() if key[0] == "list"]
    assert list(BitMap64.deserialize(listed["ledgers"])) == [first, second]
    assert (listed["component"], listed["owner"]) == ("MANAGED_LEDGER", "{}")
    ledger = found[of(RecordKind.LEDGER, first)]
    assert (ledger["topic_id"], ledger["topic"], ledger["component"]) == (topic_id, NAME, "MANAGED_LEDGER")
    assert (ledger["state"], ledger["place"], ledger["application"]) == ("CLOSED", first, "sexton")
    assert (ledger["primary_state"], ledger["primary_context"], ledger["tiered_state"]) == ("LIVE", "{}", "LIVE")
    assert json.loads(ledger["tiered_context"]) == {"bucket": "cold"}
    assert found[of(RecordKind.LEDGER, second)]["tiered_context"] is None
    assert found[of(RecordKind.SEGMENT, second, "0")]["entries"] == 10
    assert not any(row["tombstone"] for row in found.values())
    assert recorded(sql_world) == set()


def test_append_records_its_segment_and_not_its_ledger(sql_world: SqlWorld) -> None:
    """An append would otherwise write its whole ledger each time."""
    topic_id = new_topic(sql_world).topic_id
    (ledger_id,) = filled(sql_world, topic_id, 1)
    flush(sql_world)
    append(sql_world, topic_id, ledger_id)
    assert recorded(sql_world) == {of(RecordKind.SEGMENT, ledger_id, "1")}


def test_cursors_stay_in_the_outbox_until_they_are_asked_for(sql_world: SqlWorld) -> None:
    """They change with every acknowledgement, and are flushed at intervals."""
    topic_id = new_topic(sql_world).topic_id
    (ledger_id,) = filled(sql_world, topic_id, 1)
    sql_world.catalog.cursors.create_subscription(topic_id, "mine", latest=False)
    acknowledge(sql_world, topic_id, "mine", up_to=(ledger_id, 3))
    assert not any(kind == "cursor" for kind, _, _ in flush(sql_world, cursors=False))
    assert {kind for kind, _, _ in recorded(sql_world)} == {"cursor"}
    state = sql_world.catalog.records.read_state()
    assert state.oldest_change_us == state.oldest_cursor_change_us is not None
    (cursor,) = flush(sql_world).values()
    assert (cursor["name"], cursor["mark_ledger"], cursor["mark_entry"]) == ("mine", ledger_id, 3)
    assert isinstance(cursor["acknowledged"], bytes)


def test_cursor_that_a_transaction_acknowledged_in_goes_with_the_transaction(sql_world: SqlWorld) -> None:
    """A block that holds a commit holds what it acknowledged; other cursors wait."""
    topic = new_topic(sql_world)
    (ledger_id,) = filled(sql_world, topic.topic_id, 1)
    for name in ("inside", "outside"):
        sql_world.catalog.cursors.create_subscription(topic.topic_id, name, latest=False)
    flush(sql_world)
    txn = begin(sql_world)
    hold(sql_world, topic, "inside", txn, Position(ledger_id, 0))
    acknowledge(sql_world, topic.topic_id, "outside", up_to=(ledger_id, 1))
    end(sql_world, txn, commit=True)
    found = flush(sql_world, cursors=False)
    assert {row["name"] for key, row in found.items() if key[0] == "cursor"} == {"inside"}
    assert [row["state"] for key, row in found.items() if key[0] == "transaction"] == ["COMMITTING"]


def test_flush_shows_one_moment_while_writers_go_on(sql_world: SqlWorld) -> None:
    """What is written after its first statement is neither in it nor settled by it."""
    topic_id = new_topic(sql_world).topic_id
    (ledger_id,) = filled(sql_world, topic_id, 1)
    records = sql_world.catalog.records
    with records.read_changes(cursors=True) as changes:
        append(sql_world, topic_id, ledger_id)
        later = newborn(sql_world, topic_id)
        kinds = {kind: batch.to_pylist() for kind, batch in changes.iterate_version_batches()}
        taken = changes.outbox_rows
    assert [row["sub"] for row in kinds[RecordKind.SEGMENT]] == ["0"]
    assert [row["id"] for row in kinds[RecordKind.LEDGER]] == [ledger_id]
    records.settle_manifest(number=1, stamp="s", ceilings=high(), outbox_rows=taken)
    assert recorded(sql_world) == {of(RecordKind.SEGMENT, ledger_id, "1"), of(RecordKind.LEDGER, later)}


def test_versions_of_a_record_rise(sql_world: SqlWorld) -> None:
    """Whatever was flushed before; they are never given out again."""
    topic_id = new_topic(sql_world).topic_id
    first = roll(sql_world, topic_id)
    before = flush(sql_world)
    roll(sql_world, topic_id)
    after = flush(sql_world)
    again = before.keys() & after.keys()
    assert of(RecordKind.LEDGER, first) in again
    assert all(after[key]["version"] > before[key]["version"] for key in again)


def test_settle_repeated_changes_nothing(sql_world: SqlWorld) -> None:
    """A lost answer is asked for again; an older manifest never comes back, and a stamp begun since stays pending."""
    records = sql_world.catalog.records
    records.add_pending_stamp("a")
    records.add_pending_stamp("b")
    records.add_pending_stamp("b")
    assert records.read_state().pending_stamps == _known(sql_world).pending_stamps == {"a", "b"}
    for _ in range(2):
        records.settle_manifest(number=2, stamp="b", ceilings=high())
        state = records.read_state()
        assert (state.manifest, state.stamp, state.pending_stamps, state.ceilings) == (
            2,
            "b",
            frozenset(),
            high(),
        )
    records.add_pending_stamp("c")
    records.settle_manifest(number=1, stamp="a", ceilings=high())
    records.settle_manifest(number=2, stamp="b", ceilings=high())
    known = _known(sql_world)
    assert (known.manifest, known.stamp, known.pending_stamps) == (2, "b", frozenset({"c"}))


def test_every_record_and_tombstone_can_be_flushed_once_more(sql_world: SqlWorld) -> None:
    """Whatever was flushed before; a record that was removed plainly has nothing to flush."""
    topic_id = new_topic(sql_world).topic_id
    first, second, third = filled(sql_world, topic_id, 3)
    sql_world.catalog.cursors.create_subscription(topic_id, "s", latest=False)
    before = flush(sql_world)
    for ledger_id, durable in ((first, True), (second, False)):
        sql_world.catalog.phase_one.detach_ledgers(
            topic_id,
            [ledger_id],
            batch_id=f"b{ledger_id}",
            force=True,
            durable=durable,
            claim=claim("delete-ledgers/b"),
            cause=CAUSE,
        )
    after = flush(sql_world)
    assert recorded(sql_world) == set()
    sql_world.catalog.records.requeue_all_records()
    again = flush(sql_world)
    lost = {of(RecordKind.LEDGER, second), *(of(RecordKind.SEGMENT, one, "0") for one in (first, second))}
    assert again.keys() == (before.keys() | after.keys()) - lost
    assert again[of(RecordKind.LEDGER, first)]["tombstone"]
    assert not again[of(RecordKind.LEDGER, third)]["tombstone"]


def test_outbox_is_emptied_in_short_transactions(sql_world: SqlWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush that dies between two has settled its manifest, and leaves the rest to be flushed once more."""
    monkeypatch.setattr(outbox, "_OUTBOX_ROWS_PER_TRANSACTION", 2)
    filled(sql_world, new_topic(sql_world).topic_id, 2)
    records = sql_world.catalog.records
    found, taken = drawn(sql_world)
    parts: list[Sequence[int]] = []

    def forget(connection: Connection, versions: Sequence[int]) -> None:
        if len(parts) == 2:
            raise StoreUnavailable("planned")
        parts.append(versions)
        remove_outbox_rows(connection, versions)

    monkeypatch.setattr(outbox, "remove_outbox_rows", forget)
    with pytest.raises(StoreUnavailable):
        records.settle_manifest(number=1, stamp="s", ceilings=high(), outbox_rows=taken)
    assert [len(one) for one in parts] == [2, 2]
    state = records.read_state()
    assert (state.manifest, state.outbox_changes) == (1, len(taken) - 4)
    again, _ = drawn(sql_world)
    assert again.keys() < found.keys()


def test_page_holds_the_oldest_changes_and_is_staged_with_its_manifest(sql_world: SqlWorld) -> None:
    """What waits for a block waits until a manifest shows a moment; what is staged is told until then."""
    topic_id = new_topic(sql_world).topic_id
    filled(sql_world, topic_id, 2)
    sql_world.catalog.cursors.create_subscription(topic_id, "s", latest=False)
    records, before = sql_world.catalog.records, sql_world.catalog.records.read_state()
    with records.read_changes(cursors=True, page=3) as changes:
        kinds = [kind for kind, _ in changes.iterate_version_batches()]
        taken = sorted(changes.outbox_rows)
    oldest = [row.version for row in sql_world.sql("SELECT version FROM record_outbox ORDER BY version")]
    assert taken == oldest[:3]
    assert RecordKind.CURSOR not in kinds
    one = _block("ledger-a")
    for _ in range(2):
        records.settle_manifest(
            number=1, stamp="a", ceilings=high(), outbox_rows=taken, shows_own_moment=False, staged_blocks=[one]
        )
    state = records.read_state()
    assert (state.manifest, state.staged_blocks, state.outbox_changes) == (1, (one,), before.outbox_changes - 3)
    assert state.oldest_change_us == before.oldest_change_us
    records.settle_manifest(number=2, stamp="b", ceilings=high(), shows_own_moment=False)
    assert records.read_state().staged_blocks == (one,), "a defragmentation in the midst of a flush"
    records.settle_manifest(number=3, stamp="c", ceilings=high())
    assert records.read_state().staged_blocks == ()


def test_page_that_others_have_overtaken_is_neither_staged_nor_taken(sql_world: SqlWorld) -> None:
    """They have flushed what is in it, and perhaps the tombstone of a record that lives in it."""
    filled(sql_world, new_topic(sql_world).topic_id, 1)
    records = sql_world.catalog.records
    _, taken = drawn(sql_world)
    records.settle_manifest(number=1, stamp="a", ceilings=high())
    records.settle_manifest(
        number=1,
        stamp="a",
        ceilings=high(),
        outbox_rows=taken,
        shows_own_moment=False,
        staged_blocks=[_block("ledger-a")],
    )
    state = records.read_state()
    assert (state.staged_blocks, state.outbox_changes) == ((), len(taken))


def test_deletes_wait_for_what_is_staged(sql_world: SqlWorld) -> None:
    """A tombstone in a staged block is in no manifest: a rebuild would not find it."""
    topic_id = new_topic(sql_world).topic_id
    first, _ = filled(sql_world, topic_id, 2)
    sql_world.catalog.phase_one.detach_ledgers(topic_id, [first], force=True, batch_id="b", claim=claim(), cause=CAUSE)
    records = sql_world.catalog.records
    _, taken = drawn(sql_world)
    records.settle_manifest(
        number=1,
        stamp="a",
        ceilings=high(),
        outbox_rows=taken,
        shows_own_moment=False,
        staged_blocks=[_block("ledger-a")],
    )
    assert records.read_state().outbox_changes == 0
    assert records.find_unflushed_ledgers([first]) == {first}
    records.settle_manifest(number=2, stamp="b", ceilings=high())
    assert records.find_unflushed_ledgers([first]) == frozenset()


def _block(block_id: str) -> Block:
    return Block(
        block_id=block_id,
        kind=RecordKind.LEDGER,
        records=1,
        tombstones=0,
        size_bytes=1,
        sha256="",
        first_id=0,
        last_id=0,
    )


def test_removed_record_without_a_tombstone_has_no_version(sql_world: SqlWorld) -> None:
    """A plain delete writes nothing."""
    topic_id = new_topic(sql_world).topic_id
    first, _ = filled(sql_world, topic_id, 2)
    flush(sql_world)
    sql_world.catalog.phase_one.detach_ledgers(
        topic_id, [first], force=True, batch_id="b", claim=claim(), cause=CAUSE, durable=False
    )
    kinds = {kind for kind, _, _ in flush(sql_world)}
    assert kinds == {"list", "deletion"}


def test_standing_is_told_of_rows_by_their_keys(sql_world: SqlWorld) -> None:
    """In the order of the question."""
    topic_id = new_topic(sql_world).topic_id
    (ledger_id,) = filled(sql_world, topic_id, 1)
    keys = pa.table({"id": [99, ledger_id, ledger_id], "sub": ["0", "1", "0"]})
    assert sql_world.catalog.records.existence_mask(RecordKind.SEGMENT, keys).to_pylist() == [False, False, True]
    keys = pa.table({"id": [topic_id + 1, topic_id], "sub": ["", ""]})
    assert sql_world.catalog.records.existence_mask(RecordKind.TOPIC, keys).to_pylist() == [False, True]


def test_claim_of_a_live_workflow_is_respected(sql_world: SqlWorld) -> None:
    """It is renewed by its holder, let go by nobody else, and free when it has lapsed."""
    records = sql_world.catalog.records
    assert records.claim_record_log(claim("a"))
    assert records.claim_record_log(claim("a"))
    assert not records.claim_record_log(claim("b"))
    records.release_record_log("b")
    assert not records.claim_record_log(claim("b"))
    records.release_record_log("a")
    assert records.claim_record_log(claim("b", ttl_s=-1))
    assert records.claim_record_log(claim("a"))
