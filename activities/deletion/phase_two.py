"""Phase two on a set of intents: what the catalog says, what storage says, and only then the delete.

Source: PIP-186, second phase, steps 3 to 6.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from activities.deletion.pace import Pace
from activities.deletion.pulse import Pulse
from logstore.deletion.intents import DeletionIntent, Finding, Outcome, StoredCopy, refusal
from logstore.errors import ClaimHeld, DeletionIncomplete, NotOwner, SextonError, Unsupported
from logstore.ports.catalog import Ended
from logstore.ports.storage import CopyStorage, Removal, Storages


@dataclass(slots=True)
class Examination:
    """Every intent is in exactly one of the three."""

    ended: list[Ended] = field(default_factory=list)  # no delete is needed, or none is allowed
    copies: dict[int, tuple[DeletionIntent, StoredCopy]] = field(default_factory=dict)  # ours, to be removed
    errors: dict[int, SextonError] = field(default_factory=dict)  # no answer: treated as "keep"


def examine(intents: Sequence[DeletionIntent], storages: Storages, pulse: Pulse) -> Examination:
    """Judge each intent; every error but a definite absence means that nothing is deleted."""
    found, absent = Examination(), []
    for intent in intents:
        refused = refusal(intent)
        if refused:
            found.ended.append(Ended(row_id=intent.row_id, outcome=refused[0], error=refused[1]))
            continue
        try:
            stored = _storage(storages, intent).inspect(intent)
            if stored.finding is Finding.ABSENT:
                absent.append(intent)
            else:
                _place(found, intent, stored)
        except SextonError as error:
            found.errors[intent.row_id] = error
        pulse.examined()
    _place_absent(found, absent, storages)
    return found


def _place_absent(found: Examination, absent: Sequence[DeletionIntent], storages: Storages) -> None:
    """A copy that this catalog's own store lacks is gone; the absence from another store says nothing."""
    for kind in sorted({intent.copy for intent in absent}):
        here = [intent for intent in absent if intent.copy is kind]
        doubted = storages[kind.value].check_absence(here)
        found.errors |= doubted
        gone = (one.row_id for one in here if one.row_id not in doubted)
        found.ended += [Ended(row_id=row, outcome=Outcome.ALREADY_GONE) for row in gone]


def _place(found: Examination, intent: DeletionIntent, stored: StoredCopy) -> None:
    row = intent.row_id
    if stored.finding is Finding.FOREIGN:
        found.ended.append(Ended(row_id=row, outcome=Outcome.METADATA_MISMATCH, error=stored.detail))
    else:
        found.copies[row] = (intent, stored)


def remove(
    found: Examination, storages: Storages, pulse: Pulse, pace: Pace
) -> tuple[list[Ended], dict[int, SextonError]]:
    """Remove what was found to be ours, together per kind of copy, no faster than told.

    Returns:
        What ended, and the error of each row that did not.
    """
    ended, errors = list(found.ended), dict(found.errors)
    for kind in sorted({intent.copy for intent, _ in found.copies.values()}):
        copies = {row: stored for row, (intent, stored) in found.copies.items() if intent.copy is kind}
        removals, failed = _remove(storages[kind.value], copies, pulse, pace)
        ended += [_deleted(row, removal) for row, removal in removals.items()]
        errors |= failed
    return ended, errors


def _remove(
    storage: CopyStorage, copies: Mapping[int, StoredCopy], pulse: Pulse, pace: Pace
) -> tuple[dict[int, Removal], dict[int, SextonError]]:
    """Part by part; a row that failed in one is left out of the next, so that its statement outlives its data."""
    done: dict[int, Removal] = {}
    errors: dict[int, SextonError] = {}
    for part in pace.parts(copies):
        going = {row: piece for row, piece in part.items() if row not in errors}
        try:
            removals = storage.remove(going, on_progress=pulse.deleted) if going else {}
        except (ClaimHeld, NotOwner):
            raise  # another workflow, or another worker, is at work on the rows: they are not ours to judge
        except SextonError as error:
            unfinished = {row for row in copies if row not in done or row in part}
            errors = dict.fromkeys(unfinished, error) | errors
            break
        for row, removal in removals.items():
            if removal.error:
                errors[row] = _incomplete(copies[row], done.get(row), removal)
            done[row] = _sum(done.get(row), removal)
        pace.wait(going, pulse)
    return {row: removal for row, removal in done.items() if row not in errors}, errors


def _incomplete(copy: StoredCopy, before: Removal | None, removal: Removal) -> DeletionIncomplete:
    """The error of a copy that keeps keys, counted in those of its whole, whatever part of it was asked for."""
    gone = removal.objects + (before.objects if before else 0)
    left = len(copy.data_keys) + len(copy.meta_keys) - gone
    return DeletionIncomplete(removal.error or "", keys_left=left if removal.answered else None)


def _sum(before: Removal | None, more: Removal) -> Removal:
    if before is None:
        return more
    return replace(more, objects=before.objects + more.objects, size_bytes=before.size_bytes + more.size_bytes)


def _deleted(row: int, removal: Removal) -> Ended:
    return Ended(row_id=row, outcome=Outcome.DELETED, objects=removal.objects, size_bytes=removal.size_bytes)


def _storage(storages: Storages, intent: DeletionIntent) -> CopyStorage:
    try:
        return storages[intent.copy.value]
    except KeyError:
        raise Unsupported(f"ledger {intent.ledger_id}: this build has no storage for {intent.copy.value}") from None
