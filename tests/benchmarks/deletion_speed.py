"""Deletion beside the bare thing: `python -m tests.benchmarks.deletion_speed [objects|idle|durable|memory]`.

It takes a quarter of an hour or more on two cores, most of them to put what is deleted; stderr tells how far it is.
"""

import asyncio
import json
import os
import statistics
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from temporalio.client import Client
from temporalio.common import SearchAttributePair, TypedSearchAttributes
from temporalio.worker import Worker

from activities.deletion.phase_two_steps import delete_ledger_workflow_id
from infra.stack.service_process import ServiceProcess
from infra.stack.stack_home import StackHome
from logstore.deletion.intents import IntentKey
from logstore.log.ledger_object_keys import ledger_prefix
from logstore.log.ledgers import CopyKind
from logstore.ports.catalog.deletion import AuditCause, Claim
from logstore.ports.catalog.log import Topic
from logstore.positions import LedgerId
from tests.benchmarks.bare import Bare, bare_activity
from tests.benchmarks.stage import Stage, make_ledgers, stage, write_rows
from workers.client.temporal_connection import connect_client
from workers.settings import Settings, load_settings
from workflows import search_attributes
from workflows.deletion.delete_ledger import DeleteLedger
from workflows.deletion.delete_ledgers import DeleteLedgers
from workflows.deletion.job_definitions import (
    DELETE_LEDGERS,
    DeleteLedgerInput,
    DeleteLedgersInput,
    DeleteLedgersProgress,
    DeletionPolicy,
)

if TYPE_CHECKING:
    from mypy_boto3_s3.type_defs import ObjectIdentifierTypeDef

_SHAPES = ((100, 24, 5), (10, 160, 5), (100, 512, 2), (10, 5_120, 2))
"""Objects a ledger, ledgers, rounds; of the last two a chunk's rows hold few shards, of the first two each is alone."""
_IDLE_RUNS = 40
_MANY = (200, 3_000)


def objects_per_second(on: Stage) -> dict[str, Any]:
    """Batch deletion, confirmed, beside a loop of the same parallelism that lists and deletes each ledger."""
    found: dict[str, Any] = {}
    for size, ledgers, times in _SHAPES:
        rounds = [_objects_round(on, size, ledgers, ours_first=bool(number % 2)) for number in range(times)]
        ours, bare = (statistics.median(side) for side in zip(*rounds, strict=True))
        found[f"{ledgers:,} ledgers of {size} objects"] = {
            "ours_objects_s": round(ours),
            "bare_objects_s": round(bare),
            "ratio": round(statistics.median(one / two for one, two in rounds), 2),
            "rounds": [[round(one), round(two)] for one, two in rounds],
            "load": round(os.getloadavg()[0], 1),
        }
    return found


def _objects_round(on: Stage, size: int, ledgers: int, *, ours_first: bool) -> tuple[float, float]:
    """Both sides in turn, on ledgers of the same shape; objects a second of each."""
    total = ledgers * size
    topic, _ = make_ledgers(on, _name(), ledgers=ledgers, segments=size - 1)
    _, ids = make_ledgers(on, _name(), ledgers=ledgers, segments=size - 1)
    request = _detach(on, topic)
    sides: list[Callable[[], int]] = [lambda: _our_delete(on, request), lambda: _bare_delete(on, ids)]
    found: list[float] = [0.0, 0.0]
    for side in (0, 1) if ours_first else (1, 0):
        began = time.perf_counter()
        confirmed = sides[side]()
        found[side] = total / (time.perf_counter() - began)
        if confirmed != total:
            raise RuntimeError(f"expected {total} objects deleted, found {confirmed}")
    _tell(f"{ledgers} ledgers of {size} objects: {found[0]:.0f} objects/s, bare {found[1]:.0f}")
    return found[0], found[1]


def _our_delete(on: Stage, request: DeleteLedgersInput) -> int:
    return int(asyncio.run(_delete(on, request)).objects)


def _bare_delete(on: Stage, ids: list[LedgerId]) -> int:
    client, bucket = on.s3(), on.settings.primary_bucket

    def one(ledger_id: LedgerId) -> int:
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=ledger_prefix(ledger_id))
        keys: list[ObjectIdentifierTypeDef] = [
            {"Key": item["Key"]} for page in pages for item in page.get("Contents", ())
        ]
        for at in range(0, len(keys), 1000):
            client.delete_objects(Bucket=bucket, Delete={"Objects": keys[at : at + 1000], "Quiet": True})
        return len(keys)

    with ThreadPoolExecutor(on.settings.deletion_parallelism) as pool:
        return sum(pool.map(one, ids))


