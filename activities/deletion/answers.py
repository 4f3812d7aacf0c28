"""What the deletion activities answer, as pure functions of what they found."""

import math
from collections.abc import Sequence
from datetime import timedelta

from temporalio.exceptions import ApplicationError

from activities.deletion.values import ChunkResult, IntentKey, OneResult
from logstore.deletion.intents import DeletionIntent, DeletionState, Outcome
from logstore.errors import (
    CorruptData,
    InvalidInput,
    PreconditionFailed,
    ServiceRefused,
    SextonError,
    StoreUnavailable,
    UploadOpen,
)
from logstore.ports.catalog import Ended

_OF_THE_STORE = (StoreUnavailable, ServiceRefused, PreconditionFailed)  # not of one ledger: no answer, no permission
_BY_CATALOG = {Outcome.STILL_IN_USE, Outcome.INVALID}  # refusals for which storage is not asked


def delete_ledger_id(key: IntentKey) -> str:
    """Id of the workflow that deletes one copy.

    The generation keeps it from swallowing a later detach, and how often the row was opened again what came late.
    """
    again = f"/{key.openings}" if key.openings else ""
    return f"delete-ledger/{key.ledger_id}/{key.copy}/{key.generation}{again}"


def key_of(intent: DeletionIntent) -> IntentKey:
    """What names the intent for ever."""
    return IntentKey(
        ledger_id=intent.ledger_id, copy=intent.copy.value, generation=intent.generation, openings=intent.openings
    )


def unfinished(intents: Sequence[DeletionIntent]) -> list[DeletionIntent]:
    """Those that nobody ended and that have no workflow of their own."""
    return [one for one in intents if one.state is DeletionState.PENDING and one.handed_to is None]


def result_of(intent: DeletionIntent) -> OneResult:
    """How an intent ended that had ended before."""
    return OneResult(outcome=intent.outcome or Outcome.UNKNOWN, detail=intent.last_error or "")


def sentence(error: SextonError) -> str:
    """An error as a row keeps it."""
    return f"{type(error).__name__}: {error}"


def wait_s(error: SextonError, retry_interval_s: int) -> int:
    """After how long it is worth trying again: while an upload may go on, nothing can be deleted."""
    return max(retry_interval_s, math.ceil(error.after_s)) if isinstance(error, UploadOpen) else retry_interval_s


def later(error: SextonError, after_s: int) -> ApplicationError:
    """The error as one that is retried after `after_s`, whatever its class says.

    Bad input that storage speaks of is the row's and not the request's: its last attempt leaves a dead letter.
    """
    kind = CorruptData if isinstance(error, InvalidInput) else type(error)
    return ApplicationError(str(error), type=kind.__name__, next_retry_delay=timedelta(seconds=after_s))


def raise_if_nothing_answered(ended: list[Ended], errors: dict[int, SextonError]) -> None:
    """A store that is down, or that lets nobody in, fails the chunk and not each ledger of it.

    Raises:
        StoreUnavailable: So that the chunk is tried again before its rows are handed over.
    """
    answered = any(one.outcome not in _BY_CATALOG for one in ended)
    if errors and not answered and all(isinstance(error, _OF_THE_STORE) for error in errors.values()):
        first = next(iter(errors.values()))
        raise StoreUnavailable(str(first)) from first


def chunk_result(intents: Sequence[DeletionIntent], ended: list[Ended], *, many_topics: bool = False) -> ChunkResult:
    """Count a chunk; whatever did not end is retried by a workflow of its own.

    A damaged row has none: no workflow could do more than say so again, and it is listed as a dead letter.
    """
    now = {one.row_id: one.outcome for one in ended}
    final = [now.get(one.row_id) or one.outcome or Outcome.RETRYING for one in intents]
    failed = [one for one, outcome in zip(intents, final, strict=True) if not outcome.success]
    alone = [one for one in failed if not one.damage]
    return ChunkResult(
        outcomes={outcome.value: final.count(outcome) for outcome in sorted(set(final))},
        objects=sum(one.objects for one in ended),
        size_bytes=sum(one.size_bytes for one in ended),
        alone=[key_of(one) for one in alone],
        topics=[one.topic for one in alone] if many_topics else [],
    )
