"""Applies of plans beside bare deletions in one ZooKeeper: `python -m tests.benchmarks.pulsar_apply_speed [orphans]`.

The cluster is generated. Each topic has one ledger of messages, one of a cursor, one of a schema, and orphans
that name the topic as their owner. A worker of a real stack looks at each orphan once more, stores it in the journal,
and deletes it. The bare deletions are requests of one client, one after another, each with the deletion of 100 znodes
of the same kind, right before and after each apply. The default of 50,000 orphans takes six minutes on two cores.
"""

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from logstore.pulsar.znode_names import format_ledger_path
from logstore.reconciliation.findings import FindingKind
from tests.benchmarks.generated_cluster import connect, make_ledger, run_zookeeper, tell, write_znodes
from tests.benchmarks.stage import Stage, stage
from tests.logstore.pulsar import wire
from workers.client.temporal_connection import connect_client
from workers.settings import load_settings
from workflows.pulsar.apply_pulsar import ApplyPulsar
from workflows.pulsar.job_definitions import APPLY_PULSAR, PLAN_PULSAR, ApplyPulsarInput, PlanPulsarInput
from workflows.pulsar.plan_pulsar import PlanPulsar
from workflows.reconciliation.job_definitions import ApplyOrphansProgress

_ORPHANS: Final = 50_000
_ORPHANS_PER_TOPIC: Final = (10, 1)
_LIVE_PER_TOPIC: Final = 3
_FIRST_ORPHAN_ID: Final = 2**31
_FIRST_BARE_ID: Final = 2**32
_BARE_DELETES: Final = 20_000
_DELETES_PER_REQUEST: Final = 100
_LIMITED_ORPHANS: Final = 2_000
_RATE: Final = 50  # ledgers a second of the limited apply
_KIND: Final = FindingKind.ORPHAN_LEDGER.value


def generate_cluster() -> Iterator[tuple[str, bytes]]:
    """Yield path and value of the znodes that a plan needs beside topics."""
    rpc = wire.encode_message((1, "bookie"), (2, 3181), (3, "10.0.0.1"), (4, "bookie-rpc"))
    yield "ledgers/available/bk0", wire.encode_message((6, rpc))
    yield "loadbalance/brokers/10.0.0.2:8080", b'{"webServiceUrl": "http://10.0.0.2:8080"}'
    yield "admin/clusters/bench", b"{}"
    yield "admin/policies/bench", b"{}"


def generate_znodes(round_name: str, topics: int, orphans_per_topic: int, first: int) -> Iterator[tuple[str, bytes]]:
    """Yield path and value of the znodes of each topic. `first` is the number of the first topic of this round."""
    for topic in range(first, first + topics):
        name, schema = f"bench/{round_name}/persistent/topic-{topic}", f"bench/{round_name}/topic-{topic}"
        messages, cursor, schema_ledger = range(topic * _LIVE_PER_TOPIC, (topic + 1) * _LIVE_PER_TOPIC)
        owned = _make_message_ledger(name)
        yield f"ledgers/{format_ledger_path(messages)}", owned
        owned_by_cursor = make_ledger("managed-ledger", **{"managed-ledger": name, "cursor": "billing"})
        yield f"ledgers/{format_ledger_path(cursor)}", owned_by_cursor
        yield f"ledgers/{format_ledger_path(schema_ledger)}", make_ledger("schema", schemaId=schema)
        yield f"managed-ledgers/{name}", wire.managed_ledger([messages])
        yield f"managed-ledgers/{name}/billing", wire.cursor(cursor)
        yield f"schemas/{schema}", wire.schema_locator([schema_ledger])
        for number in range(orphans_per_topic):  # ids of one topic are far apart, as they are after a long time
            orphan_id = _FIRST_ORPHAN_ID + first * 100 + number * topics + (topic - first)
            yield f"ledgers/{format_ledger_path(orphan_id)}", owned


def _make_message_ledger(managed_ledger: str) -> bytes:
    return make_ledger("managed-ledger", **{"managed-ledger": managed_ledger})


def measure_bare_deletes(zookeeper: str, deletes: int) -> float:
    """Write ledgers, and delete them in their versions. Return the deletions per second."""
    value = _make_message_ledger("bench/bare/persistent/topic")
    paths = [f"ledgers/{format_ledger_path(_FIRST_BARE_ID + number)}" for number in range(deletes)]
    write_znodes(zookeeper, ((path, value) for path in paths))
    with connect(zookeeper) as client:
        began = time.perf_counter()
        for start in range(0, deletes, _DELETES_PER_REQUEST):
            transaction = client.transaction()
            for path in paths[start : start + _DELETES_PER_REQUEST]:
                transaction.delete(f"/{path}", 0)
            failures = [result for result in transaction.commit() if result is not True]
            if failures:
                raise RuntimeError(f"expected a deletion, found {failures[0]!r}")
        rate = deletes / (time.perf_counter() - began)
    tell(f"bare deletions: {rate:,.0f} a second")
    return rate


