"""Failure converters that shorten failures, because the Temporal server replaces failures above 4 KiB.

Source: `limit.mutableStateActivityFailureSize.error` in Temporal's dynamic configuration.
"""

from typing import Final

from temporalio.api.failure.v1 import Failure
from temporalio.converter import DefaultFailureConverter, PayloadConverter

MAX_FAILURE_BYTES: Final = 3_000
"""Three quarters of the server's limit. Encryption and the server's additions need the other quarter."""

_ENCODED_MESSAGE: Final = "Encoded failure"  # the message that the SDK's encoding converter writes
_MAX_MESSAGE_CHARS: Final = 1_000
_MAX_CAUSE_CHARS: Final = 200
_MAX_FRAMES_CHARS: Final = 600
_MAX_CAUSES: Final = 3


class ShorteningFailureConverter(DefaultFailureConverter):
    """SDK converter that cuts long failures. It drops outer stack frames and deep causes."""

    def to_failure(self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure) -> None:
        super().to_failure(exception, payload_converter, failure)
        shorten_failure(failure)


class EncryptableFailureConverter(DefaultFailureConverter):
    """Shortening converter that moves messages and stack traces into workflow payloads, which a codec can encrypt."""

    def __init__(self) -> None:
        super().__init__()
        self._bounded = ShorteningFailureConverter()

    def to_failure(self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure) -> None:
        self._bounded.to_failure(exception, payload_converter, failure)
        for part in _list_causes(failure):
            if part.message == _ENCODED_MESSAGE:  # another process has encoded this cause
                continue
            attributes = {"message": part.message, "stack_trace": part.stack_trace}
            part.encoded_attributes.CopyFrom(payload_converter.to_payloads([attributes])[0])
            part.message, part.stack_trace = _ENCODED_MESSAGE, ""


def shorten_failure(failure: Failure) -> None:
    """Shorten a failure above `MAX_FAILURE_BYTES`. Details are kept, so the result may exceed the limit."""
    if failure.ByteSize() <= MAX_FAILURE_BYTES:
        return
    parts = _list_causes(failure)
    if len(parts) > _MAX_CAUSES + 1:
        parts[_MAX_CAUSES].ClearField("cause")
        parts = parts[: _MAX_CAUSES + 1]
    deepest_index = max((index for index, part in enumerate(parts) if part.stack_trace), default=0)
    for index, part in enumerate(parts):
        part.message = _truncate(part.message, _MAX_CAUSE_CHARS if index else _MAX_MESSAGE_CHARS)
        part.stack_trace = part.stack_trace[-_MAX_FRAMES_CHARS:] if index == deepest_index else ""


def _list_causes(failure: Failure) -> list[Failure]:
    parts = [failure]
    while parts[-1].HasField("cause"):
        parts.append(parts[-1].cause)
    return parts


def _truncate(text: str, chars: int) -> str:
    return text if len(text) <= chars else f"{text[: chars - 1]}…"
