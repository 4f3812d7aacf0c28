"""Steps of transactions, each one group commit."""

from collections.abc import Sequence

from logstore.errors import SextonError
from logstore.log.ledgers import LedgerState
from logstore.ports.catalog.log import (
    AcknowledgeWrite,
    BeginTransactionResult,
    BeginTransactionWrite,
    EndTransactionResult,
    EndTransactionWrite,
    GroupCommitResult,
    GroupCommitWrite,
    RegisterSegmentResult,
    RegisterSegmentWrite,
    Topic,
)
from logstore.ports.catalog.transactions import SettlementReason
from logstore.positions import LedgerId, Position, TopicId
from logstore.transactions.transaction_ids_and_states import (
    Participant,
    TransactionEntryRange,
    TransactionId,
    TransactionState,
)
from tests.contracts.catalog.steps import at, roll, segment
from tests.contracts.catalog.worlds import SqlWorld


def one(world: SqlWorld, write: GroupCommitWrite) -> GroupCommitResult:
    """A commit of one write."""
    return world.catalog.commits.commit_writes([write])[0]


def begin(world: SqlWorld, *, tc_id: int = 0, timeout_s: float = 60.0) -> TransactionId:
    """An open transaction."""
    found = one(world, BeginTransactionWrite(tc_id=tc_id, timeout_s=timeout_s))
    assert isinstance(found, BeginTransactionResult)
    return found.txn


def end(world: SqlWorld, txn: TransactionId, *, commit: bool) -> TransactionState:
    """Decide it."""
    found = one(world, EndTransactionWrite(txn=txn, commit=commit))
    if isinstance(found, SextonError):
        raise found
    assert isinstance(found, EndTransactionResult)
    return found.state


def registration(
    world: SqlWorld, topic: Topic, parts: Sequence[tuple[TransactionId | None, int]], *, markers: Sequence[int] = ()
) -> RegisterSegmentWrite:
    """Parts of a segment in order: the transaction of each, if any, and how many entries it has."""
    last = world.catalog.ledgers.last_ledger(topic.topic_id)
    ledger_id = last.ledger_id if last and last.state is LedgerState.OPEN else roll(world, topic.topic_id)
    last = world.catalog.ledgers.last_ledger(topic.topic_id)
    assert last
    ranges, offset = list[TransactionEntryRange](), 0
    for txn, entries in parts:
        if txn:
            ranges.append(TransactionEntryRange(txn, offset, entries))
        offset += entries
    plain = segment(topic.topic_id, ledger_id, last.last_segment + 1, entries=offset)
    return RegisterSegmentWrite(
        topic_id=plain.topic_id,
        ledger_id=plain.ledger_id,
        epoch=plain.epoch,
        number=plain.number,
        entries=plain.entries,
        size_bytes=plain.size_bytes,
        transactions=tuple(ranges),
        markers=tuple(markers),
    )


def produce(
    world: SqlWorld, topic: Topic, *parts: tuple[TransactionId | None, int], markers: Sequence[int] = ()
) -> Position:
    """Store a segment, which must be taken; its first entry."""
    write = registration(world, topic, parts, markers=markers)
    found = one(world, write)
    assert isinstance(found, RegisterSegmentResult), found
    return at(write.ledger_id, found.first_entry)


def hold(
    world: SqlWorld,
    topic: Topic,
    name: str,
    txn: TransactionId,
    *positions: Position,
    up_to: Position | None = None,
    releases: int | None = None,
) -> GroupCommitResult:
    """Acknowledge in a transaction."""
    write = AcknowledgeWrite(
        topic_id=topic.topic_id, subscription=name, positions=positions, up_to=up_to, releases=releases, txn=txn
    )
    return one(world, write)


def visible(world: SqlWorld, topic_id: TopicId) -> list[Position]:
    """What readers see, computed from the frontier."""
    frontier = world.catalog.transactions.read_frontier(topic_id)
    if frontier.last is None:
        return []
    everything = [
        Position(LedgerId(ledger.ledger_id), entry)
        for ledger in world.catalog.ledgers.list_ledgers(topic_id)
        for entry in range(ledger.entries)
    ]
    return [
        one for one in everything if one <= frontier.last and one.entry_id not in frontier.hidden.get(one.ledger_id, ())
    ]


def settle(world: SqlWorld, txn: TransactionId, topic: Topic, *subscriptions: str) -> list[TransactionId]:
    """Tell the topic's participants of one transaction; which are final."""
    names = subscriptions or ("",)
    done = [(txn, Participant(topic.topic_id, name), SettlementReason.MARKED) for name in names]
    return [one.txn for one in world.catalog.transactions.settle_participants(done)]
