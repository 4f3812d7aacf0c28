"""Functions over records: the record or None is what they may answer; all else is refused, naming the record."""

from collections.abc import Callable
from typing import Any

import pytest

from logstore.errors import FunctionFailed
from logstore.log.ledgers import CopyKind
from logstore.positions import LedgerId
from logstore.records.functions import LedgerRecord, should_end_record
from tests import ending_functions

RECORD = LedgerRecord(
    topic="persistent://a/b/c",
    ledger_id=LedgerId(3),
    entries=10,
    size_bytes=100,
    created_us=1,
    closed_us=2,
    copies=frozenset({CopyKind.LEDGER}),
    generation=0,
    now_us=3,
)


def test_none_ends_the_record_and_the_record_itself_does_not() -> None:
    """An equal one counts as the same."""
    assert should_end_record("every", ending_functions.every, RECORD)
    assert not should_end_record("even", ending_functions.even, RECORD)
    assert not should_end_record("none", ending_functions.none, RECORD)


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (ending_functions.broken_at_three, "ValueError: planned: three"),
        (ending_functions.leaving, "SystemExit: planned: 3"),
        (ending_functions.changing, "found another entries, size_bytes: nothing of it may be changed"),
        (lambda _: False, "expected the record as it is, or None, found a bool"),
    ],
)
def test_function_that_fails_is_named_with_its_record(function: Callable[[Any], Any], told: str) -> None:
    """So that a person finds the record that it cannot bear."""
    with pytest.raises(FunctionFailed, match=f"function mine: ledger 3 of {RECORD.topic}: .*{told}"):
        should_end_record("mine", function, RECORD)


def test_interrupt_of_an_operator_is_no_answer_of_the_function() -> None:
    """It ends the process, and no ledger fails for it."""

    def interrupted(_: LedgerRecord) -> LedgerRecord | None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        should_end_record("mine", interrupted, RECORD)


@pytest.mark.parametrize(("said", "told"), [("long " * 1_000_000, "long long"), ("odd \udcff", r"odd \\udcff")])
def test_what_a_function_says_is_told_as_far_as_it_travels(said: str, told: str) -> None:
    """An answer that Temporal cannot take would be lost, and the function asked again without end."""

    def talking(_: LedgerRecord) -> LedgerRecord | None:
        raise ValueError(said)

    with pytest.raises(FunctionFailed, match=f"ValueError: {told}") as failed:
        should_end_record("talking", talking, RECORD)
    assert len(str(failed.value).encode()) < 2_000
    assert failed.value.__cause__ is None
