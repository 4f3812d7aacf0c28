"""What a batch's values come to: sums, what is left of a range, and how people see it."""

from collections.abc import Mapping

from activities.deletion import Certificate, ChunkResult, Range
from workflows.values.deletion import DeleteLedgersProgress


def added(left: Mapping[str, int], right: Mapping[str, int]) -> dict[str, int]:
    """Counts by outcome, together."""
    return {name: left.get(name, 0) + right.get(name, 0) for name in sorted({*left, *right})}


def rest_of(part: Range, result: ChunkResult) -> Range | None:
    """What a slice has left of its range, or None."""
    if not result.next_row:
        return None
    return Range(first=result.next_row, last=part.last, rows=max(1, part.rows - sum(result.outcomes.values())))


def shown(done: DeleteLedgersProgress | Certificate) -> str:
    """Markdown for an operator."""
    orders = [] if isinstance(done, Certificate) else _orders(done)
    told = ", ".join([f"{done.objects:,} objects", f"{done.size_bytes:,} bytes", *orders])
    rows = "".join(f"| {name} | {count:,} |\n" for name, count in sorted(done.outcomes.items()))
    return f"{told}\n\n| outcome | copies |\n|---|---|\n{rows}"


def _orders(progress: DeleteLedgersProgress) -> list[str]:
    rate = [f"at most {progress.rate:,} objects a second"] if progress.rate else []
    return [*(["**paused**"] if progress.paused else []), *rate]
