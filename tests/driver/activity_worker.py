"""A process that attempts activities: the real methods behind the real edge, with values that went through JSON."""

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from temporalio import activity
from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.testing import ActivityEnvironment
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput

from tests.driver.workflow_executions import ActivityAttempt
from workers.hosting.error_and_subject_interceptors import ActivityErrorAndSubjectInterceptor

_CONVERTER: Final = pydantic_data_converter.payload_converter
_FAILURE_CONVERTER: Final = pydantic_data_converter.failure_converter


class ActivityWorker:
    """The activities of one process, by name."""

    def __init__(self, activities: Sequence[Callable[..., Any]]) -> None:
        """Take the methods, as a worker of Temporal does."""
        self._definition_by_activity = {
            definition.name: definition for definition in map(activity._Definition.must_from_callable, activities)
        }

    def serves(self, type_: str) -> bool:
        """Whether it has that activity."""
        return type_ in self._definition_by_activity

    def attempt(self, attempt: ActivityAttempt, environment: ActivityEnvironment | None = None) -> Payload | Failure:
        """Make it, to its end; a `SimulatedCrash` of the process goes through."""
        command = attempt.task.command
        definition = self._definition_by_activity[command.activity_type]
        environment = environment or ActivityEnvironment()
        environment.payload_converter = _CONVERTER
        environment.info = replace(
            environment.info,
            activity_id=command.activity_id,
            activity_type=command.activity_type,
            attempt=attempt.number,
            task_queue=command.task_queue,
            workflow_id=attempt.workflow_id,
            workflow_run_id=attempt.task.execution.run.start.run_id,
            workflow_type=attempt.task.execution.run.start.type,
            started_time=datetime.now(UTC),
        )
        arguments = _CONVERTER.from_payloads(command.arguments, definition.arg_types)
        try:
            answer = environment.run(_call_through_interceptor, definition.fn, arguments)
        except Exception as error:  # noqa: BLE001 - the server hears of every one
            failure = Failure()
            _FAILURE_CONVERTER.to_failure(error, _CONVERTER, failure)
            return failure
        return _CONVERTER.to_payloads([answer])[0]


class _CallMethodInbound(ActivityInboundInterceptor):
    """The innermost: the method itself."""

    def __init__(self) -> None:
        """There is nothing behind it."""

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002 - the SDK's signature
        return input.fn(*input.args)


_ACTIVITY_INTERCEPTOR: Final = ActivityErrorAndSubjectInterceptor().intercept_activity(_CallMethodInbound())


@activity.defn(no_thread_cancel_exception=True)
def _call_through_interceptor(fn: Callable[..., Any], args: Sequence[Any]) -> Any:
    activity_input = ExecuteActivityInput(fn=fn, args=args, executor=None, headers={})
    return _run_without_event_loop(_ACTIVITY_INTERCEPTOR.execute_activity(activity_input))


def _run_without_event_loop(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Its result: nothing in it waits, for the method is a plain function."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("an activity that waits on a loop")
