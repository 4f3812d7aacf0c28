"""Watches, with which readers wait for new entries. One thread polls the ends of logs for all readers of a process.

An entry becomes visible only when a message or a transaction marker is added to the log. So it suffices to watch the
ends of logs. One SQL statement reads the ends of all watched logs, less often while no log grows. If a new entry that
is not visible wakes a reader, the reader waits again.

If an operator has settled a participant by hand, its topic gets no transaction marker. Readers of this topic wait until
their timeout.

Source: apache/pulsar#14286, #22944: a cursor beyond maxReadPosition read empty batches in a busy loop.
"""

import logging
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from logstore.catalog.log.message_ledgers import MessageLedgers
from logstore.positions import Position, TopicId

_LOG: Final = logging.getLogger(__name__)

_POLL_PAUSES_S: Final = (0.005, 0.25)  # shortest and longest pause between two polls

_EndByTopic = dict[TopicId, Position]
"""Position of the last entry, by topic, for topics with a ledger. In an empty last ledger it is entry -1."""


@dataclass(slots=True)
class _ParkedReader:
    topic_id: TopicId
    end: Position | None
    woken: threading.Event = field(default_factory=threading.Event)


class LogEndPoller:
    """Poller of the ends of logs. A thread polls while any reader waits. Close the poller after use."""

    def __init__(self, ledgers: MessageLedgers) -> None:
        self._ledgers = ledgers
        self._lock = threading.Lock()
        self._parked: list[_ParkedReader] = []
        self._is_polling = False
        self._closed = threading.Event()

    def close(self) -> None:
        self._closed.set()
        with self._lock:
            for reader in self._parked:
                reader.woken.set()

    def read_ends(self, topic_ids: Collection[TopicId]) -> _EndByTopic:
        return {ledger.topic_id: ledger.span.last for ledger in self._ledgers.last_ledgers(topic_ids)}

    def wait_and_return_end(self, topic_id: TopicId, known_end: Position | None, timeout_s: float) -> Position | None:
        """Wait until the end of the log differs from `known_end`. Return the end, or `known_end` after the timeout."""
        reader = _ParkedReader(topic_id, known_end)
        with self._lock:
            if self._closed.is_set():
                return known_end
            self._parked.append(reader)
            if not self._is_polling:
                self._is_polling = True
                threading.Thread(target=self._poll_while_readers_wait, name="arrivals", daemon=True).start()
        try:
            reader.woken.wait(timeout_s)
        finally:
            with self._lock:
                self._parked = [other for other in self._parked if other is not reader]
        return reader.end

    def _poll_while_readers_wait(self) -> None:
        pause_s, was_reported = _POLL_PAUSES_S[0], False
        while waiting := self._list_waiting_readers():
            has_moved = False
            try:
                has_moved, was_reported = self._wake_moved_readers(waiting), False
            except Exception as error:  # noqa: BLE001 - after any error the next poll may succeed
                if not was_reported:
                    _LOG.warning("readers wait on, because the catalog does not say where logs end: %s", error)
                was_reported = True
            pause_s = _POLL_PAUSES_S[0] if has_moved else min(1.5 * pause_s, _POLL_PAUSES_S[1])
            self._closed.wait(pause_s)

    def _wake_moved_readers(self, waiting: Sequence[_ParkedReader]) -> bool:
        ends = self.read_ends({reader.topic_id for reader in waiting})
        moved_readers = [reader for reader in waiting if ends.get(reader.topic_id) != reader.end]
        for reader in moved_readers:
            reader.end = ends.get(reader.topic_id)
            reader.woken.set()
        return bool(moved_readers)

    def _list_waiting_readers(self) -> list[_ParkedReader]:
        with self._lock:
            waiting = [] if self._closed.is_set() else [reader for reader in self._parked if not reader.woken.is_set()]
            self._is_polling = bool(waiting)
            return waiting


class Watch:
    """One reader's memory of the end of a topic's log. Not thread-safe."""

    def __init__(self, log_end_poller: LogEndPoller, topic_id: TopicId) -> None:
        self._log_end_poller, self._topic_id = log_end_poller, topic_id
        self._end = log_end_poller.read_ends([topic_id]).get(topic_id)

    def wait(self, timeout_s: float) -> bool:
        """Wait until the log has grown since the last `wait`, or since the watch was created.

        Return whether the log has grown. Read the log before each `wait`. If an entry was added after the read, `wait`
        returns at once. The delivery time of a delayed message does not end a `wait`. If the catalog does not answer,
        the reader continues to wait.
        """
        before, self._end = self._end, self._log_end_poller.wait_and_return_end(self._topic_id, self._end, timeout_s)
        return self._end != before
