"""A catalog that was lost is as it was answered: everything that was stored is readable where it was."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import psycopg
import pytest
from pyroaring import BitMap

from logstore.catalog.records import topic_adoption
from logstore.deletion.retention import RetentionPolicy
from logstore.errors import AcknowledgementStale, CatalogAdopting, InvalidInput, PreconditionFailed, UnknownObject
from logstore.failpoints import SimulatedCrash, arm, disarm_all_and_take_hits
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.log.ledger_object_keys import ledger_prefix, segment_key
from logstore.log.segment_format import EXTENT_FIELD, UPLOAD_ID_FIELD, SegmentUploadId
from logstore.ports.catalog.deletion import AuditCause, Claim
from logstore.ports.catalog.log import BeginTransactionResult, BeginTransactionWrite, EndTransactionWrite, Topic
from logstore.ports.catalog.reconciliation import RunKind
from logstore.positions import LedgerId, Position
from logstore.records.services import upload_adoption
from logstore.transactions.transaction_buffer import MarkerVerb, TransactionMarker, markers_to_entries
from logstore.transactions.transaction_ids_and_states import TransactionId, TransactionState
from tests.contracts.catalog.conftest import emptied
from tests.faults.simulated_world import World
from tests.logstore.catalog.records.adoption import Losing, LostFile, LostServer
from tests.migrated_catalogs import create_migrated_sqlite
from tests.postgres import postgres
from tests.workers.hosting.losing import phase_two
from workers.assembly.log_store import LogStore

__all__ = ["emptied", "postgres"]

_NAME = "persistent://shop/main/orders"
_CAUSE = AuditCause(actor="test", reason="to see it go", workflow_id="w")


_POSTGRES = pytest.param("postgresql", marks=pytest.mark.external_service)
_POSTGRES_IN_THE_LONG_RUN = pytest.param("postgresql", marks=[pytest.mark.external_service, pytest.mark.all_faults])


@pytest.fixture(params=["sqlite", _POSTGRES])
def losing(request: pytest.FixtureRequest, tmp_path: Path) -> Losing:
    """A new catalog."""
    template = tmp_path / "template.db"
    create_migrated_sqlite(template)
    world = World(tmp_path / "catalog.db", template)
    if request.param == "sqlite":
        return Losing(world, LostFile(world.database))
    world.url = request.getfixturevalue("emptied")()
    with closing(sqlite3.connect(template)) as found:
        (catalog_id,) = found.execute("SELECT catalog_id FROM catalog").fetchone()
    with psycopg.connect(world.url.replace("+psycopg", "")) as server:
        server.execute("UPDATE catalog SET catalog_id = %s", [catalog_id])
    return Losing(world, LostServer(world.url))


def _plain(*payloads: str) -> ProducedEntries:
    return ProducedEntries(entries=[NewEntry(payload=one.encode()) for one in payloads])


def _numbered(*ids: int) -> ProducedEntries:
    return ProducedEntries(entries=[NewEntry(payload=b"%d" % one, sequence_id=one) for one in ids], producer="p")


def _topic(log: LogStore, name: str = _NAME) -> Topic:
    return log.catalog.topics.create_topic(name, RetentionPolicy())


def _read(log: LogStore, topic: Topic) -> dict[Position, str]:
    return {one.position: (one.payload or b"").decode() for one in log.topic_logs.scan(topic)}


def _sweep(log: LogStore) -> None:
    """Take up all intents that no workflow works on, as the sweep of a worker does, and delete what they stand for."""
    claim = Claim(workflow_id="sweep-deletions", run_id="r", ttl_s=60)
    taken = log.catalog.upkeep.move_abandoned_work_to_batch(batch_id="sweep", claim=claim, limit=1_000)
    assert phase_two(log, "sweep") == taken.intents
    assert log.catalog.deletions.count_undeleted_copies().estimated_inflight == 0


def test_what_was_appended_since_the_flush_comes_back_where_it_was(losing: Losing) -> None:
    """In the ledger that was open, in ledgers that nobody had heard of, and in a topic that nobody had."""
    with losing.process() as log:
        topic = _topic(log)
        log.topic_logs.append(topic, _plain("flushed"))
        losing.flush()
        log.topic_logs.append(topic, _plain("tail", "tail too"))
        log.topic_logs.roll(topic)
        log.topic_logs.append(topic, _plain("in a new ledger"))
        young = _topic(log, "persistent://shop/main/young")
        log.topic_logs.append(young, _plain("in a new topic"))
        before = {one.name: _read(log, one) for one in (topic, young)}
        given_out = max(position.ledger_id for found in before.values() for position in found)
    losing.lose()
    report = losing.adopt()
    assert (report.adopted_ledgers, report.adopted_segments, report.missing_data, report.revived) == (2, 3, 0, 0)
    with losing.process() as log:
        after = {name: _read(log, log.catalog.topics.get_topic(name)) for name in before}
        assert after == before
        result = log.topic_logs.append(log.catalog.topics.get_topic(_NAME), _plain("goes on"))
        assert result.first is not None
        assert result.first > max(before[_NAME])
        assert log.topic_logs.roll(topic).opened > given_out, "no id is given out twice"


def _committed(log: LogStore, *writes: BeginTransactionWrite | EndTransactionWrite) -> list[object]:
    return list(log.catalog.commits.commit_writes(list(writes)))


def _begin(log: LogStore) -> TransactionId:
    (begun,) = _committed(log, BeginTransactionWrite(tc_id=1, timeout_s=3_600))
    assert isinstance(begun, BeginTransactionResult)
    return begun.txn


def _inside(txn: TransactionId, *payloads: str) -> ProducedEntries:
    return ProducedEntries(entries=_plain(*payloads).entries, txn=txn)


def _end(log: LogStore, txn: TransactionId, *, commit: bool) -> None:
    """Decided, and told to every participant."""
    _committed(log, EndTransactionWrite(txn=txn, commit=commit))
    _tell(log)


def _tell(log: LogStore) -> None:
    claim = Claim(workflow_id="transaction-coordinator/1", run_id="r", ttl_s=60)
    while batch := log.catalog.transactions.claim_decided_transactions(claim, limit=100):
        assert not log.broadcasts.broadcast_batch(batch).failures


def _advance(log: LogStore, topic: Topic) -> Position:
    """Move the mark-delete position, which a broadcast does in the background, and return it."""
    return log.subscriptions.acknowledge(topic.topic_id, "s").mark_delete


@pytest.fixture(params=["whole", "by ledger"])
def pages(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Staged ledgers of a topic are settled at once, or one after the other."""
    if request.param == "by ledger":
        monkeypatch.setattr(topic_adoption, "_MAX_LEDGERS_PER_PAGE", 1)
        monkeypatch.setattr(upload_adoption, "_MAX_OBJECTS_PER_PAGE", 1)


