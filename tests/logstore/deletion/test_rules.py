"""Decisions about the queue of phase two: which ids one call may name, dead letters alone, ranges of what is left."""

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.deletion.intent_queue_rules import (
    MAX_IDS_PER_CALL,
    normalize_ids,
    require_dead_letters,
    split_batch_into_ranges,
)
from logstore.deletion.intents import DeletionState
from logstore.errors import InvalidInput, PreconditionFailed, UnknownObject

_DEAD, _PENDING = DeletionState.DEAD_LETTERED, DeletionState.PENDING


@given(
    rows=st.lists(st.tuples(st.integers(0, 20_000), st.booleans()), max_size=40),
    most=st.integers(1, 5),
)
def test_ranges_hold_each_row_that_is_left_once_and_nothing_else(rows: list[tuple[int, bool]], most: int) -> None:
    """In order, no longer than asked, with few objects; what others have dealt with lies between two of them."""
    batch = [(row_id, segments, left) for row_id, (segments, left) in enumerate(rows, 1)]
    found = list(split_batch_into_ranges(batch, most))
    assert list(chain(*found)) == [row_id for row_id, _, left in batch if left]
    for ids in found:
        assert 0 < len(ids) <= most
        assert ids == list(range(ids[0], ids[-1] + 1))
        assert len(ids) == 1 or sum(batch[row_id - 1][1] for row_id in ids) <= 20_000


def test_ids_are_named_once_and_not_without_bound() -> None:
    """One call is one transaction."""
    assert normalize_ids("ids", [3, 1, 3]) == [1, 3]
    assert len(normalize_ids("ids", range(MAX_IDS_PER_CALL))) == MAX_IDS_PER_CALL
    for ids in (range(0), range(MAX_IDS_PER_CALL + 1)):
        with pytest.raises(InvalidInput, match=f"ids: expected 1 to 10,000 ids, found {len(ids)}"):
            normalize_ids("ids", ids)


def test_dead_letters_alone_are_tried_again() -> None:
    """A state that a newer build wrote counts as one; ten of the others are named."""
    states = {1: (_DEAD, "DEAD_LETTERED"), 2: (_PENDING, "PENDING"), 3: (_DEAD, "of a newer build")}
    require_dead_letters([1, 3], states)
    with pytest.raises(PreconditionFailed, match="found 2 PENDING, 4 unknown; nothing was changed"):
        require_dead_letters([1, 2, 4], states)
    with pytest.raises(UnknownObject, match=r"found '4 unknown, .*, 13 unknown and"):
        require_dead_letters(range(4, 16), states)
