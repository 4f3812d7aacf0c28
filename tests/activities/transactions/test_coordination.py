"""A coordinator's activity: deadlines hold under load, and what will never succeed keeps no transaction in the dark."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from activities.transactions.coordinate_transactions import (
    BroadcastInput,
    DrainInput,
    DrainResult,
    TransactionCoordinatorActivities,
    broadcast_workflow_id,
)
from logstore import failpoints
from logstore.errors import CorruptData, SextonError, StoreUnavailable
from logstore.failpoints import SimulatedCrash
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.log.services import AppendResult
from logstore.ports.catalog.log import Topic
from logstore.ports.catalog.transactions import StoredTransaction
from logstore.transactions.services.broadcast import Broadcaster, BroadcastResult
from logstore.transactions.transaction_ids_and_states import BroadcastState, TransactionId, TransactionState
from tests.activities.activity_world import make_activity_environment
from tests.fakes.meter import FakeMeter, metric_series
from tests.faults.transaction_course import virtual_coordinator_clock
from tests.logstore.transactions.histories import History, open_history

_ABORTED = (TransactionState.ABORTING, TransactionState.ABORTED)


@pytest.fixture
def history(tmp_path: Path) -> History:
    return open_history(tmp_path)


class _Busy(Broadcaster):
    """There is more to tell after each batch, for so many batches; and after the first one a deadline has passed."""

    def __init__(self, history: History, batches: int) -> None:
        self.history, self.left = history, batches
        self.states: list[TransactionState] = []  # of the late one, whenever a batch is told

    def broadcast_batch(self, batch: Sequence[StoredTransaction]) -> BroadcastResult:
        late = TransactionId(0, 0)
        self.states.append(self.history.world.catalog.transactions.get_transaction_states([late])[late])
        told = self.history.world.log.broadcasts.broadcast_batch(batch)
        self.history.world.sql('UPDATE "transaction" SET deadline_us = 1 WHERE sequence = 0 AND tc_id = 0')
        self.left -= 1
        if self.left:
            self.history.take([("begin", 0, 0)])
            newest = len(self.history.open) - 1
            self.history.take([("produce", newest, 0), ("decide", newest, 1)])
        return told


def _coordination(history: History, broadcasts: Broadcaster) -> TransactionCoordinatorActivities:
    return TransactionCoordinatorActivities(
        transactions=history.world.catalog.transactions, broadcasts=broadcasts, finished_retention_s=1e9
    )


def _drain(
    history: History, broadcasts: Broadcaster, *, meter: FakeMeter | None = None, most_s: float = 30.0
) -> DrainResult:
    env = make_activity_environment("transaction-coordinator/0")
    env.metric_meter = meter or env.metric_meter
    request = DrainInput(tc_id=0, linger_s=0.0, most_s=most_s)
    with virtual_coordinator_clock():
        answer = env.run(_coordination(history, broadcasts).abort_expired_and_broadcast_decided, request)
    assert isinstance(answer, DrainResult)
    return answer


def _tell(history: History, txn: TransactionId, *, meter: FakeMeter | None = None) -> BroadcastState:
    env = make_activity_environment(broadcast_workflow_id(txn))
    env.metric_meter = meter or env.metric_meter
    answer = env.run(
        _coordination(history, history.world.log.broadcasts).tell_owed_participants, BroadcastInput(txn=str(txn))
    )
    assert isinstance(answer, BroadcastState)
    return answer


def _failing(history: History, monkeypatch: pytest.MonkeyPatch) -> TransactionId:
    """A decided transaction whose topic can be told nothing, until the patch is undone."""
    history.take([("begin", 0, 0), ("produce", 0, 0), ("decide", 0, 1)])

    def fail(*_: object) -> None:
        raise CorruptData("damaged")

    monkeypatch.setattr(history.world.log.topic_logs, "append", fail)
    return history.decided[-1]


def test_deadline_that_passes_while_there_is_always_more_to_tell_is_kept(history: History) -> None:
    """It waits for one batch, not for the end of the activity (apache/pulsar#19200)."""
    history.take([("begin", 0, 0), ("produce", 0, 0), ("begin", 0, 0), ("produce", 1, 0), ("decide", 1, 1)])
    busy = _Busy(history, batches=5)
    answer = _drain(history, busy)
    assert answer.finished >= 5
    assert answer.expired == 1
    first, *later = busy.states
    assert first is TransactionState.OPEN
    assert all(state in _ABORTED for state in later), later


@pytest.mark.parametrize("error", [CorruptData("damaged"), StoreUnavailable("away")])
def test_transaction_whose_topics_all_fail_is_handed_over_unless_storage_is_away(
    history: History, monkeypatch: pytest.MonkeyPatch, error: SextonError
) -> None:
    """An error that will not pass is told to the operator; one that may is tried again (apache/pulsar#26374)."""
    world, log = history.world, history.world.log
    other = world.catalog.topics.create_topic("persistent://tenant/namespace/other", world.topic.policy)
    history.take([("begin", 0, 0), ("produce", 0, 0)])
    (txn,) = history.open
    log.topic_logs.append(other, ProducedEntries(entries=[NewEntry(payload=b"x")], txn=txn))
    history.take([("decide", 0, 1)])

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(log.topic_logs, "append", fail)
    if isinstance(error, StoreUnavailable):
        with pytest.raises(StoreUnavailable, match="no topic could be told"):
            _drain(history, log.broadcasts)
        return
    assert _drain(history, log.broadcasts).handed_over == [str(txn)]
    found = world.catalog.transactions.get_transaction(txn)
    assert [one.last_error for one in found.owed] == ["CorruptData: damaged"] * 2
    assert (found.attempts, found.claim_workflow) == (1, broadcast_workflow_id(txn))
    assert (found.last_error or "").count("CorruptData: damaged") == 2


def test_error_that_nobody_expected_is_told_of_one_topic_and_holds_up_no_other(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A defect that one topic meets; the markers of the others are written once (apache/pulsar#26380)."""
    world, log = history.world, history.world.log
    other = world.catalog.topics.create_topic("persistent://tenant/namespace/other", world.topic.policy)
    history.take([("begin", 0, 0), ("begin", 0, 0), ("produce", 0, 0)])
    well, bad = history.open
    log.topic_logs.append(other, ProducedEntries(entries=[NewEntry(payload=b"x")], txn=bad))
    history.take([("decide", 0, 1), ("decide", 0, 1)])
    real = log.topic_logs.append

    def append(topic: Topic, produced: ProducedEntries) -> AppendResult:
        if topic.topic_id == other.topic_id:
            raise ZeroDivisionError("a defect")
        return real(topic, produced)

    monkeypatch.setattr(log.topic_logs, "append", append)
    answer = _drain(history, log.broadcasts)
    assert (answer.finished, answer.handed_over) == (1, [str(bad)])
    assert world.catalog.transactions.get_transaction_states([well])[well] is TransactionState.COMMITTED
    assert [one.last_error for one in world.catalog.transactions.get_transaction(bad).owed] == [
        "ZeroDivisionError: a defect"
    ]


def test_transaction_handed_over_by_a_worker_that_died_is_in_the_next_answer(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its claim is that of a workflow which nobody has started: else it would wait until that lapses."""
    txn = _failing(history, monkeypatch)
    failpoints.arm("catalog.hand_over_transactions.after", "crash")
    with pytest.raises(SimulatedCrash):
        _drain(history, history.world.log.broadcasts)
    failpoints.disarm_all_and_take_hits()
    for _ in range(2):
        answer = _drain(history, history.world.log.broadcasts)
        assert (answer.handed_over, answer.finished, answer.more) == ([str(txn)], 0, False)
    assert _tell(history, txn).owed_count == 1
    assert _drain(history, history.world.log.broadcasts).handed_over == [], "its broadcast has begun"
    assert history.world.catalog.transactions.get_transaction(txn).attempts == 2
    monkeypatch.undo()
    assert _tell(history, txn).state == "COMMITTED"


def test_drain_that_ends_at_work_says_that_there_may_be_more(history: History) -> None:
    """A client that saw its coordinator at work wakes nobody: the next drain has to follow by itself."""
    busy = [("begin", 0, 0), ("produce", 0, 0), ("decide", 0, 1)]
    history.take(busy)
    assert _drain(history, history.world.log.broadcasts, most_s=-1.0).more
    history.take(busy)
    assert not _drain(history, history.world.log.broadcasts).more


class _Slow(Broadcaster):
    """A batch takes ten seconds, after which one of its clients decides again, and the other one a little later."""

    def __init__(self, history: History, clock: SimpleNamespace) -> None:
        self.history, self.clock, self.batches = history, clock, list[int]()

    def broadcast_batch(self, batch: Sequence[StoredTransaction]) -> BroadcastResult:
        self.batches.append(len(batch))
        self.clock.now += 10.0
        told = self.history.world.log.broadcasts.broadcast_batch(batch)
        if len(self.batches) == 1:
            self.decide(0.0)
        return told

    def decide(self, _: float) -> None:
        """A sleep in which a client decides, once."""
        if self.history.open:
            self.history.take([("decide", 0, 1)])
        else:
            self.clock.now += 1.0


def test_clients_that_waited_for_one_batch_are_together_in_the_next(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They decide again at about the same moment, and a batch of one costs a topic as much as a batch of all."""
    for _ in range(4):
        history.take([("begin", 0, 0), ("produce", len(history.open), 0)])
    history.take([("decide", 0, 1)] * 2)
    clock = SimpleNamespace(now=0.0)
    slow = _Slow(history, clock)
    patched = SimpleNamespace(monotonic=lambda: clock.now, sleep=slow.decide)
    monkeypatch.setattr("activities.transactions.coordinate_transactions.time", patched)
    env = make_activity_environment("transaction-coordinator/0")
    env.run(_coordination(history, slow).abort_expired_and_broadcast_decided, DrainInput(tc_id=0, linger_s=0.5))
    assert slow.batches == [2, 2]


def test_broadcast_is_recorded_once_by_the_call_that_ended_it(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From its decision on, whoever tells the last participant; a repeated call adds nothing."""
    meter, recorded = FakeMeter(), metric_series("sexton_transactions_broadcast_seconds")
    history.take([("begin", 0, 0), ("produce", 0, 0), ("begin", 0, 0), ("produce", 1, 0), ("decide", 0, 1)])
    history.take([("decide", 0, 0)])
    history.world.sql('UPDATE "transaction" SET decided_us = decided_us - 90000000')
    for _ in range(2):
        _drain(history, history.world.log.broadcasts, meter=meter)
    assert [int(seconds) for seconds in meter.recorded[recorded]] == [90, 90]
    txn = _failing(history, monkeypatch)
    _drain(history, history.world.log.broadcasts, meter=meter)
    assert len(meter.recorded[recorded]) == 2, "it is owed"
    monkeypatch.undo()
    for _ in range(2):
        _tell(history, txn, meter=meter)
    assert len(meter.recorded[recorded]) == 3
    assert set(meter.recorded) == {recorded}
