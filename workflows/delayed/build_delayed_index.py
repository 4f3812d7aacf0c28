"""`build-delayed-index`: buckets of delayed messages of many topics are built from their logs, in the place of others.

Destroys the buckets that the new ones take the place of, by two-phase deletion. Invariant: a topic has its old buckets
or its new ones, and what no bucket holds is read in the log. To stop it, cancel it: its bulk job ends with it, and what
was switched to stays.

1. Begin: a run with the topics that are asked for, or all that have delayed messages.
2. Build: one bulk job reads the delivery times of the logs, a bucket a task.
3. Switch, part by part, each topic by the version of its list.
4. Conclude: counts, and the output goes.

Source: PIP-195, where an index that is lost is rebuilt by one reader of the whole log.
"""

from collections import Counter
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from activities.delayed.building import IndexBuilding
    from activities.delayed.values import (
        BeginIndexesInput,
        BuildIndexesInput,
        BuiltIndexes,
        ConcludeIndexesInput,
        SwitchIndexesInput,
    )
    from workflows import options, refusals, search_attributes
    from workflows.delayed.values import (
        BuildDelayedIndexInput,
        BuildDelayedIndexProgress,
        BuildDelayedIndexResult,
    )

_SWITCH: workflow.ActivityConfig = workflow.ActivityConfig(
    start_to_close_timeout=timedelta(hours=2),  # 100,000 topics in 256 parts, each with some uploads, with room
    heartbeat_timeout=options.NOTICED,
    retry_policy=RetryPolicy(maximum_interval=timedelta(minutes=1)),  # unlimited: waits for storage to come back
)
_REFUSALS = frozenset({"PreconditionFailed", "InvalidInput"})


@workflow.defn(name="build-delayed-index")
class BuildDelayedIndex:
    """See the module's text."""

    @workflow.init
    def __init__(self, request: BuildDelayedIndexInput) -> None:
        """Take a run id, if none was given."""
        self._request = request
        self._run_id = request.run_id or f"indexes-{workflow.uuid4().hex[:12]}"
        self._progress = BuildDelayedIndexProgress(run_id=self._run_id, step="beginning")

    @workflow.run
    async def run(self, request: BuildDelayedIndexInput) -> BuildDelayedIndexResult:  # noqa: ARG002 - taken by `__init__`
        """Do the numbered steps."""
        workflow.upsert_search_attributes([search_attributes.RUN_ID.value_set(self._run_id)])
        try:
            built = await self._all()
        except ActivityError as error:
            refusal = refusals.refusal_of(error, _REFUSALS)
            if refusal is None:
                raise
            self._at("ended", self._progress.counts, refusals.shown(refusal))
            workflow.upsert_search_attributes([search_attributes.OUTCOME.value_set(["REFUSED"])])
            return BuildDelayedIndexResult(run_id=self._run_id, refused=refusal)
        self._at("ended", built.counts, "".join(f"- not read: {sentence}\n" for sentence in built.left_out))
        workflow.upsert_search_attributes([search_attributes.OUTCOME.value_set(["BUILT"])])
        return BuildDelayedIndexResult(run_id=self._run_id, counts=built.counts, left_out=built.left_out)

    @workflow.query
    def progress(self) -> BuildDelayedIndexProgress:
        """Which step it is at, and what it has come to."""
        return self._progress

    async def _all(self) -> BuiltIndexes:
        self._at("beginning", {})
        request = self._request
        begin = BeginIndexesInput(
            run_id=self._run_id, actor=request.actor, reason=request.reason, topic_ids=request.topic_ids
        )
        begun = await workflow.execute_activity_method(IndexBuilding.begin_build, begin, **options.CATALOG)
        if begun.done:
            return begun
        self._at("building", {})
        build, config = BuildIndexesInput(run_id=self._run_id, master=request.master), options.bulk(request.queue)
        built: BuiltIndexes = await workflow.execute_activity_method(IndexBuilding.build_indexes, build, **config)
        counts = await self._switch(built)
        self._at("concluding", counts)
        conclude = ConcludeIndexesInput(run_id=self._run_id, counts=counts)
        return await workflow.execute_activity_method(IndexBuilding.conclude_build, conclude, **options.CATALOG)

    async def _switch(self, built: BuiltIndexes) -> dict[str, int]:
        """Part by part; the counts of what became of all topics."""
        parts = built.counts.get("parts", 0)
        counts = Counter({name: count for name, count in built.counts.items() if name != "parts"})
        counts.update(switched=0, superseded=0)
        for part in range(parts):
            self._at("switching", dict(counts), f"{part:,} of {parts:,} parts")
            done = await workflow.execute_activity_method(
                IndexBuilding.switch_indexes, SwitchIndexesInput(run_id=self._run_id, page=part), **_SWITCH
            )
            counts.update(switched=done.switched, superseded=done.superseded, gone=done.gone)
        return dict(counts)

    def _at(self, step: str, counts: dict[str, int], told: str = "") -> None:
        self._progress = BuildDelayedIndexProgress(run_id=self._run_id, step=step, counts=counts)
        done = "".join(f"- {name}: {count:,}\n" for name, count in sorted(counts.items()))
        workflow.set_current_details(f"run `{self._run_id}`: **{step}**\n\n{done}\n{told}")
