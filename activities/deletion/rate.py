"""How fast a chunk may delete: removals are cut into about a second's worth, with a wait behind each."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from activities.heartbeats import Heartbeats
from logstore.deletion.intents import DeletionIntent, DeletionState, StoredCopy

_SLICE_S = 30.0  # of work in one call: so soon, or with the ledger in hand, a pause and another rate take effect
_LONGEST_NAP_S = 1.0  # a cancellation and a lost claim are noticed within this
_MOST_KEYS = 1_000  # in one part, as in one page of a store


class DeletionPace:
    """Objects a second; 0 or less is unlimited, and then nothing is cut and nothing waits."""

    def __init__(
        self,
        objects_per_s: float = 0.0,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Begin with a turn that is free."""
        self._rate = max(0.0, objects_per_s)
        self._clock, self._sleep = clock, sleep
        self._next = 0.0

    def slice(self, intents: Sequence[DeletionIntent]) -> Sequence[DeletionIntent]:
        """The first of them, as many as one call should deal with, and at least one that is unfinished."""
        if not self._rate:
            return intents
        room, begun = self._rate * _SLICE_S, False
        for at, intent in enumerate(intents):
            weight = (intent.segments + 1) if intent.state is DeletionState.PENDING else 0
            if begun and weight > room:
                return intents[:at]
            room, begun = room - weight, begun or weight > 0
        return intents

    def parts(self, copies: Mapping[int, StoredCopy]) -> Iterator[dict[int, StoredCopy]]:
        """The copies, in removals of at most a second's objects, each copy's own statement in its last one."""
        if not self._rate:
            yield dict(copies)
            return
        most = min(_MOST_KEYS, max(1, math.floor(self._rate)))
        part: dict[int, StoredCopy] = {}
        size = 0
        for row, piece in ((row, piece) for row, copy in copies.items() for piece in _pieces(copy, most)):
            if part and size + _keys(piece) > most:
                yield part
                part, size = {}, 0
            part[row] = piece
            size += _keys(piece)
        if part:
            yield part

    def wait(self, copies: Mapping[int, StoredCopy], heartbeats: Heartbeats) -> None:
        """Wait until what was asked of storage is within the rate, and show signs of life meanwhile.

        Raises:
            ClaimHeld: Another workflow took the work over.
        """
        if not self._rate:
            return
        now = self._clock()
        self._next = max(self._next, now) + sum(map(_keys, copies.values())) / self._rate
        while (left := self._next - self._clock()) > 0:
            heartbeats.deleted(0)
            self._sleep(min(_LONGEST_NAP_S, left))


def _keys(copy: StoredCopy) -> int:
    return len(copy.data_keys) + len(copy.meta_keys)


def _pieces(copy: StoredCopy, most: int) -> Iterator[StoredCopy]:
    """Data first; the last piece has the statement, and the copy's size: only after it nothing of the copy is left."""
    data = copy.data_keys
    while len(data) + len(copy.meta_keys) > most and data:
        yield replace(copy, data_keys=data[:most], meta_keys=(), size_bytes=0, is_incomplete=False)
        data = data[most:]
    yield replace(copy, data_keys=data)
