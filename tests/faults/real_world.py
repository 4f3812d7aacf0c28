"""Worlds on real servers: workers and writers are processes that die by SIGKILL, the auditor asks by boto3."""

import asyncio
import itertools
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Self

import boto3
from botocore.config import Config
from temporalio.client import WorkflowHandle

from activities.deletion.phase_two_steps import delete_ledger_workflow_id
from infra.stack.service_process import ServiceProcess
from infra.stack.stack_home import StackHome
from logstore import failpoints
from logstore.deletion.intents import DeletionState, IntentKey
from logstore.identity.bucket_markers import MARKER_KEY, marker_content
from logstore.ports.catalog.deletion import AuditCause, Claim
from tests.all_topics import list_all_topics
from tests.faults.auditor import Observation, expected_payload, look
from tests.faults.topic_plans import FOREIGN_OBJECTS, StorageTrouble, TopicPlan
from tests.servers import CATALOG_ID
from workers.assembly.log_store import LogStore
from workers.assembly.log_store_from_settings import open_log_store
from workers.client import Sexton
from workers.client.temporal_connection import connect_client
from workers.operations.embedded_stack import start_worker
from workers.settings import Settings
from workflows.deletion.delete_ledger import DeleteLedger
from workflows.deletion.delete_ledgers import DeleteLedgers
from workflows.deletion.job_definitions import DELETE_LEDGERS, DeleteLedgerInput, DeleteLedgersInput

_PLAN = TopicPlan(name="persistent://shop/main/real", ledgers=6, acknowledged={"billing": 6}, components=True)
SQUATTED_PLANS: Final = (replace(_PLAN, troubles={1: StorageTrouble.SQUATTED}),)
WRITER_PLANS: Final = (_PLAN,)
REAL_NEIGHBOUR_PLANS: Final = (
    TopicPlan(
        name="persistent://shop/main/beside",
        ledgers=4,
        acknowledged={"billing": 4},
        troubles={0: StorageTrouble.SQUATTED},
        neighbours=True,
    ),
)
"""Of three ledgers that go, two stand side by side in a shard."""
MAX_WAIT_S: Final = 400.0
"""Bound of each wait. On a busy machine a worker alone takes a minute to start."""
MAX_STOP_S: Final = 60.0
"""Bound between the signal that stops a process and its end. A process that hangs must not pass for a slow one."""
_FIRST_IDS: Final = itertools.count(1_000, 1_000)


