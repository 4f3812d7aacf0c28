"""Refusals of the input of jobs: of a missing field, and of values beyond their bounds."""

import json
from dataclasses import replace
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.contrib.pydantic import pydantic_data_converter

from logstore.errors import InvalidInput
from workers.hosting.workflow_input_checks import _check_payloads
from workers.settings import Settings
from workers.validation_refusals import require_valid_input
from workflows.deletion.job_definitions import DeleteTopicInput, DeletionPolicy, TrimTopicInput
from workflows.transactions.job_definitions import SweepTransactionsInput

_TRIM: dict[str, Any] = {"topic_id": 1, "topic": "persistent://a/b/c", "actor": "me", "reason": "a test"}


def _payload(fields: dict[str, Any]) -> Payload:
    return Payload(metadata={"encoding": b"json/plain"}, data=json.dumps(fields).encode())


def _check(value_type: type, fields: dict[str, Any], *, outside: bool) -> None:
    _check_payloads("input", [_payload(fields)], [value_type], queue="sexton", outside=outside)


def test_missing_field_is_told_without_quotes() -> None:
    """No value `nothing` was given: none was."""
    with pytest.raises(InvalidInput, match=r"^topic: expected a value, found None$"):
        _check(DeleteTopicInput, {"topic_id": 4}, outside=True)


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"reason": "x" * 2_001}, "reason: expected at most 2,000 printable characters, found"),
        ({"topic_id": -1}, "topic_id: expected 0 or more, found -1"),
        ({"topic": "orders"}, "topic: expected persistent://tenant/namespace/topic, found"),
        ({"policy": {"chunk": 1_001}}, "policy.chunk: expected 1 to 1,000, found 1001"),
    ],
)
def test_bound_of_outside_input_does_not_stop_a_running_job(changes: dict[str, Any], refusal: str) -> None:
    """An earlier build may have accepted the value. The run goes on, and its continuation and children start."""
    with pytest.raises(InvalidInput, match=f"^{refusal}"):
        _check(TrimTopicInput, _TRIM | changes, outside=True)
    _check(TrimTopicInput, _TRIM | changes, outside=False)
    pydantic_data_converter.payload_converter.from_payload(_payload(_TRIM | changes), TrimTopicInput)


def test_bound_of_a_policy_holds_for_every_run() -> None:
    """A batch without a chunk would hang."""
    with pytest.raises(InvalidInput, match=r"^policy\.parallelism: expected 1 to 256, found 0$"):
        _check(TrimTopicInput, _TRIM | {"policy": {"parallelism": 0}}, outside=False)


def test_program_is_refused_what_a_worker_would_refuse() -> None:
    """It is told at once, and starts nothing."""
    with pytest.raises(InvalidInput, match=r"^policy\.chunk: expected 1 to 1,000, found 2000$"):
        require_valid_input(TrimTopicInput(**_TRIM, policy=DeletionPolicy(chunk=2_000)), "sexton")
    require_valid_input(SweepTransactionsInput(queue="store-transactions"), "store")
    with pytest.raises(InvalidInput, match=r"^queue: expected sexton-transactions, or nothing: .* found 'store-tr"):
        require_valid_input(SweepTransactionsInput(queue="store-transactions"), "sexton")


def test_settings_of_a_deletion_are_in_the_bounds_of_its_job() -> None:
    """Both name the same bounds."""
    for name, setting in (
        ("parallelism", "deletion_parallelism"),
        ("chunk", "deletion_chunk"),
        ("max_attempts", "deletion_max_attempts"),
        ("retry_interval_s", "deletion_retry_interval"),
    ):
        highest = min(rule.le for rule in Settings.model_fields[setting].metadata if getattr(rule, "le", None))
        require_valid_input(TrimTopicInput(**_TRIM, policy=replace(DeletionPolicy(), **{name: highest})), "sexton")
        with pytest.raises(InvalidInput, match=f"^policy.{name}: "):
            require_valid_input(
                TrimTopicInput(**_TRIM, policy=replace(DeletionPolicy(), **{name: highest + 1})), "sexton"
            )
