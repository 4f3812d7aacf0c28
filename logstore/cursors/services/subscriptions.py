"""Subscriptions with their complete state, which is in the row of the cursor and in the cursor snapshot."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

from logstore.catalog.cursors.cursors import Cursors
from logstore.catalog.transactions.sql_transactions import Transactions
from logstore.cursors.cursor_state import CursorSnapshot, CursorState, complete_state
from logstore.cursors.services.cursor_snapshots import CursorSnapshots
from logstore.errors import CatalogBusy, MissingData, SextonError, SnapshotNeeded
from logstore.log.services.group_commit import GroupCommitter
from logstore.ports.catalog.cursors import StoredCursor
from logstore.ports.catalog.log import AcknowledgeResult, AcknowledgeWrite
from logstore.positions import LedgerId, Position, TopicId
from logstore.stop_checks import raise_if_stopped
from logstore.transactions.pending_acks import hide_held
from logstore.transactions.transaction_ids_and_states import TransactionId

_MAX_SNAPSHOT_CHANGES: Final = 16
"""Number of times that other processes may replace a snapshot during one call before the call gives up."""

_MAX_REMEMBERED_SUBSCRIPTIONS: Final = 10_000
"""Maximum number of subscriptions whose snapshots a process remembers. The process then forgets all snapshots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    name: str
    state: CursorState
    created_us: int
    seeks: int = 0  # how often a seek replaced the state
    releases: int = 0  # to pass with `up_to`, for entries that were read with this state
    lost_snapshot: LedgerId | None = None  # lost cursor ledger: the state lacks its acknowledgements


