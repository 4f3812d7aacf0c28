"""Jobs that a client of the soak starts: every workflow that a person or a program starts, in no order."""

import asyncio
import itertools
import os
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from temporalio.client import WorkflowHandle

from logstore.deletion.retention import RetentionPolicy
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.ports.catalog import Topic
from tests.soak.scene import CONSUMED, DELAYED, LISTS, PLAIN, SPARE, Ops
from workers.assembly.log import LogStore
from workers.client import Sexton

_WITHIN_S: Final = 90.0  # that a client waits for a job, which goes on without it
_ACTOR: Final = {"reason": "soak", "actor": "soak"}
_PLANNED_AGE_S: Final = 120.0
"""Below the floor, and above four times the time in which an upload of the soak is registered or never."""


class Jobs:
    """Starts one job after the other and waits for each."""

    def __init__(self, sexton: Sexton, log: LogStore, ops: Ops, dice: random.Random) -> None:
        """Start them by `sexton`, and write down what was asked and answered."""
        self._sexton, self._log, self._ops, self._dice = sexton, log, ops, dice
        self._numbers = itertools.count()
        self._kinds: dict[str, tuple[int, Callable[[], Awaitable[None]]]] = {
            "roll": (4, self._roll),
            "trim-topic": (3, self._trim),
            "trim-topics": (2, lambda: self._job("trim-topics", self._sexton.trim_topics(**_ACTOR))),
            "offload": (4, self._offload),
            "seal": (3, self._seal),
            "merge": (2, self._merge),
            "flush": (2, lambda: self._job("flush", self._sexton.flush_records(**_ACTOR))),
            "defragment": (1, lambda: self._job("defragment", self._sexton.defragment_records(**_ACTOR))),
            "raid": (1, lambda: self._job("raid", self._sexton.raid_tombstones(0, **_ACTOR))),
            "sweep": (1, lambda: self._job("sweep", self._sexton.sweep_deletions(**_ACTOR))),
            "redrive": (1, self._redrive),
            "delete-ledgers": (4, self._delete_ledgers),
            "delete-topic": (3, self._delete_topic),
            "schema": (2, self._schema),
            "build-delayed": (1, self._build_delayed),
            "build-snapshots": (1, self._build_snapshots),
            "reconcile": (1, self._reconcile),
        }

    async def one(self) -> None:
        """One job of any kind, to its end."""
        await asyncio.sleep(self._dice.uniform(0.2, 2.0))
        weights = [weight for weight, _ in self._kinds.values()]
        (name,) = self._dice.choices(list(self._kinds), weights)
        await self._kinds[name][1]()

    async def _job(self, kind: str, start: Awaitable[WorkflowHandle[Any, Any]], **asked: Any) -> Any:
        with self._ops.op(kind, **asked) as answer:
            handle = await asyncio.wait_for(start, 60)
            answer["workflow"] = handle.id
            result = await asyncio.wait_for(handle.result(), _WITHIN_S)
            answer |= {"result": str(result)[:300], "refused": bool(getattr(result, "refused", None))}
            return result

    def _topic(self, names: tuple[str, ...]) -> Topic:
        return self._log.catalog.topics.get(self._dice.choice(names))

    async def _roll(self) -> None:
        topic = await asyncio.to_thread(self._topic, PLAIN + LISTS + DELAYED)
        with self._ops.op("roll", topic=topic.name):
            await asyncio.to_thread(self._log.managed.roll, topic)

    async def _trim(self) -> None:
        topic = await asyncio.to_thread(self._topic, PLAIN + DELAYED)
        await self._job("trim-topic", self._sexton.trim_topic(topic, **_ACTOR), topic=topic.name)

    async def _offload(self) -> None:
        topic, away = await asyncio.to_thread(self._topic, PLAIN + LISTS), self._dice.random() < 0.5
        await self._job(
            "offload", self._sexton.offload_topic(topic, None, away, "soak", "soak"), topic=topic.name, away=away
        )

    async def _seal(self) -> None:
        topic = await asyncio.to_thread(self._topic, DELAYED)
        await self._job("seal", self._sexton.seal_buckets(topic, **_ACTOR), topic=topic.name)

    async def _merge(self) -> None:
        topic = await asyncio.to_thread(self._topic, DELAYED)
        await self._job("merge", self._sexton.merge_buckets(topic, 1, **_ACTOR), topic=topic.name)

    async def _redrive(self) -> None:
        with self._ops.op("redrive") as answer:
            done = await asyncio.wait_for(self._sexton.redrive(None, **_ACTOR), 60)
            answer["started"] = done.started

    async def _build_delayed(self) -> None:
        await self._job("build-delayed", self._sexton.build_delayed_index(None, **_ACTOR))

    async def _build_snapshots(self) -> None:
        await self._job("build-snapshots", self._sexton.build_transaction_snapshots(None, **_ACTOR))

    async def _reconcile(self) -> None:
        plan = self._sexton.plan_orphans(older_than_s=_PLANNED_AGE_S, unsafe_age=True, **_ACTOR)
        found = await self._job("plan", plan)
        await self._job("apply", self._sexton.apply_orphans(found.run_id, max_orphan_share=1.0, **_ACTOR))

    async def _schema(self) -> None:
        topic = await asyncio.to_thread(self._topic, PLAIN)
        text = f"{os.getpid()} {next(self._numbers)}".encode()
        with self._ops.op("schema", topic=topic.name, text=text.decode()):
            await asyncio.to_thread(self._log.schemas.set, topic, text)

    async def _delete_ledgers(self) -> None:
        """Two ledgers of a topic of its own, durably or plain; then the topic stays with the rest."""
        topic = await self._spare(consumed=False)
        rows = await asyncio.to_thread(lambda: self._log.catalog.ledgers.listed(topic.topic_id))
        ids = [one.ledger_id for one in rows][:2]
        durable = self._dice.random() < 0.5
        start = self._sexton.delete_ledgers(topic, ids, True, "soak", "soak", durable_delete=durable)
        await self._job("delete-ledgers", start, topic=topic.name, ledgers=ids, durable=durable)

    async def _delete_topic(self) -> None:
        """All components of a topic of its own."""
        topic, durable = await self._spare(consumed=True), self._dice.random() < 0.5
        start = self._sexton.delete_topic(topic, "soak", "soak", durable_delete=durable)
        await self._job("delete-topic", start, topic=topic.name, topic_id=topic.topic_id, durable=durable)

    async def _spare(self, *, consumed: bool) -> Topic:
        """A new topic with three closed ledgers, a subscription and a schema; what is consumed a trim may take away."""
        name = f"{SPARE}{os.getpid()}-{time.time_ns():x}"

        def make() -> Topic:
            topic = self._log.catalog.topics.create(name, RetentionPolicy())
            self._log.subscriptions.subscribe(topic.topic_id, CONSUMED, latest=False)
            self._log.schemas.set(topic, name.encode())
            for number in range(3):
                entry = NewEntry(payload=f"{name} {number}".encode(), deliver_at_ms=number or None)
                done = self._log.managed.append(topic, ProducedEntries(entries=[entry]))
                if consumed and done.first:
                    self._log.subscriptions.acknowledge(topic.topic_id, CONSUMED, positions=(done.first,))
                self._log.managed.roll(topic)
            return topic

        with self._ops.op("spare", topic=name) as answer:
            topic = await asyncio.to_thread(make)
            answer["topic_id"] = topic.topic_id
            return topic
