"""A buffer out of the log is the buffer in SQL, from every snapshot and from the log alone."""

import logging
import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
from pyroaring import BitMap

from logstore.errors import CorruptData, MissingData, StoreUnavailable
from logstore.log.ledger_object_keys import segment_key
from logstore.ports.catalog.log import Ledger
from logstore.positions import LedgerId, TopicId
from logstore.transactions.transaction_buffer import TransactionBuffer
from logstore.transactions.transaction_ids_and_states import TransactionId
from tests.activities.activity_world import make_chunk_input, run_owner_routed_activity
from tests.activities.test_offload import publish, remove_primaries, upload
from tests.fakes.object_store import Fault, FaultKind, StoreOperation
from tests.logstore.transactions.histories import History, Step, open_history

_KINDS = {
    "begin": 4,
    "produce": 8,
    "decide": 4,
    "settle": 3,
    "acknowledge": 2,
    "resolve": 1,
    "roll": 1,
    "delete": 1,
    "snapshot": 1,
}
"""Steps with their weights."""


@pytest.fixture
def history(tmp_path: Path) -> History:
    return open_history(tmp_path)


@pytest.mark.parametrize("seed", range(6))
def test_rebuilt_buffer_is_that_of_sql_whatever_happened(history: History, seed: int) -> None:
    """Also where a broadcast died between marker and settlement, a participant was resolved, a ledger has gone."""
    dice = random.Random(seed)
    for _ in range(12):
        kinds = dice.choices([*_KINDS], [*_KINDS.values()], k=8)
        history.take([(kind, dice.randrange(6), dice.randrange(6)) for kind in kinds])
        assert history.rebuilt() == history.in_sql()
    for start in history.snapshots:
        assert history.rebuilt(start) == history.rebuilt(start, whole=True) == history.in_sql()
    assert history.snapshots
    assert history.in_sql().hidden


_DECIDED: list[Step] = [
    ("produce", 0, 1),
    ("begin", 0, 0),
    ("begin", 0, 0),
    ("begin", 0, 0),
    ("produce", 0, 1),
    ("produce", 1, 1),
    ("produce", 2, 1),
    ("decide", 0, 0),
    ("decide", 0, 1),
    ("settle", 0, 1),
]
"""0:0 aborted, 0:1 committed, 0:2 open, each with two entries behind two ordinary ones."""


def test_log_alone_tells_what_rows_told(history: History) -> None:
    """Messages of the aborted one and both markers are hidden, the open one has its entries, exactly as in SQL."""
    history.take(_DECIDED)
    ledger = history.world.catalog.ledgers.list_ledgers(history.world.topic.topic_id)[-1].ledger_id
    found = history.rebuilt()
    assert found == TransactionBuffer(
        read_to=history.in_sql().read_to,
        hidden={ledger: BitMap([2, 3, 8, 9])},
        open={TransactionId(0, 2): {ledger: BitMap([6, 7])}},
    )
    ranges = history.world.sql("SELECT ledger_id, first_entry, entries, tc_id, sequence FROM buffer_range")
    assert [list(row) for row in ranges] == [[ledger, 6, 2, 0, 2]]
    hidden = dict(map(tuple, history.world.sql("SELECT ledger_id, entries FROM buffer_hidden")))
    assert {at: BitMap.deserialize(packed) for at, packed in hidden.items()} == found.hidden


def test_transactions_that_the_catalog_has_forgotten_are_as_their_markers_say(history: History) -> None:
    """And one without a marker was aborted."""
    history.take(_DECIDED)
    before = history.rebuilt()
    history.world.sql('DELETE FROM "transaction"')
    ((ledger, bits),) = before.hidden.items()
    assert history.rebuilt() == TransactionBuffer(read_to=before.read_to, hidden={ledger: bits | BitMap([6, 7])})


