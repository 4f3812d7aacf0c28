"""What participants of an ended transaction owe, and who waits for which other transaction."""

from dataclasses import asdict
from typing import Any

import pytest

from logstore.pulsar.cluster_transactions import (
    NOTHING,
    OpenTransaction,
    TransactionParticipant,
    TransactionReport,
    find_abort_refusal,
    list_holds,
    list_unsettled_parts,
    needs_other_transactions,
    transaction_from_document,
)

_TOPIC = "persistent://shop/main/orders"
_NO_OTHERS = TransactionReport((), ())


def _topic(**values: Any) -> TransactionParticipant:
    fixed: dict[str, Any] = {
        "topic": _TOPIC,
        "subscription": None,
        "owes": NOTHING,
        "position": "7:4",
        "max_read_position": "7:9",
    }
    return TransactionParticipant(**fixed | values)


def _subscription(**values: Any) -> TransactionParticipant:
    return TransactionParticipant(topic=_TOPIC, **{"subscription": "billing", "owes": NOTHING} | values)


def _open(sequence: int, *participants: TransactionParticipant, **values: Any) -> OpenTransaction:
    fixed: dict[str, Any] = {
        "coordinator": 0,
        "sequence": sequence,
        "state": "OPEN",
        "opened_ms": 1_000,
        "timeout_ms": 60_000,
    }
    return OpenTransaction(participants=participants, **fixed | values)


def _others(*transactions: OpenTransaction) -> TransactionReport:
    return TransactionReport(transactions, ())


@pytest.mark.parametrize(
    ("participant", "others", "sentence"),
    [
        (_topic(), _NO_OTHERS, ""),
        (_topic(owes="abort"), _NO_OTHERS, "it still owes abort"),
        (_topic(problem="status 500"), _NO_OTHERS, "it could not be asked: status 500"),
        (_topic(max_read_position="7:3"), _NO_OTHERS, "found 7:3, and no open transaction with messages behind it"),
        (_topic(max_read_position="7:4"), _NO_OTHERS, ""),
        (_subscription(position="7:4", max_read_position="7:3"), _NO_OTHERS, ""),
        (_topic(max_read_position="7:3"), _others(_open(1, _topic(position="7:5"))), ""),
        (_topic(max_read_position="7:3"), _others(_open(1, _topic(position="7:2"))), "found 7:3"),
        (_topic(max_read_position="7:3"), _others(_open(1, _subscription(position="7:5"))), "found 7:3"),
        (_topic(max_read_position="7:3"), TransactionReport((), ("coordinator 1: no answer",)), ""),
        (_topic(max_read_position="10:-1", position="9:1"), _NO_OTHERS, ""),
        (_topic(max_read_position=None, loaded=False), _NO_OTHERS, ""),
        (_subscription(pending_transactions=1), _NO_OTHERS, "found those of 1 transactions, and no open transaction"),
        (_subscription(pending_transactions=1), _others(_open(1, _subscription())), ""),
        (_subscription(pending_transactions=1), _others(_open(1, _topic())), "expected no pending acknowledgements"),
    ],
)
def test_part_is_unsettled_unless_other_transactions_explain_it(
    participant: TransactionParticipant, others: TransactionReport, sentence: str
) -> None:
    sentences = list_unsettled_parts([participant], others)
    assert len(sentences) == bool(sentence)
    assert sentence in "".join(sentences)


def test_transaction_with_the_first_message_behind_the_max_read_position_holds_consumers_back() -> None:
    participant = _topic(waiting=("billing", "search"), max_read_position="7:9")
    others = _others(
        _open(1, _topic(position="8:3")),
        _open(2, _topic(position="8:0")),
        _open(3, _topic(position="7:1"), _topic(topic=f"{_TOPIC}-2", position="7:10")),
    )
    assert list_holds([participant, _subscription()], others) == [
        f"{_TOPIC}: subscriptions billing, search wait at 7:9 for messages of transaction 0:2"
    ]
    (sentence,) = list_holds([participant], _NO_OTHERS)
    assert sentence.endswith("for a transaction that could not be read")
    assert list_holds([_topic()], others) == []


def test_sentence_names_some_of_many_waiting_subscriptions() -> None:
    names = tuple(f"s{number}" for number in range(1_006))
    (sentence,) = list_holds([_topic(waiting=names, max_read_position="7:9")], _NO_OTHERS)
    assert "subscriptions s0, s1, s2, s3, s4 and 1,001 more wait at 7:9" in sentence


@pytest.mark.parametrize(
    ("participant", "needed"),
    [
        (_topic(), False),
        (_topic(waiting=("billing",)), True),
        (_topic(max_read_position="7:3"), True),
        (_subscription(pending_transactions=1), True),
        (_subscription(), False),
    ],
)
def test_coordinators_are_asked_for_others_only_if_something_is_left(
    participant: TransactionParticipant, needed: bool
) -> None:
    assert needs_other_transactions([participant]) is needed


@pytest.mark.parametrize(
    ("transaction", "unsafe_age", "refusal"),
    [
        (_open(1), False, None),
        (_open(1, state="ABORTING"), False, None),
        (_open(1, state="COMMITTING"), True, "expected OPEN or ABORTING, found COMMITTING"),
        (_open(1, opened_ms=1_400_001), False, "expected an age of 600 s, found 599 s"),
        (_open(1, opened_ms=1_400_000), False, None),
        (_open(1, opened_ms=1_999_000), False, "expected an age of 600 s, found 1 s"),
        (_open(1, opened_ms=1_999_000), True, None),
    ],
)
def test_only_old_transactions_that_are_not_committed_may_be_aborted(
    transaction: OpenTransaction, unsafe_age: bool, refusal: str | None
) -> None:
    found = find_abort_refusal(transaction, now_s=2_000.0, unsafe_age=unsafe_age)
    assert (found is None) is (refusal is None)
    assert (refusal or "") in (found or "")


def test_stored_transaction_is_read_again() -> None:
    transaction = _open(1, _topic(waiting=("billing",)), _subscription())
    assert transaction_from_document(asdict(transaction)) == transaction
