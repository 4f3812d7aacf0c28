"""Scenes of rebuilds; see `record`. Their activities answer what a rebuild of a small catalog came to."""

from collections.abc import Callable
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.records.rebuild_catalog import (
    ComparedShardCounts,
    CompareShardsInput,
    PinnedManifestSummary,
    PublishedManifest,
    RebuiltRecordCounts,
)
from logstore.records.job_results import RebuildAdoptionResult
from logstore.records.rebuild_job import RebuildRequest
from tests.replay.courses import Handle, Staged
from tests.workflows.workflow_harness import Gate, WorkflowHarness
from workflows.records.job_definitions import REBUILD_CATALOG, RebuildCatalogInput
from workflows.records.rebuild_catalog import RebuildCatalog

REBUILD = "00000000-0000-4000-8000-00000000c0de-7-0123abcd"


class Answers:
    """Activities of a rebuild that only answer."""

    def __init__(self, *, fault: str = "", gate: Gate | None = None) -> None:
        self._fault, self._gate = fault, gate
        self.let_go_of: list[str] = []

    @activity.defn(name="rebuild.begin")
    def begin(self, _: RebuildRequest) -> PinnedManifestSummary:
        if self._fault == "no_database":
            raise ApplicationError("database: expected an empty one", type="PreconditionFailed", non_retryable=True)
        return PinnedManifestSummary(loaded=False, flushed_us=1, blocks=2, versions=3)

    @activity.defn(name="rebuild.find_rows")
    def write_row_files(self, _: RebuildRequest) -> RebuiltRecordCounts:
        if self._gate:
            self._gate.wait()
        if self._fault == "bug":
            raise ApplicationError("a bug of ours", type="UnknownFault", non_retryable=True)
        return RebuiltRecordCounts(records=3, tombstones=1)

    @activity.defn(name="rebuild.load_rows")
    def load_rows(self, _: RebuildRequest) -> None:
        return None

    @activity.defn(name="rebuild.publish")
    def publish(self, _: RebuildRequest) -> PublishedManifest:
        return PublishedManifest(manifest=8)

    @activity.defn(name="rebuild.adopt_shards")
    def compare_and_stage_shards(self, _: CompareShardsInput) -> ComparedShardCounts:
        return ComparedShardCounts(objects=2, staged=1)

    @activity.defn(name="rebuild.finish_adoption")
    def finish_adoption(self, _: RebuildRequest) -> RebuildAdoptionResult:
        if self._fault == "outdated":
            raise ApplicationError("database: older than its record log", type="CatalogOutdated", non_retryable=True)
        return RebuildAdoptionResult(adopted_segments=2)

    @activity.defn(name="rebuild.let_go")
    def let_go(self, request: RebuildRequest) -> None:
        self.let_go_of.append(request.rebuild)


def _activities(**how: Any) -> list[Callable[..., Any]]:
    return activities_of(Answers(**how))


def activities_of(answers: Answers) -> list[Callable[..., Any]]:
    """What a worker serves of them."""
    return [
        answers.begin,
        answers.write_row_files,
        answers.load_rows,
        answers.publish,
        answers.compare_and_stage_shards,
        answers.finish_adoption,
        answers.let_go,
    ]


_STAGED = Staged(workflow=RebuildCatalog, job=REBUILD_CATALOG, key=REBUILD, answers=_activities)
_REQUEST = RebuildCatalogInput(rebuild=REBUILD)


async def rebuild_complete(house: WorkflowHarness) -> Handle:
    """All steps."""
    return await _STAGED.ended(house, _REQUEST)


async def rebuild_refused(house: WorkflowHarness) -> Handle:
    """The database is not empty."""
    return await _STAGED.ended(house, _REQUEST, fault="no_database")


async def rebuild_failed(house: WorkflowHarness) -> Handle:
    """A bug in a step."""
    return await _STAGED.ended(house, _REQUEST, fault="bug")


async def rebuild_outdated(house: WorkflowHarness) -> Handle:
    """Another rebuild won before the flush."""
    return await _STAGED.ended(house, _REQUEST, fault="outdated")


async def rebuild_cancelled(house: WorkflowHarness) -> Handle:
    """While it looks for rows: it lets its manifest go, and ends."""
    return await _STAGED.cancelled(house, _REQUEST)


async def rebuild_running(house: WorkflowHarness) -> Handle:
    """It looks for rows, and its worker is gone."""
    return await _STAGED.left_at_work(house, _REQUEST)
