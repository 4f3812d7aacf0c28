"""Transactions beside the bare thing: `python -m tests.benchmarks.transaction_speed [idle|crowd|recovery|reads]`.

On a real stack with one worker process. Producing is not timed. About four minutes on two cores.
"""

import asyncio
import json
import os
import statistics
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from temporalio.client import Client
from temporalio.worker import Worker

from logstore.deletion.retention import RetentionPolicy
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.ports.catalog.deletion import Claim
from logstore.ports.catalog.log import BeginTransactionWrite, EndTransactionWrite, Topic
from logstore.transactions.transaction_ids_and_states import TransactionId, TransactionState
from tests.benchmarks.bare import Bare, bare_activity
from tests.benchmarks.stage import Stage, stage, write_rows
from workers.client import Sexton
from workers.operations.embedded_stack import start_worker
from workers.settings import load_settings

_IDLE: Final = 60
_CLIENTS: Final = 200
_TOPICS: Final = 20
_EACH: Final = 15  # commits of a client
_RECOVERED: Final = (1_000, 10_000)
_ABORTED: Final = 100_000
_PART: Final = 2_000


def idle(on: Stage) -> dict[str, Any]:
    """A commit with three participants beside a bare one-activity workflow, one at a time, p50."""
    return asyncio.run(_idle(on))


async def _idle(on: Stage) -> dict[str, Any]:
    topics = _topics(on, "idle", 3)
    plain = await Client.connect(on.settings.temporal_address)
    ours, bare = list[float](), list[float]()
    with ThreadPoolExecutor(4) as threads:
        async with (
            await Sexton.connect(on.settings) as sexton,
            Worker(plain, task_queue="bare", workflows=[Bare], activities=[bare_activity], activity_executor=threads),
        ):
            transactions = sexton.transactions(on.log)
            for number in range(_IDLE):
                txn = await transactions.begin()
                for topic in topics:
                    await transactions.append(txn, topic, [NewEntry(payload=b"x")])
                bare.append(await _timed(_one_bare(plain, number)))
                ours.append(await _timed(transactions.commit(txn)))
    one, two = statistics.median(ours) * 1000, statistics.median(bare) * 1000
    _tell(f"idle: p50 {one:.0f} ms, bare {two:.0f} ms")
    return {"ours_p50_ms": round(one, 1), "bare_p50_ms": round(two, 1), "ratio": round(one / two, 2)}


def crowd(on: Stage) -> dict[str, Any]:
    """Commits a second of 200 clients on 20 topics, beside bare workflows a second of 200 callers."""
    return asyncio.run(_crowd(on))


async def _crowd(on: Stage) -> dict[str, Any]:
    topics = _topics(on, "crowd", _TOPICS)
    plain = await Client.connect(on.settings.temporal_address)
    txns = await asyncio.to_thread(_produced, on, topics, _CLIENTS * _EACH, 3)
    _tell(f"crowd: {len(txns):,} transactions are open, each on 3 of {_TOPICS} topics")
    async with await Sexton.connect(on.settings) as sexton:
        transactions = sexton.transactions(on.log)

        async def client(mine: Sequence[TransactionId]) -> None:
            for txn in mine:
                await transactions.commit(txn)

        warm = await asyncio.to_thread(_produced, on, topics, _CLIENTS, 3)
        await asyncio.gather(*(transactions.commit(txn) for txn in warm))
        ours = await _timed(asyncio.gather(*(client(txns[at::_CLIENTS]) for at in range(_CLIENTS))))
        await transactions.wait_for_sent_wake_ups()
    with ThreadPoolExecutor(16) as threads:
        async with Worker(
            plain, task_queue="bare", workflows=[Bare], activities=[bare_activity], activity_executor=threads
        ):

            async def caller(first: int) -> None:
                for number in range(3):
                    await _one_bare(plain, first + number)

            bare = await _timed(asyncio.gather(*(caller(3 * at) for at in range(_CLIENTS))))
    one, two = len(txns) / ours, 3 * _CLIENTS / bare
    _tell(f"crowd: {one:.0f} commits/s, bare {two:.0f} workflows/s")
    return {"ours_commits_s": round(one), "bare_workflows_s": round(two), "ratio": round(one / two, 1)}


def recovery(on: Stage) -> dict[str, Any]:
    """Open transactions past their deadline when a worker comes: seconds until all are aborted on every participant."""
    found: dict[str, Any] = {}
    topics = _topics(on, "recovery", _TOPICS)
    for turn, count in enumerate(_RECOVERED):
        txns = _produced(on, topics, count, 1)
        write_rows(on, lambda c: c.exec_driver_sql("UPDATE \"transaction\" SET deadline_us = 1 WHERE state = 'OPEN'"))
        began = time.perf_counter()
        if not turn:
            start_worker(on.settings, name="worker-1")
        asyncio.run(_woken(on))
        states = on.log.catalog.transactions.get_transaction_states
        while any(not all(s.is_final for s in states(part).values()) for part in _parts(txns)):
            time.sleep(0.05)
        found[f"{count:,} transactions"] = round(time.perf_counter() - began, 1)
        _tell(f"recovery: {count:,} in {found[f'{count:,} transactions']} s")
    return found


