"""Seals of a stored topic: what goes into buckets, what stays in the log, and what a death in the middle leaves."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from logstore.delayed.index_buckets import SealAndMergeLimits
from logstore.delayed.services.log_sealer import SealResult
from logstore.errors import CorruptData, MissingData, StoreUnavailable
from logstore.failpoints import SimulatedCrash, arm, disarm_all_and_take_hits
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.log.ledger_object_keys import ledger_prefix, segment_key
from logstore.ports.catalog.delayed import IndexBucketSwitch
from logstore.ports.catalog.deletion import Claim
from logstore.ports.catalog.log import BeginTransactionWrite, EndTransactionWrite
from logstore.positions import EARLIEST, LedgerId, Position
from logstore.transactions.transaction_ids_and_states import TransactionId
from tests.fakes.object_store import Fault, FaultKind, StoreOperation
from tests.logstore.delayed.stored import HOUR_MS, Pending, Stored, stored

EFFECTS = ("catalog.create_component_ledger", "component.put_meta", "component.put_segment", "catalog.switch_buckets")


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[Stored]:
    """Without messages; a bucket is full with 4 of them, or with 3 ledgers."""
    found = stored(tmp_path)
    yield found
    disarm_all_and_take_hits()
    assert list((tmp_path / "tmp").glob("*")) == []
    found.world.opened.close()


def _expected(topic: Stored, *positions: tuple[int, Position]) -> Pending:
    return sorted((topic.now_ms + hours * HOUR_MS, position) for hours, position in positions)


def test_seal_takes_what_is_not_due_and_says_how_far_it_looked(topic: Stored) -> None:
    """What has no delivery time, or a past one, is the log's; a second seal finds nothing behind the first."""
    first = topic.append(5, None, 2, -1)
    second = topic.append(None, 9)
    done = topic.sealer.drop_buckets_and_seal(topic.topic_id, force=True)
    assert done == SealResult(buckets=1, messages=3, listed=1)
    (bucket,) = topic.buckets
    assert (bucket.first, bucket.last) == (first[0], second[1])
    assert topic.index.get_bucket_list(topic.topic_id).sealed_to == second[1]
    assert topic.held() == _expected(topic, (5, first[0]), (2, first[2]), (9, second[1]))
    assert topic.sealer.drop_buckets_and_seal(topic.topic_id, force=True) == SealResult(listed=1)
    third = topic.append(1)
    assert topic.sealer.drop_buckets_and_seal(topic.topic_id, force=True) == SealResult(buckets=1, messages=1, listed=2)
    assert (topic.buckets[1].first, topic.buckets[1].last) == (third[0], third[0])


def test_bucket_whose_upload_was_answered_and_not_stored_is_put_again(topic: Stored) -> None:
    """The topic's list never names a snapshot that the store does not show."""
    (first,) = topic.append(5)
    lost = Fault(operation=StoreOperation.PUT, kind=FaultKind.LOST, matches=lambda key: key.endswith(".parquet"))
    topic.world.objects.plan(lost)
    assert topic.sealer.drop_buckets_and_seal(topic.topic_id, force=True) == SealResult(buckets=1, messages=1, listed=1)
    assert topic.held() == _expected(topic, (5, first))


def test_seal_waits_until_it_is_time(topic: Stored) -> None:
    """By messages, by ledgers, or when no new one has come for long; and each of them alone is enough."""
    topic.append(1, 2, 3)
    assert topic.sealer.drop_buckets_and_seal(topic.topic_id) == SealResult()
    topic.append(4)
    assert topic.sealer.drop_buckets_and_seal(topic.topic_id) == SealResult(buckets=1, messages=4, listed=1)
    for _ in range(2):
        topic.append(5)
        topic.roll()
        assert topic.sealer.drop_buckets_and_seal(topic.topic_id) == SealResult(listed=1)
    topic.append(None)
    assert topic.sealer.drop_buckets_and_seal(topic.topic_id) == SealResult(buckets=1, messages=2, listed=2)
    topic.append(6)
    assert topic.sealer.drop_buckets_and_seal(topic.topic_id) == SealResult(listed=2)
    topic.world.sql("UPDATE delayed_index SET changed_us = changed_us - 60000000")
    assert topic.sealer.drop_buckets_and_seal(topic.topic_id) == SealResult(buckets=1, messages=1, listed=3)


