"""Failures as they travel to Temporal: short enough that the server keeps their sentence.

The server keeps the last failure of an activity that it will try again only up to 4 KiB. What is longer becomes
"Failure exceeds size limit.", and nobody reads why the activity fails. Frames of Python or Java easily take that.

Source: `limit.mutableStateActivityFailureSize.error` of Temporal's dynamic configuration.
"""

from typing import Final

from temporalio.api.failure.v1 import Failure
from temporalio.converter import DefaultFailureConverter, PayloadConverter

MAX_FAILURE_BYTES: Final = 3_000
"""A quarter of the server's limit is left for encryption and for what the server adds."""

_ENCODED: Final = "Encoded failure"  # as the SDK's own converter has it
_MAX_MESSAGE_CHARS: Final = 1_000
_MAX_CAUSE_CHARS: Final = 200
_MAX_FRAMES_CHARS: Final = 600
_MAX_CAUSES: Final = 3


class BoundedFailureConverter(DefaultFailureConverter):
    """The SDK's converter, with the frames and causes of long failures cut; the innermost frames stay."""

    def to_failure(self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure) -> None:
        """See `FailureConverter`."""
        super().to_failure(exception, payload_converter, failure)
        shorten(failure)


class EncodingFailureConverter(DefaultFailureConverter):
    """As `BoundedFailureConverter`, with messages and frames as payloads, which a codec encrypts."""

    def __init__(self) -> None:
        """Bound failures before they are encoded."""
        super().__init__()
        self._bounded = BoundedFailureConverter()

    def to_failure(self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure) -> None:
        """See `FailureConverter`."""
        self._bounded.to_failure(exception, payload_converter, failure)
        for one in _chain(failure):
            if one.message == _ENCODED:  # a part of a failure that arrived so
                continue
            told = {"message": one.message, "stack_trace": one.stack_trace}
            one.encoded_attributes.CopyFrom(payload_converter.to_payloads([told])[0])
            one.message, one.stack_trace = _ENCODED, ""


def shorten(failure: Failure) -> None:
    """Cut a failure above `MAX_FAILURE_BYTES` to less, unless its details alone take more."""
    if failure.ByteSize() <= MAX_FAILURE_BYTES:
        return
    chain = _chain(failure)
    if len(chain) > _MAX_CAUSES + 1:
        chain[_MAX_CAUSES].ClearField("cause")
        chain = chain[: _MAX_CAUSES + 1]
    deepest = max((at for at, one in enumerate(chain) if one.stack_trace), default=0)
    for at, one in enumerate(chain):
        one.message = _first(one.message, _MAX_CAUSE_CHARS if at else _MAX_MESSAGE_CHARS)
        one.stack_trace = one.stack_trace[-_MAX_FRAMES_CHARS:] if at == deepest else ""


def _chain(failure: Failure) -> list[Failure]:
    found = [failure]
    while found[-1].HasField("cause"):
        found.append(found[-1].cause)
    return found


def _first(text: str, chars: int) -> str:
    return text if len(text) <= chars else f"{text[: chars - 1]}…"
