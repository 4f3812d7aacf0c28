"""Subscriptions as a process uses them: their whole state, wherever its parts are.

The catalog's rows hold a cursor's mark-delete position and what was acknowledged since its last snapshot. A
row alone has half of the state; all of it is had here.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

from logstore.cursors.services.cursor_ledgers import CursorLedgers
from logstore.cursors.state import CursorState, Snapshot, whole
from logstore.errors import CatalogBusy, MissingData, SextonError, SnapshotNeeded
from logstore.log.services.group_commit import GroupCommitter
from logstore.ports.catalog import Acknowledge, Acknowledged, Cursors, StoredCursor, Transactions
from logstore.positions import LedgerId, Position, TopicId
from logstore.transactions.pending_acks import hide_held
from logstore.transactions.transactions import TransactionId
from logstore.units import between_units

_TRIES: Final = 16
"""Snapshots that other processes put in place of the one just loaded, in a row."""

_KNOWN: Final = 10_000
"""Subscriptions whose snapshot is remembered; one that is forgotten costs one refused commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """A subscription with its whole state."""

    name: str
    state: CursorState
    created_us: int
    seeks: int = 0  # how often its state was replaced
    releases: int = 0  # what a cumulative acknowledgement of entries that are read with this state must carry
    lost_snapshot: LedgerId | None = None  # a cursor ledger that no copy holds: what it held is not in the state


