"""Transactions from a program: begin, produce and acknowledge, then commit or abort.

Example:
    ```python
    with open_log_store(settings) as log:
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

from logstore.errors import OutcomeUnknown, UnknownObject
from logstore.ports.catalog.log import AcknowledgeResult, BeginTransactionWrite, EndTransactionWrite, Topic
from logstore.positions import Position
from logstore.transactions.transaction_ids_and_states import TransactionId, TransactionState, check_timeout

if TYPE_CHECKING:
    from logstore.log.entries import NewEntry
    from logstore.log.services import AppendResult
    from workers.assembly.log_store import LogStore

_COORDINATOR_LINGER_S: Final = 0.5
"""Minimum time for which a coordinator keeps looking for work after it was woken or has sent a decision."""

_WAKE_AGAIN_AFTER_S: Final = 1.0
"""Time without progress after which the client wakes a coordinator again, because a signal may be lost."""

_PAUSE_PER_QUERY_TIME: Final = 3
"""Minimum pause between queries, as a multiple of a query's duration: queries take at most a quarter of the time."""

_PAUSE_RANGE_S: Final = (0.002, 0.05)  # shortest and longest pause between two queries of transaction states


class TransactionClient:
    """Transactions of one program in one event loop. The catalog decides a transaction at once, without a job.

    New transactions go to the coordinators 0 to `coordinators` - 1 in turn. `wake` starts or signals a coordinator's
    workflow. Every method may raise `StoreUnavailable` and `CatalogBusy` if the catalog does not answer.
    """

    def __init__(self, log: "LogStore", coordinators: int, wake: Callable[[int], Awaitable[object]]) -> None:
        self._log, self._wake = log, wake
        self._coordinators = coordinators
        self._turn_counter = count(random.randrange(coordinators))  # noqa: S311 - spreads load
        self._woken_s_by_coordinator: dict[int, float] = {}
        self._last_service_s = -_COORDINATOR_LINGER_S  # last time at which a coordinator certainly looked for work
        self._wake_task_by_coordinator: dict[int, asyncio.Task[None]] = {}
        self._waiter_by_transaction: dict[TransactionId, tuple[asyncio.Future[TransactionState], float]] = {}
        self._poll_task: asyncio.Task[None] | None = None

    async def begin(self, timeout_s: float = 60.0) -> TransactionId:
        """Open a transaction. It is aborted if `timeout_s`, above 0 and at most a day, passes without a decision."""
        check_timeout(timeout_s)
        write = BeginTransactionWrite(tc_id=next(self._turn_counter) % self._coordinators, timeout_s=timeout_s)
        begun = await asyncio.wrap_future(self._log.committer.submit(write))
        self._wake_soon(begun.txn.tc_id)  # the coordinator must abort the transaction at its deadline
        return begun.txn

    async def append(
        self, txn: TransactionId, topic: Topic, entries: Sequence["NewEntry"], producer: str | None = None
    ) -> "AppendResult":
        """Append entries that become visible only when the transaction commits.

        Raises:
            TransactionNotOpen: The transaction is decided.
            And the errors of `TopicLogs.append`.
        """
        from logstore.log.entries import ProducedEntries  # noqa: PLC0415 - start-up time

        produced = ProducedEntries(entries=entries, producer=producer, txn=txn)
        return await asyncio.to_thread(self._log.topic_logs.append, topic, produced)

    async def acknowledge(
        self,
        txn: TransactionId,
        topic: Topic,
        subscription: str,
        *,
        positions: Sequence[Position] = (),
        up_to: Position | None = None,
        releases: int | None = None,
    ) -> AcknowledgeResult:
        """Acknowledge entries at the commit of the transaction. Until then no other consumer receives these entries.

        `up_to` selects all entries up to this position, and requires the `releases` from before the read of these
        entries.

        Raises:
            TransactionNotOpen: The transaction is decided.
            AcknowledgementStale: Entries were given back since `up_to` was read.
            AcknowledgementHeld: An entry is already acknowledged, perhaps by another open transaction.
            And the errors of `Subscriptions.acknowledge`.
        """
        acknowledge = self._log.subscriptions.acknowledge
        return await asyncio.to_thread(
            acknowledge, topic.topic_id, subscription, positions=positions, up_to=up_to, releases=releases, txn=txn
        )

    async def commit(self, txn: TransactionId) -> TransactionState:
        """Commit the transaction. Its effects are visible at once. Then wait until each participant is told.

        Raises:
            TransactionEnded: The transaction was aborted or its deadline has passed. None of its changes is visible.
            UnknownObject: The transaction never existed, or its row was removed.
            OutcomeUnknown, StoreUnavailable, CatalogBusy: The outcome is not known. Call again.
        """
        return await self._decide_and_wait(txn, commit=True)

    async def abort(self, txn: TransactionId) -> TransactionState:
        """Abort the transaction, then wait until each participant is told. Raises the errors of `commit`."""
        return await self._decide_and_wait(txn, commit=False)

    async def _decide_and_wait(self, txn: TransactionId, *, commit: bool) -> TransactionState:
        write = EndTransactionWrite(txn=txn, commit=commit)
        try:
            decided = await asyncio.wrap_future(self._log.committer.submit(write))
        except OutcomeUnknown:  # a repeated request gets the first decision
            decided = await asyncio.wrap_future(self._log.committer.submit(write))
        if decided.state.is_final:
            return decided.state
        if not self._wake_task_by_coordinator and time.monotonic() - self._last_service_s >= _COORDINATOR_LINGER_S:
            self._wake_soon(txn.tc_id)  # one coordinator is enough, because it sends the decisions of all coordinators
        return await self.wait_until_final(txn)

    async def wait_until_final(self, txn: TransactionId) -> TransactionState:
        future, _ = self._waiter_by_transaction.setdefault(
            txn, (asyncio.get_running_loop().create_future(), time.monotonic())
        )
        if self._poll_task is None or self._poll_task.done():
            self._poll_task = asyncio.create_task(self._poll_states_of_waiters())
        return await asyncio.shield(future)

    async def _poll_states_of_waiters(self) -> None:
        pause_s = _PAUSE_RANGE_S[0]
        while self._waiter_by_transaction:
            started_s, awaited = time.monotonic(), list(self._waiter_by_transaction)
            try:
                states = await asyncio.to_thread(self._log.catalog.transactions.get_transaction_states, awaited)
            except Exception as error:  # noqa: BLE001 - every waiter raises the error
                self._fail_waiters(error)
                return
            has_progress, query_s = False, time.monotonic() - started_s
            for txn in awaited:
                state = states.get(txn)
                if state is not None and not state.is_final:
                    continue
                future, _ = self._waiter_by_transaction.pop(txn)
                has_progress = True
                if state is None:
                    future.set_exception(UnknownObject("txn", expected="a transaction of this catalog", found=str(txn)))
                else:
                    future.set_result(state)
            self._last_service_s = time.monotonic() if has_progress else self._last_service_s
            self._wake_slow_coordinators()
            pause_s = _PAUSE_RANGE_S[0] if has_progress else min(pause_s * 1.2, _PAUSE_RANGE_S[1])
            pause_s = max(pause_s, _PAUSE_PER_QUERY_TIME * query_s)
            await asyncio.sleep(pause_s)

    def _fail_waiters(self, error: Exception) -> None:
        for future, _ in self._waiter_by_transaction.values():
            if not future.done():
                future.set_exception(error)
        self._waiter_by_transaction.clear()

    def _wake_slow_coordinators(self) -> None:
        now = time.monotonic()
        for txn, (future, last_wake_s) in list(self._waiter_by_transaction.items()):
            if now - last_wake_s > _WAKE_AGAIN_AFTER_S:
                self._waiter_by_transaction[txn] = (future, now)
                self._wake_soon(txn.tc_id)

    def _wake_soon(self, tc_id: int) -> None:
        """Wake the coordinator in the background, at most once in `_COORDINATOR_LINGER_S`."""
        last_wake_s = self._woken_s_by_coordinator.get(tc_id, 0.0)
        if tc_id in self._wake_task_by_coordinator or time.monotonic() - last_wake_s < _COORDINATOR_LINGER_S:
            return
        self._wake_task_by_coordinator[tc_id] = asyncio.create_task(self._wake_coordinator(tc_id))

    async def _wake_coordinator(self, tc_id: int) -> None:
        try:
            await self._wake(tc_id)
            self._last_service_s = self._woken_s_by_coordinator[tc_id] = time.monotonic()
        finally:
            del self._wake_task_by_coordinator[tc_id]

    async def wait_for_sent_wake_ups(self) -> None:
        """Wait until all pending wake-ups of coordinators are sent. Raises the error of a failed wake-up."""
        await asyncio.gather(*self._wake_task_by_coordinator.values())
