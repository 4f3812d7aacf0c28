"""Steps of phase two on a set of intents: compare catalog and storage, delete, store the results. Source: PIP-186."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

from temporalio.exceptions import ApplicationError

from activities.deletion import metrics
from activities.deletion.claims_and_causes import CLAIM_S
from activities.deletion.deletion_pace import DeletionPace
from activities.deletion.inputs_and_results import ChunkResult
from activities.heartbeats import ClaimRenewingHeartbeats
from logstore.catalog.deletion.phase_two_queue import PhaseTwoQueue
from logstore.deletion.intents import (
    CopyVerdict,
    DeleteIntentResult,
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
from logstore.ports.catalog.deletion import IntentResult
from logstore.ports.object_storage import CopyRemovalResult, CopyStorage, StorageByCopyKind
from logstore.records.services.flusher import SharedFlushes


@dataclass(slots=True)
class IntentExamination:
    """Examined intents. Each intent is in exactly one of the three collections."""

    results: list[IntentResult] = field(default_factory=list)  # intents whose copies are gone or must stay
    own_copies: dict[int, tuple[DeletionIntent, StoredCopy]] = field(default_factory=dict)  # to remove, by `row_id`
    error_by_row: dict[int, SextonError] = field(default_factory=dict)  # no answer: the copy stays


def flush_and_examine_intents(
    intents: Sequence[DeletionIntent],
    storages: StorageByCopyKind,
    flushes: SharedFlushes,
    heartbeats: ClaimRenewingHeartbeats,
) -> IntentExamination:
    """Flush the deletions to the record log, then compare catalog and storage for each intent.

    Deletions that are not durable are flushed too. If a flush fails, the copy stays. Without the flush, a rebuild
    could restore a ledger whose objects are deleted. The data of this ledger would seem to be lost.
    """
    error_by_ledger = flushes.flush_deletions(sorted({intent.ledger_id for intent in intents}))
    examination = IntentExamination(
        error_by_row={
            intent.row_id: error_by_ledger[intent.ledger_id]
            for intent in intents
            if intent.ledger_id in error_by_ledger
        }
    )
    allowed_intents_by_kind: dict[CopyKind, list[DeletionIntent]] = {}
    for intent in (intent for intent in intents if intent.row_id not in examination.error_by_row):
        if refusal := find_refusal(intent):
            outcome, reason = refusal
            examination.results.append(IntentResult(row_id=intent.row_id, outcome=outcome, error=reason))
        else:
            allowed_intents_by_kind.setdefault(intent.copy, []).append(intent)
    for kind, intents_of_kind in sorted(allowed_intents_by_kind.items()):
        if kind.value in storages:
            _inspect_copies(examination, intents_of_kind, storages[kind.value], heartbeats)
        else:
            problem = f"this build has no storage for {kind.value}"
            examination.error_by_row |= {
                intent.row_id: Unsupported(f"ledger {intent.ledger_id}: {problem}") for intent in intents_of_kind
            }
    return examination


def _inspect_copies(
    examination: IntentExamination,
    intents: Sequence[DeletionIntent],
    storage: CopyStorage,
    heartbeats: ClaimRenewingHeartbeats,
) -> None:
    inspect, absent = storage.prepare_inspection(intents), list[DeletionIntent]()
    for intent in intents:
        try:
            stored = inspect(intent)
            if stored.verdict is CopyVerdict.ABSENT:
                absent.append(intent)
            elif stored.verdict is CopyVerdict.FOREIGN:
                outcome = Outcome.METADATA_MISMATCH
                examination.results.append(IntentResult(row_id=intent.row_id, outcome=outcome, error=stored.detail))
            else:
                examination.own_copies[intent.row_id] = (intent, stored)
        except SextonError as error:
            examination.error_by_row[intent.row_id] = error
        heartbeats.count_examined()
    doubts = storage.prove_absence(absent) if absent else {}
    examination.error_by_row |= doubts
    examination.results += [
        IntentResult(row_id=intent.row_id, outcome=Outcome.ALREADY_GONE)
        for intent in absent
        if intent.row_id not in doubts
    ]


def remove_examined_copies(
    examination: IntentExamination, storages: StorageByCopyKind, heartbeats: ClaimRenewingHeartbeats, pace: DeletionPace
) -> tuple[list[IntentResult], dict[int, SextonError]]:
    """Remove `examination.own_copies`. Return all results, and the error of each row without a result, by row id."""
    results, error_by_row = list(examination.results), dict(examination.error_by_row)
    for kind in sorted({intent.copy for intent, _ in examination.own_copies.values()}):
        copies = {row: stored for row, (intent, stored) in examination.own_copies.items() if intent.copy is kind}
        removals, errors = _remove_copies_in_parts(storages[kind.value], copies, heartbeats, pace)
        results += [
            IntentResult(row_id=row, outcome=Outcome.DELETED, objects=removal.objects, size_bytes=removal.size_bytes)
            for row, removal in removals.items()
        ]
        error_by_row |= errors
    return results, error_by_row


def _remove_copies_in_parts(
    storage: CopyStorage, copies: Mapping[int, StoredCopy], heartbeats: ClaimRenewingHeartbeats, pace: DeletionPace
) -> tuple[dict[int, CopyRemovalResult], dict[int, SextonError]]:
    """Remove copies in parts. If a part fails, keep the rest of the copy: the copy's statement is deleted last."""
    removals: dict[int, CopyRemovalResult] = {}
    error_by_row: dict[int, SextonError] = {}
    for part in pace.split_copies(copies):
        pieces = {row: piece for row, piece in part.items() if row not in error_by_row}
        try:
            part_removals = storage.remove_copies(pieces, on_progress=heartbeats.count_deleted) if pieces else {}
        except (ClaimHeld, NotOwner):
            raise  # another workflow or worker has the rows now
        except SextonError as error:
            unfinished_rows = {row for row in copies if row not in removals or row in part}
            error_by_row = dict.fromkeys(unfinished_rows, error) | error_by_row
            break
        for row, removal in part_removals.items():
            earlier_removal = removals.get(row, CopyRemovalResult())
            objects, size_bytes = (
                earlier_removal.objects + removal.objects,
                earlier_removal.size_bytes + removal.size_bytes,
            )
            if removal.error:  # `keys_left` counts keys of the whole copy, not of this part
                remaining_keys = len(copies[row].data_keys) + len(copies[row].meta_keys) - objects
                error_by_row[row] = DeletionIncomplete(
                    removal.error, keys_left=remaining_keys if removal.answered else None
                )
            removals[row] = replace(removal, objects=objects, size_bytes=size_bytes)
        pace.wait_for_rate(pieces, heartbeats)
    return {row: removal for row, removal in removals.items() if row not in error_by_row}, error_by_row


