"""The demo from start to end."""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from infra.stack import stack
from infra.stack.home import StackHome
from infra.stack.process import ServiceProcess
from logstore import failpoints
from logstore.errors import ServiceFailed
from logstore.log.ledgers import ledger_prefix
from workers.assembly.adapters import open_log
from workers.client import Sexton
from workers.demo.auditor import Auditor, Stored
from workers.demo.delayed import DEATH as MERGING
from workers.demo.delayed import MOST_BUCKETS, Delaying, check_delayed
from workers.demo.orphans import check_orphans, plant_orphans, reconcile
from workers.demo.records import check_records, lose_and_rebuild
from workers.demo.report import (
    DemoReport,
    Fences,
    PromiseRow,
    check_crash,
    check_damage,
    check_foreign,
    check_gone,
    check_needed,
    check_takeover,
)
from workers.demo.scenario import WrittenTopic, planned, write_topics
from workers.demo.throw_away import mark, new_home, remove, remove_abandoned
from workers.demo.transactions import DEATH as BROADCASTING
from workers.demo.transactions import check_transactions, transact
from workers.demo.waiting import Interrupts, happens
from workers.operations.stack import ANY_PORTS, at, prepare, stack_options, start_worker
from workers.settings import Settings
from workflows.deletion.values import TrimTopicResult

_FIRST, _SECOND, _THIRD, _FOURTH, _FIFTH = "worker-1", "worker-2", "worker-3", "worker-4", "worker-5"
_WORKERS = {
    **ANY_PORTS,
    "SEXTON_OWNERSHIP": "zookeeper",
    "SEXTON_SESSION_TIMEOUT": "4s",  # the killed worker's bundles are free after it
}
_LATEST_DEATH = 6  # chunks whose segments are deleted before it; the last one's meta.json is still there
_PLANTED = (
    "another-application/ledgers/00/0000000000000000/00000000.parquet",
    "ledgers/ff/00000000000fffff/0123456789abcdef.meta.json",
    "ledgers/ff/00000000000fffff/00000000.parquet",
    "readme.txt",
)

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Death:
    """The state when the first worker died."""

    finished: int  # deletions
    unfinished: int
    fences: Fences


def run_demo(settings: Settings, *, topics: int, ledgers: int, keep: bool, on_progress: Say) -> DemoReport:
    """Run the main job on a stack of its own and check every promise from outside.

    Args:
        settings: Where to take names and limits from; home, ports and addresses are the demo's own.
        topics: 1 or more; of three kinds in turn.
        ledgers: In each topic, 2 or more.
        keep: Leave the stack running.
        on_progress: Called with a sentence for people.

    Raises:
        ServiceFailed: A server or a worker could not be started, the first worker did not die, or what was started
            could not be removed.
        KeyboardInterrupt: A signal asked to end; its text says what became of what was started.
    """
    if not keep:
        remove_abandoned(on_progress)
    with Interrupts(keep=keep) as interrupts:
        home = interrupts.home = new_home()
        own = _own(settings, home, topics, ledgers)
        if keep:
            with interrupts.heeded():
                return replace(_run(own, topics, ledgers, on_progress), kept=True)
        try:
            with interrupts.heeded():
                mark(home)
                return _run(own, topics, ledgers, on_progress)
        finally:
            if not interrupts.given_up:
                on_progress("stopping what was started")
                remove(home)


