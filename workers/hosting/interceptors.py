"""At the edge to Temporal: errors of ours become its own, and runs, spans and failures say whose they are."""

import logging
from collections.abc import Sequence
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.trace import Span
from temporalio import activity, workflow
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    ApplicationErrorCategory,
    ChildWorkflowError,
    FailureError,
    is_cancelled_exception,
)
from temporalio.worker import (
    ActivityInboundInterceptor,
    ExecuteActivityInput,
    ExecuteWorkflowInput,
    HandleQueryInput,
    Interceptor,
    StartActivityInput,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
    WorkflowOutboundInterceptor,
)

from activities.dispatch import WorkResult
from infra.telemetry import current_trace_id
from infra.telemetry.logs import bind_log_fields
from infra.telemetry.span_reader import ATTEMPT_ATTRIBUTE
from logstore.errors import InvalidInput, NotOwner, ProgramMissing, SextonError, TerminalError
from workers.hosting.facts import ERROR_TYPE, FIELD, TRACE_ID, detail_of, facts_of, summary_of

FINAL: Final = (TerminalError, ProgramMissing)
"""Errors that no further attempt can help."""

UNKNOWN_FAULT: Final = "UnknownFault"
"""The type that Temporal knows such a fault by."""

_MOST_ATTEMPTS: Final = 10
_ABOUT: Final = "Attempts of activities that met an error which no code expects or translates"

_log = logging.getLogger(__name__)


class ActivityEdge(Interceptor):
    """Wraps every activity."""

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002 - its name
        """See `Interceptor`."""
        return _Edge(next)


class RunningActivities(Interceptor):
    """Counts the activities that run in this process."""

    def __init__(self) -> None:
        """None run yet."""
        self.activities = 0  # changed on the event loop alone

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002 - its name
        """See `Interceptor`."""
        return _Counted(next, self)


class _Counted(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, counter: RunningActivities) -> None:  # noqa: A002 - its name
        super().__init__(next)
        self._counter = counter

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002, ANN401 - the SDK's signature
        self._counter.activities += 1
        try:
            return await self.next.execute_activity(input)
        finally:
            self._counter.activities -= 1


class _Edge(ActivityInboundInterceptor):
    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002, ANN401 - the SDK's signature
        info, span = activity.info(), trace.get_current_span()  # the span that the tracing interceptor has begun
        names = {"workflow_id": info.workflow_id, "run_id": info.workflow_run_id, "activity": info.activity_type}
        span.set_attribute(ATTEMPT_ATTRIBUTE, info.attempt)
        for value in input.args:
            span.set_attributes(facts_of(value))
        with bind_log_fields(**{name: value for name, value in names.items() if value}):
            try:
                result = await self.next.execute_activity(input)
            except SextonError as error:
                raise _named(to_application_error(error), span) from error
            except ApplicationError as error:  # one that says itself when to retry
                raise _named(error, span) from error.__cause__
            except FailureError:
                raise  # Temporal's own, such as a cancellation
            except Exception as error:
                raise _named(_unknown(error, info), span) from error
        span.set_attributes(facts_of(result.result if isinstance(result, WorkResult) else result))
        return result


def _named(error: ApplicationError, span: Span) -> ApplicationError:
    span.set_attribute(ERROR_TYPE, error.type or "")
    return naming_trace(error, current_trace_id())


def _unknown(error: Exception, info: activity.Info) -> ApplicationError:
    """Count and log a fault that nothing here expects, once for each attempt, with its traceback.

    It is a bug, or a vendor's error that no adapter maps. An activity that waits without end for a service to come back
    must not repeat a bug without end: from the tenth attempt on the fault is final, even where the activity's own
    policy allows more. The rows that it was about become dead letters, or the job fails.
    """
    _log.exception("%s: attempt %d met a fault that nothing here expects", info.activity_type, info.attempt)
    faults = activity.metric_meter().create_counter("sexton_unknown_faults_total", _ABOUT)
    faults.add(1, {"activity": info.activity_type})
    told = f"{type(error).__name__}: {error}"
    return ApplicationError(told, type=UNKNOWN_FAULT, non_retryable=info.attempt >= _MOST_ATTEMPTS)


def to_application_error(error: SextonError) -> ApplicationError:
    """Carry the class name as the type, because Temporal matches that exact name and never a base class.

    That another owns the topic is an answer that a router waits for: no error of a span, and no alarm.
    """
    benign = isinstance(error, NotOwner)
    return ApplicationError(
        str(error),
        *([{FIELD: error.field}] if isinstance(error, InvalidInput) else []),
        type=type(error).__name__,
        non_retryable=isinstance(error, FINAL),
        category=ApplicationErrorCategory.BENIGN if benign else ApplicationErrorCategory.UNSPECIFIED,
    )


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
    was over or it was terminated, the type is that of Temporal's error.
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
