"""The edge of activities: what is no error of ours is told apart, counted, logged once, and not repeated for ever."""

import asyncio
import logging
from dataclasses import replace
from typing import Any

import pytest
from temporalio import activity
from temporalio.exceptions import ApplicationError, CancelledError
from temporalio.testing import ActivityEnvironment
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput

from logstore.errors import ProgramMissing, ServiceFailed, StoreUnavailable
from tests.fakes.meter import FakeMeter, metric_series
from workers.hosting.error_and_subject_interceptors import ActivityErrorAndSubjectInterceptor


class _Raises(ActivityInboundInterceptor):
    """The innermost link of a chain."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002 - the SDK's signature
        """Fail as told."""
        raise self._error


def _met(error: Exception, *, attempt: int, meter: FakeMeter) -> BaseException:
    """What Temporal is told."""
    env = ActivityEnvironment()
    env.metric_meter = meter
    env.info = replace(env.info, activity_type="deletion.detach", attempt=attempt)
    edge = ActivityErrorAndSubjectInterceptor().intercept_activity(_Raises(error))

    @activity.defn
    async def work() -> None:
        await edge.execute_activity(ExecuteActivityInput(fn=work, args=(), executor=None, headers={}))

    with pytest.raises(Exception) as caught:  # noqa: PT011 - looked at by the tests
        asyncio.run(env.run(work))
    return caught.value


def test_program_that_is_not_installed_is_not_asked_for_again() -> None:
    """Spark's Java: six attempts, a minute apart, find no other; a service that is away may come back."""
    missing = _met(ProgramMissing("java", "no Java was found", advice="install one"), attempt=1, meter=FakeMeter())
    away = _met(ServiceFailed("spark", "no session", advice="look"), attempt=1, meter=FakeMeter())
    assert isinstance(missing, ApplicationError)
    assert isinstance(away, ApplicationError)
    assert (missing.type, missing.non_retryable, away.non_retryable) == ("ProgramMissing", True, False)


@pytest.mark.parametrize(("attempt", "final"), [(1, False), (9, False), (10, True), (11, True)])
def test_fault_that_nothing_expects_is_final_from_the_tenth_attempt_on(
    attempt: int, final: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A bug is no outage: it is told by one type, counted, and logged in one line with its traceback."""
    meter = FakeMeter()
    with caplog.at_level(logging.ERROR, logger="workers.hosting.error_and_subject_interceptors"):
        told = _met(KeyError("bucket"), attempt=attempt, meter=meter)
    assert isinstance(told, ApplicationError)
    assert (told.type, told.message, told.non_retryable) == ("UnknownFault", "KeyError: 'bucket'", final)
    assert meter.values == {metric_series("sexton_unknown_faults_total", activity="deletion.detach"): 1}
    (line,) = [one for one in caplog.records if one.name == "workers.hosting.error_and_subject_interceptors"]
    assert line.exc_info
    assert line.exc_info[0] is KeyError


@pytest.mark.parametrize(
    ("error", "type_"),
    [(StoreUnavailable("503"), "StoreUnavailable"), (ApplicationError("later", type="OfAnActivity"), "OfAnActivity")],
)
def test_error_that_says_itself_whether_to_retry_is_no_unknown_fault(error: Exception, type_: str) -> None:
    """Ours, and one that an activity made for Temporal."""
    meter = FakeMeter()
    told = _met(error, attempt=99, meter=meter)
    assert isinstance(told, ApplicationError)
    assert (told.type, told.non_retryable) == (type_, False)
    assert not meter.values


def test_cancellation_is_no_fault() -> None:
    """It passes through as what it is."""
    assert isinstance(_met(CancelledError("stop"), attempt=1, meter=FakeMeter()), CancelledError)