def test_seal_makes_as_many_buckets_as_are_full_and_leaves_the_rest(topic: Stored) -> None:
    """Each is one change of the list; what is left over waits, unless it is asked for."""
    segments = [topic.append(at, at) for at in range(1, 6)]
    version = topic.index.get_bucket_list(topic.topic_id).version
    assert topic.sealer.drop_buckets_and_seal(topic.topic_id) == SealResult(buckets=2, messages=8, listed=2)
    assert topic.index.get_bucket_list(topic.topic_id).version == version + 2
    assert [(one.first, one.last) for one in topic.buckets] == [
        (segments[0][0], segments[1][1]),
        (segments[2][0], segments[3][1]),
    ]
    assert topic.sealer.drop_buckets_and_seal(topic.topic_id, force=True) == SealResult(buckets=1, messages=2, listed=3)


def test_seal_of_messages_that_are_due_moves_on_without_a_bucket(topic: Stored) -> None:
    """Else the schedule would find the topic due for ever (field case 58)."""
    last = topic.append(-1, -2, -3, -4)[-1]
    assert topic.due() == [topic.topic_id]
    assert topic.sealer.drop_buckets_and_seal(topic.topic_id) == SealResult()
    assert topic.index.get_bucket_list(topic.topic_id).sealed_to == last
    assert topic.due() == []


def test_seal_reads_only_segments_with_delivery_times(topic: Stored) -> None:
    """Their rows say so."""
    for hours in (None, 1, None):
        topic.append(hours)
    last = topic.append(None)
    begun = len(topic.world.objects.calls)
    topic.sealer.drop_buckets_and_seal(topic.topic_id, force=True)
    read = [key for operation, key in topic.world.objects.calls[begun:] if operation is StoreOperation.GET]
    assert sorted(read) == [segment_key(last[0].ledger_id, 1)]


def _txn(topic: Stored) -> TransactionId:
    return topic.world.log.committer.commit_write(BeginTransactionWrite(tc_id=0, timeout_s=3_600)).txn


def _decide(topic: Stored, txn: TransactionId, *, commit: bool) -> None:
    topic.world.log.committer.commit_write(EndTransactionWrite(txn=txn, commit=commit))
    claimed = topic.world.catalog.transactions.claim_decided_transactions(
        Claim(workflow_id="tests", run_id="r", ttl_s=60), limit=10
    )
    topic.world.log.broadcasts.broadcast_batch(claimed)


def test_seal_stops_before_open_transactions_and_leaves_out_what_nobody_sees(topic: Stored) -> None:
    """Committed messages are indexed, aborted ones and markers are not; what is behind an open one waits with it."""
    aborted, committed, left_open = _txn(topic), _txn(topic), _txn(topic)
    topic.append(1, txn=aborted)
    seen = topic.append(2, txn=committed)
    _decide(topic, aborted, commit=False)
    _decide(topic, committed, commit=True)
    before = topic.append(3)
    topic.append(4, txn=left_open)
    behind = topic.append(5)
    assert topic.sealer.drop_buckets_and_seal(topic.topic_id, force=True) == SealResult(buckets=1, messages=2, listed=1)
    assert topic.held() == _expected(topic, (2, seen[0]), (3, before[0]))
    assert topic.sealer.drop_buckets_and_seal(topic.topic_id, force=True) == SealResult(listed=1)
    _decide(topic, left_open, commit=False)
    assert topic.sealer.drop_buckets_and_seal(topic.topic_id, force=True) == SealResult(buckets=1, messages=1, listed=2)
    assert [position for _, position in topic.held()][-1] == behind[0]


def test_messages_behind_an_open_transaction_make_no_seal_due(topic: Stored) -> None:
    """They would be read again every minute, and make a bucket of each message that comes before them."""
    topic.append(1)
    topic.append(2, txn=_txn(topic))
    topic.append(3, 3, 3, 3, 3)
    begun = len(topic.world.objects.calls)
    assert topic.sealer.drop_buckets_and_seal(topic.topic_id) == SealResult()
    assert topic.world.objects.calls[begun:] == []


def test_seal_drops_buckets_that_have_passed(topic: Stored) -> None:
    """Their ledgers are retired by the switch that takes them out of the list."""
    first, second = topic.sealed([1, 2], [3])
    topic.world.sql("UPDATE delayed_bucket SET last_ms = 1 WHERE ledger_id = :id", id=first.bucket_id)
    assert topic.sealer.drop_buckets_and_seal(topic.topic_id) == SealResult(dropped=1, listed=1)
    assert (topic.buckets, topic.retired()) == ((second,), [first.bucket_id])


