"""`rebuild-catalog`: rebuild a lost catalog from its record log and from storage, in an empty database.

Destroys nothing and files no intents. Invariant: the database becomes the catalog when the first manifest of the new
epoch is stored, and only one such manifest can be stored. The catalog refuses every destructive job until all of
storage was read. A listing alone never proves that a ledger is absent, and too many absent ledgers end the rebuild.
To stop it, end the command `sexton records rebuild`, or cancel the workflow. Run the command again to continue.

1. Pin the newest manifest and its blocks.
2. Find rows: one bulk job takes the newest record version of every record.
3. Load the rows into the empty database, either all or none.
4. Compare storage with the rows, shard by shard. If listings lack an object that HEAD finds, or too many ledgers are
   absent, the rebuild ends here and the old epoch continues.
5. Publish the first manifest of the new epoch, with the loaded rows. This ends the old epoch.
6. Adopt: compare again, settle each topic, and flush the result. The catalog is then READY.
7. Release the pin, also after a failure or a cancellation.

Source: Aerospike's cold start; for the proof of absence apache/bookkeeper#870.
"""

from dataclasses import replace
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy, VersioningBehavior
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from activities.records.rebuild_catalog import (
        CompareShardsInput,
        PinnedManifestSummary,
        RebuildCatalogActivities,
        RebuiltRecordCounts,
    )
    from logstore.log.ledger_object_keys import SHARDS
    from workflows import activity_options, guard_refusal_results
    from workflows.records.job_definitions import (
        REBUILD_CATALOG,
        RebuildCatalogInput,
        RebuildCatalogProgress,
        RebuildCatalogResult,
    )

_LONG: workflow.ActivityConfig = workflow.ActivityConfig(
    # about a billion rows at 100,000 rows a second, or a shard with as many objects
    start_to_close_timeout=timedelta(hours=24),
    heartbeat_timeout=activity_options.HEARTBEAT_TIMEOUT,
    retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=30)),  # unlimited: waits for database and storage
)
_BULK: workflow.ActivityConfig = activity_options.bulk_job_options("")
_SHARDS_PER_ACTIVITY = 16


@workflow.defn(name="rebuild-catalog", versioning_behavior=VersioningBehavior.PINNED)
class RebuildCatalog:
    @workflow.init
    def __init__(self, request: RebuildCatalogInput) -> None:
        self._request = request
        self._progress = RebuildCatalogProgress()

    @workflow.run
    async def run(self, request: RebuildCatalogInput) -> RebuildCatalogResult:
        begun_us = round(workflow.info().workflow_start_time.timestamp() * 1_000_000)
        try:
            result = await self._run_rebuild_steps(begun_us)
        except ActivityError as error:
            refusal = guard_refusal_results.refusal_from_error(error, REBUILD_CATALOG.guards)
            if refusal is None:  # failed or cancelled: raids need not wait any more
                await self._release_pin()
                raise
            result = RebuildCatalogResult(rebuild=request.rebuild, begun_us=begun_us, refused=refusal)
        await self._release_pin()
        self._set_progress("ended", note=guard_refusal_results.format_refusal(result.refused) if result.refused else "")
        return result

    @workflow.query
    def progress(self) -> RebuildCatalogProgress:
        """Return the present step, and the numbers of shards, record versions and records."""
        return self._progress

    async def _release_pin(self) -> None:
        self._set_progress("letting go")
        await workflow.execute_activity_method(
            RebuildCatalogActivities.unpin_and_remove_output, self._request, **activity_options.CATALOG
        )

    async def _run_rebuild_steps(self, begun_us: int) -> RebuildCatalogResult:
        begun: PinnedManifestSummary = await workflow.execute_activity_method(
            RebuildCatalogActivities.check_and_pin_manifest, self._request, **activity_options.CATALOG
        )
        self._set_progress("finding rows", versions=begun.versions)
        rows: RebuiltRecordCounts = await workflow.execute_activity_method(
            RebuildCatalogActivities.write_row_files, self._request, **_BULK
        )
        self._set_progress("loading", records=rows.records)
        await workflow.execute_activity_method(RebuildCatalogActivities.load_rows, self._request, **_LONG)
        await self._stage_shard_differences("looking", may_old_catalog_append=True)
        self._set_progress("publishing")
        published = await workflow.execute_activity_method(
            RebuildCatalogActivities.publish_first_manifest, self._request, **activity_options.CATALOG
        )
        await self._stage_shard_differences("adopting")
        self._set_progress("settling", shards=SHARDS)
        adopted = await workflow.execute_activity_method(
            RebuildCatalogActivities.finish_adoption, self._request, **_LONG
        )
        return RebuildCatalogResult(
            rebuild=self._request.rebuild,
            manifest=published.manifest,
            records=rows.records,
            tombstones=rows.tombstones,
            adopted=adopted,
            skipped=rows.skipped,
            skipped_blocks=rows.skipped_blocks,
            flushed_us=begun.flushed_us,
            begun_us=begun_us,
        )

    async def _stage_shard_differences(self, step: str, *, may_old_catalog_append: bool = False) -> None:
        for first in range(0, SHARDS, _SHARDS_PER_ACTIVITY):
            self._set_progress(step, shards=first)
            end = min(first + _SHARDS_PER_ACTIVITY, SHARDS)
            part = CompareShardsInput(first=first, end=end, is_growing=may_old_catalog_append)
            await workflow.execute_activity_method(RebuildCatalogActivities.compare_and_stage_shards, part, **_LONG)

    def _set_progress(self, step: str, *, note: str = "", **counts: int) -> None:
        self._progress = progress = replace(self._progress, step=step, **counts)
        lines = (
            f"- versions: {progress.versions:,}\n- records: {progress.records:,}\n"
            f"- shards adopted: {progress.shards} of {SHARDS}"
        )
        workflow.set_current_details(f"**{step}**\n\n{lines}\n\n{note}")
