"""Programs that were once wrong, and what a log does with a batch of which a part is refused."""

from collections.abc import Iterator

import pytest

from logstore.errors import TransactionNotOpen
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.log.services import AppendResult
from logstore.log.services.segment_placement import RememberedTopicState
from logstore.ports.catalog.log import BeginTransactionWrite, EndTransactionWrite
from logstore.transactions.transaction_buffer import MarkerVerb
from tests.faults.transactions.transaction_machine import TransactionStateMachine


@pytest.fixture
def model() -> Iterator[TransactionStateMachine]:
    """Topics with subscriptions."""
    made = TransactionStateMachine()
    made.begin()
    yield made
    made.teardown()


def _part(text: str, **more: object) -> ProducedEntries:
    return ProducedEntries(entries=[NewEntry(payload=text.encode())], **more)  # type: ignore[arg-type]  # its fields


def test_append_in_a_decided_transaction_is_refused_alone(model: TransactionStateMachine) -> None:
    """The others of its batch are stored; found by the machine, as a `TypeError` of all of them."""
    txn = model.log.committer.commit_write(BeginTransactionWrite(tc_id=0, timeout_s=60)).txn
    model.log.committer.commit_write(EndTransactionWrite(txn=txn, commit=True))
    topic = model.topics["a"]
    parts = [_part("first"), _part("late", txn=txn), _part("late too", txn=txn), _part("last")]
    first, late, too, last = model.log.topic_logs._appender.append(topic, RememberedTopicState(), parts)
    assert isinstance(first, AppendResult)
    assert isinstance(last, AppendResult)
    assert isinstance(late, TransactionNotOpen)
    assert isinstance(too, TransactionNotOpen)
    assert late is not too, "each caller raises its own"
    assert str(late) == f"txn {txn}: append: expected state OPEN, found COMMITTED"
    assert [entry.payload for entry in model.log.topic_logs.scan(topic)][-2:] == [b"first", b"last"]
    with pytest.raises(TransactionNotOpen):
        model.log.topic_logs.append(topic, _part("later", txn=txn))


@pytest.mark.parametrize("verb", MarkerVerb)
@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_late_marker_changes_nothing_that_readers_see(
    model: TransactionStateMachine, verb: MarkerVerb, epoch: int
) -> None:
    """Of one that is open, committed, aborted or unknown, of whatever epoch (Bufstream 0.1.0, Jepsen)."""
    for number in range(3):
        model.begin_transaction(tc=0)
        model.append(topic=0, count=1, txn=number + 1)
    model.end(txn=0, commit=True)
    model.end(txn=1, commit=False)
    model.acknowledge(topic=0, sub=0, which=0, count=1, up_to=False, txn=1)
    for txn in range(12):
        for sub in ("", "s"):
            model.late_marker(topic=0, txn=txn, verb=verb, epoch=epoch, sub=sub)
            model.readers_see_what_the_model_says()
    fates = {name: model.log.catalog.transactions.get_transaction(txn).state for name, txn in model.ids.items()}
    model.drain(tc=0, lapsed=False)
    model.readers_see_what_the_model_says()
    model.settle()
    assert len(set(fates.values())) > 1


@pytest.mark.parametrize("says_releases", [True, False])
@pytest.mark.parametrize("inside", [None, 1])
def test_what_was_read_past_an_aborted_transaction_is_read_again(
    model: TransactionStateMachine, says_releases: bool, inside: int | None
) -> None:
    """Not acknowledged unseen (apache/pulsar#14371); the machine's own rule finds it if it is."""
    model.acknowledge(topic=0, sub=0, which=0, count=1, up_to=False, txn=0)
    model.read(topic=0, sub=0, count=9)
    (page,) = model.pages
    assert (len(page.positions), page.releases) == (2, 0)
    model.end(txn=0, commit=False)
    model.acknowledge_what_was_read(page=0, which=1, txn=inside, says_releases=says_releases)
    model.readers_see_what_the_model_says()
    assert len(model.serial.deliverable("a", "s")) == 3
    model.read(topic=0, sub=0, count=9)
    model.acknowledge_what_was_read(page=0, which=2, txn=None, says_releases=True)
    model.readers_see_what_the_model_says()
    assert model.serial.deliverable("a", "s") == []


def test_what_a_seek_passed_is_no_conflict_for_a_cumulative_acknowledgement(model: TransactionStateMachine) -> None:
    """A transaction still holds it, and it is acknowledged; found by the machine, whose rule expected a conflict."""
    model.acknowledge(topic=0, sub=0, which=0, count=1, up_to=False, txn=0)
    model.seek(topic=0, sub=0, which=1)
    model.acknowledge(topic=0, sub=0, which=2, count=1, up_to=True, txn=1)
    assert model.serial.logs["a"].subs["s"].held == {"0:0": {"a0"}, "1:0": {"a1", "a2"}}
    model.readers_see_what_the_model_says()
    model.end(txn=0, commit=False)
    model.end(txn=1, commit=True)
    model.settle()
    assert model.serial.deliverable("a", "s") == []
