"""Transactions from a program: begin, produce and acknowledge in one, and commit or abort it.

Example:
    ```python
    with open_log(settings) as log:
        async with await Sexton.connect(settings) as sexton:
            transactions = sexton.transactions(log)
            txn = await transactions.begin()
            await transactions.append(txn, topic, [NewEntry(payload=b"paid")])
            await transactions.commit(txn)
    ```
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Final

from temporalio.common import SearchAttributePair

from logstore.errors import OutcomeUnknown, UnknownObject
from logstore.ports.catalog import Acknowledged, BeginTransaction, EndTransaction, Topic
from logstore.positions import Position
from logstore.transactions.transactions import TransactionId, TransactionState, check_timeout
from workers.client.jobs import Handle, OwnJobs
from workflows import limits, search_attributes
from workflows.jobs import BuildResult
from workflows.transactions.values import (
    BROADCAST_TRANSACTION,
    BUILD_TRANSACTION_SNAPSHOTS,
    TRANSACTION_COORDINATOR,
    BroadcastProgress,
    BroadcastTransactionInput,
    BuildTransactionSnapshotsInput,
    CoordinatorInput,
)

if TYPE_CHECKING:
    from logstore.log.entries import NewEntry
    from logstore.log.services import AppendResult
    from workers.assembly.log import LogStore

_WOKEN_S: Final = 0.5
"""A coordinator that was woken so recently, or has told something, looks for work by itself: it lingers for longer."""

_UNMOVED_S: Final = 1.0
"""After that a coordinator is woken again: a signal may be lost."""

_REST: Final = 3
"""Times as long as a look took is waited before the next one, so that looking takes no processor from the work."""

_PAUSE_S: Final = (0.002, 0.05)  # between two looks at the states of what is waited for


class TransactionClient:
    """The transactions of one program, in one event loop. What is decided is decided in SQL, at once."""

    def __init__(self, log: "LogStore", coordinators: int, wake: Callable[[int], Awaitable[object]]) -> None:
        """Use a log.

        Args:
            log: Which.
            coordinators: How many there are; new transactions go to them in turn.
            wake: Starts a coordinator's workflow, or signals the one that runs.
        """
        self._log, self._wake = log, wake
        self._turns, self._coordinators = count(random.randrange(coordinators)), coordinators  # noqa: S311 - spreads load
        self._woken: dict[int, float] = {}
        self._served = -_WOKEN_S  # when some coordinator was last seen, or told, to look for work
        self._waking: dict[int, asyncio.Task[None]] = {}
        self._waiting: dict[TransactionId, tuple[asyncio.Future[TransactionState], float]] = {}
        self._polling: asyncio.Task[None] | None = None

    async def begin(self, timeout_s: float = 60.0) -> TransactionId:
        """Open a transaction, which is aborted unless it is decided in time.

        Raises:
            InvalidInput: A timeout of zero, or above a day.
            StoreUnavailable, CatalogBusy: The catalog did not answer.
        """
        check_timeout(timeout_s)
        write = BeginTransaction(tc_id=next(self._turns) % self._coordinators, timeout_s=timeout_s)
        begun = await asyncio.wrap_future(self._log.committer.submit(write))
        self._wake_soon(begun.txn.tc_id)  # it has a deadline from now on
        return begun.txn

    async def append(
        self, txn: TransactionId, topic: Topic, entries: Sequence["NewEntry"], producer: str | None = None
    ) -> "AppendResult":
        """Append entries that are seen when the transaction commits, and never if it does not.

        Raises:
            TransactionNotOpen: It is decided.
            And what `ManagedLedger.append` raises.
        """
        from logstore.log.entries import ProducedEntries  # noqa: PLC0415 - start-up time

        produced = ProducedEntries(entries=entries, producer=producer, txn=txn)
        return await asyncio.to_thread(self._log.managed.append, topic, produced)

    async def acknowledge(
        self,
        txn: TransactionId,
        topic: Topic,
        subscription: str,
        *,
        positions: Sequence[Position] = (),
        up_to: Position | None = None,
        releases: int | None = None,
    ) -> Acknowledged:
        """Acknowledge entries when the transaction commits; until then they are delivered to no other consumer.

        `up_to` needs the `releases` of its read; see `Subscriptions.acknowledge`.

        Raises:
            TransactionNotOpen: It is decided.
            AcknowledgementStale: Entries were given back since `up_to` was read.
            AcknowledgementHeld: Another transaction holds one of them, or it is acknowledged already.
            And what `Subscriptions.acknowledge` raises.
        """
        acknowledge = self._log.subscriptions.acknowledge
        return await asyncio.to_thread(
            acknowledge, topic.topic_id, subscription, positions=positions, up_to=up_to, releases=releases, txn=txn
        )

    async def commit(self, txn: TransactionId) -> TransactionState:
        """Make all of it visible at once, and wait until every participant's log says so.

        Raises:
            TransactionEnded: It was aborted, or its deadline has passed; nothing of it is visible.
            UnknownObject: There is none, or it was forgotten.
            OutcomeUnknown, StoreUnavailable, CatalogBusy: Ask again.
        """
        return await self._end(txn, commit=True)

    async def abort(self, txn: TransactionId) -> TransactionState:
        """Let nothing of it be visible, and wait until every participant's log says so; raises as `commit`."""
        return await self._end(txn, commit=False)

    async def _end(self, txn: TransactionId, *, commit: bool) -> TransactionState:
        write = EndTransaction(txn=txn, commit=commit)
        try:
            decided = await asyncio.wrap_future(self._log.committer.submit(write))
        except OutcomeUnknown:  # the same verb twice is answered twice
            decided = await asyncio.wrap_future(self._log.committer.submit(write))
        if decided.state.is_final:
            return decided.state
        if not self._waking and time.monotonic() - self._served >= _WOKEN_S:
            self._wake_soon(txn.tc_id)  # any one tells what is decided, so one of them is enough for all
        return await self.settled(txn)

    async def settled(self, txn: TransactionId) -> TransactionState:
        """Wait until a decided transaction is final.

        Raises:
            UnknownObject: There is none, or it was forgotten.
            StoreUnavailable, CatalogBusy: The catalog did not answer.
        """
        future, _ = self._waiting.setdefault(txn, (asyncio.get_running_loop().create_future(), time.monotonic()))
        if self._polling is None or self._polling.done():
            self._polling = asyncio.create_task(self._poll())
        return await asyncio.shield(future)

    async def _poll(self) -> None:
        """Ask for the states of all that is waited for, in one statement at a time."""
        pause = _PAUSE_S[0]
        while self._waiting:
            began, asked = time.monotonic(), list(self._waiting)
            try:
                states = await asyncio.to_thread(self._log.catalog.transactions.states, asked)
            except Exception as error:  # noqa: BLE001 - told to all that wait
                self._fail(error)
                return
            moved, asked_s = False, time.monotonic() - began
            for txn in asked:
                state = states.get(txn)
                if state is not None and not state.is_final:
                    continue
                future, _ = self._waiting.pop(txn)
                moved = True
                if state is None:
                    future.set_exception(UnknownObject("txn", expected="a transaction of this catalog", found=str(txn)))
                else:
                    future.set_result(state)
            self._served = time.monotonic() if moved else self._served
            self._wake_late()
            pause = _PAUSE_S[0] if moved else min(pause * 1.2, _PAUSE_S[1])
            pause = max(pause, _REST * asked_s)
            await asyncio.sleep(pause)

    def _fail(self, error: Exception) -> None:
        for future, _ in self._waiting.values():
            if not future.done():
                future.set_exception(error)
        self._waiting.clear()

    def _wake_late(self) -> None:
        """Wake each coordinator whose transaction was not told for a while, whatever others do."""
        now = time.monotonic()
        for txn, (future, since) in list(self._waiting.items()):
            if now - since > _UNMOVED_S:
                self._waiting[txn] = (future, now)
                self._wake_soon(txn.tc_id)

    def _wake_soon(self, tc_id: int) -> None:
        """Wake the coordinator, once for all that ask at about the same time."""
        if tc_id in self._waking or time.monotonic() - self._woken.get(tc_id, 0.0) < _WOKEN_S:
            return
        self._waking[tc_id] = asyncio.create_task(self._waken(tc_id))

    async def _waken(self, tc_id: int) -> None:
        try:
            await self._wake(tc_id)
            self._served = self._woken[tc_id] = time.monotonic()
        finally:
            del self._waking[tc_id]

    async def flush(self) -> None:
        """Wait until every coordinator that is to be woken was.

        Raises:
            What the last signal raised.
        """
        await asyncio.gather(*self._waking.values())