class RealWorld:
    """A bucket and a catalog of a test's own on shared servers."""

    def __init__(self, settings: Settings) -> None:
        """Reach it; `prepare` makes it ready."""
        self.settings = settings
        self.planted: dict[str, bytes] = {}
        self.database = Path(settings.database_url.removeprefix("sqlite:///"))
        self._s3 = boto3.client(
            "s3",
            endpoint_url=settings.s3_endpoint,
            region_name=settings.s3_region,
            aws_access_key_id=settings.s3_access_key.get_secret_value(),
            aws_secret_access_key=settings.s3_secret_key.get_secret_value(),
            config=Config(s3={"addressing_style": "path"}),
        )

    def prepare(self) -> Self:
        """Plant what belongs to others, make room for workers, and count ids from a number of its own.

        A namespace of Temporal serves one catalog. Here many share one, and workflow ids carry the catalog's ids.
        """
        first_id = next(_FIRST_IDS)
        with closing(sqlite3.connect(self.database)) as connection, connection:
            connection.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('topic', ?)", (first_id,))
            connection.execute("UPDATE catalog SET next_ledger_id = ?", (first_id,))
        StackHome.at(self.settings.home).create_directories_and_check_space()
        self.planted[MARKER_KEY] = marker_content(CATALOG_ID)
        for key, body in FOREIGN_OBJECTS.items():
            self.plant(key, body)
        return self

    def plant(self, key: str, body: bytes) -> None:
        """Put an object that is not Sexton's."""
        self._s3.put_object(Bucket=self.settings.primary_bucket, Key=key, Body=body)
        self.planted[key] = body

    def unmark(self) -> None:
        """Let the store be one from before markers."""
        for bucket in (self.settings.primary_bucket, self.settings.tiered_bucket):
            self._s3.delete_object(Bucket=bucket, Key=MARKER_KEY)
        with closing(sqlite3.connect(self.database, timeout=30)) as connection, connection:
            connection.execute("DELETE FROM bucket_marker")

    def look(self) -> Observation:
        """What the auditor sees; asked while nothing runs, or after it."""
        objects, tiered_bodies = (
            self._read_bucket(name) for name in (self.settings.primary_bucket, self.settings.tiered_bucket)
        )
        del tiered_bodies[MARKER_KEY]
        uploads = self._s3.list_multipart_uploads(Bucket=self.settings.tiered_bucket).get("Uploads", ())
        return look(
            self.database,
            objects,
            self.planted,
            tiered_objects=tiered_bodies,
            open_upload_keys={upload["Key"] for upload in uploads},
        )

    def _read_bucket(self, bucket: str) -> dict[str, bytes]:
        pages = self._s3.get_paginator("list_objects_v2").paginate(Bucket=bucket)
        keys = [item["Key"] for page in pages for item in page.get("Contents", ())]
        return {key: self._s3.get_object(Bucket=bucket, Key=key)["Body"].read() for key in keys}

    def unfinished(self, copy: str = "%") -> int:
        """How many intents have not ended, of one kind of copy or of all."""
        return self._count_intents(f"state = 'PENDING' AND copy LIKE '{copy}'")

    def expire_uploads(self) -> None:
        """Let so much time pass that nothing of any upload can land any more."""
        with closing(sqlite3.connect(self.database, timeout=30)) as connection, connection:
            for table in ("ledger_copy", "pending_deletion"):
                ended = (
                    f"UPDATE {table} SET context = json_set(context, '$.until_us', '1') WHERE context LIKE '%until%'"
                )
                connection.execute(ended)

    def ended(self) -> int:
        """How many intents have ended."""
        return self._count_intents("state <> 'PENDING'")

    def _count_intents(self, where: str) -> int:
        with closing(sqlite3.connect(self.database, timeout=30)) as connection:
            return int(connection.execute(f"SELECT count(*) FROM pending_deletion WHERE {where}").fetchone()[0])

    def trouble(self, ledger_id: int, trouble: StorageTrouble, *, last_segment: int) -> None:
        """Let storage misbehave for one ledger; a real one can only hold what somebody else put there."""
        assert trouble is StorageTrouble.SQUATTED
        assert last_segment >= 0
        self.plant(f"ledgers/{ledger_id % 256:02x}/{ledger_id:016x}/notes.txt", b"somebody else's")

    @contextmanager
    def process(self, *, registration_timeout_s: float = 600) -> Iterator[LogStore]:
        """The log as any process opens it."""
        del registration_timeout_s
        with open_log_store(self.settings) as log:
            yield log

    def close(self) -> None:
        """Close the auditor's connections, and end workers that a failed test left."""
        self._s3.close()
        home = StackHome.at(self.settings.home)
        for path in home.pids.glob("worker*.json"):
            ServiceProcess(path.stem, home).kill()


class WorkerProcess:
    """A worker process of a world."""

    def __init__(self, world: RealWorld, name: str, *armed: str) -> None:
        """Start it, with failpoints armed, and wait until it polls."""
        self._process = ServiceProcess(name, StackHome.at(world.settings.home))
        extra = world.settings.environment() | {failpoints.ENVIRONMENT_VARIABLE: ",".join(armed)}
        self.pid = start_worker(world.settings, name=name, extra_env=extra)

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.find_process() is not None

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()


async def wait_until_true(is_true: Callable[[], bool], description: str, *, within_s: float = MAX_WAIT_S) -> None:
    """Wait until it is so.

    Raises:
        AssertionError: It was not, in time.
    """
    give_up = time.monotonic() + within_s
    while not await asyncio.to_thread(is_true):
        assert time.monotonic() < give_up, f"not within {within_s:g} s: {description}"
        await asyncio.sleep(0.1)


async def ended(handle: WorkflowHandle[Any, Any], *, within_s: float = MAX_WAIT_S) -> None:
    """Wait for the workflow's end; if it does not come, say what it and its children wait for."""
    try:
        await asyncio.wait_for(handle.result(), within_s)
    except TimeoutError:
        description = (await handle.describe()).raw_description
        waits = [
            f"{pending.activity_type.name}, attempt {pending.attempt}: {pending.last_failure}"
            for pending in description.pending_activities
        ]
        waits += [child.workflow_id for child in description.pending_children]
        raise AssertionError(f"{handle.id} did not end within {within_s:g} s; it waits for {waits}") from None


async def trim_topics_and_wait(world: RealWorld, plans: tuple[TopicPlan, ...] = SQUATTED_PLANS) -> None:
    """Trim every topic and wait until no intent is unfinished: what was handed over may outlive its trim."""
    sexton = await Sexton.connect(world.settings)
    with open_log_store(world.settings) as log:
        topics = [log.catalog.topics.get_topic(plan.name) for plan in plans]
    for handle in [await sexton.trim_topic(topic, reason="a test", actor="tests") for topic in topics]:
        await ended(handle)
    await wait_until_true(lambda: not world.unfinished(), "every intent has ended")