@pytest.mark.parametrize("how", ["resolved", "deleted"])
@pytest.mark.parametrize("commit", [False, True])
def test_end_that_the_log_does_not_tell_any_more_is_that_of_the_snapshot(
    history: History, how: str, *, commit: bool
) -> None:
    """A participant was resolved by hand, or a ledger with markers deleted by force, and the transaction forgotten.

    No rebuild of the whole log undoes a commit then; of what no snapshot shows, nothing is shown.
    """
    world, topic_id = history.world, history.world.topic.topic_id
    history.take([("produce", 0, 0), ("begin", 0, 0), ("produce", 0, 2), ("decide", 0, int(commit)), ("roll", 0, 0)])
    if how == "resolved":
        history.take([("resolve", 0, 0), ("begin", 0, 0), ("produce", 0, 1)])
    else:
        history.take([("settle", 0, 1), ("begin", 0, 0), ("roll", 0, 0), ("produce", 0, 1)])
    history.take([("snapshot", 0, 0)])
    world.sql('UPDATE "transaction" SET finished_us = 1 WHERE finished_us > 0')
    assert world.catalog.transactions.remove_finished_transactions(older_than_s=1, limit=10) == 1
    if how == "deleted":
        marked = world.catalog.ledgers.list_ledgers(topic_id)[1].ledger_id
        run_owner_routed_activity(
            world.deletion.detach, world.make_detach_input([marked], batch_id="batch-forced", force=True)
        )
    history.take([("produce", 0, 1)])
    (known,) = history.snapshots
    assert history.rebuilt(known, whole=True) == history.in_sql()
    first = world.catalog.ledgers.list_ledgers(topic_id)[0].ledger_id
    assert history.in_sql().hidden.get(first, BitMap()) == (BitMap() if commit else BitMap([1, 2, 3]))
    assert history.rebuilt().hidden.get(first) == BitMap([1, 2, 3])


def test_rebuild_goes_on_from_the_snapshot_and_reads_only_what_follows(history: History) -> None:
    """So its length is bounded, whatever the log's (apache/pulsar#19200)."""
    log, topic_id = history.world.log, history.world.topic.topic_id
    history.take([*_DECIDED, ("roll", 0, 0)])
    assert log.buffer_snapshots.replace_snapshot(topic_id, history.in_sql())
    history.take([("produce", 1, 1), ("decide", 0, 0), ("settle", 0, 1)])
    first = history.world.catalog.ledgers.list_ledgers(topic_id)[0].ledger_id
    history.world.objects.delete([segment_key(first, number) for number in range(9)])
    assert log.rebuilder.rebuild_buffer(topic_id) == history.in_sql()
    with pytest.raises(MissingData, match=f"ledger {first}|{segment_key(first, 0)}"):
        history.rebuilt()