async def _woken(on: Stage) -> None:
    async with await Sexton.connect(on.settings) as sexton:
        await asyncio.gather(*(sexton.wake_coordinator(tc) for tc in range(on.settings.transaction_coordinators)))


def reads(on: Stage) -> dict[str, Any]:
    """A scan of a topic with 100,000 aborted transactions beside one of as many stored entries and none."""
    odd, even = _topics(on, "reads", 2)
    for _ in range(_ABORTED // _PART):
        txns = _begun(on, _PART)
        queue = on.log.topic_logs._get_append_queue(odd)
        queue._store([*(_one(txn) for txn in txns), *(_one(None) for _ in txns)])
        _end(on, txns, commit=False)
        on.log.topic_logs.append(
            even, ProducedEntries(entries=[NewEntry(payload=b"x" * 100) for _ in range(2 * _PART)])
        )
    _told(on)
    rounds = [(_scan(on, odd, _ABORTED), _scan(on, even, 2 * _ABORTED)) for _ in range(5)]
    one, two = (statistics.median(each) for each in zip(*rounds, strict=True))
    _tell(f"reads: {one:.2f} s with {_ABORTED:,} aborted, {two:.2f} s without")
    return {"aborted_s": round(one, 2), "none_s": round(two, 2), "ratio": round(one / two, 2)}


def _one(txn: TransactionId | None) -> ProducedEntries:
    return ProducedEntries(entries=[NewEntry(payload=b"x" * 100)], txn=txn)


def _scan(on: Stage, topic: Topic, expected: int) -> float:
    began = time.perf_counter()
    count = sum(1 for _ in on.log.topic_logs.scan(topic))
    if count != expected:
        raise RuntimeError(f"expected {expected} entries, found {count}")
    return time.perf_counter() - began


def _told(on: Stage) -> None:
    """Tell all participants, in this process."""
    claim = Claim(workflow_id="bench", run_id="bench", ttl_s=60)
    while batch := on.log.catalog.transactions.claim_decided_transactions(claim, limit=500):
        on.log.broadcasts.broadcast_batch(batch)


def _topics(on: Stage, name: str, count: int) -> list[Topic]:
    made = on.log.catalog.topics.create_topic
    return [made(f"persistent://bench/transactions/{name}-{number}", RetentionPolicy()) for number in range(count)]


def _begun(on: Stage, count: int) -> list[TransactionId]:
    tcs = on.settings.transaction_coordinators
    writes = [BeginTransactionWrite(tc_id=number % tcs, timeout_s=3_600) for number in range(count)]
    return [one.result().txn for one in [on.log.committer.submit(write) for write in writes]]


def _end(on: Stage, txns: Sequence[TransactionId], *, commit: bool) -> None:
    for one in [on.log.committer.submit(EndTransactionWrite(txn=txn, commit=commit)) for txn in txns]:
        if one.result().state not in {TransactionState.COMMITTING, TransactionState.ABORTING}:
            raise RuntimeError("a transaction without participants")


def _produced(on: Stage, topics: Sequence[Topic], count: int, participants: int) -> list[TransactionId]:
    """Open transactions with one entry on each of so many topics."""
    txns = _begun(on, count)
    for at, topic in enumerate(topics):
        mine = [txn for number, txn in enumerate(txns) if (at - number) % len(topics) < participants]
        for part in _parts(mine):
            on.log.topic_logs._get_append_queue(topic)._store([_one(txn) for txn in part])
    return txns


def _parts(txns: Sequence[TransactionId]) -> Iterator[list[TransactionId]]:
    for at in range(0, len(txns), _PART):
        yield list(txns[at : at + _PART])


async def _timed(work: Awaitable[object]) -> float:
    began = time.perf_counter()
    await work
    return time.perf_counter() - began


async def _one_bare(client: Client, number: int) -> None:
    await client.execute_workflow(Bare.run, number, id=f"bare-{number}-{uuid.uuid4().hex}", task_queue="bare")


def _tell(line: str) -> None:
    """Say how far it is; stdout has the one document."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {line}\n")


_MEASURES: Final[dict[str, tuple[Callable[[Stage], dict[str, Any]], int]]] = {
    "idle": (idle, 1),
    "crowd": (crowd, 1),
    "recovery": (recovery, 0),
    "reads": (reads, 0),
}
"""By name, and how many workers stand ready."""


def main(names: Sequence[str]) -> dict[str, Any]:
    """Each on a stack of its own."""
    found: dict[str, Any] = {}
    for name in names or _MEASURES:
        measure, workers = _MEASURES[name]
        with stage(load_settings({}, os.environ, Path.cwd()).settings, workers=workers) as on:
            found[name] = measure(on)
    return found


if __name__ == "__main__":
    print(json.dumps({"transactions": main(sys.argv[1:])}, indent=1))  # noqa: T201
