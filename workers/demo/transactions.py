"""Promise 4: two transactions over three topics and a subscription, and a worker that is killed between two of them."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from logstore.deletion.retention import RetentionPolicy
from logstore.errors import ServiceFailed
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.names import TopicName
from logstore.ports.catalog import Topic
from logstore.positions import Position
from logstore.transactions.transactions import TransactionId
from workers.assembly.adapters import open_log
from workers.assembly.log import LogStore
from workers.client import Sexton
from workers.demo.auditor import Auditor
from workers.demo.report import PromiseRow
from workers.demo.waiting import happens
from workers.settings import Settings

DEATH: Final = "transactions.append_markers.after=kill@1"
"""The worker that first tells a topic how a transaction ended dies before it tells the next."""

_SOURCE: Final = "billing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Transacted:
    """Two transactions on the same topics: one commits, one aborts."""

    kept: TransactionId
    gone: TransactionId
    topics: list[Topic]
    source: Topic  # each acknowledges one entry of it
    before: list[list[bytes]]  # what readers saw of each topic while both were open
    decided: list[list[bytes]]  # and once both were decided, with the broadcast cut short


async def transact(settings: Settings, died: Callable[[], bool], replace_worker: Callable[[], None]) -> Transacted:
    """Produce and acknowledge in both, decide both, and let another worker go on where one was killed."""
    with open_log(settings) as log:
        async with await Sexton.connect(settings) as sexton:
            transactions = sexton.transactions(log)
            source, *topics = [await asyncio.to_thread(_topic, log, name) for name in ("paid", "a", "b", "c")]
            first = log.managed.append(
                source, ProducedEntries(entries=[NewEntry(payload=b"1"), NewEntry(payload=b"2")])
            )
            kept, gone = await transactions.begin(), await transactions.begin()
            for topic in topics:
                await transactions.append(kept, topic, [NewEntry(payload=b"kept")])
                await transactions.append(gone, topic, [NewEntry(payload=b"gone")])
            for txn, position in ((kept, first.first), (gone, first.last)):
                if position:
                    await transactions.acknowledge(txn, source, _SOURCE, positions=[position])
            before = _read(log, topics)
            ends = [asyncio.create_task(transactions.commit(kept)), asyncio.create_task(transactions.abort(gone))]
            if not await happens(died):
                raise ServiceFailed("worker-3", "it did not die in the broadcast", advice="read its log")
            decided = _read(log, topics)
            await asyncio.to_thread(replace_worker)
            await asyncio.gather(*ends)
    return Transacted(kept=kept, gone=gone, topics=topics, source=source, before=before, decided=decided)


def _topic(log: LogStore, name: str) -> Topic:
    topic = log.catalog.topics.create(TopicName.parse(f"persistent://demo/shop/{name}").encoded, RetentionPolicy())
    log.subscriptions.subscribe(topic.topic_id, _SOURCE, latest=False)
    return topic


def _read(log: LogStore, topics: list[Topic]) -> list[list[bytes]]:
    return [[entry.payload or b"" for entry in log.managed.scan(topic)] for topic in topics]


def check_transactions(settings: Settings, auditor: Auditor, done: Transacted) -> PromiseRow:
    """All of the one and nothing of the other, at each moment; and each log tells how both ended."""
    names = {str(done.kept): ("COMMITTED", "COMMIT"), str(done.gone): ("ABORTED", "ABORT")}
    wrong = [f"{topic.name} showed {seen}" for topic, seen in zip(done.topics, done.before, strict=True) if seen]
    with open_log(settings) as log:
        after = _read(log, done.topics)
        state = log.subscriptions.reading(done.source.topic_id, _SOURCE)
        left = [entry.position for entry in log.managed.scan(done.source, cursor_state=state)]
    for moment in (done.decided, after):
        wrong += [
            f"{topic.name} showed {seen}" for topic, seen in zip(done.topics, moment, strict=True) if seen != [b"kept"]
        ]
    wrong += [f"{txn}: {state}" for txn, state in auditor.transactions().items() if names.get(txn, ("",))[0] != state]
    for topic in [*done.topics, done.source]:
        told = auditor.markers(topic.topic_id)
        wrong += [f"{topic.name} tells {sorted(told)}" for txn in names if told.get(txn) != {names[txn][1]}]
    wrong += [] if len(left) == 1 and left[0] == Position(left[0].ledger_id, 1) else [f"{len(left)} entries are left"]
    seen = (
        "worker killed between two of three topics and a subscription; one transaction on all of them,"
        " one on none, at every moment; each log tells how both ended"
    )
    return PromiseRow.of("4 all of a transaction, or nothing", wrong, seen)