def _own(settings: Settings, home: Path, topics: int, ledgers: int) -> Settings:
    """No service of the surroundings; small chunks, so that a worker can die in the middle of any number of ledgers."""
    return settings.without_services().but(
        home=home,
        database_url="",
        bulk_dir="",
        deletion_chunk=max(1, topics * ledgers // 24),
        deletion_parallelism=2,
        delayed_buckets=MOST_BUCKETS,
        delayed_tolerance=0,
        deployment_name="",  # no build is made current there
    )


def _run(settings: Settings, topics: int, ledgers: int, say: Say) -> DemoReport:
    began = time.monotonic()
    where = stack.up(stack_options(settings, free_ports=True, in_memory=True), on_progress=say)
    settings = at(settings, where)
    prepare(settings)
    auditor = Auditor(settings)
    with ThreadPoolExecutor(1) as beside, open_log(settings) as log:
        # the worker kills itself half way, or at the first chunk where there is only one
        chunks = sum(-(-count // settings.deletion_chunk) for count in planned(topics, ledgers))
        death_at = f"storage.delete_data.after=kill@{max(1, min(_LATEST_DEATH, chunks // 2))}"
        fatal = {failpoints.VARIABLE: death_at, **_WORKERS}
        first = beside.submit(start_worker, settings, name=_FIRST, extra=fatal, alone=True, on_progress=say)
        written = list(write_topics(log, topics=topics, ledgers=ledgers, say=say))
        first.result()
    planted = [*_PLANTED, *_contest(written)]
    for key in planted:
        auditor.plant(key, b"not Sexton's")
    before = auditor.stored()
    results, death = asyncio.run(_trim_through_a_crash(settings, auditor, written, say))
    after = auditor.stored()
    say("trimming once more")
    asyncio.run(_trim_again(settings, written))
    same = auditor.stored() == after
    say(f"waiting until {_SECOND} owns every bundle")
    fences = asyncio.run(_owned(auditor, bundles=settings.bundles, by=_SECOND))
    with open_log(settings) as log:
        takeover = check_takeover(log.catalog.deletions, death.fences, fences)
        say("flipping bits of a stored segment")
        damage = check_damage(auditor, log.managed, written[0])
    shown = [
        check_needed(auditor, before, after, written),
        check_gone(auditor, before, after, written),
        check_foreign(before, after, planted),
        takeover,
        check_crash(finished=death.finished, unfinished=death.unfinished, same_after_again=same),
    ]
    say("planting orphans, and looking for them with Spark")
    orphans = _reconciled(settings, auditor, written)
    shown[3:3] = _transacted_and_delayed(settings, auditor, say)
    shown.insert(4, _lost_and_rebuilt(settings, auditor, say))
    return DemoReport(
        shown=shown,
        orphans=orphans,
        damage=damage,
        counts=_counts(written, before, after, results),
        ui=where.ui,
        home=str(settings.home),
        kept=False,
        seconds=time.monotonic() - began,
    )


def _reconciled(settings: Settings, auditor: Auditor, written: Sequence[WrittenTopic]) -> PromiseRow:
    """Plant, plan, apply, and compare both buckets with what they held."""
    planted = plant_orphans(auditor, written)
    before = auditor.stored(), auditor.stored(tiered=True)
    told = asyncio.run(reconcile(settings))
    return check_orphans(before, (auditor.stored(), auditor.stored(tiered=True)), planted, told)


def _transacted_and_delayed(settings: Settings, auditor: Auditor, say: Say) -> list[PromiseRow]:
    """A worker dies in a merge of delayed messages, the next one in a broadcast; what they left goes on meanwhile."""
    home = StackHome.at(settings.home)
    second, third = ServiceProcess(_SECOND, home), ServiceProcess(_THIRD, home)

    def replace_worker() -> None:
        say(f"{_THIRD} was killed by SIGKILL in the middle of the broadcast")
        start_worker(settings, name=_FOURTH, extra=_WORKERS, alone=True, on_progress=say)

    say("delaying messages, sealing three buckets of them and merging two")
    with Delaying(settings) as delaying:
        asyncio.run(delaying.seal(lambda: second.find_process() is None))
        say(f"{_SECOND} was killed by SIGKILL in the middle of the merge")
        dies = {failpoints.VARIABLE: BROADCASTING, **_WORKERS}  # in the first broadcast of a transaction
        start_worker(settings, name=_THIRD, extra=dies, alone=True, on_progress=say)
        delaying.another_consumer()
        say("committing one transaction and aborting another over three topics and a subscription")
        done = asyncio.run(transact(settings, lambda: third.find_process() is None, replace_worker))
        say("waiting for the merge, and for messages that are still to come")
        asyncio.run(delaying.end())
    return [check_transactions(settings, auditor, done), check_delayed(auditor, delaying.delivered)]


def _lost_and_rebuilt(settings: Settings, auditor: Auditor, say: Say) -> PromiseRow:
    """The database goes while a writer is at work, and comes back; a worker serves it again."""
    say("deleting ledgers durably and plainly")
    fourth = ServiceProcess(_FOURTH, StackHome.at(settings.home))
    lost = asyncio.run(lose_and_rebuild(settings, fourth.kill, say))
    row = check_records(auditor, lost)
    start_worker(settings, name=_FIFTH, extra=_WORKERS, alone=True, on_progress=say)
    return row


def _contest(written: Sequence[WrittenTopic]) -> list[str]:
    """Choose one of several ledgers that a topic will lose, and a key within it for an object of another system."""
    for one in written:
        if len(one.to_delete) > 1:
            one.contested.add(one.to_delete[0])
            return [f"{ledger_prefix(one.to_delete[0])}another-application.parquet"]
    return []


async def _trim_through_a_crash(
    settings: Settings, auditor: Auditor, written: Sequence[WrittenTopic], say: Say
) -> tuple[list[TrimTopicResult], "_Death"]:
    """Start trims, let the first worker die by SIGKILL in phase two, start another, wait for the trims.

    Returns:
        The trims' results, and what there was at the moment of death.
    """
    fences = await _owned(auditor, bundles=settings.bundles, by=_FIRST)
    sexton = await Sexton.connect(settings)
    say("trimming every topic")
    handles = [await sexton.trim_topic(one.topic, reason="demo", actor="sexton demo") for one in written]
    process = ServiceProcess(_FIRST, StackHome.at(settings.home))
    if not await happens(lambda: process.find_process() is None):
        raise ServiceFailed(_FIRST, "it did not die in phase two", advice=f"read {process.log_file}")
    states = [state for state, _ in auditor.intents().values()]
    death = _Death(finished=states.count("DELETED"), unfinished=states.count("PENDING"), fences=fences)
    say(f"{_FIRST} was killed by SIGKILL with {death.unfinished} deletions unfinished")
    dies = {failpoints.VARIABLE: MERGING, **_WORKERS}  # in the first merge of buckets
    await asyncio.to_thread(start_worker, settings, name=_SECOND, extra=dies, alone=True, on_progress=say)
    say("waiting for the trims")
    return [await handle.result() for handle in handles], death


async def _owned(auditor: Auditor, *, bundles: int, by: str) -> Fences:
    """Wait until a worker whose id begins so was the last to acquire each bundle.

    Raises:
        ServiceFailed: That did not happen.
    """
    fences: Fences = {}

    def owned() -> bool:
        nonlocal fences
        fences = auditor.fences()
        return sum(worker_id.startswith(by) for _, worker_id in fences.values()) == bundles

    if not await happens(owned):
        raise ServiceFailed(by, "it did not acquire every bundle", advice="read its log")
    return fences


async def _trim_again(settings: Settings, written: Sequence[WrittenTopic]) -> None:
    sexton = await Sexton.connect(settings)
    for one in written:
        handle = await sexton.trim_topic(one.topic, reason="demo, once more", actor="sexton demo")
        await handle.result()


def _counts(
    written: Sequence[WrittenTopic], before: Stored, after: Stored, results: Sequence[TrimTopicResult]
) -> dict[str, int]:
    return {
        "topics": len(written),
        "ledgers": sum(len(one.payloads) for one in written),
        "detached": sum(result.detached for result in results),
        "deleted": sum(result.deleted for result in results),
        "kept": sum(len(one.needed) for one in written),
        "objects_before": len(before.etags),
        "objects_after": len(after.etags),
    }
