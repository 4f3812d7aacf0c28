"""Decisions about the queue of phase two that depend on its rows alone."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from logstore.deletion.intents import DeletionState
from logstore.errors import ClaimHeld, InvalidInput, PreconditionFailed, UnknownObject

Id = TypeVar("Id", bound=int)

MAX_IDS_PER_CALL: Final = 10_000
"""Ids that one call may name: it is one transaction, and has one answer."""

_MOST_SEGMENTS: Final = 20_000  # in a range: some 10 MB of keys while a chunk works
_MOST_NAMED: Final = 10  # rows in a refusal


def normalize_ids(what: str, ids: Iterable[Id]) -> list[Id]:
    """The ids that a caller names, ascending and unique.

    Raises:
        InvalidInput: There are none, or more than `MOST_IDS`.
    """
    found = sorted(set(ids))
    if not 0 < len(found) <= MAX_IDS_PER_CALL:
        raise InvalidInput(what, expected=f"1 to {MAX_IDS_PER_CALL:,} ids", found=len(found))
    return found


def require_unclaimed(
    ledger_id: int, workflow_id: str, *, claim: tuple[str | None, int | None], batch: str | None, now_us: int
) -> None:
    """Let a workflow take a row up unless another one is at work on it.

    Args:
        ledger_id: Of the row.
        workflow_id: Which one takes it up.
        claim: Which one the row was handed to, and until when; None: to none, its batch works on it.
        batch: Which one holds the batch now, if any; it counts where the row has no claim of its own.
        now_us: The catalog's clock.

    Raises:
        ClaimHeld: Another one is.
    """
    handed_to, until_us = claim
    holder = (handed_to if (until_us or 0) > now_us else None) if handed_to else batch
    if holder not in {None, workflow_id}:
        raise ClaimHeld(f"ledger {ledger_id}: expected no other workflow at work, found {holder}")


def require_dead_letters(row_ids: Sequence[int], states: Mapping[int, tuple[DeletionState, str]]) -> None:
    """Refuse ids of which one is no dead letter's.

    Args:
        row_ids: Those that were asked for, ascending.
        states: By id, of the rows that there are: what the state means, and how it is stored.

    Raises:
        UnknownObject: None of the others is in the catalog.
        PreconditionFailed: Some are, in other states; names each.
    """
    dead = {row_id for row_id, (state, _) in states.items() if state is DeletionState.DEAD_LETTERED}
    wrong = [(row_id, states[row_id][1] if row_id in states else "unknown") for row_id in row_ids if row_id not in dead]
    if not wrong:
        return
    more = f" and {len(wrong) - _MOST_NAMED} more" if len(wrong) > _MOST_NAMED else ""
    named = ", ".join(f"{row_id} {state}" for row_id, state in wrong[:_MOST_NAMED]) + more
    if not any(row_id in states for row_id, _ in wrong):
        raise UnknownObject("deletion ids", expected="ids that `sexton deletion list` shows", found=named)
    raise PreconditionFailed(f"deletions: expected dead letters, found {named}; nothing was changed")


def split_into_ranges(rows: Iterable[tuple[int, int, bool]], most: int) -> Iterator[list[int]]:
    """Cut a batch into ranges of rows that are left, each with few enough objects to be listed at once.

    Args:
        rows: Id, segments, and whether the row is left to its batch; ascending by id.
        most: Rows of a range at most, 1 or more.

    Yields:
        Ids of one range, ascending: no row between them was dealt with by others.
    """
    ids: list[int] = []
    held = 0
    for row_id, segments, left in rows:
        if ids and (not left or len(ids) == most or held + segments > _MOST_SEGMENTS):
            yield ids
            ids, held = [], 0
        if left:
            ids.append(row_id)
            held += segments
    if ids:
        yield ids