@pytest.mark.parametrize(
    "lost_rows",
    [
        ("DELETE FROM segment", "UPDATE ledger SET entries = 0, size_bytes = 0, segments = 0, last_segment = -1"),
        tuple(f"DELETE FROM {table}" for table in ("segment", "buffer_hidden", "ledger_copy", "ledger")),
    ],
    ids=["segments", "ledgers"],
)
def test_messages_of_an_open_transaction_stay_hidden_where_a_block_of_their_rows_was_skipped(
    losing: Losing, lost_rows: tuple[str, ...]
) -> None:
    """Adoption takes the uploads in again, with the ranges of the transaction, of which the record still knows."""
    with losing.process() as log:
        topic = _topic(log)
        open_txn = _begin(log)
        log.topic_logs.append(topic, _plain("first"))
        log.topic_logs.append(topic, _inside(open_txn, "open"))
        log.topic_logs.append(topic, _plain("last"))
        losing.flush()
    losing.lose(*lost_rows)
    losing.adopt()
    with losing.process() as log:
        assert list(_read(log, topic).values()) == ["first"], "readers wait for the open transaction"
        _end(log, open_txn, commit=False)
        assert sorted(_read(log, topic).values()) == ["first", "last"]


@pytest.mark.usefixtures("pages")
def test_transactions_of_the_tail_are_as_their_markers_say(losing: Losing) -> None:
    """Begun before the flush or after it: committed, aborted, or open and past its time."""
    with losing.process() as log:
        left, right = _topic(log), _topic(log, "persistent://shop/main/right")
        log.subscriptions.subscribe(left.topic_id, "s", latest=False)
        early = _begin(log)
        log.topic_logs.append(left, _plain("an ordinary one"))
        log.topic_logs.append(left, _inside(early, "early 1"))
        losing.flush()
        log.topic_logs.roll(left)
        unknown, aborted, left_open = (_begin(log) for _ in range(3))
        log.topic_logs.append(right, _inside(early, "early 2"))
        for txn in (unknown, aborted, left_open):
            log.topic_logs.append(left, _inside(txn, f"left {txn}"))
            log.topic_logs.append(right, _inside(txn, f"right {txn}"))
        log.subscriptions.acknowledge(left.topic_id, "s", positions=[Position(LedgerId(0), 0)], txn=unknown)
        _end(log, early, commit=True)
        _end(log, unknown, commit=True)
        _end(log, aborted, commit=False)
        states = log.catalog.transactions.get_transaction_states([early, unknown, aborted])
        assert {one.is_commit for one in states.values()} == {True, False}
    losing.lose()
    losing.adopt()
    with losing.process() as log:
        found = log.catalog.transactions.get_transaction_states([early, unknown, aborted, left_open])
        assert found == {
            early: TransactionState.COMMITTING,
            unknown: TransactionState.COMMITTING,
            aborted: TransactionState.ABORTING,
            left_open: TransactionState.OPEN,
        }
        assert log.catalog.transactions.abort_expired_transactions(1, limit=10) == 1
        _tell(log)
        shown = [sorted(_read(log, log.catalog.topics.get_topic(one.name)).values()) for one in (left, right)]
        assert shown == [["an ordinary one", "early 1", f"left {unknown}"], ["early 2", f"right {unknown}"]]
        assert _advance(log, left) >= Position(LedgerId(0), 0), "what the commit acknowledged stays so"


