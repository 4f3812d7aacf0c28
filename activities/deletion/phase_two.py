"""Phase two on a set of intents: what the catalog says, what storage says, only then the delete, and what is answered.

Source: PIP-186, second phase, steps 3 to 6.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

from temporalio.exceptions import ApplicationError

from activities.deletion import metrics
from activities.deletion.claims import CLAIM_S
from activities.deletion.rate import DeletionPace
from activities.deletion.values import ChunkResult, DeleteIntentResult
from activities.heartbeats import Heartbeats
from logstore.deletion.intents import (
    CopyVerdict,
    DeletionIntent,
    DeletionState,
    IntentKey,
    Outcome,
    StoredCopy,
    find_refusal,
)
from logstore.errors import (
    ClaimHeld,
    CorruptData,
    DeletionIncomplete,
    InvalidInput,
    NotOwner,
    PreconditionFailed,
    ServiceRefused,
    SextonError,
    StoreUnavailable,
    Unsupported,
)
from logstore.log.ledgers import CopyKind
from logstore.ports.catalog import Deletions, IntentResult
from logstore.ports.objects import CopyStorage, RemovalResult, Storages
from logstore.records.services.flush_requests import FlushRequests


@dataclass(slots=True)
class Examination:
    """Every intent is in exactly one of the three."""

    ended: list[IntentResult] = field(default_factory=list)  # no delete is needed, or none is allowed
    copies: dict[int, tuple[DeletionIntent, StoredCopy]] = field(default_factory=dict)  # ours, to be removed
    errors: dict[int, SextonError] = field(default_factory=dict)  # no answer: treated as "keep"


def examine(
    intents: Sequence[DeletionIntent], storages: Storages, flushes: FlushRequests, heartbeats: Heartbeats
) -> Examination:
    """Judge each intent; every error but a definite absence means that nothing is deleted.

    First the record log is told of those that it must know of, plain deletions too; where it cannot be, their copies
    stay. It would bring a ledger back half of whose objects are gone, and nothing would tell that from a loss of data.
    """
    untold = flushes.failures(sorted({one.ledger_id for one in intents}))
    found = Examination(errors={one.row_id: untold[one.ledger_id] for one in intents if one.ledger_id in untold})
    allowed: dict[CopyKind, list[DeletionIntent]] = {}
    for intent in (one for one in intents if one.row_id not in found.errors):
        if refused := find_refusal(intent):
            found.ended.append(IntentResult(row_id=intent.row_id, outcome=refused[0], error=refused[1]))
        else:
            allowed.setdefault(intent.copy, []).append(intent)
    for kind, here in sorted(allowed.items()):
        if kind.value in storages:
            _look(found, here, storages[kind.value], heartbeats)
        else:
            why = f"this build has no storage for {kind.value}"
            found.errors |= {one.row_id: Unsupported(f"ledger {one.ledger_id}: {why}") for one in here}
    return found


def _look(found: Examination, intents: Sequence[DeletionIntent], storage: CopyStorage, heartbeats: Heartbeats) -> None:
    """Look at copies of one kind, in the storage that knows what else it will be asked for.

    A copy that this catalog's own store lacks is gone; the absence from another store says nothing.
    """
    inspect, absent = storage.prepare_inspection(intents), list[DeletionIntent]()
    for intent in intents:
        try:
            stored = inspect(intent)
            if stored.verdict is CopyVerdict.ABSENT:
                absent.append(intent)
            elif stored.verdict is CopyVerdict.FOREIGN:
                mismatch = IntentResult(row_id=intent.row_id, outcome=Outcome.METADATA_MISMATCH, error=stored.detail)
                found.ended.append(mismatch)
            else:
                found.copies[intent.row_id] = (intent, stored)
        except SextonError as error:
            found.errors[intent.row_id] = error
        heartbeats.examined()
    doubted = storage.check_absence(absent) if absent else {}
    found.errors |= doubted
    gone = (one.row_id for one in absent if one.row_id not in doubted)
    found.ended += [IntentResult(row_id=row, outcome=Outcome.ALREADY_GONE) for row in gone]


def remove(
    found: Examination, storages: Storages, heartbeats: Heartbeats, pace: DeletionPace
) -> tuple[list[IntentResult], dict[int, SextonError]]:
    """Remove what was found to be ours, together per kind of copy, no faster than told.

    Returns:
        What ended, and the error of each row that did not.
    """
    ended, errors = list(found.ended), dict(found.errors)
    for kind in sorted({intent.copy for intent, _ in found.copies.values()}):
        copies = {row: stored for row, (intent, stored) in found.copies.items() if intent.copy is kind}
        removals, failed = _remove(storages[kind.value], copies, heartbeats, pace)
        ended += [
            IntentResult(row_id=row, outcome=Outcome.DELETED, objects=removal.objects, size_bytes=removal.size_bytes)
            for row, removal in removals.items()
        ]
        errors |= failed
    return ended, errors


def _remove(
    storage: CopyStorage, copies: Mapping[int, StoredCopy], heartbeats: Heartbeats, pace: DeletionPace
) -> tuple[dict[int, RemovalResult], dict[int, SextonError]]:
    """Part by part; a row that failed in one is left out of the next, so that its statement outlives its data."""
    done: dict[int, RemovalResult] = {}
    errors: dict[int, SextonError] = {}
    for part in pace.parts(copies):
        going = {row: piece for row, piece in part.items() if row not in errors}
        try:
            removals = storage.remove(going, on_progress=heartbeats.deleted) if going else {}
        except (ClaimHeld, NotOwner):
            raise  # another workflow, or another worker, is at work on the rows: they are not ours to judge
        except SextonError as error:
            unfinished = {row for row in copies if row not in done or row in part}
            errors = dict.fromkeys(unfinished, error) | errors
            break
        for row, removal in removals.items():
            if removal.error:
                errors[row] = _incomplete(copies[row], done.get(row), removal)
            before = done.get(row, RemovalResult())
            objects, size_bytes = before.objects + removal.objects, before.size_bytes + removal.size_bytes
            done[row] = replace(removal, objects=objects, size_bytes=size_bytes)
        pace.wait(going, heartbeats)
    return {row: removal for row, removal in done.items() if row not in errors}, errors


def _incomplete(copy: StoredCopy, before: RemovalResult | None, removal: RemovalResult) -> DeletionIncomplete:
    """The error of a copy that keeps keys, counted in those of its whole, whatever part of it was asked for."""
    gone = removal.objects + (before.objects if before else 0)
    left = len(copy.data_keys) + len(copy.meta_keys) - gone
    return DeletionIncomplete(removal.error or "", keys_left=left if removal.answered else None)


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
    """Those that have not ended and have no workflow of their own."""
    return [one for one in intents if one.state is DeletionState.PENDING and one.handed_to is None]


def result_of(intent: DeletionIntent) -> DeleteIntentResult:
    """How an intent ended that had ended before."""
    outcome = intent.outcome or Outcome.UNKNOWN
    stuck = intent.is_stuck and outcome is Outcome.DEAD_LETTERED
    return DeleteIntentResult(outcome=outcome, detail=intent.last_error or "", stuck=stuck)


def sentence(error: SextonError) -> str:
    """An error as a row keeps it."""
    return f"{type(error).__name__}: {error}"


def later(error: SextonError, after_s: int) -> ApplicationError:
    """The error as one that is retried after `after_s`, whatever its class says.

    Bad input that storage speaks of is the row's and not the request's: its last attempt leaves a dead letter.
    """
    kind = CorruptData if isinstance(error, InvalidInput) else type(error)
    return ApplicationError(str(error), type=kind.__name__, next_retry_delay=timedelta(seconds=after_s))


def raise_if_nothing_answered(ended: list[IntentResult], errors: dict[int, SextonError]) -> None:
    """A store that is down, or that refuses our credentials, fails the chunk and not each ledger of it.

    Raises:
        StoreUnavailable: So that the chunk is tried again before its rows are handed over.
    """
    answered = any(one.outcome not in _BY_CATALOG for one in ended)
    if errors and not answered and all(isinstance(error, _OF_THE_STORE) for error in errors.values()):
        first = next(iter(errors.values()))
        raise StoreUnavailable(str(first)) from first


def chunk_result(
    intents: Sequence[DeletionIntent], ended: list[IntentResult], *, many_topics: bool = False
) -> ChunkResult:
    """Count a chunk; whatever did not end is retried by a workflow of its own.

    A damaged row has none: no workflow could do more than say so again, and it is listed as a dead letter.
    """
    now = {one.row_id: one.outcome for one in ended}
    final = [now.get(one.row_id) or one.outcome or Outcome.RETRYING for one in intents]
    failed = [one for one, outcome in zip(intents, final, strict=True) if not outcome.is_success]
    alone = [one for one in failed if not one.damage]
    return ChunkResult(
        outcomes={outcome.value: final.count(outcome) for outcome in sorted(set(final))},
        objects=sum(one.objects for one in ended),
        size_bytes=sum(one.size_bytes for one in ended),
        alone=[key_of(one) for one in alone],
        topics=[one.topic for one in alone] if many_topics else [],
    )


def finish(
    queue: Deletions, intents: Sequence[DeletionIntent], ended: list[IntentResult], *, holder: str
) -> frozenset[int]:
    """Record how rows ended, and count those that this call ended."""
    changed = queue.finish(ended, holder=holder)
    metrics.ended(intents, ended, changed)
    return changed


def hand_over(queue: Deletions, batch_id: str, intents: Sequence[DeletionIntent], errors: dict[int, str]) -> None:
    """Give rows that failed to workflows of their own, with the error, and count those that this call gave."""
    names = {one.row_id: delete_ledger_id(key_of(one)) for one in intents if one.row_id in errors}
    moved = queue.hand_over(names, batch_id=batch_id, errors=errors, ttl_s=CLAIM_S)
    tried = [one for one in intents if one.row_id in moved]
    metrics.received(tried)
    metrics.failed(tried)
