"""Open transactions from the entries of a coordinator's log."""

import json
from pathlib import Path

import pytest

from logstore.pulsar.transaction_log import LoggedTransaction, find_open_transactions
from logstore.pulsar.unreadable_metadata import UnreadableMetadata
from tests.infra import pulsar
from tests.logstore.pulsar.wire import encode_message

_RECORDED = Path(pulsar.__path__[0]) / "recorded" / "transactions.json"
_NEW = encode_message((1, 0), (2, 5), (3, 0), (8, 60_000), (9, 1_000), (10, 1_000), (11, 5))
_TOPICS = encode_message((1, 1), (2, 5), (6, "t"), (6, "u"), (11, 5))
_SUBSCRIPTIONS = encode_message((1, 2), (2, 5), (7, encode_message((1, "t"), (2, "s"))))
_OPEN = LoggedTransaction(
    state="OPEN",
    opened_ms=1_000,
    timeout_ms=60_000,
    topics=frozenset({"t", "u"}),
    subscriptions=frozenset({("t", "s")}),
)


def _update(state: int, *, sequence: int = 5) -> bytes:
    return encode_message((1, 3), (2, sequence), (4, 0), (5, state))


def test_the_log_of_a_real_coordinator_has_its_open_transactions() -> None:
    log = json.loads(_RECORDED.read_text(encoding="utf-8"))["log"]
    transactions = find_open_transactions(bytes.fromhex(entry) for entry in log)
    assert sorted(transactions) == [0, 1, 2]
    assert {each.state for each in transactions.values()} == {"OPEN"}
    placed, raw = "persistent://acme/orders/placed", "persistent://acme/orders/raw"
    assert transactions[1].topics == {placed, "persistent://acme/orders/shipped"}
    assert transactions[0].subscriptions == {(raw, "importer")}
    assert [transactions[number].timeout_ms // 3_600_000 for number in range(3)] == [10, 20, 1]


def test_steps_add_up_until_a_transaction_ends() -> None:
    steps = [_NEW, _TOPICS, _SUBSCRIPTIONS]
    assert find_open_transactions(steps) == {5: _OPEN}
    for state, name in ((1, "COMMITTING"), (3, "ABORTING")):
        assert find_open_transactions([*steps, _update(state)])[5].state == name
    for state in (2, 4):
        assert find_open_transactions([*steps, _update(state)]) == {}
    assert find_open_transactions([*steps, _update(2, sequence=6)]) == {5: _OPEN}


def test_steps_of_a_transaction_whose_beginning_was_deleted_are_left_out() -> None:
    assert find_open_transactions([_TOPICS, _update(2)]) == {}


def test_an_entry_may_have_several_steps() -> None:
    batch = b"\x0e\x01\x00\x01" + encode_message((1, _NEW), (1, _TOPICS))
    assert find_open_transactions([batch, _SUBSCRIPTIONS]) == {5: _OPEN}


@pytest.mark.parametrize(
    "entry",
    [
        b"\xff",
        b"\x0e\x01\x00\x02" + encode_message((1, _NEW)),
        b"\x0e\x01\x00\x01\xff",
        _NEW + encode_message((99, 1)),
        encode_message((1, 9), (2, 5)),
        _update(9),
        encode_message((1, 2), (2, 5), (7, encode_message((1, "t")))),
    ],
    ids=["damaged", "version", "damaged batch", "field", "operation", "state", "subscription"],
)
def test_an_entry_that_is_not_known_is_refused(entry: bytes) -> None:
    with pytest.raises(UnreadableMetadata):
        find_open_transactions([_NEW, entry])