@pytest.mark.parametrize("commit", [True, False])
def test_marker_of_a_forgotten_transaction_that_is_written_late_repeats_its_outcome(
    losing: Losing, commit: bool
) -> None:
    """The transaction is in no record any more. Its marker decides it again, and readers see no difference."""
    with losing.process() as log:
        topic = _topic(log)
        log.subscriptions.subscribe(topic.topic_id, "s", latest=False)
        log.topic_logs.append(topic, _plain("an ordinary one"))
        txn = _begin(log)
        log.topic_logs.append(topic, _inside(txn, "of the transaction"))
        first = Position(LedgerId(0), 0)
        log.subscriptions.acknowledge(topic.topic_id, "s", positions=[first], txn=txn)
        _end(log, txn, commit=commit)
        assert log.catalog.transactions.remove_finished_transactions(older_than_s=-1, limit=10) == 1
        losing.flush()
        before, mark_delete = _read(log, topic), _advance(log, topic)
        late = TransactionMarker(
            txn=txn,
            verb=MarkerVerb.COMMIT if commit else MarkerVerb.ABORT,
            epoch=1,
            subscription="s",
            positions={first.ledger_id: BitMap([first.entry_id])},
        )
        log.topic_logs.append(topic, markers_to_entries([late]))
    losing.lose()
    losing.adopt()
    with losing.process() as log:
        assert log.catalog.transactions.get_transaction_states([txn]) == {
            txn: TransactionState.COMMITTING if commit else TransactionState.ABORTING
        }
        _tell(log)
        assert log.catalog.transactions.get_transaction_states([txn])[txn].is_final
        assert _read(log, topic) == before
        assert _advance(log, topic) == mark_delete


def test_duplicates_of_a_producer_are_told_after_the_loss_too(losing: Losing) -> None:
    """Sequence ids follow the segments that were adopted."""
    with losing.process() as log:
        topic = _topic(log)
        log.topic_logs.append(topic, _numbered(1, 2))
        losing.flush()
        log.topic_logs.append(topic, _numbered(3, 4))
        before = _read(log, topic)
    losing.lose()
    losing.adopt()
    with losing.process() as log:
        again = log.topic_logs.append(topic, _numbered(2, 3, 4, 5))
        assert (again.count, again.duplicates) == (1, 3)
        assert {at: one for at, one in _read(log, topic).items() if at in before} == before


def test_delayed_messages_of_the_tail_are_counted(losing: Losing) -> None:
    """Those behind the sealed buckets, also of a topic whose index no record knows."""
    late = ProducedEntries(entries=[NewEntry(payload=b"later", deliver_at_ms=4_000_000_000_000)] * 3)
    with losing.process() as log:
        topic = _topic(log)
        log.topic_logs.append(topic, late)
        losing.flush()
        log.topic_logs.append(topic, late)
    losing.lose()
    losing.adopt()
    with losing.process() as log:
        assert log.catalog.delayed.count_delayed_messages().unsealed == 6
        assert log.catalog.delayed.count_unsealed_entries(topic.topic_id).entries == 6


def test_upload_that_was_never_registered_stays_away(losing: Losing) -> None:
    """A loser whose append went on under a later number."""
    with losing.process() as log:
        topic = _topic(log)
        log.topic_logs.append(topic, _plain("first"))
        losing.flush()
        log.topic_logs.append(topic, _plain("second"))
        log.topic_logs.append(topic, _plain("third"))
        before = _read(log, topic)
        second = losing.world.store.get(segment_key(LedgerId(0), 1))
        assert second is not None
        said = dict(second.metadata) | {EXTENT_FIELD: "2:3"}
        for number, nth in ((9, 1), (12, 2)):
            mark = {UPLOAD_ID_FIELD: str(SegmentUploadId("0" * 32, nth))}
            losing.world.store.put_if_absent(segment_key(LedgerId(0), number), second.body, metadata=said | mark)
    losing.lose()
    report = losing.adopt()
    assert report.adopted_segments == 3
    with losing.process() as log:
        assert _read(log, topic) == before | {Position(LedgerId(0), 3): "second"}


def _dies_with_an_upload(losing: Losing, topic: Topic, *payloads: str) -> None:
    """A writer that dies right before its registration: to storage it looks like one that was registered."""
    with losing.process() as dying:
        arm("append.register.before", "crash")
        try:
            with pytest.raises(SimulatedCrash):
                dying.topic_logs.append(topic, _plain(*payloads))
        finally:
            disarm_all_and_take_hits()


