"""How far `delete-ledgers` is: sums of what its chunks came to, and what an operator is shown of them."""

from collections.abc import Mapping
from dataclasses import replace

from temporalio.exceptions import ActivityError, ApplicationError

from activities.deletion.values import ChunkResult, Range
from logstore.deletion.intents import Certificate, Outcome
from logstore.errors import LedgerStillNeeded, PreconditionFailed, UnknownObject
from workflows import refusals
from workflows.deletion.values import MOST_OBJECTS_PER_S, DeleteLedgersProgress, SetRate

GUARDS = frozenset({LedgerStillNeeded.__name__, UnknownObject.__name__})
"""Types of refusals by which a batch ends: nothing changed."""


def added(left: Mapping[str, int], right: Mapping[str, int]) -> dict[str, int]:
    """Counts by outcome, together."""
    return {name: left.get(name, 0) + right.get(name, 0) for name in sorted({*left, *right})}


def rest_of(part: Range, result: ChunkResult) -> Range | None:
    """What a slice has left of its range, or None."""
    if not result.next_row:
        return None
    return Range(first=result.next_row, last=part.last, rows=max(1, part.rows - sum(result.outcomes.values())))


def with_chunk(progress: DeleteLedgersProgress, result: ChunkResult) -> DeleteLedgersProgress:
    """The batch's progress, once a chunk has ended so."""
    return replace(
        progress,
        outcomes=added(progress.outcomes, result.outcomes),
        objects=progress.objects + result.objects,
        size_bytes=progress.size_bytes + result.size_bytes,
    )


def stale(batch_id: str, progress: DeleteLedgersProgress) -> Certificate:
    """The catalog was rebuilt meanwhile: its own rows say what is left to do, under the new epoch."""
    left = progress.intents - sum(progress.outcomes.values())
    return Certificate(
        batch_id=batch_id,
        outcomes=added(progress.outcomes, {Outcome.STALE_CATALOG.value: left} if left > 0 else {}),
        objects=progress.objects,
        size_bytes=progress.size_bytes,
    )


def whole_of(certificate: Certificate, progress: DeleteLedgersProgress) -> Certificate:
    """With what had ended before the batch, and what another batch took up from it."""
    outcomes = added(certificate.outcomes, progress.finished)
    elsewhere = progress.intents - sum(certificate.outcomes.values())
    return replace(certificate, outcomes=added(outcomes, {Outcome.RETRYING.value: elsewhere} if elsewhere > 0 else {}))


def require_rate(wanted: SetRate) -> None:
    """Refuse what is no rate.

    Raises:
        ApplicationError: `InvalidInput`, which no retry helps.
    """
    if not 0 <= wanted.objects_per_s <= MOST_OBJECTS_PER_S:
        message = f"rate: expected 0 (unlimited) to {MOST_OBJECTS_PER_S:,} objects a second"
        message = f"{message}, found {wanted.objects_per_s:,}"
        raise ApplicationError(message, {"field": "rate"}, type="InvalidInput", non_retryable=True)


def refused(batch_id: str, error: ActivityError, *, compound: bool = False) -> Certificate | None:
    """The result of a batch whose phase one a guard refused; None where it failed for another reason.

    A compound operation says what it expects of its ledger: that it is otherwise is a refusal, too.
    """
    why = refusals.refusal_of(error, {*GUARDS, PreconditionFailed.__name__} if compound else GUARDS)
    return Certificate(batch_id=batch_id, outcomes={}, objects=0, size_bytes=0, refused=why) if why else None


def shown(done: DeleteLedgersProgress | Certificate) -> str:
    """Markdown for an operator."""
    if isinstance(done, Certificate) and done.refused:
        return refusals.shown(done.refused)
    orders = []
    if isinstance(done, DeleteLedgersProgress):
        orders += ["**paused**"] if done.paused else []
        orders += [f"at most {done.rate:,} objects a second"] if done.rate else []
    told = ", ".join([f"{done.objects:,} objects", f"{done.size_bytes:,} bytes", *orders])
    rows = "".join(f"- **{name}** — {count:,} copies\n" for name, count in sorted(done.outcomes.items()))
    return f"{told}\n\n{rows}"  # a list: the Web UI draws tables without lines or space between columns
