"""`ManagedLedger`: the log of every topic, as a process uses it."""

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Final

from logstore.clock import Clock
from logstore.cursors.state import CursorState
from logstore.errors import InvalidInput
from logstore.log.entries import Entry, ProducedEntries
from logstore.log.services import duplicates
from logstore.log.services.append import Appender, AppendQueue, AppendResult
from logstore.log.services.arrivals import LogEndPoller, Watch
from logstore.log.services.group_commit import GroupCommitter
from logstore.log.services.placement import Placer, TopicHints
from logstore.log.services.read import Reader
from logstore.log.services.registration import Registrar
from logstore.log.services.roll import Roller, RollPolicy, RollResult
from logstore.log.services.tiered_segments import TieredSegments
from logstore.log.services.view import READABLE_COLUMNS, ExcludedEntries, Postponer
from logstore.ports.catalog import Frontier, Ledgers, Topic, Transactions
from logstore.ports.objects import ObjectStore
from logstore.positions import Position, TopicId

_LANES: Final = 10_000
"""Topics remembered at most. A topic forgotten while it is used merely merges less for a moment."""


class ManagedLedger:
    """Appends to, rolls and reads the data ledgers of topics. Threads share one; any number of processes may run.

    Close it; the committer stays its owner's.
    """

    def __init__(
        self,
        *,
        ledgers: Ledgers,
        transactions: Transactions,
        objects: ObjectStore,
        committer: GroupCommitter,
        application: str,
        policy: RollPolicy | None = None,
        clock: Clock | None = None,
        registration_timeout_s: float = 600.0,
        tiered: TieredSegments | None = None,
    ) -> None:
        """Work on a catalog and the primary bucket.

        Args:
            ledgers: The catalog's ledgers.
            transactions: The catalog's transactions: what readers may see.
            objects: The primary bucket.
            committer: This process's one writer of small changes.
            application: Whose ledgers these are, in storage's own statement.
            policy: When ledgers are full.
            clock: For tests; the process's own by default.
            registration_timeout_s: A segment is registered within this time of its append's start or never.
            tiered: Read where a primary copy is gone or damaged.
        """
        self._ledgers = ledgers
        self._policy = policy or RollPolicy()
        self._clock = clock or Clock()
        self._roller = Roller(
            ledgers=ledgers,
            objects=objects,
            application=application,
            clock=self._clock,
            patience_s=registration_timeout_s,
        )
        placer = self._placer(objects, committer, application)
        self._appender = Appender(
            ledgers=ledgers, placer=placer, clock=self._clock, registration_timeout_s=registration_timeout_s
        )
        self._reader = Reader(
            ledgers=ledgers, transactions=transactions, objects=objects, clock=self._clock, tiered=tiered
        )
        self._arrivals = LogEndPoller(ledgers)
        self._lanes: dict[TopicId, AppendQueue] = {}
        self._hints: dict[TopicId, tuple[Topic, TopicHints]] = {}
        self._lanes_lock = threading.Lock()

    def _placer(self, objects: ObjectStore, committer: GroupCommitter, application: str) -> Placer:
        return Placer(
            ledgers=self._ledgers,
            objects=objects,
            registrar=Registrar(ledgers=self._ledgers, committer=committer, clock=self._clock),
            roller=self._roller,
            policy=self._policy,
            application=application,
            clock=self._clock,
        )

    def append(self, topic: Topic, produced: ProducedEntries) -> AppendResult:
        """Store one producer's entries, all of them or none, one after the other in one ledger.

        Appends of several threads to one topic travel as one segment. Entries at or behind the producer's
        registered sequence id are duplicates: acknowledged and not stored again. In a transaction that aborts they were
        never stored.

        Idempotency: repeating is safe for a producer with sequence ids; without, entries may be stored twice.

        Entries of a transaction are not seen until it commits, and entries behind them wait with them.

        Raises:
            InvalidInput: No entries, sequence ids without a producer or not ascending, a value that a segment
                cannot hold. Nothing was written.
            TransactionNotOpen: The transaction is decided, or there is none. Nothing was written.
            SequenceHeld: Numbered entries of the producer are in another transaction that is open. Nothing was written.
            UnknownObject: No such topic.
            PreconditionFailed: The topic is not ACTIVE.
            StoreUnavailable, CatalogBusy: Not stored; bounded retries were not enough.
            OutcomeUnknown: Perhaps stored.
        """
        duplicates.check(produced)
        return self._lane(topic).append(produced)

    def roll(self, topic: Topic) -> RollResult:
        """Close the last ledger and open the next; an empty open one is kept and nothing happens.

        Idempotency: a crash leaves at most a row that is in no list, which the topic's next trim detaches.

        Raises:
            UnknownObject: No such topic.
            PreconditionFailed: The topic is not ACTIVE.
            StoreUnavailable, CatalogBusy: Bounded retries were not enough.
        """
        rolled = self._roller.roll(topic.topic_id)
        known = self._hints.get(topic.topic_id)
        if known:  # the next append is to ask where to write rather than upload to the ledger just closed
            known[1].ledger = None
        return rolled

    def roll_if_due(self, topic: Topic) -> bool:
        """Roll the last ledger if a limit of the policy is reached: otherwise that of an idle topic would never close.

        A ledger that stays open is never deleted, however long all of it is consumed (apache/pulsar#9136).

        Returns:
            Whether this call closed a ledger.

        Raises:
            UnknownObject, PreconditionFailed, StoreUnavailable, CatalogBusy: As `roll`.
        """
        last = self._ledgers.last_ledger(topic.topic_id)
        if last is None or not self._policy.is_due(last, now_us=self._clock.now_us()):
            return False
        return self.roll(topic).closed is not None

    def topics_to_roll(self, topic_ids: Collection[TopicId]) -> frozenset[TopicId]:
        """Those of the topics whose last ledger `roll_if_due` would roll now, found in one read.

        Raises:
            StoreUnavailable, CatalogBusy: The catalog did not answer.
        """
        now_us = self._clock.now_us()
        return frozenset(
            one.topic_id for one in self._ledgers.last_ledgers(topic_ids) if self._policy.is_due(one, now_us=now_us)
        )

    def scan(
        self,
        topic: Topic,
        *,
        from_position: Position | None = None,
        columns: Sequence[str] = READABLE_COLUMNS,
        cursor_state: CursorState | None = None,
        upto: Position | None = None,
        frontier: Frontier | None = None,
        without: ExcludedEntries | None = None,
        postponing: Postponer | None = None,
    ) -> Iterator[Entry]:
        """Entries in order that consumers may see now, up to the first message of an open transaction.

        Args:
            topic: Whose.
            from_position: The first entry wanted, inclusive; one of a trimmed ledger stands for what comes
                next. None: from the first one.
            columns: Names out of `READABLE_COLUMNS`; what is not named is not fetched and is None in the entry
                (`publish_ms` is always there). Leave out `payload` to read little.
            cursor_state: Read for a subscription: leave out what it has acknowledged, and what is to be
                delivered later than now.
            upto: The last entry wanted, inclusive.
            frontier: How far consumers may see, if the caller has just asked, from this position or before it.
            without: Entries to leave out, by ledger, asked anew at each segment; one of which nothing is left is
                not fetched.
            postponing: Decides what is due, and is told of what is not; without it nothing is postponed.

        Raises:
            InvalidInput: A column that does not exist.
            MissingData: A listed ledger lacks an object.
            CorruptData: An object is not what its row says.
            StoreUnavailable, CatalogBusy: The catalog or storage did not answer.
        """
        return self._reader.scan(
            topic,
            from_position=from_position,
            columns=columns,
            cursor_state=cursor_state,
            upto=upto,
            frontier=frontier,
            without=without,
            postponing=postponing,
        )

    def read_entries_at(
        self, topic: Topic, positions: Sequence[Position], *, columns: Sequence[str] = READABLE_COLUMNS
    ) -> list[Entry]:
        """Entries by position, in the order given, without those that were trimmed or that no consumer sees now.

        Each segment that holds one of them is fetched once, and kept for a while: the next ones may be there, too.
        Delivery times are not looked at.

        Raises:
            InvalidInput, MissingData, CorruptData, StoreUnavailable, CatalogBusy: As `scan`.
        """
        return self._reader.read_entries_at(topic, positions, columns=columns)

    def read(
        self,
        topic: Topic,
        *,
        max_entries: int,
        from_position: Position | None = None,
        columns: Sequence[str] = READABLE_COLUMNS,
        cursor_state: CursorState | None = None,
        upto: Position | None = None,
    ) -> list[Entry]:
        """At most `max_entries` of what `scan` yields.

        Raises:
            InvalidInput: A limit below 1, or as `scan`.
            MissingData, CorruptData, StoreUnavailable, CatalogBusy: As `scan`.
        """
        if max_entries < 1:
            raise InvalidInput("max_entries", expected="1 or more", found=max_entries)
        entries = self.scan(topic, from_position=from_position, columns=columns, cursor_state=cursor_state, upto=upto)
        return list(islice(entries, max_entries))

    def watch(self, topic: Topic) -> Watch:
        """Watch a topic for entries: make it before the first read, and let it wait where a read has found nothing.

        Waiting readers of a process cost one small statement together, and nothing each.

        Example:
            ```python
            watch = managed.watch(topic)
            while True:
                state = subscriptions.read_state(topic.topic_id, name)
                entries = managed.read(topic, max_entries=100, cursor_state=state)
                if not entries:
                    watch.wait(timeout_s=30)
            ```

        Raises:
            StoreUnavailable, CatalogBusy: The catalog did not answer.
        """
        return Watch(self._arrivals, topic.topic_id)

    def reload_hints(self, belongs: Callable[[Topic], bool]) -> int:
        """Read anew where appends to some of this process's topics go, and return how many topics that were.

        Only hints are replaced, so appends may be under way: the catalog checks each condition when they register.

        Raises:
            StoreUnavailable, CatalogBusy: The catalog did not answer; what was not read again is forgotten.
        """
        with self._lanes_lock:
            found = [(topic, hints) for topic, hints in self._hints.values() if belongs(topic)]
        for _, hints in found:
            hints.ledger = None
        epoch = self._ledgers.epoch() if found else 0
        for topic, hints in found:
            hints.epoch, hints.ledger = epoch, self._ledgers.last_ledger(topic.topic_id)
        return len(found)

    def close(self) -> None:
        """End the threads that read ahead, and let readers wait no longer; appends under way go on."""
        self._arrivals.close()
        self._reader.close()

    def _lane(self, topic: Topic) -> AppendQueue:
        with self._lanes_lock:
            lane = self._lanes.get(topic.topic_id)
            if lane is None:
                if len(self._lanes) >= _LANES:
                    self._lanes = {known: lane for known, lane in self._lanes.items() if not lane.idle}
                    self._hints = {known: self._hints[known] for known in self._lanes}
                hints = TopicHints()
                self._hints[topic.topic_id] = (topic, hints)
                lane = AppendQueue(partial(self._appender.append, topic, hints))
                self._lanes[topic.topic_id] = lane
            return lane