def test_append_that_overtook_an_upload_right_before_the_loss_stays_where_it_was_answered(losing: Losing) -> None:
    """So does what refers to it: acknowledgements in a transaction, messages of a transaction, delivery times.

    Each of them is the last one that was answered in its ledger, next to an upload of a writer that died.
    """
    late = ProducedEntries(entries=[NewEntry(payload=b"later", deliver_at_ms=4_000_000_000_000)])
    with losing.process() as log:
        left, right = _topic(log), _topic(log, "persistent://shop/main/right")
        log.subscriptions.subscribe(left.topic_id, "s", latest=False)
        for topic in (left, right):
            log.topic_logs.append(topic, _plain("flushed"))
        losing.flush()
        txn = _begin(log)
        _dies_with_an_upload(losing, left, "of the dead", "of the dead too")
        told = log.topic_logs.append(left, _plain("told")).first
        assert told is not None
        log.topic_logs.roll(left)
        _dies_with_an_upload(losing, right, "of the dead")
        log.topic_logs.append(right, _inside(txn, "inside"))
        log.subscriptions.acknowledge(left.topic_id, "s", positions=[told], txn=txn)
        _end(log, txn, commit=True)
        _dies_with_an_upload(losing, right, "of the dead")
        log.topic_logs.append(right, late)
        before = {topic.topic_id: _read(log, topic) for topic in (left, right)}
        assert "inside" in before[right.topic_id].values()
    losing.lose()
    losing.adopt()
    with losing.process() as log:
        assert {topic.topic_id: _read(log, topic) for topic in (left, right)} == before
        state = log.subscriptions.get(left.topic_id, "s").state
        assert [payload for at, payload in before[left.topic_id].items() if state.covers(at)] == ["told"]
        assert log.delayed.sealer.drop_buckets_and_seal(right.topic_id, force=True).messages == 1
        (bucket,) = log.catalog.delayed.get_bucket_list(right.topic_id).buckets
        rows = log.delayed.snapshots.read_segment(bucket, 0)
        assert [before[right.topic_id][position] for position in rows.positions()] == ["later"]


@pytest.mark.usefixtures("pages")
def test_append_that_was_uploaded_to_two_ledgers_comes_back_once(losing: Losing) -> None:
    """One was refused, for its ledger was closed meanwhile; another holds what a producer had stored before."""
    with losing.process() as log, losing.process() as other:
        topic = _topic(log)
        other.topic_logs.append(topic, _plain("flushed"))
        losing.flush()
        log.topic_logs.roll(topic)
        other.topic_logs.append(topic, _plain("went on"))
        stored = other.topic_logs.append(topic, _numbered(1)).first
        assert stored is not None
        log.topic_logs.roll(topic)
        last = log.topic_logs.append(topic, _plain("last")).first
        assert last is not None
        before = _read(log, topic)
        number = log.catalog.ledgers.list_segments(stored.ledger_id)[-1].number
        found = losing.world.store.get(segment_key(stored.ledger_id, number))
        assert found is not None
        said = dict(found.metadata) | {UPLOAD_ID_FIELD: str(SegmentUploadId("0" * 32, 1)), EXTENT_FIELD: "0:1"}
        losing.world.store.put_if_absent(segment_key(last.ledger_id, 1), found.body, metadata=said)
    losing.lose()
    losing.adopt()
    with losing.process() as log:
        assert _read(log, topic) == before


def test_second_look_at_a_shard_replaces_what_the_first_one_found(losing: Losing) -> None:
    """Ledger by ledger, so that a look that dies leaves no gap, and none finds what is gone."""
    with losing.process() as log:
        topic = _topic(log)
        losing.flush()
        log.topic_logs.append(topic, _plain("in ledger 0"))
    losing.lose()
    with losing.adopter() as adopter:
        assert adopter.compare_and_stage_shard(0).staged == 1
        for key in losing.world.store.keys:
            if key.startswith(ledger_prefix(LedgerId(0))):
                losing.world.store.delete([key])
        assert adopter.compare_and_stage_shard(0).staged == 0
        assert losing.make_catalog_ready(adopter).adopted_ledgers == 0


