"""The steps that tests of reconciliation are told in."""

import secrets
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from logstore.deletion.intents import DeletionIntent
from logstore.deletion.retention import RetentionPolicy
from logstore.errors import UnknownObject
from logstore.log.ledgers import Component, CopyKind, LedgerOwner, LedgerStatement
from logstore.ports.catalog.deletion import DetachedBatch
from logstore.ports.catalog.log import Topic
from logstore.ports.catalog.reconciliation import FindingsFilingRequest, OrphanCopy, RunKind, SingleObjectAnswers
from logstore.positions import LedgerId, TopicId
from logstore.reconciliation.findings import FindingFate
from tests.contracts.catalog.log.component_steps import CURSOR, publish
from tests.contracts.catalog.sql_world import SqlWorld
from tests.contracts.catalog.world import CAUSE, World, claim


def statement(topic: Topic, ledger_id: int, *, epoch: int = 1, created_us: int = 5) -> LedgerStatement:
    """What storage says of a data ledger."""
    owner = LedgerOwner(
        application="sexton", component=Component.MANAGED_LEDGER, topic_id=topic.topic_id, topic=topic.name, keys={}
    )
    return LedgerStatement(owner=owner, ledger_id=LedgerId(ledger_id), created_us=created_us, epoch=epoch)


def created_us(world: World, topic: Topic, ledger_id: int) -> int:
    """When a ledger was created, as its row or its oldest deletion says."""
    times = [one.created_us for one in world.catalog.ledgers.list_ledgers(topic.topic_id) if one.ledger_id == ledger_id]
    return times[0] if times else intents(world, ledger_id)[0].ledger_created_us


def orphan(topic: Topic, ledger_id: int, *, number: int = 0, epoch: int = 1, created_us: int = 5) -> OrphanCopy:
    """A primary copy in storage."""
    said = statement(topic, ledger_id, epoch=epoch, created_us=created_us)
    return OrphanCopy(number=number, copy=CopyKind.LEDGER, statement=said, size_bytes=700)


def tiered_orphan(topic: Topic, ledger_id: int, uuid: str, *, number: int = 0, created_us: int = 5) -> OrphanCopy:
    """A tiered copy in storage."""
    context = {"driver": "aws-s3", "bucket": "cold", "region": "r-1", "uuid": uuid}
    kind, said = CopyKind.OFFLOADED_LEDGER, statement(topic, ledger_id, created_us=created_us)
    return OrphanCopy(number=number, copy=kind, statement=said, context=context, size_bytes=70)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilingResult:
    """Result of a filing, and the reasons that the catalog stored with it."""

    detached: DetachedBatch
    kept: Mapping[int, str]


APPLY_RUN = "apply-plan-1"
_PAGES = count()


def open_apply(world: World, run_id: str = APPLY_RUN) -> None:
    try:
        world.catalog.reconciliation.get_run(run_id)
    except UnknownObject:
        world.catalog.reconciliation.open_run(run_id, RunKind.APPLY, claim=claim("apply"), summary={})


def read_kept(world: World, page: int, run_id: str = APPLY_RUN) -> dict[int, str]:
    """Reasons of the findings of a page that an apply keeps."""
    fates = world.catalog.reconciliation.read_fates(run_id, page)
    return {number: fate.reason for number, fate in fates.items() if fate and fate.fate is FindingFate.KEPT}


def file(
    world: World,
    batch_id: str = "apply",
    *,
    orphans: Sequence[OrphanCopy] = (),
    unreferenced: Mapping[int, LedgerId] | None = None,
    stalled: Mapping[int, int] | None = None,
    kept: Mapping[int, str] | None = None,
    with_preview: bool = True,
) -> FilingResult:
    """File one page of findings, for a workflow of its own. Outside of races the preview must say the same before.

    The batch id stands for the page.
    """
    open_apply(world, f"{APPLY_RUN}-{batch_id}")
    page = FindingsFilingRequest(
        batch_id=batch_id,
        orphans=orphans,
        unreferenced=unreferenced or {},
        stalled=stalled or {},
        run_id=f"{APPLY_RUN}-{batch_id}",
        page=0,
        kept=kept or {},
        claim=claim(),
        cause=CAUSE,
    )
    is_first = world.catalog.reconciliation.find_filed_batch(batch_id) is None
    previewed = world.catalog.reconciliation.preview_filing(page) if with_preview else {}
    detached = world.catalog.reconciliation.file_findings(page)
    filing = FilingResult(detached=detached, kept=read_kept(world, 0, page.run_id))
    if with_preview and is_first and _is_alone():
        assert {**page.kept, **previewed} == filing.kept
    return filing


def pass_over(world: World, *segments: tuple[int, int]) -> Mapping[int, str]:
    """Findings 0, 1, … are segments of ledgers; the preview must say the same before, outside of races."""
    asked = {number: (LedgerId(ledger_id), at) for number, (ledger_id, at) in enumerate(segments)}
    previewed = world.catalog.reconciliation.preview_pass_over_segments(asked, passed_over={})
    open_apply(world)
    page, answers = next(_PAGES), SingleObjectAnswers(segments=asked, uploads=frozenset(), kept={})
    fates = world.catalog.reconciliation.decide_single_objects(APPLY_RUN, page, answers, cause=CAUSE)
    kept = {number: fate.reason for number, fate in fates.items() if fate}
    assert previewed == kept or not _is_alone()
    return kept


def _is_alone() -> bool:
    """Races run in threads of their own."""
    return threading.current_thread() is threading.main_thread()


def intents(world: World, ledger_id: int) -> list[DeletionIntent]:
    """All of a ledger, oldest first."""
    return world.catalog.deletions.list_intents(None, ledger_id=LedgerId(ledger_id), limit=100)[::-1]


def lost(world: World) -> LedgerId:
    """The id of a ledger of which the catalog has forgotten everything; with it, every intent that there is."""
    topic = world.catalog.topics.create_topic(f"persistent://a/b/{secrets.token_hex(8)}", RetentionPolicy())
    ledger_id = world.catalog.ledgers.create_ledger(topic.topic_id, application="sexton").ledger_id
    world.age(ledger_id, seconds=86_400)
    world.phase_one(topic.topic_id)
    world.forget_intents()
    return ledger_id


def superseded(world: SqlWorld, topic_id: TopicId, entry: tuple[int, int]) -> LedgerId:
    """An older snapshot of a cursor that names a newer one, left behind without a deletion as no build of ours does."""
    world.catalog.cursors.create_subscription(topic_id, CURSOR, latest=False)
    old = publish(world, topic_id, entry).ledger_id
    world.sql("UPDATE cursor SET snapshot_ledger = NULL WHERE snapshot_ledger = :id", id=old)
    publish(world, topic_id, entry)
    return old
