"""At the edge to Temporal: our errors become its errors, and logs know which activity they speak of."""

from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from infra.telemetry import bind
from logstore.errors import SextonError, TerminalError


class ActivityEdge(Interceptor):
    """Wraps every activity."""

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002 - its name
        """See `Interceptor`."""
        return _Edge(next)


class _Edge(ActivityInboundInterceptor):
    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002, ANN401 - the SDK's signature
        info = activity.info()
        names = {"workflow_id": info.workflow_id, "run_id": info.workflow_run_id, "activity": info.activity_type}
        with bind(**{name: value for name, value in names.items() if value}):
            try:
                return await self.next.execute_activity(input)
            except SextonError as error:
                raise to_application_error(error) from error


def to_application_error(error: SextonError) -> ApplicationError:
    """Carry the class name as the type, for Temporal matches that exact name and never a base class."""
    return ApplicationError(str(error), type=type(error).__name__, non_retryable=isinstance(error, TerminalError))
