"""How values travel between commands, workflows and activities."""

from dataclasses import replace
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema
from temporalio.converter import WorkflowSerializationContext

from workers.client.data_converter import PLAIN_DATA_CONVERTER


def test_values_travel_alike_whatever_they_belong_to() -> None:
    """Runs of workflows are not asked to what a payload belongs, for no part of it matters to any."""
    mine = WorkflowSerializationContext(namespace="n", workflow_id="w")
    assert PLAIN_DATA_CONVERTER.with_context(mine) is PLAIN_DATA_CONVERTER
    assert PLAIN_DATA_CONVERTER.external_storage is None
    assert PLAIN_DATA_CONVERTER.payload_codec is None


def test_a_type_is_read_once_and_not_for_each_run() -> None:
    """The SDK makes a converter for each run."""
    read = 0

    class Counted(int):
        @classmethod
        def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
            nonlocal read
            read += 1
            return handler(int)

    (payload,) = PLAIN_DATA_CONVERTER.payload_converter.to_payloads([7])
    for run in (replace(PLAIN_DATA_CONVERTER), replace(PLAIN_DATA_CONVERTER)):
        assert run.payload_converter.from_payload(payload, Counted) == 7
    assert read == 1
