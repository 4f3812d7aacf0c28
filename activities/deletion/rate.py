"""Pace of a chunk: removals are cut into parts of about a second, with a wait after each."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from activities.heartbeats import Heartbeats
from logstore.deletion.intents import DeletionIntent, DeletionState, StoredCopy

_SLICE_S = 30.0  # work of one call; a pause or another rate takes effect after it, or after the current ledger
_MAX_NAP_S = 1.0  # a cancellation and a lost claim are noticed within this
_MAX_KEYS_PER_PART = 1_000  # one page of a store


class DeletionPace:
    """Limit of objects a second. 0 or less is unlimited: nothing is cut and nothing waits."""

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

    def slice(self, intents: Sequence[DeletionIntent]) -> Sequence[DeletionIntent]:
        """Return the first intents, as many as one call should process, with at least one pending intent."""
        if not self._rate:
            return intents
        remaining_objects, has_pending = self._rate * _SLICE_S, False
        for index, intent in enumerate(intents):
            objects = (intent.segments + 1) if intent.state is DeletionState.PENDING else 0
            if has_pending and objects > remaining_objects:
                return intents[:index]
            remaining_objects, has_pending = remaining_objects - objects, has_pending or objects > 0
        return intents

    def parts(self, copies: Mapping[int, StoredCopy]) -> Iterator[dict[int, StoredCopy]]:
        """Yield removals of at most a second's objects. The last piece of each copy has its statement."""
        if not self._rate:
            yield dict(copies)
            return
        max_keys = min(_MAX_KEYS_PER_PART, max(1, math.floor(self._rate)))
        part: dict[int, StoredCopy] = {}
        keys = 0
        for row, piece in ((row, piece) for row, copy in copies.items() for piece in _cut(copy, max_keys)):
            if part and keys + _count_keys(piece) > max_keys:
                yield part
                part, keys = {}, 0
            part[row] = piece
            keys += _count_keys(piece)
        if part:
            yield part

    def wait(self, copies: Mapping[int, StoredCopy], heartbeats: Heartbeats) -> None:
        """Wait until the removals are within the rate, and send heartbeats meanwhile.

        Raises:
            ClaimHeld: Another workflow took over.
        """
        if not self._rate:
            return
        now_s = self._clock()
        self._next_s = max(self._next_s, now_s) + sum(map(_count_keys, copies.values())) / self._rate
        while (remaining_s := self._next_s - self._clock()) > 0:
            heartbeats.deleted(0)
            self._sleep(min(_MAX_NAP_S, remaining_s))


def _count_keys(copy: StoredCopy) -> int:
    return len(copy.data_keys) + len(copy.meta_keys)


def _cut(copy: StoredCopy, max_keys: int) -> Iterator[StoredCopy]:
    """Cut a copy, data first. The last piece has the statement and the size, because only it completes the removal."""
    data = copy.data_keys
    while len(data) + len(copy.meta_keys) > max_keys and data:
        yield replace(copy, data_keys=data[:max_keys], meta_keys=(), size_bytes=0, is_incomplete=False)
        data = data[max_keys:]
    yield replace(copy, data_keys=data)
