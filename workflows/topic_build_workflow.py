"""Steps shared by all jobs that build something for many topics. Each job's module says what the job destroys.

1. Begin: open a run with the requested topics, or with all topics.
2. Build: one bulk job reads the logs.
3. Switch: page by page, replace the old data of each topic by the new data, with a compare-and-set.
4. Conclude: store the counts, and delete the output of the bulk job.
"""

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError

from activities.topic_build_steps import (
    BeginBuildInput,
    ConcludeBuildInput,
    RunBuildJobInput,
    SwitchCounts,
    SwitchTopicsPageInput,
    TopicBuildSummary,
)
from workflows import activity_options, guard_refusal_results, search_attributes
from workflows.topic_build_types import BUILD_GUARDS, BuildProgress, BuildResult, BuildTopicsInput

_SWITCH: workflow.ActivityConfig = workflow.ActivityConfig(
    start_to_close_timeout=timedelta(hours=2),  # 100,000 topics in 256 parts, each with some uploads
    heartbeat_timeout=activity_options.HEARTBEAT_TIMEOUT,
    retry_policy=RetryPolicy(maximum_interval=timedelta(minutes=1)),  # unlimited: waits for storage to come back
)
_FILE_COUNTS = frozenset({"parts", "buffers"})


class TopicBuildActivities(NamedTuple):
    begin: Callable[[Any, BeginBuildInput], TopicBuildSummary]
    build: Callable[[Any, RunBuildJobInput], TopicBuildSummary]
    switch: Callable[[Any, SwitchTopicsPageInput], SwitchCounts]
    conclude: Callable[[Any, ConcludeBuildInput], TopicBuildSummary]


class TopicBuildWorkflow:
    """Base class of workflows that build something for many topics. It creates a `run_id` if the request has none."""

    def __init__(self, request: BuildTopicsInput, steps: TopicBuildActivities) -> None:
        self._request, self._steps = request, steps
        self._run_id = request.run_id or f"{request.runs}-{workflow.uuid4().hex[:12]}"
        self._progress = BuildProgress(run_id=self._run_id, step="beginning")

    @workflow.query
    def progress(self) -> BuildProgress:
        """Return the present step, and the number of topics by result."""
        return self._progress

    async def run_build(self) -> BuildResult:
        workflow.upsert_search_attributes([search_attributes.RUN_ID.value_set(self._run_id)])
        try:
            built = await self._run_steps()
        except ActivityError as error:
            refusal = guard_refusal_results.refusal_from_error_or_raise(error, BUILD_GUARDS)
            self._show_progress("ended", self._progress.counts, guard_refusal_results.format_refusal(refusal))
            workflow.upsert_search_attributes([search_attributes.OUTCOME.value_set(["REFUSED"])])
            return BuildResult(run_id=self._run_id, refused=refusal)
        self._show_progress("ended", built.counts, "".join(f"- not read: {sentence}\n" for sentence in built.left_out))
        workflow.upsert_search_attributes([search_attributes.OUTCOME.value_set(["BUILT"])])
        return BuildResult(run_id=self._run_id, counts=built.counts, left_out=built.left_out)

    async def _run_steps(self) -> TopicBuildSummary:
        self._show_progress("beginning", {})
        request = self._request
        begin = BeginBuildInput(
            run_id=self._run_id, actor=request.actor, reason=request.reason, topic_ids=request.topic_ids
        )
        earlier = await workflow.execute_activity_method(self._steps.begin, begin, **activity_options.CATALOG)
        if earlier.done:
            return earlier
        self._show_progress("building", {})
        build, config = (
            RunBuildJobInput(run_id=self._run_id, master=request.master),
            activity_options.bulk_job_options(request.queue),
        )
        counts = await self._switch_all_parts(
            await workflow.execute_activity_method(self._steps.build, build, **config)
        )
        self._show_progress("concluding", counts)
        conclude = ConcludeBuildInput(run_id=self._run_id, counts=counts)
        return await workflow.execute_activity_method(self._steps.conclude, conclude, **activity_options.CATALOG)

    async def _switch_all_parts(self, built: TopicBuildSummary) -> dict[str, int]:
        parts = built.counts.get("parts", 0)
        counts = Counter({name: count for name, count in built.counts.items() if name not in _FILE_COUNTS})
        counts.update(switched=0, superseded=0)
        for part in range(parts):
            self._show_progress("switching", dict(counts), f"{part:,} of {parts:,} parts")
            page = SwitchTopicsPageInput(run_id=self._run_id, page=part)
            page_counts = await workflow.execute_activity_method(self._steps.switch, page, **_SWITCH)
            counts.update(switched=page_counts.switched, superseded=page_counts.superseded, gone=page_counts.gone)
        return dict(counts)

    def _show_progress(self, step: str, counts: dict[str, int], note: str = "") -> None:
        self._progress = BuildProgress(run_id=self._run_id, step=step, counts=counts)
        rows = "".join(f"- {name}: {count:,}\n" for name, count in sorted(counts.items()))
        workflow.set_current_details(f"run `{self._run_id}`: **{step}**\n\n{rows}\n{note}")
