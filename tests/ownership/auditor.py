"""Promise 7, recomputed from what the database told and what each process said; it asks no code that it audits.

Of each bundle, in the order of commits:
- a fence is raised by one each time, and never goes back;
- a write was accepted under the fence that was raised last, and no other, from who raised it;
- all writes under a fence are of one process.
And an attempt that was refused left nothing, one that was accepted left one row, and every row was attempted.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tests.ownership.story import Told


def wrong(story: Sequence[Told], attempts: Iterable[dict[str, Any]]) -> list[str]:
    """What cannot be if the promise holds; nothing, if it does."""
    return [*_out_of_order(story), *_of_two_processes(story), *_unlike_what_was_answered(story, list(attempts))]


def _out_of_order(story: Sequence[Told]) -> Iterator[str]:
    last: dict[int, Told] = {}
    for row in story:
        present = last.get(row.bundle)
        if row.attempt is None:
            expected = present.fence + 1 if present else 1
            if row.fence != expected:
                yield f"bundle {row.bundle}: raised to {row.fence}, expected {expected}"
            last[row.bundle] = row
        elif present is None or (row.fence, row.worker_id) != (present.fence, present.worker_id):
            yield f"bundle {row.bundle}: {row.attempt} was accepted under fence {row.fence} after {present}"


def _of_two_processes(story: Sequence[Told]) -> Iterator[str]:
    writers: dict[tuple[int, int], set[str]] = {}
    for row in story:
        if row.attempt is not None:
            writers.setdefault((row.bundle, row.fence), set()).add(row.attempt.partition("/")[0])
    for (bundle, fence), found in writers.items():
        if len(found) > 1:
            yield f"bundle {bundle}: {sorted(found)} wrote under the same fence {fence}"


def _unlike_what_was_answered(story: Sequence[Told], attempts: Sequence[dict[str, Any]]) -> Iterator[str]:
    rows = Counter(row.attempt for row in story if row.attempt is not None)
    for attempt in attempts:
        found = rows.pop(attempt["attempt"], 0)
        if attempt["outcome"] == "refused" and not all(word in attempt["error"] for word in ("expected", "found")):
            yield f"{attempt['attempt']}: refused without a clear word: {attempt['error']}"
        if found not in {"accepted": (1,), "refused": (0,), "unknown": (0, 1)}[attempt["outcome"]]:
            yield f"{attempt['attempt']}: {attempt['outcome']}, and left {found} rows"
    unsaid = Counter(attempt.partition("/")[0] for attempt in rows)
    for process, count in unsaid.items():
        if count > 1:  # one may have been cut off by the process's death
            yield f"{process}: {count} rows of which it said nothing"
