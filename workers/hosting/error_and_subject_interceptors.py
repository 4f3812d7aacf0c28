"""Interceptors of activities and workflows. They translate errors, and show topic and ledgers in runs and spans."""

import logging
from collections.abc import Sequence
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.trace import Span
from structlog.contextvars import bound_contextvars
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

from activities.owner_routing import CompletedWork
from infra.telemetry.span_reader import ATTEMPT_ATTRIBUTE, ERROR_TYPE_ATTRIBUTE
from logstore.errors import InvalidInput, NotOwner, ProgramMissing, SextonError, TerminalError
from logstore.subjects import HasSubject, Subject
from logstore.trace_id import current_trace_id
from workers.client.temporal_connection import FIELD, TRACE_ID, find_detail

FINAL_ERRORS: Final = (TerminalError, ProgramMissing)
"""Error types after which a retry would fail, too."""

UNKNOWN_FAULT: Final = "UnknownFault"
"""Temporal's error type for a fault that no code expects."""

_MAX_ATTEMPTS_AFTER_FAULT: Final = 10
_FAULTS_DESCRIPTION: Final = "Attempts of activities that met an error which no code expects or translates"

MAX_SUMMARY_BYTES: Final = 200
"""Maximum size of a summary. A server refuses a workflow task with a summary of more than 400 bytes."""

_log = logging.getLogger(__name__)


class ActivityErrorAndSubjectInterceptor(Interceptor):
    """Interceptor that translates an activity's errors, and adds topic, ledgers and so on of its input to its span."""

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002 - its name
        return _ActivityErrorAndSubjectInbound(next)


class RunningActivityCounter(Interceptor):
    def __init__(self) -> None:
        self.activities = 0  # changed only on the event loop

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002 - its name
        return _CountingActivityInbound(next, self)


class _CountingActivityInbound(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, counter: RunningActivityCounter) -> None:  # noqa: A002 - its name
        super().__init__(next)
        self._counter = counter

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002, ANN401 - the SDK's signature
        self._counter.activities += 1
        try:
            return await self.next.execute_activity(input)
        finally:
            self._counter.activities -= 1


class _ActivityErrorAndSubjectInbound(ActivityInboundInterceptor):
    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002, ANN401 - the SDK's signature
        info, span = activity.info(), trace.get_current_span()  # the tracing interceptor has started this span
        names = {"workflow_id": info.workflow_id, "run_id": info.workflow_run_id, "activity": info.activity_type}
        span.set_attribute(ATTEMPT_ATTRIBUTE, info.attempt)
        for value in input.args:
            span.set_attributes(_find_subject(value).span_attributes())
        with bound_contextvars(**{name: value for name, value in names.items() if value}):
            try:
                result = await self.next.execute_activity(input)
            except SextonError as error:
                raise _tag_span_and_add_trace_id(to_application_error(error), span) from error
            except ApplicationError as error:  # the activity has chosen whether this error is retried
                raise _tag_span_and_add_trace_id(error, span) from error.__cause__
            except FailureError:
                raise  # an error of Temporal, such as a cancellation
            except Exception as error:
                raise _tag_span_and_add_trace_id(_log_and_count_unknown_fault(error, info), span) from error
        span.set_attributes(
            _find_subject(result.result if isinstance(result, CompletedWork) else result).span_attributes()
        )
        return result


def _tag_span_and_add_trace_id(error: ApplicationError, span: Span) -> ApplicationError:
    span.set_attribute(ERROR_TYPE_ATTRIBUTE, error.type or "")
    return add_trace_id_to_details(error, current_trace_id())


def _log_and_count_unknown_fault(error: Exception, info: activity.Info) -> ApplicationError:
    """Log and count a fault that no code expects: a bug, or an error of a service that no adapter translates.

    Some activities are retried without end until a service answers. A bug must not be retried without end. From the
    tenth attempt on, this fault is therefore final: rows become dead letters, or the job fails.
    """
    _log.exception("%s: attempt %d met a fault that nothing here expects", info.activity_type, info.attempt)
    faults = activity.metric_meter().create_counter("sexton_unknown_faults_total", _FAULTS_DESCRIPTION)
    faults.add(1, {"activity": info.activity_type})
    message = f"{type(error).__name__}: {error}"
    return ApplicationError(message, type=UNKNOWN_FAULT, non_retryable=info.attempt >= _MAX_ATTEMPTS_AFTER_FAULT)


def to_application_error(error: SextonError) -> ApplicationError:
    """Return the error for Temporal, with the class name as type. `NotOwner` is benign, because routers expect it."""
    benign = isinstance(error, NotOwner)
    return ApplicationError(
        str(error),
        *([{FIELD: error.field}] if isinstance(error, InvalidInput) else []),
        type=type(error).__name__,
        non_retryable=isinstance(error, FINAL_ERRORS),
        category=ApplicationErrorCategory.BENIGN if benign else ApplicationErrorCategory.UNSPECIFIED,
    )


