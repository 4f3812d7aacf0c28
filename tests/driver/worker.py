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

from tests.driver.executions import Attempt
from workers.hosting.error_and_subject_interceptors import ActivityErrorAndSubjectInterceptor

_CONVERTER: Final = pydantic_data_converter.payload_converter
_FAILURES: Final = pydantic_data_converter.failure_converter


class Worker:
    """The activities of one process, by name."""

    def __init__(self, activities: Sequence[Callable[..., Any]]) -> None:
        """Take the methods, as a worker of Temporal does."""
        self._known = {one.name: one for one in map(activity._Definition.must_from_callable, activities)}

    def serves(self, type_: str) -> bool:
        """Whether it has that activity."""
        return type_ in self._known

    def attempt(self, attempt: Attempt, environment: ActivityEnvironment | None = None) -> Payload | Failure:
        """Make it, to its end; a `SimulatedCrash` of the process goes through."""
        command = attempt.task.command
        definition = self._known[command.activity_type]
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
        told = _CONVERTER.from_payloads(command.arguments, definition.arg_types)
        try:
            answer = environment.run(_through_the_edge, definition.fn, told)
        except Exception as error:  # noqa: BLE001 - the server hears of every one
            failure = Failure()
            _FAILURES.to_failure(error, _CONVERTER, failure)
            return failure
        return _CONVERTER.to_payloads([answer])[0]


class _Here(ActivityInboundInterceptor):
    """The innermost: the method itself."""

    def __init__(self) -> None:
        """There is nothing behind it."""

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002 - the SDK's signature
        return input.fn(*input.args)


_EDGE: Final = ActivityErrorAndSubjectInterceptor().intercept_activity(_Here())


@activity.defn(no_thread_cancel_exception=True)
def _through_the_edge(fn: Callable[..., Any], args: Sequence[Any]) -> Any:
    asked = ExecuteActivityInput(fn=fn, args=args, executor=None, headers={})
    return _ended(_EDGE.execute_activity(asked))


def _ended(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Its result: nothing in it waits, for the method is a plain function."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("an activity that waits on a loop")
