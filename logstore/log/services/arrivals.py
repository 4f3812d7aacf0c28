"""Readers that wait for entries park, and one look at the catalog wakes all of a process that have something to read.

Whatever lets readers of a topic see more puts an entry into its log: a message, or the marker by which the end of a
transaction is told, also of one that only acknowledged. So the end of the log is all that is looked at, of every topic
that any reader waits for in one statement, less and less often while nothing comes. A reader that is parked asks
nothing itself; it does not matter whether it has read all or is blocked by an open transaction. One that was woken by
what it may not see reads nothing, and parks again. (Where an operator has counted a topic as told by hand there is no
marker: its readers wait until their time is up.)

Source: apache/pulsar#14286, #22944: a cursor beyond maxReadPosition read empty batches in a busy loop.
"""

import logging
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from logstore.ports.catalog import Ledgers
from logstore.positions import Position, TopicId

_LOG: Final = logging.getLogger(__name__)

_PAUSE_S: Final = (0.005, 0.25)  # between two looks: at first, and at last

_Ends = dict[TopicId, Position]
"""The last entry of each topic that has a ledger; entry -1 of a ledger that is empty."""


@dataclass(slots=True)
class _Parked:
    topic_id: TopicId
    end: Position | None
    woken: threading.Event = field(default_factory=threading.Event)


class LogEndPoller:
    """Looks for what readers wait for, from one thread, which runs while any reader waits. Close it."""

    def __init__(self, ledgers: Ledgers) -> None:
        """Look at this catalog's ledgers."""
        self._ledgers = ledgers
        self._lock = threading.Lock()
        self._parked: list[_Parked] = []
        self._looking = False
        self._closed = threading.Event()

    def close(self) -> None:
        """Wake all that wait, and look no more."""
        self._closed.set()
        with self._lock:
            for one in self._parked:
                one.woken.set()

    def ends(self, topic_ids: Collection[TopicId]) -> _Ends:
        """Where logs end, in one read."""
        return {one.topic_id: one.span.last for one in self._ledgers.last_ledgers(topic_ids)}

    def park(self, topic_id: TopicId, end: Position | None, timeout_s: float) -> Position | None:
        """Wait until the topic's log ends elsewhere; where it ends then, which is the same after the timeout."""
        one = _Parked(topic_id, end)
        with self._lock:
            if self._closed.is_set():
                return end
            self._parked.append(one)
            if not self._looking:
                self._looking = True
                threading.Thread(target=self._look, name="arrivals", daemon=True).start()
        try:
            one.woken.wait(timeout_s)
        finally:
            with self._lock:
                self._parked = [other for other in self._parked if other is not one]
        return one.end

    def _look(self) -> None:
        pause, told = _PAUSE_S[0], False
        while waiting := self._waiting():
            moved = False
            try:
                moved, told = self._wake(waiting), False
            except Exception as error:  # noqa: BLE001 - whatever it is, the next look may do better
                if not told:
                    _LOG.warning("readers wait on, because the catalog does not say where logs end: %s", error)
                told = True
            pause = _PAUSE_S[0] if moved else min(1.5 * pause, _PAUSE_S[1])
            self._closed.wait(pause)

    def _wake(self, waiting: Sequence[_Parked]) -> bool:
        """Wake those whose logs end elsewhere now; whether there were any."""
        ends = self.ends({one.topic_id for one in waiting})
        moved = [one for one in waiting if ends.get(one.topic_id) != one.end]
        for one in moved:
            one.end = ends.get(one.topic_id)
            one.woken.set()
        return bool(moved)

    def _waiting(self) -> list[_Parked]:
        """Those that are parked and not woken yet; without any, the thread ends."""
        with self._lock:
            found = [] if self._closed.is_set() else [one for one in self._parked if not one.woken.is_set()]
            self._looking = bool(found)
            return found


class Watch:
    """One reader's memory of where a topic's log ended. Not for several threads."""

    def __init__(self, arrivals: LogEndPoller, topic_id: TopicId) -> None:
        """Remember where it ends now."""
        self._arrivals, self._topic_id = arrivals, topic_id
        self._end = arrivals.ends([topic_id]).get(topic_id)

    def wait(self, timeout_s: float) -> bool:
        """Park until something came to the log since the watch was made, or since its last wait ended.

        So read first and wait then: what comes in between ends the wait at once. An entry that is to be delivered later
        wakes no reader when its time has come.

        Args:
            timeout_s: The longest wait.

        Returns:
            Whether something came. A catalog that does not answer is asked again, and lets readers wait.
        """
        before, self._end = self._end, self._arrivals.park(self._topic_id, self._end, timeout_s)
        return self._end != before
