"""Jobs of the soak that end ledgers for good: each on a topic of its own, so that the auditor knows what is right."""

import asyncio
import os
import random
import time
from collections.abc import Awaitable
from typing import Any, Final, Protocol

from temporalio.client import WorkflowHandle

from logstore.deletion.retention import RetentionPolicy
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.log.ledgers import CopyKind
from logstore.ports.catalog.log import Topic
from logstore.positions import LedgerId
from logstore.records.tombstone_rules import CompoundOperation
from tests.soak.record_functions import OFFERED_NAME_PART, every_other
from tests.soak.soak_setup import CONSUMING_SUBSCRIPTION, SPARE_TOPIC_PREFIX, OperationJournal
from workers.assembly.log_store import LogStore
from workers.client import Sexton

_REASON_AND_ACTOR: Final = ("soak", "soak")  # reason and actor
_BOTH_COPIES: Final = frozenset({CopyKind.LEDGER, CopyKind.OFFLOADED_LEDGER})
_RETENTION_KEEPING_ALL: Final = RetentionPolicy(retention_s=86_400)
_CLOSED_LEDGERS: Final = 3  # closed ones of such a topic, of one entry each


class StartJob(Protocol):
    """Starts a job, waits for its end, and writes both down."""

    async def __call__(self, kind: str, start: Awaitable[WorkflowHandle[Any, Any]], **request: Any) -> Any:
        """The result."""


class SpareTopicJobs:
    """See the module."""

    def __init__(self, sexton: Sexton, log: LogStore, ops: OperationJournal, job: StartJob) -> None:
        """Make topics in `log`, and start jobs by `sexton`."""
        self._sexton, self._log, self._ops, self._job = sexton, log, ops, job

    async def delete_ledgers(self) -> None:
        """Two ledgers, durably or plain."""
        topic, ids = await self._topic()
        durable = random.random() < 0.5
        start = self._sexton.delete_ledgers(topic, ids[:2], True, *_REASON_AND_ACTOR, durable_delete=durable)
        await self._job("delete-ledgers", start, topic=topic.name, ledgers=ids[:2], durable=durable)

    async def delete_topic(self) -> None:
        """All components of a topic, which a trim may be about to take away."""
        topic, _ = await self._topic(consumed_count=_CLOSED_LEDGERS, policy=RetentionPolicy())
        durable = random.random() < 0.5
        start = self._sexton.delete_topic(topic, *_REASON_AND_ACTOR, durable_delete=durable)
        await self._job("delete-topic", start, topic=topic.name, topic_id=topic.topic_id, durable=durable)

    async def operate(self) -> None:
        """The tiered copy of one ledger; all copies of another one; and of a third one, which is still needed."""
        topic, ids = await self._topic()
        await self._job(
            "offload", self._sexton.offload_topic(topic, None, False, *_REASON_AND_ACTOR), topic=topic.name, away=False
        )
        durable, passed = random.random() < 0.5, frozenset({CONSUMING_SUBSCRIPTION})
        for ledger_id, remove, pass_over in (
            (ids[0], frozenset({CopyKind.OFFLOADED_LEDGER}), frozenset[str]()),
            (ids[1], _BOTH_COPIES, passed),
            (ids[2], _BOTH_COPIES, frozenset[str]()),
        ):
            operation = CompoundOperation(ledger_id=ledger_id, remove=remove, pass_over=pass_over)
            await self._job(
                "operate",
                self._sexton.run_compound_operation(topic, operation, *_REASON_AND_ACTOR, durable_delete=durable),
                topic=topic.name,
                ledger=ledger_id,
                remove=sorted(remove),
                pass_over=sorted(pass_over),
                durable=durable,
            )

    async def end_records(self) -> None:
        """Every other ledger, of this topic or of all; the last one is still needed."""
        topic, ids = await self._topic(
            name_part=OFFERED_NAME_PART.removeprefix("spare-"), consumed_count=_CLOSED_LEDGERS - 1
        )
        durable, of_all = random.random() < 0.5, random.random() < 0.3
        start = self._sexton.end_records(
            every_other.__name__, None if of_all else topic, *_REASON_AND_ACTOR, durable_delete=durable
        )
        await self._job("end-records", start, topic=topic.name, ledgers=ids, durable=durable)

    async def _topic(
        self, *, name_part: str = "", consumed_count: int = 0, policy: RetentionPolicy = _RETENTION_KEEPING_ALL
    ) -> tuple[Topic, list[LedgerId]]:
        """A new topic and its closed ledgers, of which a subscription has consumed the first ones; with a schema."""
        name = f"{SPARE_TOPIC_PREFIX}{name_part}{os.getpid()}-{time.time_ns():x}"
        entries: list[tuple[LedgerId, int, str]] = []

        def make() -> Topic:
            topic = self._log.catalog.topics.create_topic(name, policy)
            self._log.subscriptions.subscribe(topic.topic_id, CONSUMING_SUBSCRIPTION, latest=False)
            self._log.schemas.set(topic, name.encode())
            for number in range(_CLOSED_LEDGERS):
                payload = f"{name} {number}"
                entry = NewEntry(payload=payload.encode(), deliver_at_ms=number or None)
                first_position = self._log.topic_logs.append(topic, ProducedEntries(entries=[entry])).first
                assert first_position
                entries.append((first_position.ledger_id, first_position.entry_id, payload))
                if number < consumed_count:
                    self._log.subscriptions.acknowledge(
                        topic.topic_id, CONSUMING_SUBSCRIPTION, positions=(first_position,)
                    )
                self._log.topic_logs.roll(topic)
            return topic

        with self._ops.record_operation(
            "spare", topic=name, consumed=consumed_count, kept=policy is _RETENTION_KEEPING_ALL
        ) as answer:
            topic = await asyncio.to_thread(make)
            answer |= {"topic_id": topic.topic_id, "entries": entries}
            return topic, [stored_entry[0] for stored_entry in entries]
