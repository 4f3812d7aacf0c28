"""At the edge to Temporal: our errors become its errors, and logs know which activity they speak of."""

from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from infra.telemetry.logs import bind
from logstore.errors import SextonError, TerminalError


class ActivityEdge(Interceptor):
    """Wraps every activity."""

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002 - its name
        """See `Interceptor`."""
        return _Edge(next)


class InHand(Interceptor):
    """Counts the activities that run in this process."""

    def __init__(self) -> None:
        """None run yet."""
        self.activities = 0  # changed on the event loop alone

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002 - its name
        """See `Interceptor`."""
        return _Counted(next, self)


class _Counted(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, counter: InHand) -> None:  # noqa: A002 - its name
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
