"""What a start is told that lacks a field."""

import pytest
from temporalio.api.common.v1 import Payload

from logstore.errors import InvalidInput
from workers.hosting.workflow_input_checks import _check_payloads
from workflows.deletion.job_definitions import DeleteTopicInput


def test_missing_field_is_told_without_quotes() -> None:
    """No value `nothing` was given: none was."""
    given = Payload(metadata={"encoding": b"json/plain"}, data=b'{"topic_id": 4}')
    with pytest.raises(InvalidInput, match=r"^topic: expected a value, found None$"):
        _check_payloads("input", [given], [DeleteTopicInput], queue="sexton", outside=True)
