"""Numbers that the command line computes itself."""

from hypothesis import given
from hypothesis import strategies as st

from logstore.cursors import CursorState, LedgerSpan, acknowledge
from logstore.positions import LedgerId, Position
from workers.cli.documents import backlog


@given(st.lists(st.integers(0, 6), min_size=1, max_size=5), st.data())
def test_backlog_any_acknowledgements_counts_what_is_left(sizes: list[int], data: st.DataObject) -> None:
    """The backlog is the number of listed entries that the cursor does not cover."""
    spans = [LedgerSpan(LedgerId(3 * at + 1), size) for at, size in enumerate(sizes)]
    every = [Position(span.ledger_id, entry) for span in spans for entry in range(span.entries)]
    acked = data.draw(st.sets(st.sampled_from(every)) if every else st.just(set()))
    state = acknowledge(CursorState(Position(LedgerId(1), -1)), acked, spans)
    assert backlog(state, spans) == len(set(every) - acked)
