"""Requests that ledgers share: listings of neighbours, and pages of deletes with a confirmation for each key.

Neighbours are listed together if few other ledgers are expected between them. A shared listing returns a ledger only if
it covers all keys of the ledger. The shared listing then proves as much as a listing of this ledger only.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from logstore.deletion.intents import DeletionIntent, StoredCopy
from logstore.errors import SextonError, Unsupported
from logstore.log.ledger_object_keys import SHARDS, ledger_prefix, shard_prefix
from logstore.ports.object_storage import CopyRemovalResult, DeleteReport, ObjectInfo, ObjectStore, OwnedStore
from logstore.positions import LedgerId

_MAX_KEYS_PER_PAGE: Final = 1_000
_MAX_FOREIGN_KEYS: Final = 50  # of other ledgers, for each listed ledger; more keys cost more than a new request


class SharedListings:
    """Listings of primary copies. The first request for a ledger lists its neighbours too."""

    def __init__(self, objects: ObjectStore, intents: Sequence[DeletionIntent]) -> None:
        self._objects = objects
        self._expected_keys = {intent.ledger_id: intent.segments + 1 for intent in intents}
        groups = _group_neighbours(self._expected_keys)
        self._group_by_ledger = {ledger_id: group for group in groups for ledger_id in group}
        self._listed: dict[LedgerId, list[ObjectInfo]] = {}

    def list_with_neighbours(self, ledger_id: LedgerId) -> Sequence[ObjectInfo] | None:
        """Return the ledger's objects, ascending by key. `None` means that the caller must list the ledger separately.

        The objects of a ledger are returned once. After a failed listing, calls for the neighbours return `None`.
        """
        if group := self._group_by_ledger.get(ledger_id):
            for member in group:
                del self._group_by_ledger[member]
            # The page holds keys of the group, of the ledgers between, and of the next ledger, which shows the end.
            group_keys = sum(self._expected_keys[member] for member in group)
            other_ledgers = _count_between(group[0], group[-1]) - len(group) + 3
            first_page = max(1, min(_MAX_KEYS_PER_PAGE, group_keys + group_keys * other_ledgers // len(group)))
            self._listed |= _list_neighbours(self._objects, group, first_page=first_page)
        return self._listed.pop(ledger_id, None)


def _group_neighbours(expected_keys: Mapping[LedgerId, int]) -> Iterator[list[LedgerId]]:
    """Yield groups of ledgers to list together. A group has two or more ledgers of one shard, ascending."""
    mean_keys = sum(expected_keys.values()) / max(1, len(expected_keys))
    group: list[LedgerId] = []
    for ledger_id in sorted(expected_keys, key=lambda ledger_id: (ledger_id % SHARDS, ledger_id)):
        if group and (
            ledger_id % SHARDS != group[-1] % SHARDS
            or _count_between(group[-1], ledger_id) * mean_keys > _MAX_FOREIGN_KEYS
        ):
            yield from [group] if len(group) > 1 else []
            group = []
        group.append(ledger_id)
    yield from [group] if len(group) > 1 else []


def _count_between(ledger_id: LedgerId, later: LedgerId) -> int:
    return (later - ledger_id) // SHARDS - 1


def _list_neighbours(
    objects: ObjectStore, group: Sequence[LedgerId], *, first_page: int
) -> dict[LedgerId, list[ObjectInfo]]:
    """List from the first ledger to the last. Return the objects of the ledgers that the listing covers.

    After too many keys of other ledgers the listing ends early, because single listings would take fewer pages.
    """
    listed: dict[LedgerId, list[ObjectInfo]] = {}
    remaining = [(ledger_id, ledger_prefix(ledger_id), _key_after(ledger_id)) for ledger_id in reversed(group)]
    foreign_keys = 0
    current, prefix, end = remaining.pop()
    listed[current] = []
    start = _key_after(LedgerId(current - SHARDS)) if current >= SHARDS else ""
    try:
        for item in objects.list(shard_prefix(current % SHARDS), start_after=start, first_page=first_page):
            while item.key > end:
                if not remaining:
                    return listed
                current, prefix, end = remaining.pop()
                listed[current] = []
            if item.key.startswith(prefix):
                listed[current].append(item)
                continue
            foreign_keys += 1
            if foreign_keys > _MAX_FOREIGN_KEYS * len(group):
                del listed[current]
                return listed
    except Unsupported:  # foreign keys in the shard break the order of the listing, but not of single listings
        return {}
    return {ledger_id: listed.get(ledger_id, []) for ledger_id in group}


def _key_after(ledger_id: LedgerId) -> str:
    """Return a text that sorts after every key of the ledger and before any key of the next ledger.

    The last character is "1", because the object store may list from a text whose last character is one lower.
    """
    return ledger_prefix(ledger_id).removesuffix("/") + "1"


class UnconfirmedKeys(NamedTuple):
    keys: int  # number of keys; 0: unknown, because storage did not answer
    first: str  # first key and the reason; only the reason if `keys` is 0
    answered: bool = True  # False: storage gave no answer for some of the keys


def delete_keys_of_copies(
    objects: ObjectStore,
    copies: Iterable[StoredCopy],
    keys: Callable[[StoredCopy], tuple[str, ...]],
    on_progress: Callable[[int], None],
) -> DeleteReport:
    selected_keys = [key for copy in copies for key in keys(copy)]
    if not selected_keys:
        return DeleteReport()
    report = objects.delete(selected_keys)
    on_progress(len(report.deleted))
    return report


def find_unconfirmed_keys(keys: Iterable[str], report: DeleteReport) -> UnconfirmedKeys | None:
    failed = [key for key in keys if key not in report.deleted]
    if not failed:
        return None
    reason = report.failed.get(failed[0], "unconfirmed")
    return UnconfirmedKeys(len(failed), f"{failed[0]}: {reason}", report.unanswered.isdisjoint(failed))


def find_foreign_bucket_errors_by_row(objects: OwnedStore, absent: Sequence[DeletionIntent]) -> dict[int, SextonError]:
    """Return an error for each row if the bucket belongs to another catalog. An empty listing then proves nothing."""
    try:
        if absent:
            objects.require_ownership_now()
    except SextonError as error:
        return {intent.row_id: error for intent in absent}
    return {}


def to_removal_result(copy: StoredCopy, unconfirmed: UnconfirmedKeys | None) -> CopyRemovalResult:
    """Return the result of one copy's removal.

    A store also confirms absent keys. The result therefore counts only objects that the inspection found.
    """
    if unconfirmed is None:
        seen_meta_keys = max(0, len(copy.meta_keys) - copy.unseen_meta_keys)
        return CopyRemovalResult(objects=len(copy.data_keys) + seen_meta_keys, size_bytes=copy.size_bytes)
    return CopyRemovalResult(
        objects=max(0, len(copy.data_keys) - unconfirmed.keys),
        error=f"{unconfirmed.keys} keys kept, first {unconfirmed.first}" if unconfirmed.keys else unconfirmed.first,
        answered=unconfirmed.answered,
    )