def test_seal_whose_list_is_cleared_meanwhile_is_overtaken(topic: Stored) -> None:
    """What it has written is retired, and the log is looked through from its beginning (field case 69)."""
    topic.append(1)

    def clear() -> None:
        topic.index.retire_all_buckets(topic.topic_id, reason="tests")

    topic.world.objects.plan(Fault(operation=StoreOperation.PUT, kind=FaultKind.CALL, action=clear))
    assert topic.sealer.drop_buckets_and_seal(topic.topic_id, force=True) == SealResult(overtaken=True)
    assert (topic.buckets, topic.ledgers(), len(topic.retired())) == ((), [], 1)
    assert topic.sealer.drop_buckets_and_seal(topic.topic_id, force=True) == SealResult(buckets=1, messages=1, listed=1)


def test_list_that_is_cleared_right_after_a_bucket_ends_the_seal(topic: Stored) -> None:
    """The next bucket would begin in the middle of a log of which nothing is sealed any more."""
    for at in range(1, 3):
        topic.append(at, at, at, at)
    index = topic.index

    class ClearedAfterwards:
        def __getattr__(self, name: str) -> object:
            return getattr(index, name)

        def switch_buckets(self, switch: IndexBucketSwitch) -> bool:
            switched = index.switch_buckets(switch)
            index.retire_all_buckets(topic.topic_id, reason="tests")
            return switched

    topic.sealer._index = ClearedAfterwards()  # type: ignore[assignment]  # by delegation
    assert topic.sealer.drop_buckets_and_seal(topic.topic_id, force=True).overtaken
    assert (topic.buckets, index.get_bucket_list(topic.topic_id).sealed_to) == ((), EARLIEST)


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("nth", [1, 2])
def test_seal_that_dies_at_an_effect_has_done_whole_buckets(topic: Stored, effect: str, moment: str, nth: int) -> None:
    """The next one goes on behind them: nothing is twice in the index, and what is stored has a row that names it."""
    pending = _expected(topic, *((at, one) for at in range(1, 5) for one in topic.append(at, at)))
    arm(f"{effect}.{moment}", "crash", nth=nth)
    with pytest.raises(SimulatedCrash):
        topic.sealer.drop_buckets_and_seal(topic.topic_id)
    held, sealed_to = topic.held(), topic.index.get_bucket_list(topic.topic_id).sealed_to
    assert held == [one for one in pending if one[1] <= sealed_to]
    topic.sealer.drop_buckets_and_seal(topic.topic_id, force=True)
    assert (topic.held(), topic.ledgers()) == (pending, [one.bucket_id for one in topic.buckets])
    _require_names(topic)


@pytest.mark.parametrize("effect", EFFECTS)
def test_seal_whose_effect_is_reported_failed_is_done_once(topic: Stored, effect: str) -> None:
    """Its outcome is asked for, or it is repeated."""
    positions = topic.append(1, 2, 3, 4)
    arm(f"{effect}.reported_failed", "fail")
    assert topic.sealer.drop_buckets_and_seal(topic.topic_id) == SealResult(buckets=1, messages=4, listed=1)
    assert [position for _, position in topic.held()] == positions
    _require_names(topic)


def _require_names(topic: Stored) -> None:
    """Every object is of a ledger that is listed, newborn or retired."""
    rows = {one.ledger_id for one in topic.world.sql("SELECT ledger_id FROM ledger")}
    for key in topic.world.objects.keys:
        assert any(key.startswith(ledger_prefix(LedgerId(one))) for one in {*rows, *topic.retired()}), key


def test_seal_of_a_ledger_that_is_trimmed_meanwhile_goes_on_behind_it(topic: Stored) -> None:
    """What is trimmed was acknowledged by all."""
    gone = topic.append(1)
    topic.roll()
    kept = topic.append(2)

    def trim() -> None:
        topic.world.detach([gone[0].ledger_id])
        topic.world.objects.delete([segment_key(gone[0].ledger_id, 0)])

    topic.world.log.subscriptions.subscribe(topic.topic_id, "reader", latest=True)
    topic.world.log.subscriptions.acknowledge(topic.topic_id, "reader", up_to=gone[0])
    topic.world.objects.plan(Fault(operation=StoreOperation.GET, kind=FaultKind.CALL, action=trim))
    assert topic.sealer.drop_buckets_and_seal(topic.topic_id, force=True).messages == 1
    assert [position for _, position in topic.held()] == kept


