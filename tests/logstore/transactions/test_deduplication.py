"""Sequence ids in transactions: what was aborted was never stored; what is open is stored for its transaction alone."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from logstore.errors import SequenceHeld, SextonError
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.log.services import AppendResult
from logstore.log.services.segment_placement import RememberedTopicState
from logstore.ports.catalog.log import EndTransactionWrite
from logstore.transactions.transaction_ids_and_states import TransactionId
from tests.logstore.transactions.histories import History, open_history


@pytest.fixture
def history(tmp_path: Path) -> History:
    return open_history(tmp_path)


def _begin(history: History) -> TransactionId:
    history.take([("begin", 0, 0)])
    return history.open[-1]


def _end(history: History, txn: TransactionId, *, commit: bool) -> None:
    history.world.log.committer.commit_write(EndTransactionWrite(txn=txn, commit=commit))


def _part(txn: TransactionId | None, *ids: int, producer: str = "p") -> ProducedEntries:
    entries = [NewEntry(payload=f"{producer}{number}".encode(), sequence_id=number) for number in ids]
    return ProducedEntries(entries=entries, producer=producer, txn=txn)


def _say(history: History, txn: TransactionId | None, *ids: int) -> tuple[int, int]:
    found = history.world.log.topic_logs.append(history.world.topic, _part(txn, *ids))
    return found.count, found.duplicates


def _seen(history: History) -> list[str]:
    return [(entry.payload or b"").decode() for entry in history.world.log.topic_logs.scan(history.world.topic)]


def _forget(history: History) -> None:
    history.take([("settle", 0, 1)])
    assert history.world.catalog.transactions.remove_finished_transactions(older_than_s=-1, limit=10)


@pytest.mark.parametrize("forgotten", [False, True])
def test_entries_of_an_aborted_transaction_can_be_sent_again(history: History, *, forgotten: bool) -> None:
    """A program that retries in another transaction, as every one does, loses none of them."""
    assert _say(history, None, 1) == (1, 0)
    first, second = _begin(history), _begin(history)
    assert _say(history, first, 2, 3) == (2, 0)
    _end(history, first, commit=False)
    if forgotten:
        _forget(history)
    assert _say(history, second, 1, 2, 3) == (2, 1)
    _end(history, second, commit=True)
    assert _seen(history) == ["p1", "p2", "p3"]


@pytest.mark.parametrize("forgotten", [False, True])
def test_entries_of_a_committed_transaction_are_duplicates(history: History, *, forgotten: bool) -> None:
    """Wherever they are sent again."""
    first, second = _begin(history), _begin(history)
    _say(history, first, 2, 3)
    _end(history, first, commit=True)
    if forgotten:
        _forget(history)
    assert _say(history, second, 2, 3) == (0, 2)
    assert _say(history, None, 3, 4) == (1, 1)
    assert _seen(history) == ["p2", "p3", "p4"]


def test_entries_of_an_open_transaction_are_duplicates_in_it_and_are_refused_elsewhere(history: History) -> None:
    """Nobody can know yet whether they will be there; what is stored for good is a duplicate everywhere."""
    _say(history, None, 1)
    first, second = _begin(history), _begin(history)
    _say(history, first, 2, 3)
    assert _say(history, first, 2, 3, 4) == (1, 2)
    for elsewhere in (second, None):
        for ids in ((2,), (4,), (9,), (1, 9)):
            with pytest.raises(SequenceHeld, match=rf"^producer 'p': .* found transaction {first}, which is open$"):
                _say(history, elsewhere, *ids)
        assert _say(history, elsewhere, 1) == (0, 1)
    _end(history, first, commit=False)
    assert _say(history, second, 2) == (1, 0)
    _end(history, second, commit=True)
    assert _seen(history) == ["p1", "p2"]


def test_what_is_refused_disturbs_no_other_append_of_its_batch(history: History) -> None:
    """And each is judged by those before it."""
    first, second = _begin(history), _begin(history)
    parts = [
        _part(None, 1),
        _part(first, 2),
        _part(second, 3),
        _part(None, 1),
        _part(first, 2, 4),
        _part(second, 1, producer="q"),
        _part(None, 5),
    ]
    answers: Sequence[AppendResult | SextonError] = history.world.log.topic_logs._appender.append(
        history.world.topic, RememberedTopicState(), parts
    )
    told = [(one.count, one.duplicates) if isinstance(one, AppendResult) else type(one) for one in answers]
    assert told == [(1, 0), (1, 0), SequenceHeld, (0, 1), (1, 1), (1, 0), SequenceHeld]
    _end(history, second, commit=False)
    _end(history, first, commit=True)
    assert _seen(history) == ["p1", "p2", "p4"]
