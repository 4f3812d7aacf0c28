"""Delayed messages on real servers: sealed, merged and built by workers that die by SIGKILL; looked at from outside."""

import asyncio
from collections import Counter
from typing import Any, Final

from logstore.deletion.retention import RetentionPolicy
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.ports.catalog.log import Topic
from logstore.positions import Position
from tests.faults.auditor import find_violations_at_any_moment, find_violations_at_rest
from tests.faults.failpoint_hits import Interruption
from tests.faults.real_world import MAX_WAIT_S, RealWorld, WorkerProcess, ended, wait_until_true
from workers.assembly.log_store_from_settings import open_log_store
from workers.client import Sexton

_NAME: Final = "persistent://shop/main/reminders"
_DUE_MS: Final = 4_000_000_000_000  # in the year 2096
_BUCKET_COUNT: Final = 3
_CHANGING_EFFECTS: Final = (
    "catalog.create_component_ledger",
    "component.put_meta",
    "component.put_segment",
    "catalog.switch_buckets",
)
_EFFECTS_HIT_ONCE: Final = ("catalog.claim_buckets", "catalog.release_buckets")
SEAL_AND_MERGE_POINTS: Final = {
    f"{effect}.{moment}": 1 if effect in _EFFECTS_HIT_ONCE else 2
    for effect in (*_CHANGING_EFFECTS, *_EFFECTS_HIT_ONCE)
    for moment in ("before", "after", "reported_failed")
}
"""Where a seal of several buckets comes by, and so do two merges: with the hit at which a process is to die."""

BUILD_POINTS: Final = {
    f"{effect}.{moment}": 1
    for effect in (*_CHANGING_EFFECTS, "delayed.publish_index", "catalog.release_buckets", "reconciliation.run_bulk")
    for moment in ("before", "after", "reported_failed")
}
"""Where a build of one topic comes by, beside what all bulk jobs do."""

_BUILT_WITHIN_S: Final = 240.0
"""Java starts twice where the first worker dies in the bulk job, whose heartbeats may be missed for 60 s."""

BucketMessages = Counter[tuple[int, Position]]


def _set_bucket_limit(world: RealWorld, max_buckets: int) -> None:
    """Workers that are started from now on seal each message by itself, and allow so many buckets."""
    limits = {"delayed_messages": 1, "delayed_buckets": max_buckets}
    world.settings = world.settings.model_copy(update=limits)


def _write_delayed_messages(world: RealWorld) -> tuple[Topic, BucketMessages]:
    """A topic, and what of its messages is pending; nobody acknowledges any."""
    with open_log_store(world.settings) as log:
        topic = log.catalog.topics.create_topic(_NAME, RetentionPolicy())
        log.subscriptions.subscribe(topic.topic_id, "reader", latest=False)
        pending: BucketMessages = Counter()
        for number in range(_BUCKET_COUNT):
            entry = NewEntry(payload=b"later", deliver_at_ms=_DUE_MS - number)
            appended = log.topic_logs.append(topic, ProducedEntries(entries=[entry]))
            assert appended.first
            pending[(_DUE_MS - number, appended.first)] += 1
        return topic, pending


def _read_bucket_messages(world: RealWorld, topic: Topic) -> tuple[BucketMessages, int]:
    """What the buckets hold, and how many there are, as a process that knows nothing reads them."""
    with open_log_store(world.settings) as log:
        listed = log.catalog.delayed.get_bucket_list(topic.topic_id)
        messages: BucketMessages = Counter()
        for bucket in listed.buckets:
            for rows in log.delayed.snapshots.iterate_rows(bucket):
                messages.update(zip(rows.deliver_at_ms.tolist(), rows.positions(), strict=True))
        return messages, len(listed.buckets)


async def worker_dies_in_a_seal(world: RealWorld, interruption: Interruption) -> None:
    """What was sealed until then is in buckets, each message once; another worker seals the rest."""
    _set_bucket_limit(world, max_buckets=20)
    topic, pending = await asyncio.to_thread(_write_delayed_messages, world)
    sexton = await Sexton.connect(world.settings)
    await _kill_worker_in_job(
        world, interruption, topic, pending, await sexton.seal_buckets(topic), expects_all_messages=False
    )
    assert await asyncio.to_thread(_read_bucket_messages, world, topic) == (pending, _BUCKET_COUNT)
    await _check_at_rest(world, interruption, sexton, topic)