_STORE_ERRORS = (StoreUnavailable, ServiceRefused, PreconditionFailed)  # concern the whole object store
_OUTCOMES_WITHOUT_STORAGE = {Outcome.STILL_IN_USE, Outcome.INVALID}  # outcomes that only the catalog decides


def delete_ledger_workflow_id(key: IntentKey) -> str:
    return f"delete-ledger/{key.path}"


def intent_key(intent: DeletionIntent) -> IntentKey:
    return IntentKey(
        ledger_id=intent.ledger_id, copy=intent.copy.value, generation=intent.generation, openings=intent.openings
    )


def select_unfinished_intents(intents: Sequence[DeletionIntent]) -> list[DeletionIntent]:
    return [intent for intent in intents if intent.state is DeletionState.PENDING and intent.handed_to is None]


def result_of_ended_intent(intent: DeletionIntent) -> DeleteIntentResult:
    outcome = intent.outcome or Outcome.UNKNOWN
    is_stuck = intent.is_stuck and outcome is Outcome.DEAD_LETTERED
    return DeleteIntentResult(outcome=outcome, detail=intent.last_error or "", stuck=is_stuck)


def format_error(error: SextonError) -> str:
    return f"{type(error).__name__}: {error}"


def to_retryable_error(error: SextonError, after_s: int) -> ApplicationError:
    """Return an error that Temporal retries after `after_s` seconds, even if `error` is terminal.

    `InvalidInput` becomes `CorruptData`, because the fault is in the row, not in the request.
    """
    kind = CorruptData if isinstance(error, InvalidInput) else type(error)
    return ApplicationError(str(error), type=kind.__name__, next_retry_delay=timedelta(seconds=after_s))


def raise_if_nothing_answered(results: list[IntentResult], errors: dict[int, SextonError]) -> None:
    """Raise `StoreUnavailable` if storage answered for no row. Temporal then retries the whole chunk."""
    has_answer = any(result.outcome not in _OUTCOMES_WITHOUT_STORAGE for result in results)
    if errors and not has_answer and all(isinstance(error, _STORE_ERRORS) for error in errors.values()):
        first = next(iter(errors.values()))
        raise StoreUnavailable(str(first)) from first


def build_chunk_result(
    intents: Sequence[DeletionIntent], results: list[IntentResult], *, with_topic_names: bool = False
) -> ChunkResult:
    """Count the rows of a chunk by outcome. List the rows that workflows of their own will retry."""
    outcome_by_row = {result.row_id: result.outcome for result in results}
    outcomes = [outcome_by_row.get(intent.row_id) or intent.outcome or Outcome.RETRYING for intent in intents]
    alone = [
        intent
        for intent, outcome in zip(intents, outcomes, strict=True)
        if not outcome.is_success and not intent.damage
    ]
    return ChunkResult(
        outcomes={outcome.value: outcomes.count(outcome) for outcome in sorted(set(outcomes))},
        objects=sum(result.objects for result in results),
        size_bytes=sum(result.size_bytes for result in results),
        alone=[intent_key(intent) for intent in alone],
        topics=[intent.topic for intent in alone] if with_topic_names else [],
    )


def store_results(
    queue: PhaseTwoQueue, intents: Sequence[DeletionIntent], results: list[IntentResult], *, holder: str
) -> frozenset[int]:
    """Store the results in the catalog and count them. Return the ids of the rows that this call ended."""
    changed_rows = queue.record_outcomes(results, holder=holder)
    metrics.count_ended_intents(intents, results, changed_rows)
    return changed_rows


def hand_over_rows(
    queue: PhaseTwoQueue, batch_id: str, intents: Sequence[DeletionIntent], error_text_by_row: dict[int, str]
) -> None:
    """Hand the rows in `error_text_by_row` to workflows of their own, and count the rows that this call moved."""
    workflow_id_by_row = {
        intent.row_id: delete_ledger_workflow_id(intent_key(intent))
        for intent in intents
        if intent.row_id in error_text_by_row
    }
    moved_rows = queue.move_to_own_workflows(
        workflow_id_by_row, batch_id=batch_id, error_by_row=error_text_by_row, ttl_s=CLAIM_S
    )
    moved_intents = [intent for intent in intents if intent.row_id in moved_rows]
    metrics.count_taken_intents(moved_intents)
    metrics.count_failed_attempts(moved_intents)
