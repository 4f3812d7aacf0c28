"""Failures as the server words them, and whether it tries again after one."""

from temporalio.api.common.v1 import RetryPolicy
from temporalio.api.enums.v1 import RetryState, TimeoutType
from temporalio.api.failure.v1 import Failure
from temporalio.bridge.proto.workflow_commands import ScheduleActivity

from tests.driver.workflow_run import NAMESPACE, RunStart

_MAX_INTERVAL_FACTOR = 100  # the longest wait, in first waits, where a policy says nothing


def heartbeat_timeout_failure() -> Failure:
    """Of an attempt whose worker sent no heartbeat."""
    failure = Failure(message="activity Heartbeat timeout", source="Server")
    failure.timeout_failure_info.timeout_type = TimeoutType.TIMEOUT_TYPE_HEARTBEAT
    return failure


def canceled_failure() -> Failure:
    """Of what was cancelled."""
    failure = Failure(message="canceled", source="Server")
    failure.canceled_failure_info.SetInParent()
    return failure


def terminated_failure() -> Failure:
    """Of what was terminated."""
    failure = Failure(message="terminated", source="Server")
    failure.terminated_failure_info.SetInParent()
    return failure


def workflow_not_found_failure() -> Failure:
    """Of a signal to a workflow that does not run."""
    failure = Failure(message="Unable to signal external workflow because it was not found", source="Server")
    failure.application_failure_info.type = "ExternalWorkflowExecutionNotFound"
    return failure


def activity_failure(command: ScheduleActivity, cause: Failure, state: RetryState.ValueType) -> Failure:
    """What a workflow gets of an activity."""
    failure = Failure(message="Activity task failed", cause=cause)
    info = failure.activity_failure_info
    info.activity_type.name, info.activity_id = command.activity_type, command.activity_id
    info.retry_state = state
    return failure


def child_workflow_failure(start: RunStart, cause: Failure) -> Failure:
    """What a workflow gets of a child."""
    failure = Failure(message="Child Workflow execution failed", cause=cause)
    info = failure.child_workflow_execution_failure_info
    info.namespace, info.workflow_type.name = NAMESPACE, start.type
    info.workflow_execution.workflow_id, info.workflow_execution.run_id = start.workflow_id, start.run_id
    return failure


def decide_retry(policy: RetryPolicy, failure: Failure, attempt: int) -> tuple[RetryState.ValueType | None, int]:
    """Why no other attempt is made, or None; and after how many nanoseconds the next one is."""
    info = failure.application_failure_info
    if info.non_retryable or _failure_type(failure) in policy.non_retryable_error_types:
        return RetryState.RETRY_STATE_NON_RETRYABLE_FAILURE, 0
    if policy.maximum_attempts and attempt >= policy.maximum_attempts:
        return RetryState.RETRY_STATE_MAXIMUM_ATTEMPTS_REACHED, 0
    if info.HasField("next_retry_delay"):
        return None, info.next_retry_delay.ToNanoseconds()
    first_ns = policy.initial_interval.ToNanoseconds()
    most_ns = policy.maximum_interval.ToNanoseconds() or _MAX_INTERVAL_FACTOR * first_ns
    return None, min(most_ns, int(first_ns * policy.backoff_coefficient ** (attempt - 1)))


def _failure_type(failure: Failure) -> str:
    """By which a policy names it."""
    if failure.HasField("timeout_failure_info"):
        kind = TimeoutType.Name(failure.timeout_failure_info.timeout_type).removeprefix("TIMEOUT_TYPE_")
        return f"TemporalTimeout:{kind.title().replace('_', '')}"
    return failure.application_failure_info.type
