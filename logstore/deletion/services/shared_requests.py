"""Requests that ledgers share: a listing shows many small ones, and a page of deletes removes many, confirmed per key.

A shard holds the ledgers of every 256th id, in the order of their ids, so ledgers that follow each other there stand in
one page. They are listed together where few other ledgers are expected between them. What a walk does not show whole
is left to a listing of its own, so each ledger that is shown here was listed from before its first key to beyond its
last. It is what a listing of its own would have shown, and proves no more: see `PrimaryCopies` for what else is asked.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from logstore.deletion.intents import DeletionIntent, StoredCopy
from logstore.errors import SextonError, Unsupported
from logstore.log.ledgers import SHARDS, ledger_prefix, shard_prefix
from logstore.ports.objects import DeleteReport, ObjectInfo, ObjectStore, OwnedStore, RemovalResult
from logstore.positions import LedgerId

_PAGE: Final = 1_000  # keys of one answer, at most
_BETWEEN: Final = 50
"""The most keys of other ledgers that a listing reads and skips: reading more would cost more than a new request."""


class SharedListings:
    """The objects of some ledgers, by one walk for neighbours, made when the first of them is asked for."""

    def __init__(self, objects: ObjectStore, intents: Sequence[DeletionIntent]) -> None:
        """Ask nothing yet.

        Args:
            objects: The primary bucket.
            intents: Whose primary copies will be asked for; their segments tell how many objects to expect.
        """
        self._objects = objects
        self._expected = {one.ledger_id: one.segments + 1 for one in intents}
        self._walks = {ledger_id: walk for walk in _walks(self._expected) for ledger_id in walk}
        self._shown: dict[LedgerId, list[ObjectInfo]] = {}

    def of(self, ledger_id: LedgerId) -> Sequence[ObjectInfo] | None:
        """The ledger's objects, ascending by key, none where none stands; or None: it is to be listed alone.

        Each ledger is shown once. Where a walk fails, the other ledgers of it are to be listed alone.

        Raises:
            StoreUnavailable: Storage did not answer.
        """
        if walk := self._walks.get(ledger_id):
            for each in walk:
                del self._walks[each]
            # what one answer should have: their keys, those of ledgers between, and of the one that shows their end
            own, others = sum(self._expected[each] for each in walk), _others(walk[0], walk[-1]) - len(walk) + 3
            first_page = max(1, min(_PAGE, own + own * others // len(walk)))
            self._shown |= _walked(self._objects, walk, first_page=first_page)
        return self._shown.pop(ledger_id, None)


def _walks(expected: Mapping[LedgerId, int]) -> Iterator[list[LedgerId]]:
    """Ledgers to be listed together, two or more, each time of one shard and ascending."""
    mean = sum(expected.values()) / max(1, len(expected))
    walk: list[LedgerId] = []
    for ledger_id in sorted(expected, key=lambda one: (one % SHARDS, one)):
        if walk and (ledger_id % SHARDS != walk[-1] % SHARDS or _others(walk[-1], ledger_id) * mean > _BETWEEN):
            yield from [walk] if len(walk) > 1 else []
            walk = []
        walk.append(ledger_id)
    yield from [walk] if len(walk) > 1 else []


def _others(last: LedgerId, following: LedgerId) -> int:
    """Ledgers that may stand between two of a shard."""
    return (following - last) // SHARDS - 1


def _walked(objects: ObjectStore, walk: Sequence[LedgerId], *, first_page: int) -> dict[LedgerId, list[ObjectInfo]]:
    """Those of the ledgers that a listing from the first to the last shows whole; it ends where too many are of others.

    So it takes hardly more pages than lone listings would: those of their own objects, and a twentieth of one a ledger.
    """
    found: dict[LedgerId, list[ObjectInfo]] = {}
    rest, others = [(one, ledger_prefix(one), _end(one)) for one in reversed(walk)], 0
    current, prefix, end = rest.pop()
    found[current] = []
    before = _end(LedgerId(current - SHARDS)) if current >= SHARDS else ""  # behind the ledger before it in its shard
    try:
        for item in objects.list(shard_prefix(current % SHARDS), start_after=before, first_page=first_page):
            while item.key > end:
                if not rest:
                    return found
                current, prefix, end = rest.pop()
                found[current] = []
            if item.key.startswith(prefix):
                found[current].append(item)
                continue
            others += 1
            if others > _BETWEEN * len(walk):
                del found[current]
                return found
    except Unsupported:  # strange keys beside the ledgers are in an order of their own; they spoil no lone listing
        return {}
    return {ledger_id: found.get(ledger_id, []) for ledger_id in walk}


def _end(ledger_id: LedgerId) -> str:
    """What sorts behind every key of the ledger, and before any of the next one.

    "0" follows "/" at once; "1" leaves room for a store that must be asked for what follows a little less.
    """
    return ledger_prefix(ledger_id).removesuffix("/") + "1"


class UnconfirmedKeys(NamedTuple):
    """Keys that storage did not confirm as deleted."""

    keys: int  # 0: storage did not tell
    first: str  # key and reason; with 0 keys the reason alone
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


def removal(copy: StoredCopy, left: UnconfirmedKeys | None) -> RemovalResult:
    """What one copy's removal came to. A store confirms absent keys too: only those that it showed count as deleted."""
    if left is None:
        seen_meta_keys = max(0, len(copy.meta_keys) - copy.unseen_meta_keys)
        return RemovalResult(objects=len(copy.data_keys) + seen_meta_keys, size_bytes=copy.size_bytes)
    return RemovalResult(
        objects=max(0, len(copy.data_keys) - left.keys),
        error=f"{left.keys} keys kept, first {left.first}" if left.keys else left.first,
        answered=left.answered,
    )
