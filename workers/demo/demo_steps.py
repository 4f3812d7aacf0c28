"""Steps of the demo, from start to end."""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Final
from uuid import uuid4

from infra.stack import embedded_stack
from infra.stack.service_process import ServiceProcess
from infra.stack.stack_home import StackHome
from logstore import failpoints
from logstore.errors import ServiceFailed
from logstore.log.ledger_object_keys import ledger_prefix, segment_key
from logstore.offload.tiered_copy import data_key, index_key
from logstore.reconciliation.findings import FindingKind
from workers.assembly.log_store_from_settings import open_log_store
from workers.client import Sexton
from workers.demo.delayed_messages import DEATH_IN_MERGE, MAX_BUCKETS, DelayedTopic, check_delayed_messages
from workers.demo.direct_store_access import BucketContents, DirectStoreAccess
from workers.demo.lost_database import check_rebuilt_catalog, lose_and_rebuild_database
from workers.demo.promise_report import (
    DemoReport,
    FenceByBundle,
    PromiseResult,
    WrittenTopic,
    check_crash_recovery,
    check_deleted_ledgers,
    check_fences_after_takeover,
    check_flipped_bits,
    check_foreign_objects,
    check_needed_ledgers,
    count_deletable_ledgers,
    write_topics,
)
from workers.demo.temporary_homes import (
    SignalHandler,
    kill_and_remove_abandoned_homes,
    kill_processes_and_remove_home,
    make_home,
    mark_home_in_use,
    wait_until,
)
from workers.demo.transactions import DEATH_IN_BROADCAST, check_transactions, run_transactions
from workers.operations.embedded_stack import (
    ANY_PORTS,
    add_stack_addresses,
    prepare_catalog_and_namespace,
    stack_options_from_settings,
    start_worker,
)
from workers.settings import Settings
from workflows.deletion.job_definitions import TrimTopicResult

_FIRST, _SECOND, _THIRD, _FOURTH, _FIFTH = "worker-1", "worker-2", "worker-3", "worker-4", "worker-5"
_WORKER_ENV = {
    **ANY_PORTS,
    "SEXTON_OWNERSHIP": "zookeeper",
    "SEXTON_SESSION_TIMEOUT": "4s",  # after this time, the bundles of a killed worker are free
}
_MAX_CHUNKS_BEFORE_DEATH = 6  # the worker dies in its last chunk, before it deletes any `meta.json`
_FOREIGN_KEYS = (
    "another-application/ledgers/00/0000000000000000/00000000.parquet",
    "ledgers/ff/00000000000fffff/0123456789abcdef.meta.json",
    "ledgers/ff/00000000000fffff/00000000.parquet",
    "readme.txt",
)

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _CatalogAtWorkerDeath:
    finished: int  # number of deletions
    unfinished: int
    fences: FenceByBundle


def run_demo(settings: Settings, *, topics: int, ledgers: int, keep: bool, on_progress: Say) -> DemoReport:
    """Run trims and other jobs on a temporary stack, and check every promise from outside.

    The demo takes names and limits from `settings`, and uses its own home, ports and addresses. `topics` is at least 1.
    `ledgers` is the number of ledgers of each topic, at least 2. `keep` leaves the stack running.

    Raises:
        ServiceFailed: A server or a worker could not be started, the first worker did not die, or the stack could not
            be removed.
        KeyboardInterrupt: A signal asked the demo to end. The message says whether the stack is gone.
    """
    if not keep:
        kill_and_remove_abandoned_homes(on_progress)
    with SignalHandler(keep=keep) as interrupts:
        home = interrupts.home = make_home()
        demo_settings = _settings_for_demo(settings, home, topics, ledgers)
        if keep:
            with interrupts.raise_on_first_signal():
                return replace(_run_all_steps(demo_settings, topics, ledgers, on_progress), is_kept=True)
        try:
            with interrupts.raise_on_first_signal():
                mark_home_in_use(home)
                return _run_all_steps(demo_settings, topics, ledgers, on_progress)
        finally:
            if not interrupts.has_given_up:
                on_progress("stopping what was started")
                kill_processes_and_remove_home(home)