def test_ledger_at_the_head_without_objects_is_missing_data_until_they_return(losing: Losing) -> None:
    """No deletion explains it: the log knows of each before its first object goes. The cursor stays before it."""
    with losing.process() as log:
        topic = _topic(log)
        log.subscriptions.subscribe(topic.topic_id, "s", latest=False)
        log.topic_logs.append(topic, _plain("lost"))
        log.topic_logs.roll(topic)
        log.topic_logs.append(topic, _plain("stays"))
        losing.flush()
        cursor = log.catalog.cursors.get_cursor(topic.topic_id, "s").state
    store, key = losing.world.store, segment_key(LedgerId(0), 0)
    lost = store.get(key)
    assert lost is not None
    store.delete([one.key for one in store.list(ledger_prefix(LedgerId(0)))])
    losing.lose()
    report = losing.adopt()
    assert (report.revived, report.missing_data, report.missing_ledgers) == (0, 1, [0])
    with losing.process() as log:
        assert [one.ledger_id for one in log.catalog.ledgers.list_ledgers(topic.topic_id)] == [0, 1]
        assert log.catalog.cursors.get_cursor(topic.topic_id, "s").state == cursor
        assert log.catalog.deletions.count_undeleted_copies().estimated_inflight == 0
        store.put_if_absent(key, lost.body, metadata=lost.metadata)
        assert list(_read(log, topic).values()) == ["lost", "stays"]


def test_ledger_in_the_middle_without_objects_is_reported_and_kept(losing: Losing) -> None:
    """That is loss of data, as is a ledger that lacks a part."""
    with losing.process() as log:
        topic = _topic(log)
        for payload in ("first", "lost", "last"):
            log.topic_logs.append(topic, _plain(payload))
            log.topic_logs.roll(topic)
        losing.flush()
    losing.world.store.delete([segment_key(LedgerId(1), 0)])
    losing.lose()
    report = losing.adopt()
    assert (report.revived, report.missing_data, report.missing_ledgers) == (0, 1, [1])
    with losing.process() as log:
        assert [one.ledger_id for one in log.catalog.ledgers.list_ledgers(topic.topic_id)] == [0, 1, 2, 3]


def test_ledger_that_was_not_flushed_and_lacks_a_part_is_reported_and_kept(losing: Losing) -> None:
    """What is there says how many entries were registered before it."""
    with losing.process() as log:
        topic = _topic(log)
        losing.flush()
        for payload in ("lost", "there", "last"):
            log.topic_logs.append(topic, _plain(payload))
    losing.world.store.delete([segment_key(LedgerId(0), 0)])
    losing.lose()
    report = losing.adopt()
    assert (report.missing_data, report.missing_ledgers, report.adopted_segments) == (1, [0], 2)
    with losing.process() as log:
        assert [one.first_entry for one in log.catalog.ledgers.list_segments(LedgerId(0))] == [1, 2]


@pytest.mark.parametrize("way", ["absent", "there"])
def test_cursor_goes_over_a_ledger_that_is_detached_again(losing: Losing, way: str) -> None:
    """Without a place, as the loader gives it none; whether storage has something of it or nothing.

    Else the cursor would stand before entries that nobody can read, until something behind them is acknowledged.
    """
    losing.world.inline_bytes = 1_000  # what a row holds; snapshots are read at the next acknowledgement
    with losing.process() as log:
        topic = _topic(log)
        log.subscriptions.subscribe(topic.topic_id, "s", latest=False)
        log.topic_logs.append(topic, _plain("gone", "gone too"))
        log.topic_logs.roll(topic)
        log.topic_logs.append(topic, _plain("stays", "stays too"))
        log.subscriptions.acknowledge(topic.topic_id, "s", positions=[Position(LedgerId(1), 0)])
        assert log.catalog.cursors.get_cursor(topic.topic_id, "s").state.mark_delete < Position(LedgerId(0), 0)
        losing.flush()
    if way == "absent":
        losing.world.store.delete([one.key for one in losing.world.store.list(ledger_prefix(LedgerId(0)))])
    losing.lose("UPDATE ledger SET place = NULL WHERE ledger_id = 0")
    assert losing.adopt().revived == 1
    with losing.process() as log:
        state = log.catalog.cursors.get_cursor(topic.topic_id, "s").state
        assert (state.mark_delete, dict(state.acknowledged)) == (Position(LedgerId(1), 0), {})


def test_ledger_that_its_list_does_not_name_is_detached_again(losing: Losing) -> None:
    """The loader gives it no place. Its row leaves; its objects stay, and no intent waits for a sweep."""
    with losing.process() as log:
        topic = _topic(log)
        log.topic_logs.append(topic, _plain("came back"))
        log.topic_logs.roll(topic)
        log.topic_logs.append(topic, _plain("stays"))
        losing.flush()
    losing.lose("UPDATE ledger SET place = NULL WHERE ledger_id = 0")
    objects = losing.world.store.keys
    report = losing.adopt()
    assert report.revived_ledgers == [0]
    with losing.process() as log:
        assert list(_read(log, topic).values()) == ["stays"]
        _sweep(log)
    assert losing.world.store.keys == objects


