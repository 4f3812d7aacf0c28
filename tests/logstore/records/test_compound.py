"""Compound operations: what becomes of a ledger whose copies are taken away, and what is refused."""

import pytest

from logstore.errors import InvalidInput, PreconditionFailed
from logstore.log.ledgers import CopyKind
from logstore.positions import LedgerId
from logstore.records.tombstone_rules import CompoundOperation, EndingOperation

_BOTH = (CopyKind.LEDGER, CopyKind.OFFLOADED_LEDGER)


def _compound(*remove: CopyKind, over: tuple[str, ...] = (), generation: int | None = None) -> CompoundOperation:
    return CompoundOperation(
        ledger_id=LedgerId(7), remove=frozenset(remove), pass_over=frozenset(over), generation=generation
    )


@pytest.mark.parametrize("copy", _BOTH)
def test_last_copy_ends_the_record(copy: CopyKind) -> None:
    """As a write does that removes the last bin."""
    assert _compound(copy).find_ending_operation([copy], generation=3) is EndingOperation.LAST_COPY


def test_all_copies_at_once_end_the_record_as_one_operation() -> None:
    """So does one copy with a subscription that is passed over: these are several changes."""
    assert _compound(*_BOTH).find_ending_operation(_BOTH, generation=0) is EndingOperation.COMPOUND
    assert (
        _compound(CopyKind.LEDGER, over=("s",)).find_ending_operation([CopyKind.LEDGER], generation=0)
        is EndingOperation.COMPOUND
    )


def test_ledger_stays_with_its_primary_copy() -> None:
    """It is read from that."""
    assert _compound(CopyKind.OFFLOADED_LEDGER).find_ending_operation(_BOTH, generation=0) is None


def test_another_generation_is_refused() -> None:
    """A copy was taken away since the record was looked at."""
    assert _compound(CopyKind.LEDGER, generation=2).find_ending_operation([CopyKind.LEDGER], generation=2)
    with pytest.raises(PreconditionFailed, match="ledger 7: expected generation 2, found 3"):
        _compound(CopyKind.LEDGER, generation=2).find_ending_operation([CopyKind.LEDGER], generation=3)


@pytest.mark.parametrize(
    ("operation", "copies", "told"),
    [
        (_compound(*_BOTH), [CopyKind.LEDGER], "expected a LIVE copy OFFLOADED_LEDGER, found LEDGER"),
        (_compound(CopyKind.LEDGER), [], "expected a LIVE copy LEDGER, found none"),
        (_compound(CopyKind.LEDGER), _BOTH, "the tiered one alone would stay.*--delete-primary"),
        (_compound(CopyKind.OFFLOADED_LEDGER, over=("slow",)), _BOTH, "for slow to be passed over.* LEDGER stays"),
    ],
)
def test_what_is_not_asked_for_or_not_there_is_refused(
    operation: CompoundOperation, copies: list[CopyKind], told: str
) -> None:
    """By name, and nothing changes."""
    with pytest.raises(PreconditionFailed, match=told):
        operation.find_ending_operation(copies, generation=0)


def test_operation_that_takes_nothing_away_is_no_operation() -> None:
    """It would have no intents."""
    with pytest.raises(InvalidInput, match="remove: expected one copy or more"):
        _compound()