class WorkflowErrorAndSubjectInterceptor(Interceptor):
    """Interceptor that shows topic, ledgers, failure and trace of each run in Temporal's Web UI.

    Summaries and *Current Details* are not commands of a history. A history without them therefore replays, too.
    """

    def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> type[WorkflowInboundInterceptor]:  # noqa: A002 - its name
        del input
        return _WorkflowErrorAndSubjectInbound


class _WorkflowErrorAndSubjectInbound(WorkflowInboundInterceptor):
    _trace_id: str | None = None

    def init(self, outbound: WorkflowOutboundInterceptor) -> None:
        super().init(_ActivitySummaryOutbound(outbound))

    async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:  # noqa: A002, ANN401 - the SDK's signature
        span, self._trace_id = trace.get_current_span(), current_trace_id()
        for value in input.args:
            span.set_attributes(_find_subject(value).span_attributes())
        start_details = _describe_run("going on" if workflow.info().continued_run_id else "begun", input.args)
        workflow.set_current_details(start_details)
        try:
            result = await super().execute_workflow(input)
        except ApplicationError as error:
            failure = add_trace_id_to_details(error, self._trace_id)
            _show_failure_in_details(failure)
            raise failure.with_traceback(error.__traceback__) from error.__cause__
        except (ActivityError, ChildWorkflowError) as error:
            if is_cancelled_exception(error):
                raise
            failure = add_trace_id_to_details(run_failure_from_step_failure(error), self._trace_id)
            _show_failure_in_details(failure)
            raise failure from error
        if workflow.get_current_details() == start_details:  # the workflow has written no details of its own
            workflow.set_current_details(_describe_run("ended", input.args))
        span.set_attributes(_find_subject(result).span_attributes())
        return result

    async def handle_query(self, input: HandleQueryInput) -> Any:  # noqa: A002, ANN401 - the SDK's signature
        answer = await super().handle_query(input)
        if isinstance(answer, WorkflowMetadata) and self._trace_id is not None:
            details = [answer.current_details] if answer.current_details else []
            answer.current_details = "\n\n".join([*details, f"Trace: `sexton trace {self._trace_id}`"])
        return answer


class _ActivitySummaryOutbound(WorkflowOutboundInterceptor):
    def start_activity(self, input: StartActivityInput) -> workflow.ActivityHandle[Any]:  # noqa: A002 - its name
        if not input.summary and input.args:
            input.summary = summarize_request(input.args[0]) or None
        return super().start_activity(input)


def _find_subject(value: object) -> Subject:
    return value.subject() if isinstance(value, HasSubject) else Subject()


def summarize_request(request: object) -> str:
    """Return the request's subject in at most `MAX_SUMMARY_BYTES`. A replay returns the same text."""
    return shorten_summary(_find_subject(request).summarize())


def shorten_summary(text: str) -> str:
    """Cut the text to `MAX_SUMMARY_BYTES` of UTF-8. A cut text ends with an ellipsis."""
    encoded = text.encode()
    if len(encoded) <= MAX_SUMMARY_BYTES:
        return text
    return encoded[: MAX_SUMMARY_BYTES - 3].decode(errors="ignore") + "…"


def _describe_run(step: str, args: Sequence[Any]) -> str:
    return f"**{step}** — " + (", ".join(filter(None, map(summarize_request, args))) or workflow.info().workflow_type)


def _show_failure_in_details(error: ApplicationError) -> None:
    details = workflow.get_current_details()
    if error.message not in details:
        workflow.set_current_details(f"**failed** — {error.type}: {error.message}\n\n{details}")


def run_failure_from_step_failure(error: ActivityError | ChildWorkflowError) -> ApplicationError:
    cause: BaseException | None = error
    source = ""
    while isinstance(cause, ActivityError | ChildWorkflowError):
        source = cause.activity_type if isinstance(cause, ActivityError) else cause.workflow_id
        cause = cause.cause
    if isinstance(cause, ApplicationError):
        return ApplicationError(cause.message, *cause.details, type=cause.type, category=cause.category)
    last = cause or error
    message = last.message if isinstance(last, FailureError) else str(last)
    return ApplicationError(f"{source}: {message}", type=type(last).__name__)


def add_trace_id_to_details(error: ApplicationError, trace_id: str | None) -> ApplicationError:
    """Return the error with a trace id in its details. An existing trace id stays, and the message does not change."""
    if trace_id is None or find_detail(error.details, TRACE_ID) is not None:
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