def test_ledger_that_was_deleted_durably_never_returns(losing: Losing) -> None:
    """Objects without a row, and a tombstone: no ledger (scylladb#3560, scylla-manager#4258). Its objects stay."""
    with losing.process() as log:
        topic = _topic(log)
        log.topic_logs.append(topic, _plain("deleted"))
        log.topic_logs.roll(topic)
        losing.flush()
    buried = "INSERT INTO tombstone (kind, id, generation, epoch, at_us) VALUES ('ledger', 0, 1, 1, 1)"
    losing.lose(*(f"DELETE FROM {table} WHERE ledger_id = 0" for table in ("ledger", "ledger_copy", "segment")), buried)
    objects = losing.world.store.keys
    report = losing.adopt()
    assert (report.adopted_ledgers, report.detached) == (0, 1)
    with losing.process() as log:
        assert _read(log, topic) == {}
        _sweep(log)
    assert losing.world.store.keys == objects


def test_topic_that_was_deleted_durably_never_returns(losing: Losing) -> None:
    """Nor do ledgers that it got after the flush."""
    with losing.process() as log:
        losing.flush()
        topic = _topic(log)
        log.topic_logs.append(topic, _plain("deleted"))
    buried = f"INSERT INTO tombstone (kind, id, generation, epoch, at_us) VALUES ('topic', {topic.topic_id}, 1, 1, 1)"
    losing.lose(buried)
    report = losing.adopt()
    assert (report.adopted_ledgers, report.detached) == (0, 1)
    with losing.process() as log, pytest.raises(UnknownObject):
        log.catalog.topics.get_topic_by_id(topic.topic_id)


def test_name_that_was_used_again_is_of_the_later_topic(losing: Losing) -> None:
    """The earlier one had gone when the later one was made; its record came back."""
    with losing.process() as log:
        first = _topic(log)
        log.topic_logs.append(first, _plain("of the first"))
        losing.flush()
        log.catalog.phase_one.begin_topic_deletion(first.topic_id, _NAME, cause=_CAUSE)
        claim = Claim(workflow_id="w", run_id="r", ttl_s=60)
        log.catalog.phase_one.detach_whole_topic(first.topic_id, batch_id="b", claim=claim, cause=_CAUSE)
        assert log.catalog.phase_one.remove_topic(first.topic_id, cause=_CAUSE)
        second = _topic(log)
        log.topic_logs.append(second, _plain("of the second"))
    losing.lose()
    objects = losing.world.store.keys
    report = losing.adopt()
    assert report.revived_ledgers == [0]
    with losing.process() as log:
        found = log.catalog.topics.get_topic(_NAME)
        assert found.topic_id == second.topic_id
        assert list(_read(log, found).values()) == ["of the second"]
        _sweep(log)
    assert losing.world.store.keys == objects


def test_component_ledger_that_nothing_names_is_reported_and_stays(losing: Losing) -> None:
    """A schema that was set since the flush is not known; a plan tells of its objects."""
    with losing.process() as log:
        topic = _topic(log)
        log.schemas.set(topic, b"old")
        losing.flush()
        log.schemas.set(topic, b"new")
    losing.lose()
    objects = losing.world.store.keys
    report = losing.adopt()
    assert (report.adopted_ledgers, report.detached) == (0, 1)
    with losing.process() as log:
        _sweep(log)
    assert losing.world.store.keys == objects


@pytest.mark.parametrize("way", ["gone", "unlisted", "unlisted, and its objects are there"])
def test_schema_whose_ledger_was_deleted_with_its_topic_is_left_out_and_named(losing: Losing, way: str) -> None:
    """A topic that was deleted plainly came back with the version alone: it could be neither read nor set again."""
    with losing.process() as log:
        topic = _topic(log)
        ledger_id = log.schemas.set(topic, b"content").ledger_id
        losing.flush()
    if "there" not in way:
        losing.world.store.delete([one.key for one in losing.world.store.list(ledger_prefix(ledger_id))])
    rows = [f"DELETE FROM {table} WHERE ledger_id = {ledger_id}" for table in ("segment", "ledger_copy", "ledger")]
    losing.lose(*(rows if way == "gone" else [f"UPDATE ledger SET place = NULL WHERE ledger_id = {ledger_id}"]))
    report = losing.adopt()
    assert (report.schemas_left_out, report.schemas_left_out_of) == (1, [_NAME])
    assert (report.revived, report.missing_data) == (0, 0)
    with losing.process() as log:
        found = log.catalog.topics.get_topic(_NAME)
        assert log.schemas.all(found.topic_id) == []
        assert log.schemas.set(found, b"content").version == 0
        assert log.schemas.read(found)[1] == b"content"


def test_schema_whose_objects_are_lost_is_reported_as_missing_data_and_kept(losing: Losing) -> None:
    """Its ledger is listed, so no delete has taken them: an operator may bring them back."""
    with losing.process() as log:
        topic = _topic(log)
        made = log.schemas.set(topic, b"content")
        losing.flush()
    losing.world.store.delete([one.key for one in losing.world.store.list(ledger_prefix(made.ledger_id))])
    losing.lose()
    report = losing.adopt()
    assert (report.schemas_left_out, report.missing_ledgers) == (0, [made.ledger_id])
    with losing.process() as log:
        assert log.schemas.all(topic.topic_id) == [made]


