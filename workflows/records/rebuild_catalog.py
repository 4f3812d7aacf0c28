"""`rebuild-catalog`: a catalog whose database is lost comes back from its record log, and from what storage holds.

Destroys nothing and files nothing for deletion; an empty database is filled. Invariant: the database is the catalog
once the manifest of the new epoch names it, of which only one can be put; until all of storage was looked at, the
catalog refuses whatever destroys. No ledger is taken for absent on the word of a listing. Too many absent ones end it.
To stop it, end the command that hosts it, or cancel it; run again, the command goes on where it ended.

1. Begin: the newest manifest is held, with all blocks that it names.
2. Find rows: one bulk job takes the newest version of every record.
3. Load them into the empty database, as a whole or not at all.
4. Look at storage shard by shard. Listings that lack what HEAD finds, or too many absent ledgers, end the rebuild here:
   the old epoch goes on.
5. Publish the manifest of the new epoch, which shows the moment that was loaded. The old epoch has ended.
6. Adopt: storage is looked at again, each topic is settled, and all of it is flushed; the catalog is READY.
7. Release the held blocks, also where it fails or is cancelled.

Source: Aerospike's cold start; for the proof of absence apache/bookkeeper#870.
"""

from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy, VersioningBehavior
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from activities.records.rebuilding import Rebuilding
    from activities.records.values import AdoptShardsInput, RebuildBegun, RebuildStep, RebuiltRows
    from logstore.log.ledgers import SHARDS
    from workflows import options, refusals
    from workflows.records.values import RebuildCatalogInput, RebuildCatalogProgress, RebuildCatalogResult

_LONG: workflow.ActivityConfig = workflow.ActivityConfig(
    start_to_close_timeout=timedelta(hours=24),  # a billion rows, some 100,000 a second; a shard of as many objects
    heartbeat_timeout=options.HEARTBEAT_TIMEOUT,
    retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=30)),  # unlimited: waits for database and storage
)
_ROWS: workflow.ActivityConfig = options.bulk_job("")
_PART = 16  # shards of one activity
GUARDS = frozenset(
    {
        "AlreadyExists",
        "CatalogMismatch",
        "CatalogOutdated",
        "CatalogVersionMismatch",
        "CorruptData",
        "InvalidInput",
        "MissingData",
        "PreconditionFailed",
        "Unsupported",
    }
)
"""Types of refusals by which a rebuild ends: it has not published anything, or says so."""


@workflow.defn(name="rebuild-catalog", versioning_behavior=VersioningBehavior.PINNED)
class RebuildCatalog:
    """See the module's text."""

    @workflow.init
    def __init__(self, request: RebuildCatalogInput) -> None:
        """Begin."""
        self._step = RebuildStep(
            rebuild=request.rebuild,
            skip_unreadable=request.skip_unreadable,
            master=request.master,
            max_absent_share=request.max_absent_share,
            take_over=request.take_over,
        )
        self._progress = RebuildCatalogProgress()

    @workflow.run
    async def run(self, request: RebuildCatalogInput) -> RebuildCatalogResult:
        """Do the numbered steps."""
        begun_us = round(workflow.info().workflow_start_time.timestamp() * 1_000_000)
        try:
            result = await self._rebuilt(begun_us)
        except ActivityError as error:
            refusal = refusals.find_refusal(error, GUARDS)
            if refusal is None:  # it fails, or was cancelled: raids need not wait for it any more
                await self._let_go()
                raise
            result = RebuildCatalogResult(rebuild=request.rebuild, begun_us=begun_us, refused=refusal)
        await self._let_go()
        self._at("ended", told=refusals.format_refusal(result.refused) if result.refused else "")
        return result

    @workflow.query
    def progress(self) -> RebuildCatalogProgress:
        """Which step it is at."""
        return self._progress

    async def _let_go(self) -> None:
        self._at("letting go")
        await workflow.execute_activity_method(Rebuilding.let_go, self._step, **options.CATALOG)

    async def _rebuilt(self, begun_us: int) -> RebuildCatalogResult:
        begun: RebuildBegun = await workflow.execute_activity_method(Rebuilding.begin, self._step, **options.CATALOG)
        self._at("finding rows", versions=begun.versions)
        rows: RebuiltRows = await workflow.execute_activity_method(Rebuilding.find_rows, self._step, **_ROWS)
        self._at("loading", records=rows.records)
        await workflow.execute_activity_method(Rebuilding.load_rows, self._step, **_LONG)
        await self._look("looking", is_growing=True)
        self._at("publishing")
        published = await workflow.execute_activity_method(Rebuilding.publish, self._step, **options.CATALOG)
        await self._look("adopting")
        self._at("settling", shards=SHARDS)
        adopted = await workflow.execute_activity_method(Rebuilding.finish_adoption, self._step, **_LONG)
        return RebuildCatalogResult(
            rebuild=self._step.rebuild,
            manifest=published.manifest,
            records=rows.records,
            tombstones=rows.tombstones,
            adopted=adopted,
            skipped=rows.skipped,
            skipped_blocks=rows.skipped_blocks,
            flushed_us=begun.flushed_us,
            begun_us=begun_us,
        )

    async def _look(self, step: str, *, is_growing: bool = False) -> None:
        for first in range(0, SHARDS, _PART):
            self._at(step, shards=first)
            part = AdoptShardsInput(first=first, end=min(first + _PART, SHARDS), is_growing=is_growing)
            await workflow.execute_activity_method(Rebuilding.adopt_shards, part, **_LONG)

    def _at(self, step: str, *, told: str = "", shards: int = -1, versions: int = -1, records: int = -1) -> None:
        before = self._progress
        self._progress = RebuildCatalogProgress(
            step=step,
            shards=before.shards if shards < 0 else shards,
            versions=before.versions if versions < 0 else versions,
            records=before.records if records < 0 else records,
        )
        now = self._progress
        counts = f"- versions: {now.versions:,}\n- records: {now.records:,}\n- shards adopted: {now.shards} of {SHARDS}"
        workflow.set_current_details(f"**{step}**\n\n{counts}\n\n{told}")
