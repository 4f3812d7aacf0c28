"""Delayed messages on real servers: sealed, merged and built by workers that die by SIGKILL; looked at from outside."""

import asyncio
from collections import Counter
from typing import Any, Final

from logstore.deletion.retention import RetentionPolicy
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.ports.catalog import Topic
from logstore.positions import Position
from tests.faults.auditor import wrong_at_any_moment, wrong_at_rest
from tests.faults.effects import Interruption
from tests.faults.real import ENDS_WITHIN_S, RealWorld, Worker, ended, eventually
from workers.assembly.log_store_from_settings import open_log_store
from workers.client import Sexton

_NAME: Final = "persistent://shop/main/reminders"
_DUE_MS: Final = 4_000_000_000_000  # in the year 2096
_BUCKETS: Final = 3
_OF_CHANGES: Final = (
    "catalog.create_component_ledger",
    "component.put_meta",
    "component.put_segment",
    "catalog.switch_buckets",
)
_ONCE: Final = ("catalog.claim_buckets", "catalog.release_buckets")
POINTS: Final = {
    f"{effect}.{moment}": 1 if effect in _ONCE else 2
    for effect in (*_OF_CHANGES, *_ONCE)
    for moment in ("before", "after", "reported_failed")
}
"""Where a seal of several buckets comes by, and so do two merges: with the hit at which a process is to die."""

BUILD_POINTS: Final = {
    f"{effect}.{moment}": 1
    for effect in (*_OF_CHANGES, "delayed.publish_index", "catalog.release_buckets", "reconciliation.run_bulk")
    for moment in ("before", "after", "reported_failed")
}
"""Where a build of one topic comes by, beside what all bulk jobs do."""

_BUILT_WITHIN_S: Final = 240.0
"""Java starts twice where the first worker dies in the bulk job, whose heartbeats may be missed for 60 s."""

Held = Counter[tuple[int, Position]]


def _limited(world: RealWorld, buckets: int) -> None:
    """Workers that are started from now on seal each message by itself, and allow so many buckets."""
    limits = {"delayed_messages": 1, "delayed_buckets": buckets}
    world.settings = world.settings.model_copy(update=limits)


def _written(world: RealWorld) -> tuple[Topic, Held]:
    """A topic, and what of its messages is pending; nobody acknowledges any."""
    with open_log_store(world.settings) as log:
        topic = log.catalog.topics.create_topic(_NAME, RetentionPolicy())
        log.subscriptions.subscribe(topic.topic_id, "reader", latest=False)
        pending: Held = Counter()
        for number in range(_BUCKETS):
            entry = NewEntry(payload=b"later", deliver_at_ms=_DUE_MS - number)
            done = log.managed.append(topic, ProducedEntries(entries=[entry]))
            assert done.first
            pending[(_DUE_MS - number, done.first)] += 1
        return topic, pending


def _held(world: RealWorld, topic: Topic) -> tuple[Held, int]:
    """What the buckets hold, and how many there are, as a process that knows nothing reads them."""
    with open_log_store(world.settings) as log:
        listed = log.catalog.delayed.get_bucket_list(topic.topic_id)
        held: Held = Counter()
        for bucket in listed.buckets:
            for rows in log.delayed.snapshots.iterate_rows(bucket):
                held.update(zip(rows.deliver_at_ms.tolist(), rows.positions(), strict=True))
        return held, len(listed.buckets)


async def worker_dies_in_a_seal(world: RealWorld, one: Interruption) -> None:
    """What was sealed until then is in buckets, each message once; another worker seals the rest."""
    _limited(world, buckets=20)
    topic, pending = await asyncio.to_thread(_written, world)
    sexton = await Sexton.connect(world.settings)
    await _dies(world, one, topic, pending, await sexton.seal_buckets(topic), whole=False)
    assert await asyncio.to_thread(_held, world, topic) == (pending, _BUCKETS)
    await _at_rest(world, one, sexton, topic)


async def worker_dies_in_a_merge(world: RealWorld, one: Interruption) -> None:
    """Nothing that is pending changes, right after the death and once another worker has merged the rest."""
    _limited(world, buckets=20)
    topic, pending = await asyncio.to_thread(_written, world)
    sexton = await Sexton.connect(world.settings)
    sealer = await asyncio.to_thread(Worker, world, "worker-0")
    await ended(await sexton.seal_buckets(topic))
    await asyncio.to_thread(sealer.kill)
    _limited(world, buckets=1)
    await _dies(world, one, topic, pending, await sexton.merge_buckets(topic), whole=True)
    assert await asyncio.to_thread(_held, world, topic) == (pending, 1)
    await _at_rest(world, one, sexton, topic)


async def worker_dies_in_a_build(world: RealWorld, one: Interruption) -> None:
    """The topic has its old buckets or its new one, and each message is in one of them."""
    _limited(world, buckets=20)
    topic, pending = await asyncio.to_thread(_written, world)
    sexton = await Sexton.connect(world.settings)
    sealer = await asyncio.to_thread(Worker, world, "worker-0")
    await ended(await sexton.seal_buckets(topic))
    await asyncio.to_thread(sealer.kill)
    world.settings = world.settings.model_copy(update={"delayed_messages": 2 * _BUCKETS})
    job = await sexton.build_delayed_index([topic])
    await _dies(world, one, topic, pending, job, whole=True, within_s=_BUILT_WITHIN_S)
    counts = (await job.result()).counts
    assert (counts["switched"], counts["superseded"], counts["gone"]) == (1, 0, 0), f"{one}: {counts}"
    assert await asyncio.to_thread(_held, world, topic) == (pending, 1)
    await _at_rest(world, one, sexton, topic)


async def _dies(
    world: RealWorld,
    one: Interruption,
    topic: Topic,
    pending: Held,
    job: Any,
    *,
    whole: bool,
    within_s: float = ENDS_WITHIN_S,
) -> None:
    """A worker meets its failpoint in the job; right after it, `whole` or in part, each message is held once."""
    first = await asyncio.to_thread(Worker, world, "worker-1", str(one))
    if one.action == "kill":
        await eventually(lambda: not first.alive, f"{one} kills its worker")
        held, _ = await asyncio.to_thread(_held, world, topic)
        assert held == pending if whole else held <= pending, f"right after {one}: {held}"
        wrong = wrong_at_any_moment(await asyncio.to_thread(world.look))
        assert not wrong, f"right after {one}: {wrong}"
        await asyncio.to_thread(Worker, world, "worker-2")
    await ended(job, within_s=within_s)


async def _at_rest(world: RealWorld, one: Interruption, sexton: Sexton, topic: Topic) -> None:
    """A trim takes what was retired; a ledger that was never listed waits for its registration timeout."""
    await ended(await sexton.trim_topic(topic, reason="a test", actor="tests"))
    await eventually(lambda: not world.unfinished(), "every intent has ended")
    seen = await asyncio.to_thread(world.look)
    newborn = [f"ledger {row} was never attached" for row, it in seen.ledgers.items() if it.state == "CREATING"]
    wrong = [it for it in wrong_at_rest(seen, {}) if not any(it.startswith(known) for known in newborn)]
    assert not wrong, f"{one}: {wrong}"