class TransactionJobs(OwnJobs):
    """Coordinators, and broadcasts of one transaction."""

    def transactions(self, log: "LogStore") -> TransactionClient:
        """Transactions of this program, over its log."""
        return TransactionClient(log, self._settings.transaction_coordinators, self.wake_coordinator)

    async def wake_coordinator(self, tc_id: int) -> None:
        """Let a coordinator look for work; it is started if it does not run."""
        request = CoordinatorInput(tc_id=tc_id, queue=limits.transactions_queue(self._settings.task_queue))
        summary = f"transactions of coordinator {tc_id}"
        await self.start(TRANSACTION_COORDINATOR, request, tc_id, summary=summary, signal="wake")

    async def broadcast_transaction(self, txn: TransactionId) -> Handle[BroadcastProgress]:
        """Tell the participants of one decided transaction alone; joins the broadcast of it that runs."""
        request = BroadcastTransactionInput(txn=str(txn), queue=limits.transactions_queue(self._settings.task_queue))
        return await self.start(
            BROADCAST_TRANSACTION,
            request,
            f"{txn.tc_id}-{txn.sequence}",
            summary=f"tell the participants of {txn}",
            about=[SearchAttributePair(search_attributes.TRANSACTION, str(txn))],
            signal="retry",
        )

    async def build_transaction_snapshots(
        self, topics: Sequence[Topic] | None, *, master: str = "", reason: str = "", actor: str = ""
    ) -> Handle[BuildResult]:
        """Rebuild transaction buffers from the logs of topics, and keep them as their snapshots.

        What a guard refuses is in the result's `refused`; `result_of` raises it.

        Args:
            topics: At least one, at most 10,000; None: every topic.
            master: A Spark cluster; empty: that of the workers' settings.
            reason: Kept in the run.
            actor: The person or program that asks.

        Raises:
            InvalidInput: No topics, too many, or what can be no cluster.
        """
        request = BuildTransactionSnapshotsInput(actor=actor, reason=reason, master=master)
        return await self.build_topics(BUILD_TRANSACTION_SNAPSHOTS, topics, request)