@pytest.mark.parametrize("damage", ["gone", "other", "foreign"])
def test_damaged_snapshot_is_ignored_and_the_whole_log_is_read(
    history: History, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """With a line in the log."""
    log, topic_id = history.world.log, history.world.topic.topic_id
    history.take(_DECIDED)
    expected = history.rebuilt()
    log.buffer_snapshots.replace_snapshot(
        topic_id, TransactionBuffer(read_to=expected.read_to)
    )  # wrong, to be seen if it were read
    ledger_id = history.world.catalog.transaction_snapshots.get_snapshot(topic_id).ledger_id
    assert ledger_id is not None
    assert log.rebuilder.rebuild_buffer(topic_id).hidden == {}
    key = segment_key(ledger_id, 0)
    if damage == "foreign":
        history.world.sql("UPDATE transaction_snapshot SET ledger_id = :id", id=0)
    else:
        stored = history.world.objects.get(key)
        assert stored
        history.world.objects.delete([key])
        if damage == "other":
            body = stored.body[:-20] + bytes(20)
            history.world.objects.put_if_absent(key, body, metadata=stored.metadata)
    with caplog.at_level(logging.WARNING):
        assert log.rebuilder.rebuild_buffer(topic_id) == expected
    assert "the whole log is read, because its snapshot is damaged" in caplog.text


def test_rebuild_reads_tiered_copies_where_primary_ones_are_gone(history: History) -> None:
    """A log that was offloaded has the same story."""
    world = history.world
    history.take([*_DECIDED, ("decide", 0, 0), ("settle", 0, 1), ("roll", 0, 0), ("begin", 0, 0), ("produce", 0, 1)])
    first = next(one.ledger_id for one in world.catalog.ledgers.list_ledgers(world.topic.topic_id) if one.entries)
    publish(world, first, upload(world, first))
    assert remove_primaries(world) >= 1
    run_owner_routed_activity(world.deletion.delete_chunk, make_chunk_input())
    assert world.left_of(first) == []
    assert world.log.rebuilder.rebuild_buffer(world.topic.topic_id) == history.in_sql()
    assert first in history.in_sql().hidden


@pytest.mark.parametrize("commit", [False, True])
def test_messages_of_an_open_transaction_may_be_offloaded(history: History, *, commit: bool) -> None:
    """Readers see them once it commits, out of the copy that is left, and never if it aborts."""
    world = history.world
    history.take([("produce", 0, 0), ("begin", 0, 0), ("produce", 0, 1), ("roll", 0, 0)])
    (ledger_id,) = [one.ledger_id for one in world.catalog.ledgers.list_ledgers(world.topic.topic_id) if one.entries]
    publish(world, ledger_id, upload(world, ledger_id))
    assert remove_primaries(world) == 1
    run_owner_routed_activity(world.deletion.delete_chunk, make_chunk_input())
    assert world.left_of(ledger_id) == []
    read = partial(world.log.topic_logs.read, world.topic, max_entries=9)
    assert len(read()) == 1
    history.take([("decide", 0, int(commit)), ("settle", 0, 1)])
    assert len(read()) == (3 if commit else 1)
    assert world.log.rebuilder.rebuild_buffer(world.topic.topic_id) == history.in_sql()


def test_rebuild_that_fails_is_repeated_from_scratch(history: History) -> None:
    """No failure sticks (apache/pulsar#14801), and no thread is left behind (apache/pulsar#14830)."""
    import threading  # noqa: PLC0415

    history.take(_DECIDED)
    expected = history.in_sql()
    threads = set(threading.enumerate())
    for _ in range(3):
        history.world.objects.plan(Fault(operation=StoreOperation.GET, kind=FaultKind.BEFORE))
        with pytest.raises(StoreUnavailable):
            history.rebuilt()
        assert history.rebuilt() == expected
    assert set(threading.enumerate()) <= threads


def test_ledger_trimmed_under_a_rebuild_is_left_out(history: History) -> None:
    """As a reader does, which looks at the list again."""
    topic_id, ledgers = history.world.topic.topic_id, history.world.catalog.ledgers
    history.take([("produce", 0, 0), ("roll", 0, 0), ("produce", 0, 0), ("roll", 0, 0), *_DECIDED])
    first = ledgers.list_ledgers(topic_id)[0].ledger_id

    def trim() -> None:
        history.take([("delete", 0, 0)])
        history.world.objects.delete([segment_key(first, 0)])

    history.world.objects.plan(Fault(operation=StoreOperation.GET, kind=FaultKind.CALL, action=trim))
    found = history.rebuilt()
    assert first not in [one.ledger_id for one in ledgers.list_ledgers(topic_id)]
    assert found == history.in_sql()


@pytest.mark.parametrize("number", [0, 1, 2])
def test_entries_without_a_row_end_a_rebuild(history: History, number: int) -> None:
    """First, in the middle or last: a buffer without them would show messages of an aborted transaction."""
    world = history.world
    history.take([("produce", 0, 0), ("begin", 0, 0), ("produce", 0, 1), ("decide", 0, 0), ("settle", 0, 1)])
    ledger_id = world.catalog.ledgers.list_ledgers(world.topic.topic_id)[-1].ledger_id
    segments = world.catalog.ledgers.list_segments(ledger_id)
    assert len(segments) == 3
    gone = segments[number]
    world.sql(f"DELETE FROM segment WHERE ledger_id = {ledger_id} AND number = {gone.number}")
    with pytest.raises(MissingData, match=f"entry {gone.first_entry} of ledger {ledger_id} is listed"):
        history.rebuilt()


def test_ledger_whose_rows_are_trimmed_under_a_rebuild_is_left_out(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the list and its segments; the rebuild looks at the list again."""
    topic_id, ledgers = history.world.topic.topic_id, history.world.catalog.ledgers
    history.take([("produce", 0, 0), ("roll", 0, 0), ("produce", 0, 0), ("roll", 0, 0), *_DECIDED])
    first, listed = ledgers.list_ledgers(topic_id)[0].ledger_id, ledgers.list_ledgers
    looks: list[int] = []

    def trimmed_afterwards(topic: TopicId) -> Sequence[Ledger]:
        found = listed(topic)
        looks.append(len(found))
        if len(looks) == 1:
            history.take([("delete", 0, 0)])
        return found

    monkeypatch.setattr(ledgers, "list_ledgers", trimmed_afterwards)
    assert history.rebuilt() == history.in_sql()
    assert first not in [ledger.ledger_id for ledger in listed(topic_id)]
    assert looks[0] > looks[-1]


def test_marker_that_is_none_is_refused(history: History) -> None:
    """The log is damaged, and nobody guesses."""
    import pyarrow as pa  # noqa: PLC0415

    from logstore.cursors.cursor_state import VisibleLedgerSpan  # noqa: PLC0415
    from logstore.transactions.transaction_buffer import TransactionBufferAccumulator  # noqa: PLC0415

    fold = TransactionBufferAccumulator(TransactionBuffer(), [VisibleLedgerSpan(LedgerId(1), 1)])
    table = pa.table({"txn_tc": [0], "txn_seq": [0], "marker": ["PERHAPS"]})
    with pytest.raises(CorruptData, match="ledger 1"):
        fold.add_segment(LedgerId(1), 0, table)
