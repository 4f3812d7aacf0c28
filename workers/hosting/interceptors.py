"""At the edge to Temporal: our errors become its errors, and logs, spans and failures know whose they are."""

import logging
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.trace import Span
from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory, FailureError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from activities.dispatch import Done
from infra.telemetry import current_trace_id
from infra.telemetry.logs import bind
from infra.telemetry.span_reader import ATTEMPT
from logstore.errors import InvalidInput, NotOwner, ProgramMissing, SextonError, TerminalError
from workers.hosting.facts import ERROR_TYPE, FIELD, facts_of
from workers.hosting.traced_runs import naming_trace

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
        span.set_attribute(ATTEMPT, info.attempt)
        for value in input.args:
            span.set_attributes(facts_of(value))
        with bind(**{name: value for name, value in names.items() if value}):
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
        span.set_attributes(facts_of(result.result if isinstance(result, Done) else result))
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
