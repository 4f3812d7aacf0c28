"""Merge sorted rows of buckets by time, holding one window of each and never a whole bucket.

Source: PIP-195 (merging buckets); field case 57, where a merge began behind the first segment.
"""

from collections.abc import Callable, Iterator, Sequence

from logstore.delayed.rows import DelayedRows


def merge(
    sources: Sequence[Iterator[DelayedRows]],
    *,
    from_ms: int | None = None,
    passed: Callable[[DelayedRows], None] = lambda _: None,
) -> Iterator[DelayedRows]:
    """Draw from sorted sources one sorted sequence of windows, none of them empty.

    In memory is one window of each source, and what is yielded.

    Args:
        sources: Ascending by range: every position of one lies before every position of the next. Each yields rows in
            order; windows may be of any length, and no larger ones are made of them.
        from_ms: Rows due before this time are left out.
        passed: Told of rows that are left out; all of them come before the first window.
    """
    heads = [_Head(source) for source in sources]
    while heads := [head for head in heads if head.fill()]:
        part = _window(heads)
        count = 0 if from_ms is None else part.due(from_ms - 1)
        if count:
            passed(part.slice(0, count))
        if count < len(part):
            yield part.slice(count)


class _Head:
    """The window of one source that stands next."""

    def __init__(self, source: Iterator[DelayedRows]) -> None:
        self._source, self.rows = source, DelayedRows.empty()

    def fill(self) -> bool:
        """Whether there are rows."""
        while not len(self.rows):
            following = next(self._source, None)
            if following is None:
                return False
            self.rows = following
        return True

    @property
    def last_ms(self) -> int:
        return int(self.rows.deliver_at_ms[-1])

    def take(self, count: int) -> DelayedRows:
        taken, self.rows = self.rows.slice(0, count), self.rows.slice(count)
        return taken


def _window(heads: Sequence[_Head]) -> DelayedRows:
    """All that no row still to be read can precede: up to the end of the window that ends first.

    Of rows due at that time, those of later sources wait: their source's rows stand behind what the first one has yet.
    """
    cut_ms = min(head.last_ms for head in heads)
    first = next(number for number, head in enumerate(heads) if head.last_ms == cut_ms)
    parts = [head.take(head.rows.due(cut_ms if number <= first else cut_ms - 1)) for number, head in enumerate(heads)]
    return interleaved([part for part in parts if len(part)])


def interleaved(parts: Sequence[DelayedRows]) -> DelayedRows:
    """All rows, sorted, of parts that ascend by range: of those of one time, parts stand in the order of positions."""
    if len(parts) == 1:
        return parts[0]
    whole = DelayedRows.joined(parts)
    order = whole.deliver_at_ms.argsort(kind="stable")
    return DelayedRows(whole.deliver_at_ms[order], whole.ledger_id[order], whole.entry_id[order])
