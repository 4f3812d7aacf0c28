"""Damage the store in three ways, plan and apply, and see from outside that exactly the damage went."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

from logstore.log.ledgers import ledger_prefix, segment_key
from logstore.offload.tiered import data_key, index_key
from logstore.reconciliation.findings import FindingKind
from workers.client import Sexton
from workers.demo.auditor import Auditor, Stored
from workers.demo.report import PromiseRow
from workers.demo.scenario import WrittenTopic
from workers.settings import Settings

_LATE: Final = 7  # a segment's number that no writer of the demo reaches
_CLOCK_S: Final = 1.1  # the store tells its time in whole seconds, and nothing younger than the cut-off is an orphan


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """Keys that were planted, of the primary bucket and of the tiered one."""

    primary: frozenset[str]
    tiered: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciled:
    """The answers of the two jobs."""

    found: dict[str, int]
    applied: dict[str, int]
    failed: int


def plant_orphans(auditor: Auditor, written: Sequence[WrittenTopic]) -> Damage:
    """A deleted ledger's objects come back, a writer dies behind its upload, and so does an offload."""
    topic = next(one for one in written if one.deletable)
    live, gone = topic.needed[0], topic.deletable[0]
    stands, returned = ledger_prefix(live), ledger_prefix(gone)
    keys = auditor.stored().of_ledger(live)
    ledger = {key.replace(stands, returned): key for key in keys}
    stated = {"ledger-id": str(gone), "created-us": str(auditor.created_us(gone))}
    for key, source in ledger.items():
        auditor.copy(source, key, stating=stated)
    data, uuid = next(key for key in keys if key.endswith(".parquet")), str(uuid4())
    late = segment_key(live, _LATE)
    auditor.copy(data, late)
    pair = (data_key(uuid, live), index_key(uuid, live))
    for key in pair:
        auditor.copy(data, key, tiered=True)
    return Damage(primary=frozenset({*ledger, late}), tiered=frozenset(pair))


async def reconcile(settings: Settings) -> Reconciled:
    """Plan at once, because no process writes any more, and apply what was found."""
    await asyncio.sleep(_CLOCK_S)
    async with await Sexton.connect(settings) as sexton:
        plan = await sexton.plan_orphans(older_than_s=0, unsafe_age=True, reason="demo", actor="sexton demo")
        planned = await plan.result()
        job = await sexton.apply_orphans(planned.run_id, max_orphan_share=1, reason="demo", actor="sexton demo")
        applied = await job.result()
    return Reconciled(
        found=planned.found.findings if planned.found else {},
        applied=dict(applied.done.applied),
        failed=applied.done.failed,
    )


def check_orphans(
    before: tuple[Stored, Stored], after: tuple[Stored, Stored], damage: Damage, told: Reconciled
) -> PromiseRow:
    """All that was planted is gone from both buckets, all else is byte for byte as it was, and no data is missed."""
    wrong: list[str] = []
    for was, now, planted in zip(before, after, (damage.primary, damage.tiered), strict=True):
        left = {key: etag for key, etag in was.etags.items() if key not in planted}
        wrong += [f"{key} is still there" for key in sorted(planted & now.etags.keys())]
        wrong += [f"{key} was touched" for key in sorted(left) if now.etags.get(key) != left[key]]
    kinds = {FindingKind.ORPHAN_LEDGER, FindingKind.ORPHAN_SEGMENT, FindingKind.ORPHAN_OFFLOAD}
    expected = {kind.value: int(kind in kinds) for kind in FindingKind if kind.applied} | {
        FindingKind.MISSING_DATA.value: 0
    }
    found = {kind: told.found.get(kind, 0) for kind in expected}
    wrong += [
        f"{kind}: expected {expected[kind]}, found {found[kind]}" for kind in expected if found[kind] != expected[kind]
    ]
    wrong += [f"{told.failed} findings failed"] if told.failed else []
    objects = len(damage.primary) + len(damage.tiered)
    seen = f"{objects} orphaned objects of {len(kinds)} kinds planted, found and removed; nothing else"
    return PromiseRow.of("orphans go, and nothing else", wrong, seen)
