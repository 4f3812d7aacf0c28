"""Rules of the queue of phase two, as pure functions of the queue's rows."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from logstore.deletion.intents import DeletionState
from logstore.errors import ClaimHeld, InvalidInput, PreconditionFailed, UnknownObject

Id = TypeVar("Id", bound=int)

MAX_IDS_PER_CALL: Final = 10_000  # one transaction and one answer
_MAX_SEGMENTS_PER_RANGE: Final = 20_000  # about 10 MB of keys in memory
_MAX_ROWS_IN_MESSAGE: Final = 10


def normalize_ids(field: str, ids: Iterable[Id]) -> list[Id]:
    """Return the ids, ascending and unique. Raise `InvalidInput` if there are none or more than `MAX_IDS_PER_CALL`."""
    unique_ids = sorted(set(ids))
    if not 0 < len(unique_ids) <= MAX_IDS_PER_CALL:
        raise InvalidInput(field, expected=f"1 to {MAX_IDS_PER_CALL:,} ids", found=len(unique_ids))
    return unique_ids


def require_unclaimed(
    ledger_id: int, workflow_id: str, *, claim: tuple[str | None, int | None], batch: str | None, now_us: int
) -> None:
    """Raise `ClaimHeld` if another workflow works on a row.

    `claim` is the workflow to which the row was handed over, and the end of that workflow's claim by the catalog's
    clock. `batch` is the workflow that holds the row's batch. `batch` is used only if the row was not handed over.
    """
    handed_to, until_us = claim
    holder = (handed_to if (until_us or 0) > now_us else None) if handed_to else batch
    if holder not in {None, workflow_id}:
        raise ClaimHeld(f"ledger {ledger_id}: expected no other workflow at work, found {holder}")


def require_dead_letters(row_ids: Sequence[int], state_by_row: Mapping[int, tuple[DeletionState, str]]) -> None:
    """Require that every row is a dead letter. `row_ids` must ascend. `state_by_row` has parsed and stored states.

    Raises:
        UnknownObject: A row does not exist, and every existing row is a dead letter.
        PreconditionFailed: An existing row is no dead letter. The message names up to ten rows with their states.
    """
    wrong = [
        (row_id, state_by_row[row_id][1] if row_id in state_by_row else "unknown")
        for row_id in row_ids
        if row_id not in state_by_row or state_by_row[row_id][0] is not DeletionState.DEAD_LETTERED
    ]
    if not wrong:
        return
    more = f" and {len(wrong) - _MAX_ROWS_IN_MESSAGE} more" if len(wrong) > _MAX_ROWS_IN_MESSAGE else ""
    rows = ", ".join(f"{row_id} {state}" for row_id, state in wrong[:_MAX_ROWS_IN_MESSAGE]) + more
    if not any(row_id in state_by_row for row_id, _ in wrong):
        raise UnknownObject("deletion ids", expected="ids that `sexton deletion list` shows", found=rows)
    raise PreconditionFailed(f"deletions: expected dead letters, found {rows}; nothing was changed")


def split_batch_into_ranges(rows: Iterable[tuple[int, int, bool]], max_rows: int) -> Iterator[list[int]]:
    """Yield ids of rows that the batch still has to process, in ranges of at most `max_rows` rows.

    A range also has a bounded number of segments. No processed row of the batch lies within a range. Each of `rows` is
    a row's id, its number of segments, and whether the batch still has to process it. The ids must ascend.
    """
    ids: list[int] = []
    range_segments = 0
    for row_id, segments, is_unfinished in rows:
        is_full = len(ids) == max_rows or range_segments + segments > _MAX_SEGMENTS_PER_RANGE
        if ids and (not is_unfinished or is_full):
            yield ids
            ids, range_segments = [], 0
        if is_unfinished:
            ids.append(row_id)
            range_segments += segments
    if ids:
        yield ids
