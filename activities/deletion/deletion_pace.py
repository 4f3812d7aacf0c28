"""Pace of deletions. A removal is split into small parts, with waits between the parts."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from activities.heartbeats import ClaimRenewingHeartbeats
from logstore.deletion.intents import DeletionIntent, DeletionState, StoredCopy

_SLICE_S = 30.0  # work of one call, unless one ledger takes longer; pauses and new rates take effect between calls
_MAX_NAP_S = 1.0  # a cancellation or a lost claim is noticed within this time
_MAX_KEYS_PER_PART = 1_000  # one page of an object store


class DeletionPace:
    """Limit of deleted objects per second. A rate of 0 or less means no limit."""

    def __init__(
        self,
        objects_per_s: float = 0.0,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = max(0.0, objects_per_s)
        self._clock, self._sleep = clock, sleep
        self._next_s = 0.0  # when the next part may begin

    def limit_intents(self, intents: Sequence[DeletionIntent]) -> Sequence[DeletionIntent]:
        """Return as many of the first intents as take about 30 s, but at least up to the first PENDING intent."""
        if not self._rate:
            return intents
        remaining_objects, has_pending = self._rate * _SLICE_S, False
        for index, intent in enumerate(intents):
            objects = (intent.segments + 1) if intent.state is DeletionState.PENDING else 0
            if has_pending and objects > remaining_objects:
                return intents[:index]
            remaining_objects, has_pending = remaining_objects - objects, has_pending or objects > 0
        return intents

    def split_copies(self, copies: Mapping[int, StoredCopy]) -> Iterator[dict[int, StoredCopy]]:
        """Yield parts with about one second of work each. If a copy is cut, the last piece has the copy's statement."""
        if not self._rate:
            yield dict(copies)
            return
        max_keys = min(_MAX_KEYS_PER_PART, max(1, math.floor(self._rate)))
        part: dict[int, StoredCopy] = {}
        keys = 0
        for row, piece in ((row, piece) for row, copy in copies.items() for piece in _split_copy(copy, max_keys)):
            if part and keys + _count_keys(piece) > max_keys:
                yield part
                part, keys = {}, 0
            part[row] = piece
            keys += _count_keys(piece)
        if part:
            yield part

    def wait_for_rate(self, copies: Mapping[int, StoredCopy], heartbeats: ClaimRenewingHeartbeats) -> None:
        """Wait as long as the rate demands for `copies`. Raise `ClaimHeld` if another workflow has the claim now."""
        if not self._rate:
            return
        now_s = self._clock()
        self._next_s = max(self._next_s, now_s) + sum(map(_count_keys, copies.values())) / self._rate
        while (remaining_s := self._next_s - self._clock()) > 0:
            heartbeats.count_deleted(0)
            self._sleep(min(_MAX_NAP_S, remaining_s))


def _count_keys(copy: StoredCopy) -> int:
    return len(copy.data_keys) + len(copy.meta_keys)


def _split_copy(copy: StoredCopy, max_keys: int) -> Iterator[StoredCopy]:
    """Cut a copy into pieces, data objects first. Only the last piece has the statement and the copy's size."""
    data = copy.data_keys
    while len(data) + len(copy.meta_keys) > max_keys and data:
        yield replace(copy, data_keys=data[:max_keys], meta_keys=(), size_bytes=0, is_incomplete=False)
        data = data[max_keys:]
    yield replace(copy, data_keys=data)