def _tell(line: str) -> None:
    """Say how far it is; stdout has the one document."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {line}\n")


def _name() -> str:
    return f"persistent://bench/deletion/{uuid.uuid4().hex}"


def _detach(on: Stage, topic: Topic, ledger_ids: list[LedgerId] | None = None) -> DeleteLedgersInput:
    """Phase one by retention, or of these ledgers durably, which is what deletes by name are."""
    batch = f"{topic.topic_id}-bench" if ledger_ids is None else f"{topic.topic_id}-{ledger_ids[0]}"
    name = DELETE_LEDGERS.id(batch)
    detached = on.log.catalog.phase_one.detach_ledgers(
        topic.topic_id,
        ledger_ids,
        force=False,
        batch_id=batch,
        claim=Claim(workflow_id=name, run_id="", ttl_s=60),
        cause=AuditCause(actor="bench", reason="bench", workflow_id=name),
    )
    return DeleteLedgersInput(
        batch_id=batch,
        topic_id=topic.topic_id,
        topic=topic.name,
        catalog_epoch=on.log.catalog.ledgers.catalog_epoch(),
        actor="bench",
        reason="bench",
        policy=DeletionPolicy(parallelism=on.settings.deletion_parallelism, chunk=on.settings.deletion_chunk),
        carried=DeleteLedgersProgress(intents=detached.intents, detached=detached.ledgers),
    )


async def _delete(on: Stage, request: DeleteLedgersInput) -> Any:
    client = await connect_client(on.settings)
    name, queue = DELETE_LEDGERS.id(request.batch_id), on.settings.task_queue
    return await client.execute_workflow(DeleteLedgers.run, request, id=name, task_queue=queue)


def idle_latency(on: Stage) -> dict[str, Any]:
    """One `delete-ledger` beside a bare one-activity workflow, one at a time, p50."""
    return asyncio.run(_idle(on, durable=False))


def durable_latency(on: Stage) -> dict[str, Any]:
    """The same of durable deletes, of which each flushes its own tombstone first."""
    return asyncio.run(_idle(on, durable=True))


async def _idle(on: Stage, *, durable: bool) -> dict[str, Any]:
    topic, ids = await asyncio.to_thread(make_ledgers, on, _name(), ledgers=_IDLE_RUNS, segments=1)
    if not durable:
        await asyncio.to_thread(_detach, on, topic)
        await asyncio.to_thread(write_rows, on, _let_go)
    client = await connect_client(on.settings)
    plain = await Client.connect(on.settings.temporal_address)
    ours: list[float] = []
    bare: list[float] = []
    with ThreadPoolExecutor(4) as threads:
        async with Worker(
            plain, task_queue="bare", workflows=[Bare], activities=[bare_activity], activity_executor=threads
        ):
            for number, ledger_id in enumerate(ids):
                bare.append(await _timed(_one_bare(plain, number)))
                if durable:
                    await asyncio.to_thread(_detach, on, topic, [ledger_id])
                    await asyncio.to_thread(write_rows, on, _let_go)
                ours.append(await _timed(_one_ledger(on, client, topic, ledger_id)))
    one, two = statistics.median(ours) * 1000, statistics.median(bare) * 1000
    _tell(f"{'durable' if durable else 'idle'}: p50 {one:.0f} ms, bare {two:.0f} ms")
    return {"ours_p50_ms": round(one, 1), "bare_p50_ms": round(two, 1), "ratio": round(one / two, 2)}


def _let_go(connection: Any) -> None:
    """End the batch's claim, so that single workflows may take its rows."""
    connection.exec_driver_sql("UPDATE run SET claim_until_us = 0")


async def _timed(work: Awaitable[None]) -> float:
    began = time.perf_counter()
    await work
    return time.perf_counter() - began


async def _one_bare(client: Client, number: int) -> None:
    await client.execute_workflow(Bare.run, number, id=f"bare-{number}-{uuid.uuid4().hex}", task_queue="bare")


async def _one_ledger(on: Stage, client: Client, topic: Topic, ledger_id: LedgerId) -> None:
    key = IntentKey(ledger_id=ledger_id, copy=CopyKind.LEDGER.value, generation=1)
    request = DeleteLedgerInput(key=key, topic=topic.name, catalog_epoch=on.log.catalog.ledgers.catalog_epoch())
    name = delete_ledger_workflow_id(key)
    of_topic = TypedSearchAttributes([SearchAttributePair(search_attributes.TOPIC, topic.name)])  # as a batch starts it
    await client.execute_workflow(
        DeleteLedger.run, request, id=name, task_queue=on.settings.task_queue, search_attributes=of_topic
    )


def memory(on: Stage) -> dict[str, Any]:
    """Highest resident memory of the worker, after a small batch and after a large one."""
    process = ServiceProcess("worker-1", StackHome.at(on.settings.home)).find_process()
    if process is None:
        raise RuntimeError("the worker does not run")
    found = {}
    for ledgers in _MANY:
        topic, _ = make_ledgers(on, _name(), ledgers=ledgers, segments=1)
        certificate = asyncio.run(_delete(on, _detach(on, topic)))
        if certificate.deleted != ledgers:
            raise RuntimeError(f"expected {ledgers} ledgers deleted, found {certificate}")
        peak = _peak_bytes(process)
        _tell(f"memory: {ledgers} ledgers, peak {peak / 2**20:.0f} MiB")
        found[f"{ledgers} ledgers"] = {"peak_mib": round(peak / 2**20), "deleted": certificate.deleted}
    return found


def _peak_bytes(process: psutil.Process) -> int:
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


_ALL = {"objects": objects_per_second, "idle": idle_latency, "durable": durable_latency, "memory": memory}


def main() -> None:
    """Measure what the command line names, or all of it, and print one JSON document."""
    settings: Settings = load_settings({}, os.environ, Path.cwd()).settings
    _tell("starting a stack and a worker")
    with stage(settings) as on:
        found = {name: _ALL[name](on) for name in sys.argv[1:] or _ALL}
    print(json.dumps(found, indent=1))  # noqa: T201


if __name__ == "__main__":
    main()
