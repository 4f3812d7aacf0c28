"""Any SDK may start our jobs: input that cannot be read, or that could only hang, fails the job at once."""

import asyncio
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError

from tests.workflows.house import House

_TOPIC = {"topic_id": 1, "topic": "persistent://a/b/c", "actor": "me", "reason": ""}
_KEY = {"ledger_id": 1, "copy": "LEDGER", "generation": 1}


@pytest.mark.parametrize(
    ("kind", "given", "told"),
    [
        ("delete-topic", {"topic_id": 4}, "topic"),
        ("trim-topic", _TOPIC | {"topic_id": "6x"}, "topic_id"),
        ("sweep-deletions", {"patience_s": "soon"}, "patience_s"),
        ("trim-topic", _TOPIC | {"policy": {"retry_interval_s": 10**14}}, "policy.retry_interval_s"),
        ("delete-ledger", {"key": _KEY, "topic": "t", "catalog_epoch": 1, "max_attempts": 10**11}, "max_attempts"),
        ("offload-ledger", {"ledger_id": 1, "topic": "t", "policy": {"timeout_s": 10**14}}, "policy.timeout_s"),
        ("offload-ledger", {"ledger_id": 1, "topic": "t", "policy": {"attempts": 10**11}}, "policy.attempts"),
    ],
)
async def test_input_of_a_wrong_kind_fails_the_job_and_names_the_field(
    house: House, kind: str, given: Any, told: str
) -> None:
    """It shows under Failed, and whoever starts it next under the same id is not made to wait for ever."""
    async with house.worker():
        with pytest.raises(WorkflowFailureError) as failed:
            await asyncio.wait_for(
                house.client.execute_workflow(kind, given, id=f"{house.queue}-input", task_queue=house.queue), 30
            )
    assert isinstance(failed.value.cause, ApplicationError)
    assert failed.value.cause.type in {"InvalidInput", "ValidationError"}
    assert told in str(failed.value.cause)
