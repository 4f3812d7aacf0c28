"""Snapshots are written when they are due, whole or not at all, wherever their writer dies."""

from pathlib import Path

import pytest

from logstore import failpoints
from logstore.errors import StoreUnavailable
from logstore.failpoints import SimulatedCrash
from logstore.log.ledger_object_keys import ledger_prefix
from logstore.log.ledgers import Component
from logstore.positions import LedgerId
from logstore.transactions.transaction_buffer import TransactionBuffer
from tests.activities.activity_world import make_chunk_input, run_owner_routed_activity
from tests.fakes.object_store import Fault, FaultKind, StoreOperation
from tests.logstore.transactions.histories import History, Step, open_history

_ABORTED: list[Step] = [("begin", 0, 0), ("produce", 0, 1), ("decide", 0, 0), ("settle", 0, 1)]
_EFFECTS = [
    "transactions.write_snapshot",
    "catalog.create_component_ledger",
    "component.put_meta",
    "component.put_segment",
    "catalog.publish_transaction_snapshot",
]


@pytest.fixture
def history(tmp_path: Path) -> History:
    return open_history(tmp_path)


def _make_due(history: History) -> None:
    history.world.sql("UPDATE transaction_snapshot SET due_us = 1")


def _snapshots(history: History) -> list[int]:
    found = history.world.catalog.components.list_ledgers(history.world.topic.topic_id)
    return [one.ledger_id for one in found if one.component is Component.TXN_SNAPSHOT]


def test_due_snapshot_is_what_sql_says_and_replaces_the_one_before(history: History) -> None:
    """And what it replaces is deleted in two phases, as every ledger is."""
    log, topic_id = history.world.log, history.world.topic.topic_id
    history.take(_ABORTED)
    assert log.buffer_snapshots.write_snapshots_and_count_due() == 0
    _make_due(history)
    assert (
        log.buffer_snapshots.write_snapshots_and_count_due(),
        log.buffer_snapshots.write_snapshots_and_count_due(),
    ) == (1, 0)
    assert log.buffer_snapshots.load_readable_snapshot(topic_id) == history.in_sql()
    (first,) = _snapshots(history)
    history.take([("begin", 0, 0), *_ABORTED])
    _make_due(history)
    log.buffer_snapshots.write_snapshots_and_count_due()
    assert log.buffer_snapshots.load_readable_snapshot(topic_id) == history.in_sql()
    assert log.rebuilder.rebuild_buffer(topic_id) == history.in_sql()
    assert _snapshots(history) != [first]
    assert [row[0] for row in history.world.sql("SELECT ledger_id FROM pending_deletion")] == [first]


@pytest.mark.parametrize("part", ["meta.json", ".parquet"])
def test_snapshot_whose_upload_was_answered_and_not_stored_replaces_none(history: History, part: str) -> None:
    """The one before stays current, and the next attempt writes it."""
    log, topic_id = history.world.log, history.world.topic.topic_id
    history.take(_ABORTED)
    _make_due(history)
    log.buffer_snapshots.write_snapshots_and_count_due()
    before, (current,) = log.buffer_snapshots.load_readable_snapshot(topic_id), _snapshots(history)
    history.take([("begin", 0, 0), *_ABORTED])
    _make_due(history)
    lost = Fault(operation=StoreOperation.PUT, kind=FaultKind.LOST, times=5, matches=lambda key: key.endswith(part))
    history.world.objects.plan(lost)
    log.buffer_snapshots.write_snapshots_and_count_due()
    assert lost.times == 0
    assert current in _snapshots(history)
    assert log.buffer_snapshots.load_readable_snapshot(topic_id) == before
    _make_due(history)
    log.buffer_snapshots.write_snapshots_and_count_due()
    assert log.buffer_snapshots.load_readable_snapshot(topic_id) == history.in_sql()


def test_superseded_snapshot_is_deleted_by_the_next_trim_of_its_topic(history: History) -> None:
    """With all of its objects; no person has to look at it."""
    log, world = history.world.log, history.world
    history.take(_ABORTED)
    assert log.buffer_snapshots.replace_snapshot(world.topic.topic_id, history.in_sql())
    (first,) = _snapshots(history)
    assert log.buffer_snapshots.replace_snapshot(world.topic.topic_id, history.in_sql())
    world.detach()
    run_owner_routed_activity(world.deletion.delete_chunk, make_chunk_input())
    assert world.outcomes() == {"DELETED": 1}
    assert world.left_of(LedgerId(first)) == []
    assert log.buffer_snapshots.load_readable_snapshot(world.topic.topic_id) == history.in_sql()


