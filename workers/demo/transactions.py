"""Promise 4: two transactions over three topics and a subscription, and a worker that is killed in a broadcast."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from logstore.errors import ServiceFailed
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.ports.catalog.log import Topic
from logstore.positions import Position
from logstore.transactions.transaction_ids_and_states import TransactionId
from workers.assembly.log_store import LogStore
from workers.assembly.log_store_from_settings import open_log_store
from workers.client import Sexton
from workers.demo.direct_store_access import DirectStoreAccess
from workers.demo.promise_report import PromiseResult, create_topic_with_subscriptions
from workers.demo.temporary_homes import wait_until
from workers.settings import Settings

DEATH_IN_BROADCAST: Final = "transactions.append_markers.after=kill@1"
"""Failpoint: the worker that broadcasts a transaction dies after the transaction marker of the first topic."""

_SOURCE: Final = "billing"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidedTransactions:
    """Two transactions on the same topics, one committed and one aborted, with the message payloads that were read."""

    committed: TransactionId
    aborted: TransactionId
    topics: list[Topic]
    source: Topic  # topic of which each transaction acknowledges one entry
    payloads_before: list[list[bytes]]  # message payloads by topic, read while both transactions were open
    payloads_decided: list[list[bytes]]  # message payloads by topic, read during the interrupted broadcast


async def run_transactions(
    settings: Settings, has_died: Callable[[], bool], replace_worker: Callable[[], None]
) -> DecidedTransactions:
    with open_log_store(settings) as log:
        async with await Sexton.connect(settings) as sexton:
            transactions = sexton.transactions(log)
            source, *topics = [
                await asyncio.to_thread(create_topic_with_subscriptions, log, name, _SOURCE)
                for name in ("paid", "a", "b", "c")
            ]
            first = log.topic_logs.append(
                source, ProducedEntries(entries=[NewEntry(payload=b"1"), NewEntry(payload=b"2")])
            )
            committed, aborted = await transactions.begin(), await transactions.begin()
            for topic in topics:
                await transactions.append(committed, topic, [NewEntry(payload=b"kept")])
                await transactions.append(aborted, topic, [NewEntry(payload=b"gone")])
            for txn, position in ((committed, first.first), (aborted, first.last)):
                if position:
                    await transactions.acknowledge(txn, source, _SOURCE, positions=[position])
            payloads_before = _read_topics(log, topics)
            decisions = [
                asyncio.create_task(transactions.commit(committed)),
                asyncio.create_task(transactions.abort(aborted)),
            ]
            if not await wait_until(has_died):
                raise ServiceFailed("worker-3", "it did not die in the broadcast", advice="read its log")
            payloads_decided = _read_topics(log, topics)
            await asyncio.to_thread(replace_worker)
            await asyncio.gather(*decisions)
    return DecidedTransactions(
        committed=committed,
        aborted=aborted,
        topics=topics,
        source=source,
        payloads_before=payloads_before,
        payloads_decided=payloads_decided,
    )


def _read_topics(log: LogStore, topics: list[Topic]) -> list[list[bytes]]:
    return [[entry.payload or b"" for entry in log.topic_logs.scan(topic)] for topic in topics]


def check_transactions(
    settings: Settings, store_access: DirectStoreAccess, transactions: DecidedTransactions
) -> PromiseResult:
    """Check that readers saw only the committed transaction, and that each log has both transaction markers."""
    ends = {str(transactions.committed): ("COMMITTED", "COMMIT"), str(transactions.aborted): ("ABORTED", "ABORT")}
    problems = [
        f"{topic.name} showed {payloads}"
        for topic, payloads in zip(transactions.topics, transactions.payloads_before, strict=True)
        if payloads
    ]
    with open_log_store(settings) as log:
        payloads_after = _read_topics(log, transactions.topics)
        state = log.subscriptions.read_state(transactions.source.topic_id, _SOURCE)
        unread = [entry.position for entry in log.topic_logs.scan(transactions.source, cursor_state=state)]
    for payloads_by_topic in (transactions.payloads_decided, payloads_after):
        problems += [
            f"{topic.name} showed {payloads}"
            for topic, payloads in zip(transactions.topics, payloads_by_topic, strict=True)
            if payloads != [b"kept"]
        ]
    states = store_access.read_transaction_states()
    expected_states = {txn: state for txn, (state, _) in ends.items()}
    problems += [
        f"{txn}: {states.get(txn)}"
        for txn in sorted(states.keys() | ends.keys())
        if states.get(txn) != expected_states.get(txn)
    ]
    for topic in [*transactions.topics, transactions.source]:
        markers = store_access.read_transaction_markers(topic.topic_id)
        problems += [f"{topic.name} tells {sorted(markers)}" for txn in ends if markers.get(txn) != {ends[txn][1]}]
    is_second_entry_unread = len(unread) == 1 and unread[0] == Position(unread[0].ledger_id, 1)
    problems += [] if is_second_entry_unread else [f"{len(unread)} entries are left"]
    evidence = (
        "worker killed between two of three topics and a subscription; one transaction on all of them,"
        " one on none, at every moment; each log tells how both ended"
    )
    return PromiseResult.from_problems("4 all of a transaction, or nothing", problems, evidence)