def _settings_for_demo(settings: Settings, home: Path, topics: int, ledgers: int) -> Settings:
    return settings.without_services().with_changes(
        home=home,
        database_url="",
        bulk_dir="",
        deletion_chunk=max(1, topics * ledgers // 24),
        deletion_parallelism=2,
        delayed_buckets=MAX_BUCKETS,
        delayed_tolerance=0,
        deployment_name="",  # the demo uses no Worker Versioning
    )


def _run_all_steps(settings: Settings, topics: int, ledgers: int, say: Say) -> DemoReport:
    started_s = time.monotonic()
    addresses = embedded_stack.start_stack(
        stack_options_from_settings(settings, free_ports=True, in_memory=True), on_progress=say
    )
    settings = add_stack_addresses(settings, addresses)
    prepare_catalog_and_namespace(settings)
    store_access = DirectStoreAccess(settings)
    with ThreadPoolExecutor(1) as pool, open_log_store(settings) as log:
        # The worker kills itself half way, or at the first chunk if there is only one.
        chunks = sum(ceil(count / settings.deletion_chunk) for count in count_deletable_ledgers(topics, ledgers))
        death_chunk = max(1, min(_MAX_CHUNKS_BEFORE_DEATH, chunks // 2))
        fatal_env = {failpoints.ENVIRONMENT_VARIABLE: f"storage.delete_data.after=kill@{death_chunk}", **_WORKER_ENV}
        first = pool.submit(start_worker, settings, name=_FIRST, extra_env=fatal_env, isolated=True, on_progress=say)
        written = list(write_topics(log, topics=topics, ledgers=ledgers, say=say))
        first.result()
    planted = [*_FOREIGN_KEYS, *_mark_contested_ledger_and_choose_key(written)]
    for key in planted:
        store_access.put_object(key, b"not Sexton's")
    before = store_access.list_objects()
    results, death = asyncio.run(_trim_while_worker_dies(settings, store_access, written, say))
    after = store_access.list_objects()
    say("trimming once more")
    asyncio.run(_trim_again(settings, written))
    is_unchanged = store_access.list_objects() == after
    say(f"waiting until {_SECOND} owns every bundle")
    fences = asyncio.run(_wait_until_worker_owns_bundles(store_access, bundles=settings.bundles, worker_prefix=_SECOND))
    with open_log_store(settings) as log:
        takeover = check_fences_after_takeover(log.catalog.deletions, death.fences, fences)
        say("flipping bits of a stored segment")
        damage = check_flipped_bits(store_access, log.topic_logs, written[0])
    promises = [
        check_needed_ledgers(store_access, before, after, written),
        check_deleted_ledgers(store_access, before, after, written),
        check_foreign_objects(before, after, planted),
        takeover,
        check_crash_recovery(finished=death.finished, unfinished=death.unfinished, repeat_is_harmless=is_unchanged),
    ]
    say("planting orphans, and looking for them with Spark")
    orphans = _plant_and_remove_orphans(settings, store_access, written)
    promises[3:3] = _run_transactions_and_delayed_messages(settings, store_access, say)
    promises.insert(4, _lose_and_rebuild_catalog(settings, store_access, say))
    return DemoReport(
        promises=promises,
        orphans=orphans,
        damage=damage,
        counts=_count_results(written, before, after, results),
        ui=addresses.ui,
        home=str(settings.home),
        is_kept=False,
        seconds=time.monotonic() - started_s,
    )


def _run_transactions_and_delayed_messages(
    settings: Settings, store_access: DirectStoreAccess, say: Say
) -> list[PromiseResult]:
    home = StackHome.at(settings.home)
    second, third = ServiceProcess(_SECOND, home), ServiceProcess(_THIRD, home)

    def replace_worker() -> None:
        say(f"{_THIRD} was killed by SIGKILL in the middle of the broadcast")
        start_worker(settings, name=_FOURTH, extra_env=_WORKER_ENV, isolated=True, on_progress=say)

    say("delaying messages, sealing three buckets of them and merging two")
    with DelayedTopic(settings) as delayed_topic:
        asyncio.run(delayed_topic.write_buckets_and_await_worker_death(lambda: second.find_process() is None))
        say(f"{_SECOND} was killed by SIGKILL in the middle of the merge")
        fatal_env = {failpoints.ENVIRONMENT_VARIABLE: DEATH_IN_BROADCAST, **_WORKER_ENV}
        start_worker(settings, name=_THIRD, extra_env=fatal_env, isolated=True, on_progress=say)
        delayed_topic.replace_consumer()
        say("committing one transaction and aborting another over three topics and a subscription")
        transactions = asyncio.run(run_transactions(settings, lambda: third.find_process() is None, replace_worker))
        say("waiting for the merge, and for messages that are still to come")
        asyncio.run(delayed_topic.merge_and_await_deliveries())
    return [
        check_transactions(settings, store_access, transactions),
        check_delayed_messages(store_access, delayed_topic.received_messages),
    ]


def _lose_and_rebuild_catalog(settings: Settings, store_access: DirectStoreAccess, say: Say) -> PromiseResult:
    say("deleting ledgers durably and plainly")
    fourth = ServiceProcess(_FOURTH, StackHome.at(settings.home))
    loss = asyncio.run(lose_and_rebuild_database(settings, fourth.kill, say))
    row = check_rebuilt_catalog(store_access, loss)
    start_worker(settings, name=_FIFTH, extra_env=_WORKER_ENV, isolated=True, on_progress=say)
    return row


def _mark_contested_ledger_and_choose_key(written: Sequence[WrittenTopic]) -> list[str]:
    for written_topic in written:
        if len(written_topic.to_delete) > 1:
            written_topic.contested.add(written_topic.to_delete[0])
            return [f"{ledger_prefix(written_topic.to_delete[0])}another-application.parquet"]
    return []


async def _trim_while_worker_dies(
    settings: Settings, store_access: DirectStoreAccess, written: Sequence[WrittenTopic], say: Say
) -> tuple[list[TrimTopicResult], "_CatalogAtWorkerDeath"]:
    fences = await _wait_until_worker_owns_bundles(store_access, bundles=settings.bundles, worker_prefix=_FIRST)
    sexton = await Sexton.connect(settings)
    say("trimming every topic")
    reason, actor = "demo", "sexton demo"
    handles = [await sexton.trim_topic(written_topic.topic, reason=reason, actor=actor) for written_topic in written]
    process = ServiceProcess(_FIRST, StackHome.at(settings.home))
    if not await wait_until(lambda: process.find_process() is None):
        raise ServiceFailed(_FIRST, "it did not die in phase two", advice=f"read {process.log_file}")
    states = [state for state, _ in store_access.read_intents().values()]
    death = _CatalogAtWorkerDeath(finished=states.count("DELETED"), unfinished=states.count("PENDING"), fences=fences)
    say(f"{_FIRST} was killed by SIGKILL with {death.unfinished} deletions unfinished")
    fatal_env = {failpoints.ENVIRONMENT_VARIABLE: DEATH_IN_MERGE, **_WORKER_ENV}
    await asyncio.to_thread(start_worker, settings, name=_SECOND, extra_env=fatal_env, isolated=True, on_progress=say)
    say("waiting for the trims")
    return [await handle.result() for handle in handles], death


async def _wait_until_worker_owns_bundles(
    store_access: DirectStoreAccess, *, bundles: int, worker_prefix: str
) -> FenceByBundle:
    fences: FenceByBundle = {}

    def is_owned() -> bool:
        nonlocal fences
        fences = store_access.read_fences()
        return sum(worker_id.startswith(worker_prefix) for _, worker_id in fences.values()) == bundles

    if not await wait_until(is_owned):
        raise ServiceFailed(worker_prefix, "it did not acquire every bundle", advice="read its log")
    return fences


async def _trim_again(settings: Settings, written: Sequence[WrittenTopic]) -> None:
    sexton = await Sexton.connect(settings)
    for written_topic in written:
        handle = await sexton.trim_topic(written_topic.topic, reason="demo, once more", actor="sexton demo")
        await handle.result()


def _count_results(
    written: Sequence[WrittenTopic], before: BucketContents, after: BucketContents, results: Sequence[TrimTopicResult]
) -> dict[str, int]:
    return {
        "topics": len(written),
        "ledgers": sum(len(written_topic.payloads) for written_topic in written),
        "detached": sum(result.detached for result in results),
        "deleted": sum(result.deleted for result in results),
        "kept": sum(len(written_topic.needed) for written_topic in written),
        "objects_before": len(before.etags),
        "objects_after": len(after.etags),
    }


_UNUSED_SEGMENT_NUMBER: Final = 7  # above every segment number of the demo
# The object store rounds times to seconds. A plan finds only orphans that are older than its start.
_CLOCK_RESOLUTION_S: Final = 1.1


def _plant_and_remove_orphans(
    settings: Settings, store_access: DirectStoreAccess, written: Sequence[WrittenTopic]
) -> PromiseResult:
    planted_by_bucket = _plant_orphans(store_access, written)
    before = [store_access.list_objects(tiered=is_tiered) for is_tiered in (False, True)]
    findings, failed = asyncio.run(_plan_and_apply_orphans(settings))
    after = [store_access.list_objects(tiered=is_tiered) for is_tiered in (False, True)]
    problems: list[str] = []
    for contents_before, contents_after, planted in zip(before, after, planted_by_bucket, strict=True):
        etags = contents_after.etags
        other_etags = {key: etag for key, etag in contents_before.etags.items() if key not in planted}
        problems += [f"{key} is still there" for key in sorted(planted & etags.keys())]
        problems += [f"{key} was touched" for key in sorted(other_etags) if etags.get(key) != other_etags[key]]
    kinds = {FindingKind.ORPHAN_LEDGER, FindingKind.ORPHAN_SEGMENT, FindingKind.ORPHAN_OFFLOAD}
    expected = {kind.value: int(kind in kinds) for kind in FindingKind if kind.is_removable}
    expected[FindingKind.MISSING_DATA.value] = 0
    problems += [
        f"{kind}: expected {count}, found {findings.get(kind, 0)}"
        for kind, count in expected.items()
        if findings.get(kind, 0) != count
    ]
    problems += [f"{failed} findings failed"] if failed else []
    objects = sum(map(len, planted_by_bucket))
    evidence = f"{objects} orphaned objects of {len(kinds)} kinds planted, found and removed; nothing else"
    return PromiseResult.from_problems("orphans go, and nothing else", problems, evidence)


def _plant_orphans(store_access: DirectStoreAccess, written: Sequence[WrittenTopic]) -> tuple[set[str], set[str]]:
    """Create orphans: objects of a deleted ledger, an unregistered segment, and an unfinished tiered copy.

    Return their keys in the primary bucket, and their keys in the tiered bucket.
    """
    topic = next(written_topic for written_topic in written if written_topic.deletable)
    live_id, deleted_id = topic.needed[0], topic.deletable[0]
    live_prefix, deleted_prefix = ledger_prefix(live_id), ledger_prefix(deleted_id)
    live_keys = store_access.list_objects().keys_of_ledger(live_id)
    source_by_key = {key.replace(live_prefix, deleted_prefix): key for key in live_keys}
    metadata = {"ledger-id": str(deleted_id), "created-us": str(store_access.read_created_us(deleted_id))}
    for key, source in source_by_key.items():
        store_access.copy_primary_object(source, key, changed_metadata=metadata)
    data, uuid = next(key for key in live_keys if key.endswith(".parquet")), str(uuid4())
    unregistered_key = segment_key(live_id, _UNUSED_SEGMENT_NUMBER)
    store_access.copy_primary_object(data, unregistered_key)
    tiered_keys = (data_key(uuid, live_id), index_key(uuid, live_id))
    for key in tiered_keys:
        store_access.copy_primary_object(data, key, tiered=True)
    return {*source_by_key, unregistered_key}, {*tiered_keys}


async def _plan_and_apply_orphans(settings: Settings) -> tuple[dict[str, int], int]:
    """Plan with age 0 and apply the plan. Return the findings by kind, and the number of findings that failed.

    Age 0 is safe because no process writes any more.
    """
    await asyncio.sleep(_CLOCK_RESOLUTION_S)
    async with await Sexton.connect(settings) as sexton:
        plan = await sexton.plan_orphans(older_than_s=0, unsafe_age=True, reason="demo", actor="sexton demo")
        planned = await plan.result()
        job = await sexton.apply_orphans(planned.run_id, max_orphan_share=1, reason="demo", actor="sexton demo")
        applied = await job.result()
    return planned.found.findings if planned.found else {}, applied.done.failed
