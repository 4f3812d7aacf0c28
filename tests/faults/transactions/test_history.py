"""The checker of histories finds each anomaly; and a concurrent run whose workers are killed has none."""

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from infra.stack import embedded_stack
from logstore.deletion.retention import RetentionPolicy
from logstore.errors import OutcomeUnknown, RetryableError, TransactionEnded
from logstore.log.entries import NewEntry
from logstore.ports.catalog.log import Topic
from logstore.transactions.transaction_ids_and_states import BROADCASTING_STATES, TransactionState
from tests.faults.real_world import RealWorld, WorkerProcess, wait_until_true
from tests.faults.transactions.client_history import ClientHistory, ListRead, TransactionWrite, find_history_violations
from tests.servers import create_store_settings
from workers.assembly.log_store import LogStore
from workers.assembly.log_store_from_settings import open_log_store
from workers.client import Sexton, workflow_search
from workers.client.temporal_connection import connect_client
from workers.client.transaction_client import TransactionClient

_TOPICS = 3
_CLIENTS = 4
_EACH = 8  # transactions of a client
_SEED = 20_261_122
_KILLS = ("transactions.append_markers.after=kill@2", "catalog.settle_transactions.after=kill@2", "")


def _written(**ends: tuple[str, Sequence[str]]) -> dict[str, TransactionWrite]:
    return {
        name: TransactionWrite(name, keys, began=0.0, asked=1.0, ended=2.0, end=end)  # type: ignore[arg-type]  # one of its words
        for name, (end, keys) in ends.items()
    }


@pytest.mark.parametrize(
    ("found", "writes", "reads", "last"),
    [
        ("aborted read", _written(t=("aborted", "a")), [ListRead("a", 3, 4, ["t"])], {"a": ["t"]}),
        ("dirty read", _written(t=("committed", "a")), [ListRead("a", 0, 0.5, ["t"])], {"a": ["t"]}),
        ("is lost", _written(t=("committed", "ab")), [], {"a": ["t"], "b": []}),
        ("there twice", _written(t=("committed", "a")), [], {"a": ["t", "t"]}),
        ("is torn", _written(t=("unknown", "ab")), [], {"a": ["t"], "b": []}),
        (
            "does not begin",
            _written(t=("committed", "a"), u=("committed", "a")),
            [ListRead("a", 3, 4, ["u", "t"])],
            {"a": ["t", "u"]},
        ),
        (
            "are read after",
            _written(t=("committed", "a")),
            [ListRead("a", 3, 4, ["t"]), ListRead("a", 5, 6, [])],
            {"a": ["t"]},
        ),
        (
            "nothing was open",
            _written(t=("committed", "ab")),
            [ListRead("a", 3, 4, ["t"]), ListRead("b", 5, 6, [])],
            {"a": ["t"], "b": ["t"]},
        ),
        ("never written", {}, [ListRead("a", 0, 1, ["t"])], {"a": ["t"]}),
    ],
)
def test_checker_finds_each_anomaly(
    found: str, writes: dict[str, TransactionWrite], reads: list[ListRead], last: Mapping[str, Sequence[str]]
) -> None:
    """Else it would find none in any run."""
    wrong = find_history_violations(ClientHistory(writes, reads), last)
    assert any(found in sentence for sentence in wrong), wrong


def test_checker_accepts_what_is_serial() -> None:
    """A transaction that waits behind an open one is not torn."""
    writes = _written(t=("committed", "ab"), u=("aborted", "b"), v=("committed", "b"))
    writes["v"].ended = 9.0
    reads = [ListRead("a", 3, 4, ["t"]), ListRead("b", 5, 6, []), ListRead("b", 10, 11, ["t", "v"])]
    assert find_history_violations(ClientHistory(writes, reads), {"a": ["t"], "b": ["t", "v"]}) == []


class _Run:
    """Clients and readers over one log, in one event loop; workers are other processes."""

    def __init__(self, log: LogStore, client: TransactionClient, topics: Mapping[str, Topic]) -> None:
        self.log, self.client, self.topics = log, client, topics
        self.history = ClientHistory()
        self.writing = True

    async def write(self, number: int) -> None:
        """Transactions one after the other; each appends its name to some lists."""
        dice = random.Random(_SEED + number)
        for turn in range(_EACH):
            keys = dice.sample(sorted(self.topics), dice.randint(2, _TOPICS))
            write = TransactionWrite(f"{number}-{turn}", keys, began=time.monotonic())
            self.history.writes[write.name] = write
            try:
                await self._transact(write, commit=dice.random() < 0.75)
            except (RetryableError, OutcomeUnknown, TransactionEnded):
                write.end = "unknown"
            write.ended = time.monotonic()

    async def _transact(self, write: TransactionWrite, *, commit: bool) -> None:
        txn = await self.client.begin(timeout_s=30.0)
        for key in write.keys:
            await self.client.append(txn, self.topics[key], [NewEntry(payload=write.name.encode())])
        write.asked = time.monotonic() if commit else None
        state = await (self.client.commit(txn) if commit else self.client.abort(txn))
        write.end = "committed" if state.is_commit else "aborted"

    async def read(self) -> None:
        """All lists, again and again."""
        while self.writing:
            for key in self.topics:
                began = time.monotonic()
                elements = await asyncio.to_thread(self.elements, key)
                self.history.reads.append(ListRead(key, began, time.monotonic(), elements))
            await asyncio.sleep(0.02)

    def elements(self, key: str) -> list[str]:
        """The list now."""
        return [(entry.payload or b"").decode() for entry in self.log.topic_logs.scan(self.topics[key])]


@pytest.mark.external_service
@pytest.mark.sigkill
@pytest.mark.timeout(1_500)
def test_concurrent_transactions_whose_workers_are_killed_have_a_serial_order(
    servers: embedded_stack.StackAddresses, tmp_path: Path
) -> None:
    """Two workers die by SIGKILL in the middle of broadcasts, a third one ends them (promises 4 and 8)."""
    world = RealWorld(create_store_settings(servers, tmp_path, transaction_coordinators=2)).prepare()
    try:
        asyncio.run(_run(world))
    finally:
        world.close()


async def _run(world: RealWorld) -> None:
    await workflow_search.register_search_attributes(await connect_client(world.settings))
    sexton = await Sexton.connect(world.settings)
    with open_log_store(world.settings) as log:
        topics = {key: log.catalog.topics.create_topic(f"persistent://x/y/{key}", RetentionPolicy()) for key in "abc"}
        run = _Run(log, sexton.transactions(log), topics)
        reading = asyncio.create_task(run.read())
        writing = asyncio.gather(*(run.write(number) for number in range(_CLIENTS)))
        killed = 0
        for number, armed in enumerate(_KILLS):
            worker = await asyncio.to_thread(WorkerProcess, world, f"worker-{number}", *filter(None, [armed]))
            if armed:
                await wait_until_true(lambda worker=worker: not worker.alive or writing.done(), "it dies")  # type: ignore[misc]
                killed += not worker.alive
        await asyncio.wait_for(writing, 90)
        run.writing = False
        await reading
        decided = tuple(map(TransactionState, BROADCASTING_STATES))
        await wait_until_true(
            lambda: not log.catalog.transactions.list_transactions(states=decided, limit=1), "all are through"
        )
        last = {key: run.elements(key) for key in topics}
    wrong = find_history_violations(run.history, last)
    assert not wrong, "\n".join(wrong)
    assert killed == len(_KILLS) - 1, "a worker was to die in a broadcast"
    assert sum(map(len, last.values())) > _CLIENTS, "hardly anything was committed"
    assert any(read.elements for read in run.history.reads)
