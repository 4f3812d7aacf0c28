"""The client of transactions: which coordinators it wakes, and when."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from logstore.errors import UnknownObject
from logstore.ports.catalog.log import (
    BeginTransactionResult,
    BeginTransactionWrite,
    EndTransactionResult,
    EndTransactionWrite,
)
from logstore.transactions.transaction_ids_and_states import TransactionId, TransactionState
from tests.workflows.workflow_harness import assert_eventually
from workers.client.transaction_client import TransactionClient

_COORDINATORS = 4


class _Catalog:
    """Transactions that are COMMITTING until they are told; the part of a log that the client uses."""

    def __init__(self) -> None:
        self.woken: list[int] = []
        self.now = 100.0
        self.told, self.unknown = set[TransactionId](), set[TransactionId]()
        self.polls = 0
        self._begun = 0
        self.client = TransactionClient(self, _COORDINATORS, self._wake)  # type: ignore[arg-type]  # what it uses of it

    committer = property(lambda self: self)
    catalog = property(lambda self: SimpleNamespace(transactions=self))

    async def _wake(self, tc_id: int) -> None:
        self.woken.append(tc_id)

    def submit(self, write: BeginTransactionWrite | EndTransactionWrite) -> "Future[Any]":
        """Both verbs, at once."""
        done: Future[Any] = Future()
        if isinstance(write, BeginTransactionWrite):
            self._begun += 1
            done.set_result(BeginTransactionResult(txn=TransactionId(write.tc_id, self._begun)))
        else:
            done.set_result(EndTransactionResult(state=TransactionState.COMMITTING))
        return done

    def get_transaction_states(self, txns: Sequence[TransactionId]) -> dict[TransactionId, TransactionState]:
        """What is asked again and again."""
        self.polls += 1
        return {
            txn: TransactionState.COMMITTED if txn in self.told else TransactionState.COMMITTING
            for txn in list(txns)
            if txn not in self.unknown
        }

    def ending(self, *txns: TransactionId) -> "list[asyncio.Task[TransactionState]]":
        """Their commits, under way."""
        return [asyncio.create_task(self.client.commit(txn)) for txn in txns]

    async def polled(self) -> None:
        """Wait until the states of all that is waited for were asked once more."""
        before = self.polls
        await assert_eventually(lambda: self.polls > before + 1)


Story = Callable[[_Catalog], Coroutine[Any, Any, None]]


def _run(monkeypatch: pytest.MonkeyPatch, story: Story) -> list[int]:
    """Run it by a clock that stands still unless it is moved; which coordinators were woken, in order."""
    catalog = _Catalog()
    monkeypatch.setattr("workers.client.transaction_client.time", SimpleNamespace(monotonic=lambda: catalog.now))
    asyncio.run(story(catalog))
    return catalog.woken


def _txns(count: int) -> list[TransactionId]:
    return [TransactionId(number % _COORDINATORS, number) for number in range(count)]


def test_commits_of_one_moment_wake_one_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any one tells what is decided, whichever coordinator's it is: a signal of each would cost more than the work."""

    async def story(catalog: _Catalog) -> None:
        ends = catalog.ending(*_txns(12))
        await catalog.polled()
        catalog.now += 0.4
        ends += catalog.ending(TransactionId(1, 13))
        await catalog.polled()
        catalog.told.update([*_txns(12), TransactionId(1, 13)])
        await asyncio.gather(*ends)

    assert _run(monkeypatch, story) == [0]


def test_commit_wakes_nobody_while_others_are_seen_to_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator lingers; once nothing was told for longer than it does, it is woken again."""
    first, second, third = _txns(3)

    async def story(catalog: _Catalog) -> None:
        for txn, later_s in ((first, 0.4), (second, 0.4), (third, 0.6)):
            (ending,) = catalog.ending(txn)
            await catalog.polled()
            catalog.told.add(txn)
            await ending
            catalog.now += later_s
        (last,) = catalog.ending(first)
        await last

    assert _run(monkeypatch, story) == [0, 0]


def test_what_nobody_tells_wakes_its_own_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that was woken may be stuck, or its worker dead."""

    async def story(catalog: _Catalog) -> None:
        ends = catalog.ending(*_txns(3))
        await catalog.polled()
        assert catalog.woken == [0]
        catalog.now += 1.1
        await assert_eventually(lambda: len(catalog.woken) >= 4)
        catalog.told.update(_txns(3))
        await asyncio.gather(*ends)

    assert _run(monkeypatch, story) == [0, 0, 1, 2]


def test_begin_wakes_its_own_coordinator_whatever_was_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a deadline, and the timers of other coordinators do not know it."""

    async def story(catalog: _Catalog) -> None:
        for _ in range(2 * _COORDINATORS):
            await catalog.client.begin()
        await catalog.client.wait_for_sent_wake_ups()

    assert sorted(_run(monkeypatch, story)) == list(range(_COORDINATORS))


def test_wait_for_a_transaction_that_does_not_exist_ends_and_disturbs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its state would never be final."""
    known, unknown = TransactionId(0, 1), TransactionId(0, 2)

    async def story(catalog: _Catalog) -> None:
        catalog.unknown.add(unknown)
        waiting = [asyncio.create_task(catalog.client.wait_until_final(txn)) for txn in (known, unknown)]
        with pytest.raises(UnknownObject, match=r"found '0:2'$"):
            await waiting[1]
        catalog.told.add(known)
        assert await waiting[0] is TransactionState.COMMITTED

    _run(monkeypatch, story)
