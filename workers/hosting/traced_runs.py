"""A run's account of itself: its span, its failure, its *Current Details*, and the summaries of its activities."""

from collections.abc import Sequence
from typing import Any

from opentelemetry import trace
from temporalio import workflow
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    ChildWorkflowError,
    FailureError,
    is_cancelled_exception,
)
from temporalio.worker import (
    ExecuteWorkflowInput,
    HandleQueryInput,
    Interceptor,
    StartActivityInput,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
    WorkflowOutboundInterceptor,
)

from infra.telemetry import current_trace_id
from workers.hosting.facts import TRACE_ID, detail_of, facts_of, summary_of


class WorkflowEdge(Interceptor):
    """Wraps every workflow: what it is about, why it failed and what its trace is can be read where people look.

    Summaries and *Current Details* are no commands: a history that was recorded without them replays.
    """

    def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> type[WorkflowInboundInterceptor]:  # noqa: A002 - its name
        """See `Interceptor`."""
        del input
        return _Run


class _Run(WorkflowInboundInterceptor):
    """Deterministic: the trace comes with the run's first event or, where that has none, from the run's own random."""

    _trace_id: str | None = None

    def init(self, outbound: WorkflowOutboundInterceptor) -> None:
        """See `WorkflowInboundInterceptor`."""
        super().init(_Steps(outbound))

    async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:  # noqa: A002, ANN401 - the SDK's signature
        span, self._trace_id = trace.get_current_span(), current_trace_id()
        for value in input.args:
            span.set_attributes(facts_of(value))
        begun = _about("going on" if workflow.info().continued_run_id else "begun", input.args)
        workflow.set_current_details(begun)
        try:
            result = await super().execute_workflow(input)
        except ApplicationError as error:
            named = naming_trace(error, self._trace_id)
            _tell(named)
            raise named.with_traceback(error.__traceback__) from error.__cause__
        except (ActivityError, ChildWorkflowError) as error:
            if is_cancelled_exception(error):
                raise
            named = naming_trace(led_by_its_sentence(error), self._trace_id)
            _tell(named)
            raise named from error
        if workflow.get_current_details() == begun:  # there was nothing to do
            workflow.set_current_details(_about("ended", input.args))
        span.set_attributes(facts_of(result))
        return result

    async def handle_query(self, input: HandleQueryInput) -> Any:  # noqa: A002, ANN401 - the SDK's signature
        answer = await super().handle_query(input)
        if isinstance(answer, WorkflowMetadata) and self._trace_id is not None:
            said = [answer.current_details] if answer.current_details else []
            answer.current_details = "\n\n".join([*said, f"Trace: `sexton trace {self._trace_id}`"])
        return answer


class _Steps(WorkflowOutboundInterceptor):
    """Gives each activity a summary of what it is about, unless the workflow gave it one."""

    def start_activity(self, input: StartActivityInput) -> workflow.ActivityHandle[Any]:  # noqa: A002 - its name
        """See `WorkflowOutboundInterceptor`."""
        if not input.summary and input.args:
            input.summary = summary_of(input.args[0]) or None
        return super().start_activity(input)


def _about(step: str, args: Sequence[Any]) -> str:
    """The text of a workflow that has nothing to say yet, or had nothing to do."""
    return f"**{step}** — " + (", ".join(filter(None, map(summary_of, args))) or workflow.info().workflow_type)


def _tell(error: ApplicationError) -> None:
    """Why the run failed, before all else that it said, unless it said so."""
    said = workflow.get_current_details()
    if error.message not in said:
        workflow.set_current_details(f"**failed** — {error.type}: {error.message}\n\n{said}")


def led_by_its_sentence(error: ActivityError | ChildWorkflowError) -> ApplicationError:
    """The failure of an activity or of another workflow, as the failure of the run that needed it.

    Its type and details are those of the error that an activity or a workflow raised. Where none did, because the time
    was over or somebody terminated it, the type is that of Temporal's error.
    """
    at: BaseException | None = error
    source = ""
    while isinstance(at, ActivityError | ChildWorkflowError):
        source = at.activity_type if isinstance(at, ActivityError) else at.workflow_id
        at = at.cause
    if isinstance(at, ApplicationError):
        return ApplicationError(at.message, *at.details, type=at.type, category=at.category)
    last = at or error
    message = last.message if isinstance(last, FailureError) else str(last)
    return ApplicationError(f"{source}: {message}", type=type(last).__name__)


def naming_trace(error: ApplicationError, trace_id: str | None) -> ApplicationError:
    """The same error with its trace among the details, unless it names one: the message stays that of every attempt."""
    if trace_id is None or detail_of(error.details, TRACE_ID) is not None:
        return error
    return ApplicationError(
        error.message,
        *error.details,
        {TRACE_ID: trace_id},
        type=error.type,
        non_retryable=error.non_retryable,
        next_retry_delay=error.next_retry_delay,
        category=error.category,
    )