def test_objects_of_another_application_are_left_alone(losing: Losing) -> None:
    """They say so themselves."""
    with losing.process() as log:
        losing.flush()
        topic = _topic(log)
        log.topic_logs.append(topic, _plain("of another"))
    losing.lose()
    with losing.adopter("another") as adopter:
        assert adopter.compare_and_stage_shard(0).staged == 0
        assert losing.make_catalog_ready(adopter).adopted_ledgers == 0


def _copied(losing: Losing, source: LedgerId, ledger_id: LedgerId, **said: str) -> None:
    """Segments of a ledger under another id, as a defect or a stranger may have written them."""
    keys = [one.key for one in losing.world.store.list(ledger_prefix(source))]
    for key in (key for key in keys if key.endswith(".parquet")):
        found = losing.world.store.get(key)
        assert found is not None
        metadata = dict(found.metadata) | {"ledger-id": str(ledger_id)} | said
        name = key.removeprefix(ledger_prefix(source))
        losing.world.store.put_if_absent(f"{ledger_prefix(ledger_id)}{name}", found.body, metadata=metadata)


@pytest.mark.parametrize("beyond", [0, 1, 2**61, 2**62])
def test_ledger_whose_id_was_never_given_out_is_left_alone(losing: Losing, beyond: int) -> None:
    """From the ceiling of the manifest on; the topic could never roll behind it. The id below may be adopted."""
    with losing.process() as log:
        topic = _topic(log)
        losing.flush()
        log.topic_logs.append(topic, _plain("ours"))
        ceiling = log.catalog.records.read_state().ceilings.ledger
        before = _read(log, topic)
    _copied(losing, LedgerId(0), LedgerId(ceiling - 1))
    _copied(losing, LedgerId(0), LedgerId(ceiling + beyond))
    stored = list(losing.world.store.keys)
    losing.lose()
    with losing.adopter() as adopter:
        for shard in {0, (ceiling - 1) % 256, (ceiling + beyond) % 256}:
            adopter.compare_and_stage_shard(shard)
        report = losing.make_catalog_ready(adopter)
    assert (report.adopted_ledgers, report.detached) == (2, 0)
    with losing.process() as log:
        assert _read(log, topic) == before | {Position(LedgerId(ceiling - 1), 0): "ours"}
        assert log.topic_logs.roll(topic).opened >= ceiling
        assert log.catalog.deletions.count_undeleted_copies().estimated_inflight == 0
    assert set(stored) <= set(losing.world.store.keys)


def test_ledger_of_a_topic_whose_id_was_never_given_out_is_left_alone(losing: Losing) -> None:
    """The topic would get ids of its own from then on."""
    with losing.process() as log:
        topic = _topic(log)
        log.topic_logs.append(topic, _plain("ours"))
        losing.flush()
        ceiling = log.catalog.records.read_state().ceilings.topic
    for at, topic_id in enumerate((ceiling, 2**70, -1)):
        _copied(losing, LedgerId(0), LedgerId(5 + at), **{"topic-id": str(topic_id), "topic": f"{_NAME}-{at}"})
    losing.lose()
    report = losing.adopt()
    assert (report.adopted_ledgers, report.detached) == (0, 0)
    with losing.process() as log:
        for at in range(3):
            with pytest.raises(UnknownObject):
                log.catalog.topics.get_topic(f"{_NAME}-{at}")
        assert _topic(log, f"{_NAME}-new").topic_id >= ceiling


def test_upload_of_an_epoch_or_a_transaction_that_never_began_is_left_out(losing: Losing) -> None:
    """Behind the last flush, under the numbers of a ledger that is open."""
    with losing.process() as log:
        topic = _topic(log)
        losing.flush()
        log.topic_logs.append(topic, _plain("ours"))
        before = _read(log, topic)
        epoch = log.catalog.ledgers.catalog_epoch()
        log.topic_logs.append(topic, _inside(_begin(log), "inside"))
    plain, inside = (losing.world.store.get(segment_key(LedgerId(0), number)) for number in (0, 1))
    assert plain is not None
    assert inside is not None
    losing.world.store.delete([segment_key(LedgerId(0), 1)])
    later = dict(plain.metadata) | {
        "catalog-epoch": str(epoch + 1),
        EXTENT_FIELD: "0:1",
        UPLOAD_ID_FIELD: f"{1:032x}-1",
    }
    losing.world.store.put_if_absent(segment_key(LedgerId(0), 1), plain.body, metadata=later)
    losing.world.store.put_if_absent(segment_key(LedgerId(0), 2), inside.body, metadata=inside.metadata)
    losing.lose("UPDATE transaction_coordinator SET next_sequence = 0")
    assert losing.adopt().adopted_segments == 1
    with losing.process() as log:
        assert _read(log, topic) == before


