"""Removing copies of ledgers together, so that small ones share pages, and counting only what the store confirmed."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from logstore.deletion.intents import DeletionIntent, StoredCopy
from logstore.errors import SextonError
from logstore.ports.objects import DeleteReport, ObjectStore, OwnedStore, Removal


class UnconfirmedKeys(NamedTuple):
    """Keys that storage did not confirm as deleted."""

    keys: int
    first: str
    answered: bool = True  # False: about some of them storage said nothing


def delete(
    objects: ObjectStore,
    copies: Iterable[StoredCopy],
    keys: Callable[[StoredCopy], tuple[str, ...]],
    on_progress: Callable[[int], None],
) -> DeleteReport:
    """Delete some of the keys of every copy."""
    wanted = [key for copy in copies for key in keys(copy)]
    if not wanted:
        return DeleteReport()
    report = objects.delete(wanted)
    on_progress(len(report.deleted))
    return report


def kept(keys: Iterable[str], report: DeleteReport) -> UnconfirmedKeys | None:
    """Those of `keys` that the report does not confirm, or None."""
    failed = [key for key in keys if key not in report.deleted]
    if not failed:
        return None
    reasons = [report.failed.get(key, "unconfirmed") for key in failed]
    answered = report.unanswered.isdisjoint(failed)
    return UnconfirmedKeys(len(failed), f"{failed[0]}: {reasons[0]}", answered)


def unconfirmed(objects: OwnedStore, absent: Sequence[DeletionIntent]) -> dict[int, SextonError]:
    """By row, why a bucket's empty answers do not count: it is not the catalog's, or did not say that it is."""
    try:
        if absent:
            objects.confirm()
    except SextonError as error:
        return {one.row_id: error for one in absent}
    return {}


def removal(copy: StoredCopy, left: UnconfirmedKeys | None) -> Removal:
    """What one copy's removal came to."""
    total = len(copy.data_keys) + len(copy.meta_keys)
    if left is None:
        return Removal(objects=total, size_bytes=copy.size_bytes)
    return Removal(
        objects=max(0, total - left.keys - len(copy.meta_keys)),
        error=f"{left.keys} keys kept, first {left.first}",
        answered=left.answered,
    )