async def plan(bench: Stage, run_id: str) -> int:
    """Make a plan. Return the orphan ledgers that it found."""
    client = await connect_client(bench.settings)
    request = PlanPulsarInput(run_id=run_id, actor="bench", older_than_s=0, between_s=0, unsafe_age=True)
    began = time.perf_counter()
    result = await client.execute_workflow(
        PlanPulsar.run, request, id=PLAN_PULSAR.id(run_id), task_queue=bench.settings.task_queue
    )
    if result.found is None or result.found.incomplete:
        raise RuntimeError(f"expected a complete plan, found {result}")
    tell(f"{run_id}: planned in {time.perf_counter() - began:.1f} s")
    return int(result.found.findings[_KIND])


async def apply(bench: Stage, run_id: str, orphans: int, *, rate: int = 0) -> float:
    """Apply a plan. Return the deletions per second, from the start of the workflow to its result."""
    client = await connect_client(bench.settings)
    request = ApplyPulsarInput(
        run_id=run_id, actor="bench", max_orphan_share=1.0, carried=ApplyOrphansProgress(rate=rate)
    )
    began = time.perf_counter()
    result = await client.execute_workflow(
        ApplyPulsar.run, request, id=APPLY_PULSAR.id(run_id), task_queue=bench.settings.task_queue
    )
    took_s = time.perf_counter() - began
    if result.done.applied != {_KIND: orphans}:
        raise RuntimeError(f"expected {orphans:,} ledgers deleted, found {result}")
    tell(f"{run_id}: {orphans:,} ledgers deleted in {took_s:.1f} s, {orphans / took_s:,.0f} a second")
    return orphans / took_s


def measure_apply(bench: Stage, zookeeper: str, orphans: int, orphans_per_topic: int, first: int) -> dict[str, Any]:
    name = f"bench-{orphans_per_topic}"
    topics = orphans // orphans_per_topic
    tell(f"{name}: writing {topics:,} topics")
    write_znodes(zookeeper, generate_znodes(name, topics, orphans_per_topic, first))
    found = asyncio.run(plan(bench, name))
    if found != orphans:
        raise RuntimeError(f"expected {orphans:,} orphans, found {found:,}")
    bare_rates = [measure_bare_deletes(zookeeper, _BARE_DELETES)]
    rate = asyncio.run(apply(bench, name, orphans))
    bare_rates.append(measure_bare_deletes(zookeeper, _BARE_DELETES))
    bare_rate = statistics.mean(bare_rates)
    return {"deletes_s": round(rate), "bare_deletes_s": round(bare_rate), "ratio": round(rate / bare_rate, 2)}


def measure_limited_apply(bench: Stage, zookeeper: str, first: int) -> dict[str, Any]:
    write_znodes(zookeeper, generate_znodes("limited", _LIMITED_ORPHANS, 1, first))
    found = asyncio.run(plan(bench, "limited"))
    rate = asyncio.run(apply(bench, "limited", found, rate=_RATE))
    return {"deletes_s": round(rate, 1), "ratio": round(rate / _RATE, 3)}


def main(orphans: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="sexton-bench-") as folder, run_zookeeper(Path(folder)) as (zookeeper, _):
        os.environ |= {
            "SEXTON_PULSAR_ZOOKEEPER": zookeeper,
            "SEXTON_PULSAR_BOOKKEEPER_EXCLUSIVE": "true",
            "SEXTON_PULSAR_READS_PER_S": "1000000",
        }
        write_znodes(zookeeper, generate_cluster())
        results: dict[str, Any] = {}
        first = 0
        with stage(load_settings({}, os.environ, Path.cwd()).settings) as bench:
            for orphans_per_topic in _ORPHANS_PER_TOPIC:
                measured = measure_apply(bench, zookeeper, orphans, orphans_per_topic, first)
                results[f"{orphans_per_topic} orphans a topic"] = measured
                first += orphans // orphans_per_topic
            results[f"limited to {_RATE} a second"] = measure_limited_apply(bench, zookeeper, first)
    return results


if __name__ == "__main__":
    print(json.dumps({"pulsar_apply": main(int(sys.argv[1]) if sys.argv[1:] else _ORPHANS)}, indent=1))  # noqa: T201
