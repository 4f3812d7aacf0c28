"""The steps that tests of the catalog are told in."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from logstore.deletion.retention import RetentionPolicy
from logstore.log.entries import ProducerSequenceRange
from logstore.ports.catalog.log import (
    AcknowledgeWrite,
    GroupCommitResult,
    RegisterSegmentResult,
    RegisterSegmentWrite,
    Topic,
)
from logstore.positions import LedgerId, Position, TopicId
from tests.contracts.catalog.worlds import World

T = TypeVar("T")

NAME = "persistent://a/b/topic"
CROWD = 32


def new_topic(world: World, name: str = NAME, **policy: int) -> Topic:
    """A topic without ledgers."""
    return world.catalog.topics.create_topic(name, RetentionPolicy(**policy))


def newborn(world: World, topic_id: TopicId) -> LedgerId:
    """A ledger in no list yet."""
    return world.catalog.ledgers.create_ledger(topic_id, application="sexton").ledger_id


def roll(world: World, topic_id: TopicId) -> LedgerId:
    """A new ledger at the end of the list."""
    last = world.catalog.ledgers.last_ledger(topic_id)
    ledger_id = newborn(world, topic_id)
    assert world.catalog.ledgers.attach_ledger(ledger_id, after=last.ledger_id if last else None)
    return ledger_id


def segment(
    topic_id: TopicId,
    ledger_id: LedgerId,
    number: int,
    *,
    entries: int = 10,
    size_bytes: int = 100,
    epoch: int = 1,
    producers: Sequence[tuple[str, int, int]] = (),
) -> RegisterSegmentWrite:
    """The registration of one segment; producers are name, first and last sequence id."""
    return RegisterSegmentWrite(
        topic_id=topic_id,
        ledger_id=ledger_id,
        epoch=epoch,
        number=number,
        entries=entries,
        size_bytes=size_bytes,
        producers=tuple(
            ProducerSequenceRange(producer=name, first=first, last=last) for name, first, last in producers
        ),
    )


def append(world: World, topic_id: TopicId, ledger_id: LedgerId, *, entries: int = 10, size_bytes: int = 100) -> None:
    """One more segment, which must be taken."""
    listed = {ledger.ledger_id: ledger for ledger in world.catalog.ledgers.list_ledgers(topic_id)}
    number = listed[ledger_id].last_segment + 1
    write = segment(topic_id, ledger_id, number, entries=entries, size_bytes=size_bytes)
    assert isinstance(world.catalog.commits.commit_writes([write])[0], RegisterSegmentResult)


def filled(world: World, topic_id: TopicId, count: int, *, entries: int = 10, size_bytes: int = 100) -> list[LedgerId]:
    """So many ledgers at the end of the list, each with entries, the last one open."""
    ledgers = []
    for _ in range(count):
        ledgers.append(roll(world, topic_id))
        append(world, topic_id, ledgers[-1], entries=entries, size_bytes=size_bytes)
    return ledgers


def acknowledge(
    world: World, topic_id: TopicId, name: str, *entries: tuple[int, int], up_to: tuple[int, int] | None = None
) -> GroupCommitResult:
    """Acknowledge single entries, or everything up to one."""
    write = AcknowledgeWrite(
        topic_id=topic_id,
        subscription=name,
        positions=tuple(at(*entry) for entry in entries),
        up_to=at(*up_to) if up_to else None,
    )
    return world.catalog.commits.commit_writes([write])[0]


def at(ledger_id: int, entry_id: int) -> Position:
    """A position."""
    return Position(LedgerId(ledger_id), entry_id)


def listed(world: World, topic_id: TopicId) -> list[LedgerId]:
    """Ids of the list."""
    return [ledger.ledger_id for ledger in world.catalog.ledgers.list_ledgers(topic_id)]


def race(work: Callable[[int], T], runners: int = CROWD) -> list[T | Exception]:
    """Run `work` with 0 to `runners` - 1 at the same moment; what each returned or raised."""
    gate = threading.Barrier(runners)

    def run(number: int) -> T | Exception:
        gate.wait()
        try:
            return work(number)
        except Exception as error:  # noqa: BLE001 - the test looks at it
            return error

    with ThreadPoolExecutor(runners) as pool:
        return list(pool.map(run, range(runners)))