def test_seal_of_a_damaged_log_changes_nothing_and_says_what_is_missing(topic: Stored) -> None:
    """The next one may find it mended."""
    (position,) = topic.append(1)
    key = segment_key(position.ledger_id, 0)
    held = topic.world.objects._held.pop(key)
    with pytest.raises(MissingData, match=key):
        topic.sealer.drop_buckets_and_seal(topic.topic_id, force=True)
    topic.world.objects.put_if_absent(key, b"no segment", metadata=held.metadata)
    with pytest.raises(CorruptData, match=key):
        topic.sealer.drop_buckets_and_seal(topic.topic_id, force=True)
    topic.world.objects._held[key] = held
    assert topic.sealer.drop_buckets_and_seal(topic.topic_id, force=True) == SealResult(buckets=1, messages=1, listed=1)


@pytest.mark.parametrize("operation", [StoreOperation.GET, StoreOperation.PUT])
def test_store_that_always_fails_ends_a_seal_and_one_that_comes_back_does_not(
    topic: Stored, operation: StoreOperation
) -> None:
    """Reads are repeated by the adapter below, uploads here, with patience."""
    topic.append(1)
    topic.world.objects.plan(Fault(operation=operation, kind=FaultKind.BEFORE, times=1_000))
    with pytest.raises(StoreUnavailable):
        topic.sealer.drop_buckets_and_seal(topic.topic_id, force=True)
    topic.world.objects._faults.clear()
    if operation is StoreOperation.PUT:
        topic.world.objects.plan(Fault(operation=operation, kind=FaultKind.BEFORE, times=2))
    assert topic.sealer.drop_buckets_and_seal(topic.topic_id, force=True).buckets == 1


def test_limits_of_a_seal_are_messages_ledgers_or_nothing_new(tmp_path: Path) -> None:
    """Any positive number works: with one message a bucket, each segment is one."""
    topic = stored(tmp_path, SealAndMergeLimits(messages=1, ledgers=1, idle_s=1, buckets=1))
    positions = [topic.append(at)[0] for at in range(1, 4)]
    assert topic.sealer.drop_buckets_and_seal(topic.topic_id) == SealResult(buckets=3, messages=3, listed=3)
    assert [(one.first, one.last) for one in topic.buckets] == [(one, one) for one in positions]
    topic.world.opened.close()


def test_large_segment_is_read_by_its_column_of_delivery_times(topic: Stored) -> None:
    """Payloads of messages that are not due are fetched by nobody."""
    entry = NewEntry(payload=random.Random(1).randbytes(1 << 20), deliver_at_ms=topic.now_ms + HOUR_MS)
    topic.world.log.topic_logs.append(topic.world.topic, ProducedEntries(entries=[entry]))
    begun = len(topic.world.objects.calls)
    assert topic.sealer.drop_buckets_and_seal(topic.topic_id, force=True).messages == 1
    assert StoreOperation.GET not in {operation for operation, _ in topic.world.objects.calls[begun:]}


def test_times_of_any_size_are_sealed_merged_and_waited_for(topic: Stored) -> None:
    """The least and the greatest ones that a column holds: no sum of them overflows."""
    later, ends = topic.now_ms + 5 * HOUR_MS, (2**63 - 2, 2**63 - 1)
    times = [*reversed(ends), -(2**63), -1, 0, later]
    entries = [NewEntry(payload=b"x", deliver_at_ms=one) for one in times]
    topic.world.log.topic_logs.append(topic.world.topic, ProducedEntries(entries=entries))
    topic.sealer.drop_buckets_and_seal(topic.topic_id, force=True)
    topic.sealed([5, 6])
    assert topic.merger.merge_pair(topic.topic_id, tuple(one.bucket_id for one in topic.buckets)).switched  # type: ignore[arg-type]
    assert [due_ms for due_ms, _ in topic.held()] == [later, later, later + HOUR_MS, *ends]
    with topic.world.log.delivery.create_consumer(topic.world.topic) as consumer:
        assert [entry.deliver_at_ms for entry in consumer.receive(9)] == [-(2**63), -1, 0]
        assert consumer.receive(9) == []