@pytest.mark.parametrize("point", [f"{name}.{when}" for name in _EFFECTS for when in ("before", "after")])
def test_writer_that_dies_leaves_the_old_snapshot_or_the_new_one(history: History, point: str) -> None:
    """Never half of one; its lease ends, and the next writer makes it whole."""
    log, topic_id = history.world.log, history.world.topic.topic_id
    history.take(_ABORTED)
    _make_due(history)
    log.buffer_snapshots.write_snapshots_and_count_due()
    before = log.buffer_snapshots.load_readable_snapshot(topic_id)
    history.take(_ABORTED)
    _make_due(history)
    failpoints.arm(point, "crash")
    with pytest.raises(SimulatedCrash):
        log.buffer_snapshots.write_snapshots_and_count_due()
    failpoints.disarm_all_and_take_hits()
    assert log.buffer_snapshots.load_readable_snapshot(topic_id) in (before, history.in_sql())
    assert len(_snapshots(history)) == 1
    _make_due(history)
    log.buffer_snapshots.write_snapshots_and_count_due()
    assert log.buffer_snapshots.load_readable_snapshot(topic_id) == history.in_sql()
    (standing,) = _snapshots(history)
    rows = {row[0] for row in history.world.sql("SELECT ledger_id FROM ledger")}
    intents = {row[0] for row in history.world.sql("SELECT ledger_id FROM pending_deletion")}
    stored = {key.partition(".")[0].rsplit("/", 1)[0] for key in history.world.objects.keys}
    assert stored <= {ledger_prefix(one).rstrip("/") for one in rows | intents}, "each object is some row's"
    assert standing in rows


def test_store_that_is_away_costs_a_line_and_no_other_topic_its_snapshot(
    history: History, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is due again after its lease."""
    history.take(_ABORTED)
    _make_due(history)

    def fail(*_: object, **__: object) -> None:
        raise StoreUnavailable("away")

    with monkeypatch.context() as patched:
        patched.setattr(history.world.objects, "put_if_absent", fail)
        patched.setattr("logstore.retrying_clock.Backoff.pause_s", lambda *_: 0.0)
        assert history.world.log.buffer_snapshots.write_snapshots_and_count_due() == 1
    assert "its transactions' snapshot is not written: away" in caplog.text
    assert _snapshots(history) == []
    assert history.world.catalog.transaction_snapshots.get_snapshot(history.world.topic.topic_id).due_us is not None


def test_snapshot_of_a_topic_whose_entries_are_all_gone_is_written_once(history: History) -> None:
    """Its place in the log does not go back with them, or it would be tried, and thrown away, for ever."""
    log, topic_id = history.world.log, history.world.topic.topic_id
    history.take([*_ABORTED, ("roll", 0, 0)])
    assert log.buffer_snapshots.replace_snapshot(topic_id, history.in_sql())
    history.take([*_ABORTED, ("roll", 0, 0)])
    *filled, last = history.world.catalog.ledgers.list_ledgers(topic_id)
    request = history.world.make_detach_input([one.ledger_id for one in filled], batch_id="batch-all", force=True)
    run_owner_routed_activity(history.world.deletion.detach, request)
    assert last.entries == 0
    _make_due(history)
    assert log.buffer_snapshots.write_snapshots_and_count_due() == 1
    assert (
        log.buffer_snapshots.load_readable_snapshot(topic_id)
        == history.in_sql()
        == log.rebuilder.rebuild_buffer(topic_id)
    )
    assert history.world.catalog.transaction_snapshots.get_snapshot(topic_id).due_us is None


def test_snapshot_that_knows_less_replaces_nothing(history: History) -> None:
    """And nothing is written for it."""
    log, topic_id = history.world.log, history.world.topic.topic_id
    history.take(_ABORTED)
    older = history.in_sql()
    history.take(_ABORTED)
    assert log.buffer_snapshots.replace_snapshot(topic_id, history.in_sql())
    stored = list(history.world.objects.keys)
    assert not log.buffer_snapshots.replace_snapshot(topic_id, older)
    assert not log.buffer_snapshots.replace_snapshot(topic_id, TransactionBuffer())
    assert (history.world.objects.keys, log.buffer_snapshots.load_readable_snapshot(topic_id)) == (
        stored,
        history.in_sql(),
    )
