"""Upkeep passes over the record log: the steps that defragmentations, raids and replications share.

1. If a schedule started this run, run the job as a child with the job's id without a time, and return its result.
2. Otherwise run the pass, in one activity.

So at most one run of each job works at a time. Each job's module says what its pass makes true and destroys.
"""

from abc import ABC, abstractmethod
from dataclasses import replace
from datetime import timedelta
from typing import Any, ClassVar, Generic, TypeVar

from temporalio import workflow
from temporalio.common import RetryPolicy, SearchAttributeUpdate
from temporalio.exceptions import ActivityError

from workflows import activity_options, child_jobs, guard_refusal_results, search_attributes
from workflows.job_definition import JobDefinition
from workflows.records.job_definitions import RecordUpkeepInput, RecordUpkeepResult

I = TypeVar("I", bound=RecordUpkeepInput)  # noqa: E741 - the input
R = TypeVar("R", bound=RecordUpkeepResult)


def pass_options(queue: str) -> workflow.ActivityConfig:
    return workflow.ActivityConfig(
        task_queue=queue or None,
        start_to_close_timeout=timedelta(hours=24),  # enough for 86,000 blocks at one block a second
        heartbeat_timeout=activity_options.HEARTBEAT_TIMEOUT,
        retry_policy=RetryPolicy(
            maximum_interval=timedelta(minutes=1), maximum_attempts=10
        ),  # then the next pass is due
    )


class RecordUpkeepWorkflow(ABC, Generic[I, R]):
    """Base class of the workflows of upkeep passes."""

    job: ClassVar[JobDefinition[Any, Any]]  # with the types of the subclass
    noun: ClassVar[str] = "run"  # word for a run of the job in its details

    async def run_upkeep(self, request: I) -> R:
        result = await (self._run_as_child(request) if request.scheduled else self._run_pass_unless_refused(request))
        workflow.set_current_details(self._describe(result))
        workflow.upsert_search_attributes(self._list_attribute_updates(result))
        return result

    async def _run_as_child(self, request: I) -> R:
        result: R | None = await child_jobs.run_unless_running(self.job, replace(request, scheduled=False))
        joined: R = self.job.result(joined=True)
        return joined if result is None else result

    async def _run_pass_unless_refused(self, request: I) -> R:
        before = self._begin(request)
        try:
            return await self._run_pass(request, before)
        except ActivityError as error:
            refusal = guard_refusal_results.refusal_from_error_or_raise(error, self.job.guards)
            return replace(before, refused=refusal)

    def _describe(self, result: R) -> str:
        if result.refused:
            return guard_refusal_results.format_refusal(result.refused)
        if result.joined:
            return f"Another {self.noun} was at work, and nothing was done here."
        return self._describe_pass(result)

    def _list_attribute_updates(self, result: R) -> list[SearchAttributeUpdate[Any]]:
        outcomes = ["REFUSED"] if result.refused else ["HELD"] if result.joined else self._list_outcomes(result)
        return [search_attributes.OUTCOME.value_set(outcomes or ["NOTHING"])]

    def _begin(self, request: I) -> R:
        """Return the result of a pass that has done nothing yet."""
        del request
        result: R = self.job.result()
        return result

    @abstractmethod
    async def _run_pass(self, request: I, before: R) -> R: ...

    @abstractmethod
    def _describe_pass(self, result: R) -> str:
        """Describe a completed pass in Markdown."""

    @abstractmethod
    def _list_outcomes(self, result: R) -> list[str]:
        """Return the outcomes of a completed pass for the search attribute. Empty: there was nothing to do."""
