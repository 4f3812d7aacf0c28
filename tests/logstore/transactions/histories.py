"""One topic with transactions in SQL and a bucket in memory, as steps drive it, some of them cut off in the middle."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from logstore import failpoints
from logstore.errors import AcknowledgementHeld, StoreUnavailable
from logstore.failpoints import SimulatedCrash
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.ports.catalog.deletion import AuditCause, Claim
from logstore.ports.catalog.log import BeginTransactionWrite, EndTransactionWrite
from logstore.positions import TopicId
from logstore.transactions.buffer_serialization import pack_buffer, unpack_buffer
from logstore.transactions.services.buffer_snapshots import BufferRebuilder, BufferSnapshots
from logstore.transactions.transaction_buffer import TransactionBuffer
from logstore.transactions.transaction_ids_and_states import Participant, TransactionId, TransactionState
from tests.activities.activity_world import World, open_activity_world, run_owner_routed_activity

SUBSCRIPTION: Final = "billing"
Step = tuple[str, int, int]
"""What is done, with which transaction of those that it may be done with, and how much."""


@dataclass(frozen=True)
class Kept(BufferSnapshots):
    """Snapshots of which one is known already."""

    buffer: TransactionBuffer | None

    def load_readable_snapshot(self, topic_id: TopicId) -> TransactionBuffer | None:
        return self.buffer


@dataclass
class History:
    """What was done to a topic."""

    world: World
    open: list[TransactionId] = field(default_factory=list)
    decided: list[TransactionId] = field(default_factory=list)
    snapshots: list[TransactionBuffer] = field(default_factory=list)

    def take(self, steps: Sequence[Step]) -> None:
        for what, which, count in steps:
            getattr(self, what)(which, count)

    def _of(self, among: list[TransactionId], which: int) -> TransactionId | None:
        return among[which % len(among)] if among else None

    def begin(self, which: int, _: int) -> None:
        write = BeginTransactionWrite(tc_id=which % 2, timeout_s=3_600)
        self.open.append(self.world.log.committer.submit(write).result().txn)

    def produce(self, which: int, count: int) -> None:
        """In a transaction, or in none."""
        txn = self._of([*self.open, None], which)  # type: ignore[list-item]
        entries = [NewEntry(payload=b"x" * 40)] * (1 + count % 4)
        self.world.log.topic_logs.append(self.world.topic, ProducedEntries(entries=entries, txn=txn))

    def acknowledge(self, which: int, _: int) -> None:
        txn, end = (
            self._of(self.open, which),
            self.world.catalog.transactions.read_frontier(self.world.topic.topic_id).last,
        )
        if txn and end:
            seen = self.world.log.topic_logs.read(self.world.topic, max_entries=1)
            with suppress(AcknowledgementHeld):
                self.world.log.subscriptions.acknowledge(
                    self.world.topic.topic_id, SUBSCRIPTION, positions=[one.position for one in seen], txn=txn
                )

    def decide(self, which: int, count: int) -> None:
        if txn := self._of(self.open, which):
            self.open.remove(txn)
            self.world.log.committer.submit(EndTransactionWrite(txn=txn, commit=bool(count % 2))).result()
            self.decided.append(txn)

    def settle(self, which: int, count: int) -> None:
        """Tell all that are decided, or die between marker and settlement: both are told again by the next one."""
        claim = Claim(workflow_id=f"c-{which % 2}", run_id="r", ttl_s=0)
        batch = self.world.catalog.transactions.claim_decided_transactions(claim, limit=100)
        with self._dying("catalog.settle_transactions.before" if count % 3 == 0 else ""):
            self.world.log.broadcasts.broadcast_batch(batch)

    @contextmanager
    def _dying(self, at: str) -> Iterator[None]:
        if at:
            failpoints.arm(at, "crash")
        try:
            yield
        except (SimulatedCrash, StoreUnavailable):
            pass
        finally:
            failpoints.disarm_all_and_take_hits()

    def resolve(self, which: int, _: int) -> None:
        """By hand: the log will never tell."""
        txn = self._of(self.decided, which)
        owed = self.world.catalog.transactions.get_transaction(txn).owed if txn else []
        if txn and owed:
            cause = AuditCause(actor="tests", reason="", workflow_id="")
            self.world.catalog.transactions.settle_untold_participant(txn, owed[0].participant, cause)

    def roll(self, _: int, __: int) -> None:
        self.world.log.topic_logs.roll(self.world.topic)

    def delete(self, _: int, count: int) -> None:
        """The first ledger leaves the topic, if nothing of a transaction that is not settled is in it."""
        listed = self.world.catalog.ledgers.list_ledgers(self.world.topic.topic_id)
        busy = {row[0] for row in self.world.sql("SELECT ledger_id FROM buffer_range")}
        if len(listed) > 2 and listed[0].ledger_id not in busy:
            gone = listed[0].ledger_id
            request = self.world.make_detach_input([gone], batch_id=f"batch-{gone}-{count}", force=True)
            run_owner_routed_activity(self.world.deletion.detach, request)

    def snapshot(self, _: int, __: int) -> None:
        """What is written is what is kept."""
        topic_id = self.world.topic.topic_id
        found = self.world.catalog.transaction_snapshots.read_buffer(topic_id)
        self.snapshots.append(unpack_buffer(pack_buffer(topic_id, found), topic_id))

    def in_sql(self) -> TransactionBuffer:
        """The buffer of rows."""
        return self.world.catalog.transaction_snapshots.read_buffer(self.world.topic.topic_id)

    def rebuilt(self, start: TransactionBuffer | None = None, *, whole: bool = False) -> TransactionBuffer:
        """The buffer of the log, from this snapshot on; or of the whole log, beside that snapshot."""
        catalog, snapshots = self.world.catalog, Kept(start)
        made = BufferRebuilder(
            ledgers=catalog.ledgers,
            transactions=catalog.transactions,
            objects=self.world.objects,
            snapshots=snapshots if start else None,
            read_whole_log=whole,
        )
        return made.rebuild_buffer(self.world.topic.topic_id)


def open_history(folder: Path) -> History:
    """A topic with one subscription, which retains nothing."""
    world = open_activity_world(folder)
    world.log.topic_logs.roll(world.topic)
    world.log.subscriptions.subscribe(world.topic.topic_id, SUBSCRIPTION, latest=False)
    return History(world)


def owed(history: History, txn: TransactionId) -> list[Participant]:
    """Which of its participants are not told yet."""
    return [one.participant for one in history.world.catalog.transactions.get_transaction(txn).owed]


def seen(buffer: TransactionBuffer) -> TransactionBuffer:
    """Without the entry up to which it was read."""
    return replace(buffer, read_to=TransactionBuffer().read_to)


__all__ = ["SUBSCRIPTION", "History", "Step", "TransactionState", "open_history", "owed", "seen"]