class Subscriptions:
    """The subscriptions of every topic. Threads share one; any number of processes may run."""

    def __init__(
        self, *, cursors: Cursors, transactions: Transactions, committer: GroupCommitter, ledgers: CursorLedgers
    ) -> None:
        """Work on a catalog.

        Args:
            cursors: The catalog's cursors.
            transactions: The catalog's transactions: what they hold of a subscription.
            committer: This process's one writer of small changes.
            ledgers: Where snapshots are read and written.
        """
        self._cursors, self._transactions = cursors, transactions
        self._committer = committer
        self._ledgers = ledgers
        self._known: dict[tuple[TopicId, str], LedgerId] = {}

    def subscribe(self, topic_id: TopicId, name: str, *, latest: bool) -> Subscription:
        """Create the subscription at the first listed entry, or behind the last one; an existing one is returned.

        Raises:
            UnknownObject: No such topic.
            PreconditionFailed: The topic is not ACTIVE.
            MissingData, CorruptData, StoreUnavailable, CatalogBusy: As `get`.
        """
        return self._whole(topic_id, self._cursors.subscribe(topic_id, name, latest=latest))

    def get(self, topic_id: TopicId, name: str) -> Subscription:
        """The subscription.

        Raises:
            UnknownObject: There is none.
            MissingData: Its cursor ledger is lost; a seek replaces the state.
            CorruptData: Its cursor ledger does not hold what was written.
            StoreUnavailable, CatalogBusy: The catalog or storage did not answer.
        """
        return self._whole(topic_id, self._cursors.get(topic_id, name))

    def reading(self, topic_id: TopicId, name: str) -> CursorState:
        """The state that a consumer reads with: what open transactions have acknowledged is left out, too.

        Raises:
            As `get`.
        """
        return self.consuming(topic_id, name).state

    def consuming(self, topic_id: TopicId, name: str) -> Subscription:
        """The subscription with the state of `reading`.

        Its `releases` counts every release of an entry that the state leaves out.

        Raises:
            As `get`.
        """
        held = self._transactions.held(topic_id, name)  # before the cursor: a commit moves it from here to there
        found = self.get(topic_id, name)
        if not held:
            return found
        releases = found.releases  # before what is held: an abort in between would be counted, and its entries left out
        held = self._transactions.held(topic_id, name)
        found = self.get(topic_id, name)
        return replace(found, state=hide_held(found.state, held), releases=releases)

    def all(self, topic_id: TopicId) -> list[Subscription]:
        """The topic's subscriptions, ascending by name; one whose cursor ledger is lost says so.

        Raises:
            StoreUnavailable, CatalogBusy: The catalog or storage did not answer.
        """
        return [self._told(topic_id, row) for row in self._cursors.all(topic_id)]

    def acknowledge(
        self,
        topic_id: TopicId,
        name: str,
        *,
        positions: Sequence[Position] = (),
        up_to: Position | None = None,
        releases: int | None = None,
        txn: TransactionId | None = None,
    ) -> Acknowledged:
        """Acknowledge single entries, or everything up to one; with neither, only move over what is contiguous.

        In a transaction they are held for it, and delivered to no other consumer, until it is decided.

        `up_to` vouches for every entry before it, and needs `Subscription.releases` of its read. `None` is as 0, and
        refused past messages with a delivery time.

        Idempotency: an entry is acknowledged once, however often it is asked for.

        Raises:
            UnknownObject: No such subscription.
            InvalidInput: A position that no reader can have met.
            TransactionNotOpen: The transaction is decided.
            AcknowledgementHeld: Another transaction holds one of the entries; in a transaction also where one is
                acknowledged already.
            AcknowledgementStale: An abort, an expired transaction, a seek or a rebuild of the catalog has given entries
                back since `up_to` was read. Or `releases` is None, and a segment up to there has delayed messages.
            MissingData, CorruptData: As `get`.
            StoreUnavailable, CatalogBusy: Not acknowledged.
            OutcomeUnknown: Perhaps acknowledged.
        """
        wanted = Acknowledge(
            topic_id=topic_id, subscription=name, positions=tuple(positions), up_to=up_to, txn=txn, releases=releases
        )
        known = self._known.get((topic_id, name))
        held = None if known is None else self._ledgers.cached(known)
        for _ in range(_TRIES):
            try:
                answer = self._committer.write(replace(wanted, snapshot=held))
            except SnapshotNeeded as refused:
                held = self._load(topic_id, name, LedgerId(refused.needed))
            else:
                if answer.snapshot_ledger is None:
                    self._known.pop((topic_id, name), None)
                self._ledgers.tend(topic_id, name, answer, held)
                return answer
        raise _restless(topic_id, name)

    def seek(self, topic_id: TopicId, name: str, position: Position) -> Subscription:
        """Set the cursor so that `position` is its next entry; what was acknowledged is forgotten.

        Raises:
            UnknownObject: No such topic or subscription.
            InvalidInput: The position lies beyond the end.
            PreconditionFailed: The topic is not ACTIVE.
        """
        return self._whole(topic_id, self._cursors.seek(topic_id, name, position))

    def settle(self, topic_id: TopicId) -> list[SextonError]:
        """Let every cursor that has a snapshot move over what is contiguous, and take back what became small.

        A forced detach looks at rows alone, so such a cursor may stand before entries that it has acknowledged;
        without traffic it would stand there for ever, and keep consumed ledgers (apache/pulsar#9136).

        Returns:
            What went wrong, by cursor; the others are settled whatever happens to one.
        """
        troubles = []
        for name in self._cursors.outgrown([topic_id]).get(topic_id, []):
            between_units()
            try:
                self.acknowledge(topic_id, name)
                self._ledgers.settle(topic_id, name)
            except SextonError as error:
                troubles.append(error)
        return troubles

    def outgrown(self, topic_ids: Collection[TopicId]) -> frozenset[TopicId]:
        """Those of the topics in which there is something to settle."""
        return frozenset(self._cursors.outgrown(topic_ids))

    def _told(self, topic_id: TopicId, row: StoredCursor) -> Subscription:
        try:
            return self._whole(topic_id, row)
        except MissingData:
            known = self._cursors.get(topic_id, row.name)
            return Subscription(
                name=known.name,
                state=known.state,
                created_us=known.created_us,
                seeks=known.seeks,
                releases=known.releases,
                lost_snapshot=known.snapshot_ledger,
            )

    def _whole(self, topic_id: TopicId, row: StoredCursor) -> Subscription:
        for _ in range(_TRIES):
            snapshot = None
            if row.snapshot_ledger is not None:
                snapshot = self._ledgers.load(row.snapshot_ledger)
            if snapshot or row.snapshot_ledger is None:
                state = whole(row.state, snapshot)
                return Subscription(
                    name=row.name, state=state, created_us=row.created_us, seeks=row.seeks, releases=row.releases
                )
            row = self._changed(topic_id, row.name, row.snapshot_ledger)
        raise _restless(topic_id, row.name)

    def forget(self) -> None:
        """Remember no subscription's snapshot; each costs one refused commit."""
        self._known.clear()

    def _load(self, topic_id: TopicId, name: str, needed: LedgerId) -> Snapshot | None:
        """The snapshot that a commit asked for, or the one that the cursor has by now."""
        wanted: LedgerId | None = needed
        for _ in range(_TRIES):
            if wanted is None:
                return None
            snapshot = self._ledgers.load(wanted)
            if snapshot:
                self._remember(topic_id, name, wanted)
                return snapshot
            wanted = self._changed(topic_id, name, wanted).snapshot_ledger
        raise _restless(topic_id, name)

    def _changed(self, topic_id: TopicId, name: str, missed: LedgerId) -> StoredCursor:
        """The row as it is after a ledger was missed: a superseded snapshot leaves the row before it is deleted.

        Raises:
            MissingData: The row still names that ledger.
        """
        row = self._cursors.get(topic_id, name)
        if row.snapshot_ledger == missed:
            problem = f"topic {topic_id}, subscription {name}: cursor ledger {missed} is listed and no copy holds it"
            raise MissingData(f"{problem}; a seek replaces the state")
        return row

    def _remember(self, topic_id: TopicId, name: str, ledger_id: LedgerId) -> None:
        if len(self._known) >= _KNOWN:
            self._known.clear()
        self._known[topic_id, name] = ledger_id


def _restless(topic_id: TopicId, name: str) -> CatalogBusy:
    return CatalogBusy(f"topic {topic_id}, subscription {name}: its snapshot was replaced {_TRIES} times meanwhile")