@pytest.mark.parametrize("losing", ["sqlite", _POSTGRES_IN_THE_LONG_RUN], indirect=True)
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("effect", ["adoption.stage", "adoption.settle", "adoption.conclude", "adoption.finish"])
def test_adoption_that_dies_anywhere_is_done_by_the_next(losing: Losing, effect: str, moment: str) -> None:
    """Each shard and each topic may be done twice; what is reported is the same."""
    with losing.process() as log:
        topic, other = _topic(log), _topic(log, "persistent://shop/main/other")
        log.topic_logs.append(topic, _plain("flushed"))
        losing.flush()
        for one in (topic, other):
            log.topic_logs.append(one, _plain("tail"))
        before = [_read(log, one) for one in (topic, other)]
    losing.lose()
    arm(f"{effect}.{moment}", "crash")
    with pytest.raises(SimulatedCrash):
        losing.adopt()
    disarm_all_and_take_hits()
    with losing.adopter() as adopter:
        if (effect, moment) != ("adoption.finish", "after"):
            for shard in range(2):
                adopter.compare_and_stage_shard(shard)
        report = losing.make_catalog_ready(adopter)
    assert (report.adopted_ledgers, report.adopted_segments) == (1, 2)
    with losing.process() as log:
        assert [_read(log, one) for one in (topic, other)] == before


def test_catalog_that_is_complete_is_not_adopted(losing: Losing) -> None:
    """Its writers are at work."""
    with losing.adopter() as adopter, pytest.raises(PreconditionFailed, match="complete"):
        adopter.compare_and_stage_shard(0)


@pytest.mark.parametrize("shard", [-1, 256])
def test_shard_that_there_is_not_is_refused(losing: Losing, shard: int) -> None:
    """256 of them."""
    with losing.adopter() as adopter, pytest.raises(InvalidInput, match="0 to 255"):
        adopter.compare_and_stage_shard(shard)


def test_nothing_is_written_to_a_catalog_before_it_is_complete(losing: Losing) -> None:
    """Not by any port but those that complete it; afterwards everything is, in the same process too."""
    with losing.process() as log:
        topic = _topic(log)
        log.topic_logs.append(topic, _plain("flushed"))
        losing.flush()
    buried = "INSERT INTO tombstone (kind, id, generation, epoch, at_us) VALUES ('ledger', 999, 1, 1, 0)"
    losing.lose(buried, "DELETE FROM record_outbox")
    claim = Claim(workflow_id="w", run_id="r", ttl_s=60)
    with losing.process() as log:
        detach = partial(
            log.catalog.phase_one.detach_ledgers,
            topic.topic_id,
            None,
            force=False,
            batch_id="b",
            claim=claim,
            cause=_CAUSE,
        )
        refused: dict[str, Callable[[], object]] = {
            "append": lambda: log.topic_logs.append(topic, _plain("too early")),
            "roll": lambda: log.topic_logs.roll(topic),
            "begin": lambda: _begin(log),
            "subscribe": lambda: log.subscriptions.subscribe(topic.topic_id, "s", latest=False),
            "delete topic": lambda: log.catalog.phase_one.begin_topic_deletion(topic.topic_id, _NAME, cause=_CAUSE),
            "trim": detach,
            "raid": lambda: log.catalog.tombstones.mark_raid_candidates("r", before_us=1, after=None, limit=1),
            "plan": lambda: log.catalog.reconciliation.open_run("r", RunKind.PLAN, claim=claim, summary={}),
            "coordinator": lambda: log.catalog.transactions.claim_decided_transactions(claim, limit=1),
        }
        for name, write in refused.items():
            with pytest.raises(CatalogAdopting, match="ADOPTING"):
                write()
            assert name
        assert list(_read(log, topic).values()) == ["flushed"], "what is known can be read"
        losing.adopt()
        log.topic_logs.append(topic, _plain("now"))


def test_subscription_that_is_made_again_after_a_rebuild_refuses_what_was_read_before(losing: Losing) -> None:
    """The lost catalog had one of that name, whose transaction held what a consumer read past."""
    with losing.process() as log:
        topic = _topic(log)
        log.topic_logs.append(topic, _plain(*"abcde"))
        losing.flush()
        before = log.subscriptions.subscribe(topic.topic_id, "s", latest=False)
    losing.lose()
    losing.adopt()
    with losing.process() as log:
        after = log.subscriptions.subscribe(topic.topic_id, "s", latest=False)
        assert after.releases > before.releases
        last = Position(LedgerId(0), 4)
        with pytest.raises(AcknowledgementStale):
            log.subscriptions.acknowledge(topic.topic_id, "s", up_to=last, releases=before.releases)
