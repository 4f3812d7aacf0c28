"""Failures are short enough for the server, and their sentence survives."""

import asyncio
from dataclasses import replace

import pytest
from temporalio.api.failure.v1 import Failure
from temporalio.converter import DataConverter
from temporalio.exceptions import ApplicationError

from workers.client.data_converter import (
    MAX_FAILURE_BYTES,
    PLAIN_DATA_CONVERTER,
    EncryptableFailureConverter,
    ShorteningFailureConverter,
)

_SENTENCE = "spark: no session with spark://h:7077: h:7077 does not answer; check the setting spark_master"
_JAVA = "\n".join(f"\tat org.apache.spark.Some$Class.method(Some.scala:{line})" for line in range(2_000))


def _deep(frames: int) -> ApplicationError:
    """An error with a long message below it, both raised behind many frames."""

    def fail(left: int) -> None:
        if left:
            fail(left - 1)
        raise ValueError(_JAVA)

    try:
        try:
            try:
                fail(frames)
            except ValueError as java:
                raise RuntimeError(_JAVA) from java
        except RuntimeError as error:
            raise ApplicationError(_SENTENCE, {"trace_id": "ab"}, type="ServiceFailed", non_retryable=True) from error
    except ApplicationError as told:
        return told
    raise AssertionError


def _converter(kind: type) -> DataConverter:
    return replace(PLAIN_DATA_CONVERTER, failure_converter_class=kind)


@pytest.mark.parametrize("kind", [ShorteningFailureConverter, EncryptableFailureConverter])
def test_long_failure_keeps_its_sentence_type_and_details(kind: type) -> None:
    failure = Failure()
    asyncio.run(_converter(kind).encode_failure(_deep(50), failure))
    assert failure.ByteSize() <= MAX_FAILURE_BYTES + 500  # of encoding
    found = asyncio.run(_converter(kind).decode_failure(failure))
    assert isinstance(found, ApplicationError)
    assert (found.message, found.type, found.non_retryable) == (_SENTENCE, "ServiceFailed", True)
    assert found.details == ({"trace_id": "ab"},)
    assert str(found.__cause__).startswith("RuntimeError: \tat org.apache.spark")


def test_innermost_frames_of_a_long_failure_stay() -> None:
    failure = Failure()
    asyncio.run(_converter(ShorteningFailureConverter).encode_failure(_deep(50), failure))
    assert "raise ValueError(_JAVA)" in failure.cause.cause.stack_trace


def test_long_chain_of_causes_is_cut() -> None:
    error: Exception = ValueError(_JAVA)
    for _ in range(50):
        error = _caused(error)
    failure = Failure()
    asyncio.run(_converter(ShorteningFailureConverter).encode_failure(error, failure))
    assert failure.ByteSize() <= MAX_FAILURE_BYTES
    assert failure.message == "more"


def _caused(cause: Exception) -> Exception:
    error = RuntimeError("more")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize("kind", [ShorteningFailureConverter, EncryptableFailureConverter])
def test_short_failure_is_left_as_it_is(kind: type) -> None:
    failure = Failure()
    asyncio.run(_converter(kind).encode_failure(_caused(ValueError("short")), failure))
    found = asyncio.run(_converter(kind).decode_failure(failure))
    assert str(found.__cause__) == "ValueError: short"


def test_encoded_failure_shows_nothing_in_plain_text_however_often_it_is_passed_on() -> None:
    """As the failure of an activity is that of its workflow."""
    converter = _converter(EncryptableFailureConverter)
    first, second = Failure(), Failure()
    asyncio.run(converter.encode_failure(_deep(3), first))
    asyncio.run(converter.encode_failure(asyncio.run(converter.decode_failure(first)), second))
    for failure in (first, second):
        while True:
            assert (failure.message, failure.stack_trace) == ("Encoded failure", "")
            if not failure.HasField("cause"):
                break
            failure = failure.cause  # noqa: PLW2901 - down the chain
    found = asyncio.run(converter.decode_failure(second))
    assert isinstance(found, ApplicationError)
    assert found.message == _SENTENCE
    assert str(found.__cause__).startswith("RuntimeError: \tat org.apache.spark")
