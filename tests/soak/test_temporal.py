"""What a soak reads of failed jobs."""

from temporalio import exceptions
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ActivityError, ApplicationError, RetryState, TimeoutType

from tests.soak.temporal_at_rest import application_error_type


def _failed(cause: BaseException) -> WorkflowFailureError:
    activity = ActivityError(
        "it failed",
        scheduled_event_id=1,
        started_event_id=2,
        identity="worker",
        activity_type="offload.upload",
        activity_id="1",
        retry_state=RetryState.MAXIMUM_ATTEMPTS_REACHED,
    )
    activity.__cause__ = cause
    failure = WorkflowFailureError(cause=activity)
    failure.__cause__ = activity
    return failure


def test_job_failed_by_the_error_that_its_activity_told_and_not_by_what_that_came_from() -> None:
    """A driver's error below one of ours is no fault; alone, and one of Temporal, it tells itself."""
    away = ApplicationError("database: nothing answers", type="StoreUnavailable")
    away.__cause__ = ApplicationError("connection failed", type="OperationalError")
    assert application_error_type(_failed(away)) == "StoreUnavailable"
    assert (
        application_error_type(_failed(ApplicationError("connection failed", type="OperationalError")))
        == "OperationalError"
    )
    late = exceptions.TimeoutError("late", type=TimeoutType.START_TO_CLOSE, last_heartbeat_details=[])
    assert application_error_type(_failed(late)) == "TimeoutError"