async def worker_dies_in_a_merge(world: RealWorld, interruption: Interruption) -> None:
    """Nothing that is pending changes, right after the death and once another worker has merged the rest."""
    _set_bucket_limit(world, max_buckets=20)
    topic, pending = await asyncio.to_thread(_write_delayed_messages, world)
    sexton = await Sexton.connect(world.settings)
    sealer = await asyncio.to_thread(WorkerProcess, world, "worker-0")
    await ended(await sexton.seal_buckets(topic))
    await asyncio.to_thread(sealer.kill)
    _set_bucket_limit(world, max_buckets=1)
    await _kill_worker_in_job(
        world, interruption, topic, pending, await sexton.merge_buckets(topic), expects_all_messages=True
    )
    assert await asyncio.to_thread(_read_bucket_messages, world, topic) == (pending, 1)
    await _check_at_rest(world, interruption, sexton, topic)


async def worker_dies_in_a_build(world: RealWorld, interruption: Interruption) -> None:
    """The topic has its old buckets or its new one, and each message is in one of them."""
    _set_bucket_limit(world, max_buckets=20)
    topic, pending = await asyncio.to_thread(_write_delayed_messages, world)
    sexton = await Sexton.connect(world.settings)
    sealer = await asyncio.to_thread(WorkerProcess, world, "worker-0")
    await ended(await sexton.seal_buckets(topic))
    await asyncio.to_thread(sealer.kill)
    world.settings = world.settings.model_copy(update={"delayed_messages": 2 * _BUCKET_COUNT})
    job = await sexton.build_delayed_index([topic])
    await _kill_worker_in_job(
        world, interruption, topic, pending, job, expects_all_messages=True, within_s=_BUILT_WITHIN_S
    )
    counts = (await job.result()).counts
    assert (counts["switched"], counts["superseded"], counts["gone"]) == (1, 0, 0), f"{interruption}: {counts}"
    assert await asyncio.to_thread(_read_bucket_messages, world, topic) == (pending, 1)
    await _check_at_rest(world, interruption, sexton, topic)


async def _kill_worker_in_job(
    world: RealWorld,
    interruption: Interruption,
    topic: Topic,
    pending: BucketMessages,
    job: Any,
    *,
    expects_all_messages: bool,
    within_s: float = MAX_WAIT_S,
) -> None:
    """Let a worker meet its failpoint in the job, and another worker finish the job.

    Right after a kill, the index buckets hold each pending message once, or without `expects_all_messages` some of the
    pending messages once.
    """
    first_worker = await asyncio.to_thread(WorkerProcess, world, "worker-1", str(interruption))
    if interruption.action == "kill":
        await wait_until_true(lambda: not first_worker.alive, f"{interruption} kills its worker")
        bucket_messages, _ = await asyncio.to_thread(_read_bucket_messages, world, topic)
        assert bucket_messages == pending if expects_all_messages else bucket_messages <= pending, (
            f"right after {interruption}: {bucket_messages}"
        )
        violations = find_violations_at_any_moment(await asyncio.to_thread(world.look))
        assert not violations, f"right after {interruption}: {violations}"
        await asyncio.to_thread(WorkerProcess, world, "worker-2")
    await ended(job, within_s=within_s)


async def _check_at_rest(world: RealWorld, interruption: Interruption, sexton: Sexton, topic: Topic) -> None:
    """A trim takes what was retired; a ledger that was never listed waits for its registration timeout."""
    await ended(await sexton.trim_topic(topic, reason="a test", actor="tests"))
    await wait_until_true(lambda: not world.unfinished(), "every intent has ended")
    observation = await asyncio.to_thread(world.look)
    newborn = [f"ledger {row} was never attached" for row, it in observation.ledgers.items() if it.state == "CREATING"]
    violations = [
        it
        for it in find_violations_at_rest(observation, {})
        if not any(it.startswith(newborn_sentence) for newborn_sentence in newborn)
    ]
    assert not violations, f"{interruption}: {violations}"
