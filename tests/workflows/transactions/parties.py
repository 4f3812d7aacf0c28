"""Topics that transactions are written to, and the verbs that tests of their workflows are told in."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from temporalio.client import WorkflowHandle

from logstore.deletion.retention import RetentionPolicy
from logstore.errors import StoreUnavailable
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.log.services import AppendResult
from logstore.ports.catalog.log import BeginTransactionWrite, EndTransactionWrite, Topic
from logstore.transactions.transaction_ids_and_states import TransactionId, TransactionState
from tests.workflows.workflow_harness import WorkflowHarness, assert_eventually
from workflows.transactions.broadcast_transaction import BroadcastTransaction
from workflows.transactions.job_definitions import (
    BROADCAST_TRANSACTION,
    TRANSACTION_COORDINATOR,
    BroadcastProgress,
    BroadcastTransactionInput,
    CoordinatorInput,
    CoordinatorProgress,
)
from workflows.transactions.transaction_coordinator import TransactionCoordinator

TC = 3
Coordinator = WorkflowHandle[TransactionCoordinator, CoordinatorProgress]
Broadcast = WorkflowHandle[BroadcastTransaction, BroadcastProgress]


class Parties:
    """Some topics of a house."""

    def __init__(self, house: WorkflowHarness, monkeypatch: pytest.MonkeyPatch, count: int = 2) -> None:
        """Create them; none is away."""
        self.house = house
        self.log = house.world.log
        create = house.world.catalog.topics.create_topic
        self.topics = [create(f"persistent://tenant/namespace/party-{n}", RetentionPolicy()) for n in range(count)]
        self.away: set[int] = set()  # ids of topics that take no append
        real = self.log.topic_logs.append

        def append(topic: Topic, produced: ProducedEntries) -> AppendResult:
            if topic.topic_id in self.away:
                raise StoreUnavailable("planned: the topic is away")
            return real(topic, produced)

        monkeypatch.setattr(self.log.topic_logs, "append", append)

    def begin(self, *, tc_id: int = TC, timeout_s: float = 60.0) -> TransactionId:
        """An open transaction with one message on every topic."""
        txn = self.log.committer.commit_write(BeginTransactionWrite(tc_id=tc_id, timeout_s=timeout_s)).txn
        for topic in self.topics:
            self.log.topic_logs.append(topic, ProducedEntries(entries=[NewEntry(payload=str(txn).encode())], txn=txn))
        return txn

    def end(self, txn: TransactionId, *, commit: bool = True) -> TransactionId:
        """Decide it."""
        self.log.committer.commit_write(EndTransactionWrite(txn=txn, commit=commit))
        return txn

    def decided(self, *, tc_id: int = TC, commit: bool = True) -> TransactionId:
        """A transaction of which nobody was told."""
        return self.end(self.begin(tc_id=tc_id), commit=commit)

    def state(self, txn: TransactionId) -> TransactionState:
        """Of one."""
        return self.log.catalog.transactions.get_transaction_states([txn])[txn]

    async def told(self, *txns: TransactionId) -> None:
        """Wait until these are final."""
        await assert_eventually(lambda: all(self.state(txn).is_final for txn in txns))

    def seen(self, topic: Topic) -> list[str]:
        """What readers see."""
        return [(entry.payload or b"").decode() for entry in self.log.topic_logs.scan(topic)]

    def hows(self, txn: TransactionId) -> Sequence[str | None]:
        """How each participant came to count as told, by topic id."""
        return [
            one.settlement and one.settlement.value
            for one in self.log.catalog.transactions.get_transaction(txn).participants
        ]

    async def coordinator(self, **more: Any) -> Coordinator:
        """Start it, or wake it."""
        request = CoordinatorInput(**{"tc_id": TC, "linger_s": 0.0} | more)
        workflow_id = TRANSACTION_COORDINATOR.id(request.tc_id)
        return await self.house.client.start_workflow(
            TransactionCoordinator.run, request, id=workflow_id, task_queue=self.house.queue, start_signal="wake"
        )

    async def broadcast(self, txn: TransactionId, **more: Any) -> Broadcast:
        """Start the broadcast of one alone."""
        return await self.house.client.start_workflow(
            BroadcastTransaction.run,
            BroadcastTransactionInput(txn=str(txn), **more),
            id=broadcast_id(txn),
            task_queue=self.house.queue,
        )


async def worked(handle: Coordinator, *, drains: int = 1, finished: int = 0) -> CoordinatorProgress:
    """The coordinator's progress once it has heard of so many drains, and of so many that are told."""
    found: list[CoordinatorProgress] = []

    async def done() -> bool:
        found.append(await handle.query(TransactionCoordinator.progress))
        return found[-1].drains >= drains and found[-1].finished >= finished

    await assert_eventually(done)
    return found[-1]


async def owing(handle: Broadcast) -> BroadcastProgress:
    """The broadcast's progress once it has heard that a participant is owed."""
    found: list[BroadcastProgress] = []

    async def owes() -> bool:
        found.append(await handle.query(BroadcastTransaction.progress))
        return bool(found[-1].owed)

    await assert_eventually(owes)
    return found[-1]


def broadcast_id(txn: TransactionId) -> str:
    """Of the workflow."""
    return BROADCAST_TRANSACTION.id(f"{txn.tc_id}-{txn.sequence}")


def pauses(house: WorkflowHarness, type_: str) -> list[float]:
    """Seconds between one attempt of an activity and the next, by the server's clock."""
    moments = [one.scheduled for one in house.attempts(type_)]
    return [(after - before).total_seconds() for before, after in pairwise(moments)]