async def delete_topics_and_wait(world: RealWorld, plans: tuple[TopicPlan, ...] = SQUATTED_PLANS) -> None:
    """Delete every topic as a whole, those that are left, and wait until no intent is unfinished."""
    sexton = await Sexton.connect(world.settings)
    with open_log_store(world.settings) as log:
        names = {plan.name for plan in plans}
        topics = [topic for topic in list_all_topics(log.catalog.topics) if topic.name in names]
    for handle in [await sexton.delete_topic(topic, reason="a test", actor="tests") for topic in topics]:
        await ended(handle)
    await wait_until_true(lambda: not world.unfinished(), "every intent has ended")


async def offload_topics_and_trim(world: RealWorld, plans: tuple[TopicPlan, ...] = SQUATTED_PLANS) -> None:
    """Offload every topic and remove its primary copies, read all of it, and trim once no upload can be open."""
    sexton = await Sexton.connect(world.settings)
    with open_log_store(world.settings) as log:
        topics = [log.catalog.topics.get_topic(plan.name) for plan in plans]
        alone = log.catalog.ledgers.list_ledgers(topics[0].topic_id)[2].ledger_id
    await ended(await sexton.offload_ledger(topics[0], alone))
    for topic in topics:
        await ended(await sexton.offload_topic(topic, None, True, "a test", "tests"))
    await wait_until_true(lambda: not world.unfinished("LEDGER"), "every primary copy's intent has ended")
    await asyncio.to_thread(_check_readable_entries, world, plans)
    world.expire_uploads()
    await trim_topics_and_wait(world, plans)


def _check_readable_entries(world: RealWorld, plans: tuple[TopicPlan, ...]) -> None:
    """A process that knows nothing reads what was written, whichever copy holds it."""
    with open_log_store(world.settings) as log:
        for plan in plans:
            topic = log.catalog.topics.get_topic(plan.name)
            payloads = [entry.payload for entry in log.topic_logs.scan(topic)]
            assert payloads == [expected_payload(plan.name, number) for number in range(plan.expected.written)]


def run_writer_process(world: RealWorld, *armed: str) -> int:
    """Write and acknowledge in a process of its own that remembers which calls were answered; its exit code.

    Like any program that must not do things twice: what died unanswered is called again by the next process.
    """
    completed = subprocess.run(
        [sys.executable, "-m", "tests.faults.writer_process", str(world.settings.home / "writer.pickle")],
        env={**os.environ, **world.settings.environment(), failpoints.ENVIRONMENT_VARIABLE: ",".join(armed)},
        capture_output=True,
        text=True,
        timeout=MAX_WAIT_S,
        check=False,
    )
    assert completed.returncode in {0, -signal.SIGKILL}, completed.stderr
    return completed.returncode


async def delete_intents_one_by_one(world: RealWorld) -> None:
    """Phase one here, then one `delete-ledger` for each intent, and in the end the batch's own workflow."""
    plan = SQUATTED_PLANS[0]
    with open_log_store(world.settings) as log:
        topic = log.catalog.topics.get_topic(plan.name)
        batch_id = f"{topic.topic_id}-alone"
        batch_workflow_id = DELETE_LEDGERS.id(batch_id)
        log.catalog.phase_one.detach_ledgers(
            topic.topic_id,
            None,
            force=False,
            batch_id=batch_id,
            claim=Claim(workflow_id=batch_workflow_id, run_id="", ttl_s=0),
            cause=AuditCause(actor="tests", reason="a test", workflow_id=batch_workflow_id),
        )
        intents = log.catalog.deletions.list_intents(DeletionState.PENDING, limit=100)
        epoch = log.catalog.ledgers.catalog_epoch()
    client = await connect_client(world.settings)
    queue = world.settings.task_queue
    for intent in intents:
        key = IntentKey(ledger_id=intent.ledger_id, copy=intent.copy.value, generation=intent.generation)
        intent_input = DeleteLedgerInput(key=key, topic=topic.name, catalog_epoch=epoch, retry_interval_s=1)
        await client.start_workflow(DeleteLedger.run, intent_input, id=delete_ledger_workflow_id(key), task_queue=queue)
    await wait_until_true(lambda: not world.unfinished(), "every intent has ended")
    delete_ledgers_input = DeleteLedgersInput(
        batch_id=batch_id,
        topic_id=topic.topic_id,
        topic=topic.name,
        catalog_epoch=epoch,
        actor="tests",
        reason="a test",
    )
    handle = await client.start_workflow(
        DeleteLedgers.run, delete_ledgers_input, id=batch_workflow_id, task_queue=queue
    )
    await ended(handle)
