"""The steps that all jobs share which build something for many topics; each job says what it destroys.

1. Begin: a run with the topics that are asked for, or all.
2. Build: one bulk job reads what it needs of the logs.
3. Switch, part by part, each topic by a compare-and-set.
4. Conclude: count what was done, and delete the output of the bulk job.
"""

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError

from activities.building import BeginBuildInput, BuildInput, BuildSummary, ConcludeBuildInput, SwitchCounts, SwitchInput
from workflows import options, refusals, search_attributes
from workflows.jobs import BuildProgress, BuildResult, BuildTopicsInput

_SWITCH: workflow.ActivityConfig = workflow.ActivityConfig(
    start_to_close_timeout=timedelta(hours=2),  # 100,000 topics in 256 parts, each with some uploads, with room
    heartbeat_timeout=options.HEARTBEAT_TIMEOUT,
    retry_policy=RetryPolicy(maximum_interval=timedelta(minutes=1)),  # unlimited: waits for storage to come back
)
_OF_FILES = frozenset({"parts", "buffers"})
GUARDS = frozenset({"PreconditionFailed", "InvalidInput"})
"""Types of refusals by which a build ends: nothing changed."""


class BuildSteps(NamedTuple):
    """The activities of a build."""

    begin: Callable[[Any, BeginBuildInput], BuildSummary]
    build: Callable[[Any, BuildInput], BuildSummary]
    switch: Callable[[Any, SwitchInput], SwitchCounts]
    conclude: Callable[[Any, ConcludeBuildInput], BuildSummary]


class TopicBuild:
    """One run of a build."""

    def __init__(self, request: BuildTopicsInput, steps: BuildSteps) -> None:
        """Take a run id, if none was given."""
        self._request, self._steps = request, steps
        self._run_id = request.run_id or f"{request.runs}-{workflow.uuid4().hex[:12]}"
        self._progress = BuildProgress(run_id=self._run_id, step="beginning")

    @workflow.query
    def progress(self) -> BuildProgress:
        """Which step it is at, and what it has come to."""
        return self._progress

    async def to_end(self) -> BuildResult:
        """Do the numbered steps."""
        workflow.upsert_search_attributes([search_attributes.RUN_ID.value_set(self._run_id)])
        try:
            built = await self._all()
        except ActivityError as error:
            refusal = refusals.require_refusal(error, GUARDS)
            self._at("ended", self._progress.counts, refusals.format_refusal(refusal))
            workflow.upsert_search_attributes([search_attributes.OUTCOME.value_set(["REFUSED"])])
            return BuildResult(run_id=self._run_id, refused=refusal)
        self._at("ended", built.counts, "".join(f"- not read: {sentence}\n" for sentence in built.left_out))
        workflow.upsert_search_attributes([search_attributes.OUTCOME.value_set(["BUILT"])])
        return BuildResult(run_id=self._run_id, counts=built.counts, left_out=built.left_out)

    async def _all(self) -> BuildSummary:
        self._at("beginning", {})
        request = self._request
        begin = BeginBuildInput(
            run_id=self._run_id, actor=request.actor, reason=request.reason, topic_ids=request.topic_ids
        )
        begun = await workflow.execute_activity_method(self._steps.begin, begin, **options.CATALOG)
        if begun.done:
            return begun
        self._at("building", {})
        build, config = BuildInput(run_id=self._run_id, master=request.master), options.bulk_job(request.queue)
        counts = await self._switch(await workflow.execute_activity_method(self._steps.build, build, **config))
        self._at("concluding", counts)
        conclude = ConcludeBuildInput(run_id=self._run_id, counts=counts)
        return await workflow.execute_activity_method(self._steps.conclude, conclude, **options.CATALOG)

    async def _switch(self, built: BuildSummary) -> dict[str, int]:
        """Part by part; the counts of what became of all topics."""
        parts = built.counts.get("parts", 0)
        counts = Counter({name: count for name, count in built.counts.items() if name not in _OF_FILES})
        counts.update(switched=0, superseded=0)
        for part in range(parts):
            self._at("switching", dict(counts), f"{part:,} of {parts:,} parts")
            page = SwitchInput(run_id=self._run_id, page=part)
            done = await workflow.execute_activity_method(self._steps.switch, page, **_SWITCH)
            counts.update(switched=done.switched, superseded=done.superseded, gone=done.gone)
        return dict(counts)

    def _at(self, step: str, counts: dict[str, int], told: str = "") -> None:
        self._progress = BuildProgress(run_id=self._run_id, step=step, counts=counts)
        done = "".join(f"- {name}: {count:,}\n" for name, count in sorted(counts.items()))
        workflow.set_current_details(f"run `{self._run_id}`: **{step}**\n\n{done}\n{told}")
