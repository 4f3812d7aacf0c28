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

from tests.ownership.fence_story import StoryRow


def find_story_violations(rows: Sequence[StoryRow], attempts: Iterable[dict[str, Any]]) -> list[str]:
    """What cannot be if the promise holds; nothing, if it does."""
    return [
        *_find_fences_out_of_order(rows),
        *_find_fences_of_two_processes(rows),
        *_find_rows_unlike_answers(rows, list(attempts)),
    ]


def _find_fences_out_of_order(story: Sequence[StoryRow]) -> Iterator[str]:
    last_raise_by_bundle: dict[int, StoryRow] = {}
    for row in story:
        last_raise = last_raise_by_bundle.get(row.bundle)
        if row.attempt is None:
            expected = last_raise.fence + 1 if last_raise else 1
            if row.fence != expected:
                yield f"bundle {row.bundle}: raised to {row.fence}, expected {expected}"
            last_raise_by_bundle[row.bundle] = row
        elif last_raise is None or (row.fence, row.worker_id) != (last_raise.fence, last_raise.worker_id):
            yield f"bundle {row.bundle}: {row.attempt} was accepted under fence {row.fence} after {last_raise}"


def _find_fences_of_two_processes(story: Sequence[StoryRow]) -> Iterator[str]:
    writers: dict[tuple[int, int], set[str]] = {}
    for row in story:
        if row.attempt is not None:
            writers.setdefault((row.bundle, row.fence), set()).add(row.attempt.partition("/")[0])
    for (bundle, fence), processes in writers.items():
        if len(processes) > 1:
            yield f"bundle {bundle}: {sorted(processes)} wrote under the same fence {fence}"


def _find_rows_unlike_answers(story: Sequence[StoryRow], attempts: Sequence[dict[str, Any]]) -> Iterator[str]:
    rows_by_attempt = Counter(row.attempt for row in story if row.attempt is not None)
    for attempt in attempts:
        row_count = rows_by_attempt.pop(attempt["attempt"], 0)
        if attempt["outcome"] == "refused" and not all(word in attempt["error"] for word in ("expected", "found")):
            yield f"{attempt['attempt']}: refused without a clear word: {attempt['error']}"
        if row_count not in {"accepted": (1,), "refused": (0,), "unknown": (0, 1)}[attempt["outcome"]]:
            yield f"{attempt['attempt']}: {attempt['outcome']}, and left {row_count} rows"
    unreported = Counter(attempt.partition("/")[0] for attempt in rows_by_attempt)
    for process, count in unreported.items():
        if count > 1:  # one may have been cut off by the process's death
            yield f"{process}: {count} rows of which it said nothing"
