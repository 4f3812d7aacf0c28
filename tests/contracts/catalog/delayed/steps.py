"""The steps that tests of bucket lists are told in."""

from logstore.delayed.index_buckets import IndexBucket, IndexBucketList
from logstore.log.ledgers import Component
from logstore.ports.catalog.delayed import IndexBucketSwitch, NewIndexBucket
from logstore.ports.catalog.log import RegisterSegmentResult, RegisterSegmentWrite
from logstore.positions import LedgerId, Position, TopicId
from tests.contracts.catalog.steps import at, listed
from tests.contracts.catalog.worlds import World

FAR_MS = 4_000_000_000_000  # a delivery time in the far future of every world


def newborn(world: World, topic_id: TopicId) -> LedgerId:
    """The ledger of a snapshot, in no list yet."""
    return world.catalog.components.create_component_ledger(
        topic_id, Component.DELAYED_INDEX, {}, application="sexton"
    ).ledger_id


def delay(world: World, topic_id: TopicId, ledger_id: LedgerId, count: int, *, entries: int = 10) -> Position:
    """One more segment, with so many delayed entries among its entries; its last entry."""
    rows = {one.ledger_id: one for one in world.catalog.ledgers.list_ledgers(topic_id)}
    write = RegisterSegmentWrite(
        topic_id=topic_id,
        ledger_id=ledger_id,
        epoch=1,
        number=rows[ledger_id].last_segment + 1,
        entries=entries,
        size_bytes=100,
        delayed=count,
    )
    done = world.catalog.commits.commit_writes([write])[0]
    assert isinstance(done, RegisterSegmentResult)
    return Position(ledger_id, done.first_entry + entries - 1)


def bucket(
    bucket_id: LedgerId, first: Position, last: Position, *, messages: int = 3, last_ms: int = FAR_MS
) -> IndexBucket:
    """A bucket of that range."""
    times = {"first_ms": last_ms - 1_000, "last_ms": last_ms}
    return IndexBucket(bucket_id=bucket_id, first=first, last=last, messages=messages, segments=1, **times)


def born(*buckets: IndexBucket) -> tuple[NewIndexBucket, ...]:
    """Their ledgers are written."""
    return tuple(NewIndexBucket(bucket=one, size_bytes=50, sha256="ab") for one in buckets)


def seal_of(topic_id: TopicId, made: IndexBucket, *, expected: int) -> IndexBucketSwitch:
    """The switch that puts one bucket behind the others."""
    return IndexBucketSwitch(topic_id=topic_id, expected=expected, added=born(made), sealed_to=made.last)


def seal(
    world: World, topic_id: TopicId, first: Position, last: Position, *, messages: int = 3, last_ms: int = FAR_MS
) -> IndexBucket:
    """One more bucket behind the others, which must be taken."""
    made = bucket(newborn(world, topic_id), first, last, messages=messages, last_ms=last_ms)
    expected = world.catalog.delayed.get_bucket_list(topic_id).version
    assert world.catalog.delayed.switch_buckets(seal_of(topic_id, made, expected=expected))
    return made


def sealed(world: World, topic_id: TopicId, count: int, *, last_ms: int = FAR_MS) -> list[IndexBucket]:
    """So many buckets of one entry each, one after the other in the topic's first ledger."""
    ledger_id = listed(world, topic_id)[0]
    return [
        seal(world, topic_id, at(ledger_id, entry), at(ledger_id, entry), last_ms=last_ms) for entry in range(count)
    ]


def merge(
    found: IndexBucketList, pair: tuple[IndexBucket, IndexBucket], into: LedgerId, topic_id: TopicId
) -> IndexBucketSwitch:
    """The switch that puts one bucket into the place of two."""
    left, right = pair
    made = bucket(into, left.first, right.last, messages=left.messages + right.messages)
    gone = (left.bucket_id, right.bucket_id)
    return IndexBucketSwitch(topic_id=topic_id, expected=found.version, removed=gone, added=born(made), reason="merged")


def snapshots(world: World, topic_id: TopicId) -> list[LedgerId]:
    """Ledgers of snapshots in the list of them."""
    found = world.catalog.components.list_ledgers(topic_id)
    return [one.ledger_id for one in found if one.component is Component.DELAYED_INDEX]