class Subscriptions:
    """Subscriptions of all topics. Thread-safe."""

    def __init__(
        self, *, cursors: Cursors, transactions: Transactions, committer: GroupCommitter, snapshots: CursorSnapshots
    ) -> None:
        self._cursors, self._transactions = cursors, transactions
        self._committer = committer
        self._snapshots = snapshots
        self._snapshot_by_subscription: dict[tuple[TopicId, str], LedgerId] = {}

    def subscribe(self, topic_id: TopicId, name: str, *, latest: bool) -> Subscription:
        """Create the subscription before the first listed entry, or with `latest` after the last entry. Idempotent.

        Raises:
            UnknownObject: The topic does not exist.
            PreconditionFailed: The topic is not ACTIVE.
            MissingData, CorruptData, StoreUnavailable, CatalogBusy: The errors of `get`.
        """
        return self._load_subscription(topic_id, self._cursors.create_subscription(topic_id, name, latest=latest))

    def get(self, topic_id: TopicId, name: str) -> Subscription:
        """Return the subscription.

        Raises:
            UnknownObject: The subscription does not exist.
            MissingData: The cursor ledger is lost. A seek replaces the lost state.
            CorruptData: The cursor ledger is damaged.
            StoreUnavailable, CatalogBusy: The catalog or storage did not answer.
        """
        return self._load_subscription(topic_id, self._cursors.get_cursor(topic_id, name))

    def read_state(self, topic_id: TopicId, name: str) -> CursorState:
        """Return the state for a consumer. The state includes the acknowledgements of open transactions."""
        return self.get_for_consumer(topic_id, name).state

    def get_for_consumer(self, topic_id: TopicId, name: str) -> Subscription:
        """Return the subscription with the state of `read_state`. Raise the errors of `get`.

        If an open transaction aborts later, the entries that it acknowledged are given back, which raises the releases.
        An acknowledgement up to a position with the `releases` of this result is then refused.
        """
        # Held entries are read before the cursor, because a commit moves them to the cursor.
        held_entries = self._transactions.find_held_entries(topic_id, name)
        subscription = self.get(topic_id, name)
        if not held_entries:
            return subscription
        # These releases were read before the held entries. Releases read later could include an abort after this read.
        releases = subscription.releases
        held_entries = self._transactions.find_held_entries(topic_id, name)
        subscription = self.get(topic_id, name)
        return replace(subscription, state=hide_held(subscription.state, held_entries), releases=releases)

    def all(self, topic_id: TopicId) -> list[Subscription]:
        """Return the topic's subscriptions, ascending by name. `lost_snapshot` names a cursor ledger that is lost."""
        return [self._load_subscription_or_loss(topic_id, row) for row in self._cursors.list_cursors(topic_id)]

    def acknowledge(
        self,
        topic_id: TopicId,
        name: str,
        *,
        positions: Sequence[Position] = (),
        up_to: Position | None = None,
        releases: int | None = None,
        txn: TransactionId | None = None,
    ) -> AcknowledgeResult:
        """Acknowledge `positions` and all entries up to `up_to`. With neither, only advance the mark-delete position.

        With `txn`, the acknowledgement takes effect when the transaction commits. Until the transaction is decided, no
        consumer gets the entries again.

        With `up_to` the caller states that it has received all entries up to `up_to`. `releases` must be the
        `Subscription.releases` that the caller got before it read these entries. `None` means 0 releases, and the call
        is refused if these entries may have a delivery time.

        Idempotency: to acknowledge an entry again changes nothing.

        Raises:
            UnknownObject: The subscription does not exist.
            InvalidInput: No reader can have received the entry of a position.
            TransactionNotOpen: The transaction is decided.
            AcknowledgementHeld: An entry is acknowledged in another open transaction. With `txn`, also if an entry is
                already acknowledged.
            AcknowledgementStale: An abort, an expired transaction, a seek or a rebuild of the catalog has given entries
                back since `up_to` was read. Or `releases` is `None`, and a segment up to `up_to` has delayed messages.
            MissingData, CorruptData: The errors of `get`.
            StoreUnavailable, CatalogBusy: Nothing is acknowledged.
            OutcomeUnknown: The entries may be acknowledged.
        """
        request = AcknowledgeWrite(
            topic_id=topic_id, subscription=name, positions=tuple(positions), up_to=up_to, txn=txn, releases=releases
        )
        ledger_id = self._snapshot_by_subscription.get((topic_id, name))
        snapshot = None if ledger_id is None else self._snapshots.get_cached_snapshot(ledger_id)
        for _ in range(_MAX_SNAPSHOT_CHANGES):
            try:
                answer = self._committer.commit_write(replace(request, snapshot=snapshot))
            except SnapshotNeeded as refused:
                snapshot = self._load_snapshot_or_successor(topic_id, name, LedgerId(refused.needed))
            else:
                if answer.snapshot_ledger is None:
                    self._snapshot_by_subscription.pop((topic_id, name), None)
                self._snapshots.write_or_fold_snapshot_after_acknowledgement(topic_id, name, answer, snapshot)
                return answer
        raise _snapshot_keeps_changing(topic_id, name)

    def seek(self, topic_id: TopicId, name: str, position: Position) -> Subscription:
        """Set the cursor so that `position` is its next entry. All acknowledgements are dropped.

        Raises:
            UnknownObject: The topic or the subscription does not exist.
            InvalidInput: The position is after the end of the log.
            PreconditionFailed: The topic is not ACTIVE.
        """
        return self._load_subscription(topic_id, self._cursors.seek_cursor(topic_id, name, position))

    def advance_and_fold_cursors_with_snapshots(self, topic_id: TopicId) -> list[SextonError]:
        """Advance each cursor that has a snapshot, and fold small snapshots. Return the errors of cursors that failed.

        A forced detach moves mark-delete positions without reading snapshots. The first entries after the new position
        may be acknowledged in the snapshot. Without new acknowledgements, this position would never advance, and
        ledgers whose entries are all acknowledged would be kept (apache/pulsar#9136).
        """
        errors = []
        for name in self._cursors.find_cursors_with_snapshot([topic_id]).get(topic_id, []):
            raise_if_stopped()
            try:
                self.acknowledge(topic_id, name)
                self._snapshots.write_or_fold_snapshot(topic_id, name)
            except SextonError as error:
                errors.append(error)
        return errors

    def select_topics_to_advance(self, topic_ids: Collection[TopicId]) -> frozenset[TopicId]:
        return frozenset(self._cursors.find_cursors_with_snapshot(topic_ids))

    def _load_subscription_or_loss(self, topic_id: TopicId, row: StoredCursor) -> Subscription:
        try:
            return self._load_subscription(topic_id, row)
        except MissingData:
            current = self._cursors.get_cursor(topic_id, row.name)
            return Subscription(
                name=current.name,
                state=current.state,
                created_us=current.created_us,
                seeks=current.seeks,
                releases=current.releases,
                lost_snapshot=current.snapshot_ledger,
            )

    def _load_subscription(self, topic_id: TopicId, row: StoredCursor) -> Subscription:
        for _ in range(_MAX_SNAPSHOT_CHANGES):
            snapshot = None
            if row.snapshot_ledger is not None:
                snapshot = self._snapshots.load_snapshot(row.snapshot_ledger)
            if snapshot or row.snapshot_ledger is None:
                state = complete_state(row.state, snapshot)
                return Subscription(
                    name=row.name, state=state, created_us=row.created_us, seeks=row.seeks, releases=row.releases
                )
            row = self._require_changed_row(topic_id, row.name, row.snapshot_ledger)
        raise _snapshot_keeps_changing(topic_id, row.name)

    def forget(self) -> None:
        """Forget the snapshots of all subscriptions. The next acknowledgements look the snapshots up again."""
        self._snapshot_by_subscription.clear()

    def _load_snapshot_or_successor(self, topic_id: TopicId, name: str, first: LedgerId) -> CursorSnapshot | None:
        ledger_id: LedgerId | None = first
        for _ in range(_MAX_SNAPSHOT_CHANGES):
            if ledger_id is None:
                return None
            snapshot = self._snapshots.load_snapshot(ledger_id)
            if snapshot:
                self._remember_snapshot(topic_id, name, ledger_id)
                return snapshot
            ledger_id = self._require_changed_row(topic_id, name, ledger_id).snapshot_ledger
        raise _snapshot_keeps_changing(topic_id, name)

    def _require_changed_row(self, topic_id: TopicId, name: str, missed: LedgerId) -> StoredCursor:
        """Read the row again. Raise `MissingData` if the row still names the ledger `missed`, which does not exist."""
        row = self._cursors.get_cursor(topic_id, name)
        if row.snapshot_ledger == missed:
            problem = f"topic {topic_id}, subscription {name}: cursor ledger {missed} is listed and no copy holds it"
            raise MissingData(f"{problem}; a seek replaces the state")
        return row

    def _remember_snapshot(self, topic_id: TopicId, name: str, ledger_id: LedgerId) -> None:
        if len(self._snapshot_by_subscription) >= _MAX_REMEMBERED_SUBSCRIPTIONS:
            self._snapshot_by_subscription.clear()
        self._snapshot_by_subscription[topic_id, name] = ledger_id


def _snapshot_keeps_changing(topic_id: TopicId, name: str) -> CatalogBusy:
    return CatalogBusy(
        f"topic {topic_id}, subscription {name}: its snapshot was replaced {_MAX_SNAPSHOT_CHANGES} times meanwhile"
    )
