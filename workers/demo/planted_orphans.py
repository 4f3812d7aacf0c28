"""Orphans of three kinds, which the demo creates and then removes by a plan and an apply."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

from logstore.log.ledger_object_keys import ledger_prefix, segment_key
from logstore.offload.tiered_copy import data_key, index_key
from logstore.reconciliation.findings import FindingKind
from workers.client import Sexton
from workers.demo.direct_store_access import BucketContents, DirectStoreAccess
from workers.demo.promise_report import PromiseResult
from workers.demo.written_topics import WrittenTopic
from workers.settings import Settings

_UNUSED_SEGMENT_NUMBER: Final = 7  # above every segment number of the demo
# The object store rounds times to seconds. A plan finds only orphans that are older than its start.
_CLOCK_RESOLUTION_S: Final = 1.1


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedOrphans:
    primary: frozenset[str]
    tiered: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanAndApplyCounts:
    found: dict[str, int]
    applied: dict[str, int]
    failed: int


def plant_orphans(store_access: DirectStoreAccess, written: Sequence[WrittenTopic]) -> PlantedOrphans:
    """Create orphans: objects of a deleted ledger, an unregistered segment, and an unfinished tiered copy."""
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
    return PlantedOrphans(primary=frozenset({*source_by_key, unregistered_key}), tiered=frozenset(tiered_keys))


async def plan_and_apply_orphans(settings: Settings) -> PlanAndApplyCounts:
    """Plan with age 0 and apply the plan. Age 0 is safe because no process writes any more."""
    await asyncio.sleep(_CLOCK_RESOLUTION_S)
    async with await Sexton.connect(settings) as sexton:
        plan = await sexton.plan_orphans(older_than_s=0, unsafe_age=True, reason="demo", actor="sexton demo")
        planned = await plan.result()
        job = await sexton.apply_orphans(planned.run_id, max_orphan_share=1, reason="demo", actor="sexton demo")
        applied = await job.result()
    return PlanAndApplyCounts(
        found=planned.found.findings if planned.found else {},
        applied=dict(applied.done.applied),
        failed=applied.done.failed,
    )


def check_orphans_removed(
    before: tuple[BucketContents, BucketContents],
    after: tuple[BucketContents, BucketContents],
    orphans: PlantedOrphans,
    job_counts: PlanAndApplyCounts,
) -> PromiseResult:
    problems: list[str] = []
    for contents_before, contents_after, planted in zip(before, after, (orphans.primary, orphans.tiered), strict=True):
        etags = contents_after.etags
        other_etags = {key: etag for key, etag in contents_before.etags.items() if key not in planted}
        problems += [f"{key} is still there" for key in sorted(planted & etags.keys())]
        problems += [f"{key} was touched" for key in sorted(other_etags) if etags.get(key) != other_etags[key]]
    kinds = {FindingKind.ORPHAN_LEDGER, FindingKind.ORPHAN_SEGMENT, FindingKind.ORPHAN_OFFLOAD}
    expected = {kind.value: int(kind in kinds) for kind in FindingKind if kind.is_removable} | {
        FindingKind.MISSING_DATA.value: 0
    }
    counts = {kind: job_counts.found.get(kind, 0) for kind in expected}
    problems += [
        f"{kind}: expected {expected[kind]}, found {counts[kind]}"
        for kind in expected
        if counts[kind] != expected[kind]
    ]
    problems += [f"{job_counts.failed} findings failed"] if job_counts.failed else []
    objects = len(orphans.primary) + len(orphans.tiered)
    evidence = f"{objects} orphaned objects of {len(kinds)} kinds planted, found and removed; nothing else"
    return PromiseResult.from_problems("orphans go, and nothing else", problems, evidence)
