"""Jobs that a client of the soak starts: every workflow that a person or a program starts, in no order."""

import asyncio
import itertools
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final

from temporalio.client import WorkflowHandle

from logstore.errors import PreconditionFailed
from logstore.ownership import BundleId
from logstore.ports.catalog.deletion import AuditCause
from logstore.ports.catalog.log import Topic
from tests.soak.soak_setup import DELAYED_TOPICS, LIST_TOPICS, PLAIN_TOPICS, JournalsReader, OperationJournal
from tests.soak.spare_topic_jobs import SpareTopicJobs
from workers.assembly.log_store import LogStore
from workers.client import Sexton
from workers.operations.bundle_owners import BundleUnloader, open_directory
from workers.settings import Settings

_MAX_WAIT_S: Final = 90.0  # that a client waits for a job, which goes on without it
_MAX_BULK_WAIT_S: Final = 15.0  # the same where it uses the whole machine, and others take their turn before it
_REASON_AND_ACTOR: Final[dict[str, Any]] = {"reason": "soak", "actor": "soak"}
_PLANNED_AGE_S: Final = 120.0
"""Below the floor, and above four times the time in which an upload of the soak is registered or never."""


class ClientJobs:
    """Starts one job after the other and waits for each."""

    def __init__(self, settings: Settings, sexton: Sexton, log: LogStore, ops: OperationJournal) -> None:
        """Start them by `sexton`, and write down what was asked and answered.

        Args:
            settings: Where ZooKeeper is.
            sexton: Starts what is a workflow.
            log: Does what is none.
            ops: The journal.
        """
        self._settings, self._sexton, self._log, self._ops = settings, sexton, log, ops
        self._dice = random.Random()
        self._numbers = itertools.count()
        self._said = JournalsReader(settings.home)
        spares = SpareTopicJobs(sexton, log, ops, self._start_and_wait)
        self._weight_and_job_by_kind: dict[str, tuple[int, Callable[[], Awaitable[None]]]] = {
            "roll": (4, self._roll),
            "trim-topic": (3, self._trim),
            "trim-topics": (
                2,
                lambda: self._start_and_wait("trim-topics", self._sexton.trim_topics(**_REASON_AND_ACTOR)),
            ),
            "offload": (4, self._offload),
            "seal": (3, self._seal),
            "merge": (2, self._merge),
            "flush": (2, lambda: self._start_and_wait("flush", self._sexton.flush_records(**_REASON_AND_ACTOR))),
            "defragment": (
                1,
                lambda: self._start_and_wait("defragment", self._sexton.defragment_records(**_REASON_AND_ACTOR)),
            ),
            "raid": (1, self._raid),
            "replicate": (
                1,
                lambda: self._start_and_wait("replicate", self._sexton.replicate_records(**_REASON_AND_ACTOR)),
            ),
            "rewrite": (1, self._rewrite),
            "clear-delayed": (1, self._clear_delayed),
            "unload": (1, self._unload),
            "pace": (2, self._pause_and_slow_batch),
            "sweep": (1, lambda: self._start_and_wait("sweep", self._sexton.sweep_deletions(**_REASON_AND_ACTOR))),
            "redrive": (1, self._redrive),
            "delete-ledgers": (4, spares.delete_ledgers),
            "delete-topic": (3, spares.delete_topic),
            "operate": (3, spares.operate),
            "end-records": (2, spares.end_records),
            "schema": (2, self._schema),
            "build-delayed": (1, self._build_delayed),
            "build-snapshots": (1, self._build_snapshots),
            "reconcile": (1, self._reconcile),
        }

    async def run_least_begun_job(self) -> None:
        """One job to its end, of a kind that all clients have begun the least for its weight."""
        await asyncio.sleep(self._dice.uniform(0.2, 2.0))
        begun_count_by_kind = Counter(entry["job"] for entry in self._said.entries() if entry["what"] == "job")
        shares = {
            name: begun_count_by_kind[name] / weight for name, (weight, _) in self._weight_and_job_by_kind.items()
        }
        name = self._dice.choice([job for job, share in shares.items() if share == min(shares.values())])
        self._ops.say("job", job=name)
        await self._weight_and_job_by_kind[name][1]()

    async def _start_and_wait(
        self, kind: str, start: Awaitable[WorkflowHandle[Any, Any]], *, within_s: float = _MAX_WAIT_S, **request: Any
    ) -> Any:
        with self._ops.record_operation(kind, **request) as answer:
            handle = await asyncio.wait_for(start, 60)
            answer["workflow"] = handle.id
            result = await asyncio.wait_for(handle.result(), within_s)
            result_flags = {name: bool(getattr(result, name, None)) for name in ("refused", "stopped")}
            answer |= {"result": str(result)[:300], **result_flags}
            return result

    def _topic(self, names: tuple[str, ...]) -> Topic:
        return self._log.catalog.topics.get_topic(self._dice.choice(names))

    async def _roll(self) -> None:
        topic = await asyncio.to_thread(self._topic, PLAIN_TOPICS + LIST_TOPICS + DELAYED_TOPICS)
        with self._ops.record_operation("roll", topic=topic.name):
            await asyncio.to_thread(self._log.topic_logs.roll, topic)

    async def _trim(self) -> None:
        topic = await asyncio.to_thread(self._topic, PLAIN_TOPICS + DELAYED_TOPICS)
        await self._start_and_wait("trim-topic", self._sexton.trim_topic(topic, **_REASON_AND_ACTOR), topic=topic.name)

    async def _offload(self) -> None:
        topic, away = await asyncio.to_thread(self._topic, PLAIN_TOPICS + LIST_TOPICS), self._dice.random() < 0.5
        await self._start_and_wait(
            "offload", self._sexton.offload_topic(topic, None, away, "soak", "soak"), topic=topic.name, away=away
        )

    async def _seal(self) -> None:
        topic = await asyncio.to_thread(self._topic, DELAYED_TOPICS)
        await self._start_and_wait("seal", self._sexton.seal_buckets(topic, **_REASON_AND_ACTOR), topic=topic.name)

    async def _merge(self) -> None:
        topic = await asyncio.to_thread(self._topic, DELAYED_TOPICS)
        await self._start_and_wait("merge", self._sexton.merge_buckets(topic, 1, **_REASON_AND_ACTOR), topic=topic.name)

    async def _redrive(self) -> None:
        with self._ops.record_operation("redrive") as answer:
            redriven = await asyncio.wait_for(self._sexton.redrive_dead_letters(None, **_REASON_AND_ACTOR), 60)
            answer["started"] = redriven.started

    async def _build_delayed(self) -> None:
        await self._start_and_wait(
            "build-delayed", self._sexton.build_delayed_index(None, **_REASON_AND_ACTOR), within_s=_MAX_BULK_WAIT_S
        )

    async def _build_snapshots(self) -> None:
        await self._start_and_wait(
            "build-snapshots",
            self._sexton.build_transaction_snapshots(None, **_REASON_AND_ACTOR),
            within_s=_MAX_BULK_WAIT_S,
        )

    async def _reconcile(self) -> None:
        plan = self._sexton.plan_orphans(older_than_s=_PLANNED_AGE_S, unsafe_age=True, **_REASON_AND_ACTOR)
        plan_result = await self._start_and_wait("plan", plan)
        await self._start_and_wait(
            "apply", self._sexton.apply_orphans(plan_result.run_id, max_orphan_share=1.0, **_REASON_AND_ACTOR)
        )

    async def _schema(self) -> None:
        topic = await asyncio.to_thread(self._topic, PLAIN_TOPICS)
        text = f"{os.getpid()} {next(self._numbers)}".encode()
        with self._ops.record_operation("schema", topic=topic.name, text=text.decode()):
            await asyncio.to_thread(self._log.schemas.set, topic, text)

    async def _raid(self) -> None:
        age_s = self._dice.choice((0.0, None, None))  # with none at all every replica is too late, and is seeded again
        await self._start_and_wait("raid", self._sexton.raid_tombstones(age_s, **_REASON_AND_ACTOR))

    async def _rewrite(self) -> None:
        with self._ops.record_operation("rewrite"):
            await asyncio.to_thread(self._log.records.flusher.rewrite_all_records)

    async def _clear_delayed(self) -> None:
        topic = await asyncio.to_thread(self._topic, DELAYED_TOPICS)
        with self._ops.record_operation("clear-delayed", topic=topic.name) as answer:
            answer["buckets"] = await asyncio.to_thread(
                self._log.catalog.delayed.retire_all_buckets, topic.topic_id, reason="soak"
            )

    async def _unload(self) -> None:
        """Take any bundle from its owner."""
        catalog = self._log.catalog

        def work() -> None:
            count, catalog_id = catalog.fences.count_bundles(), catalog.identities.catalog_id()
            with open_directory(self._settings, count, catalog_id) as directory:
                unloading = BundleUnloader(catalog.fences, catalog.audit_log, directory)
                unloading.remove_owner(
                    unloading.find_owner(BundleId(self._dice.randrange(count))),
                    AuditCause(**_REASON_AND_ACTOR, workflow_id=""),
                )

        with self._ops.record_operation("unload"):
            await asyncio.to_thread(work)

    async def _pause_and_slow_batch(self) -> None:
        """Let a batch wait, and go on more slowly. One whose client is killed meanwhile is resumed when all is over."""
        running_batches = await self._sexton.list_workflows(type="delete-ledgers", status="Running", limit=5)
        if not running_batches:
            return
        batches, batch = self._sexton.batches, self._dice.choice(running_batches).workflow_id
        with self._ops.record_operation("pace", batch=batch) as answer:
            try:
                await batches.pause(batch)
                await asyncio.sleep(self._dice.uniform(0.2, 3.0))
                await batches.set_rate(batch, 50)
                await batches.resume(batch)
            except PreconditionFailed:
                answer["ended"] = True
