"""What an answer of S3 means, and the one place where its errors become ours."""

from collections.abc import Iterator
from contextlib import contextmanager

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    FlexibleChecksumError,
    HTTPClientError,
    IncompleteReadError,
    ParamValidationError,
)
from botocore.exceptions import ConnectionError as BotoConnectionError
from botocore.parsers import ResponseParserError

from logstore.errors import InvalidInput, PreconditionFailed, SextonError, StoreUnavailable

SLOW_DOWN = frozenset({
    "Busy",
    "BandwidthLimitExceeded",
    "RequestLimitExceeded",
    "RequestThrottled",
    "RequestThrottledException",
    "ServerBusy",
    "ServiceUnavailable",
    "SlowDown",
    "SlowDownRead",
    "SlowDownWrite",
    "Throttling",
    "ThrottlingException",
    "TooManyRequests",
    "TooManyRequestsException",
})  # fmt: skip
TEMPORARY = SLOW_DOWN | {
    "BadDigest",
    "ConditionalRequestConflict",
    "IncompleteBody",
    "InternalError",
    "OperationAborted",
    "RequestTimeout",
    "RequestTimeoutException",
    "XAmzContentSHA256Mismatch",
}  # damaged on its way, or a conflict that passes: asking again is right
ABSENT = frozenset({"NoSuchKey", "NoSuchVersion"})
_BAD_REQUEST = frozenset({
    "EntityTooLarge",
    "InvalidArgument",
    "InvalidBucketName",
    "InvalidObjectName",
    "InvalidRequest",
    "InvalidURI",
    "KeyTooLongError",
    "MetadataTooLarge",
})  # fmt: skip
_UNREACHABLE = (
    BotoConnectionError,
    HTTPClientError,
    IncompleteReadError,
    FlexibleChecksumError,
    ResponseParserError,
)


def code_of(error: ClientError) -> str:
    """The store's error code; the HTTP status as text where an answer to HEAD carries no body."""
    return str(error.response.get("Error", {}).get("Code", ""))


def status_of(error: ClientError) -> int:
    """The HTTP status, 0 when there was none."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def is_throttle(error: BaseException | None) -> bool:
    """Whether the store asked to slow down; our own error is judged by its cause."""
    if isinstance(error, SextonError):
        error = error.__cause__
    return isinstance(error, ClientError) and (code_of(error) in SLOW_DOWN or status_of(error) in {429, 503})


def retry_after_s(error: BaseException | None) -> float:
    """The wait that the store asked for, in seconds; 0 when it asked for none."""
    if isinstance(error, SextonError):
        error = error.__cause__
    if not isinstance(error, ClientError):
        return 0.0
    asked = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("retry-after", "")
    return float(asked) if asked.isdecimal() else 0.0


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Turn the vendor's errors into ours; `what` names the operation, the bucket and the key.

    Raises:
        StoreUnavailable: No answer, a damaged one, a fault of the store, or a wish to slow down.
        InvalidInput: The store cannot take such a request, whoever asks.
        PreconditionFailed: The store refuses: no such bucket, no permission, bad credentials, or an answer
            that is none of those we know.
    """
    try:
        yield
    except ClientError as exc:
        raise _from_answer(what, exc) from exc
    except ParamValidationError as exc:
        raise InvalidInput(what, expected="parameters that S3 allows", found=str(exc)) from exc
    except _UNREACHABLE as exc:
        raise StoreUnavailable(f"{what}: {type(exc).__name__}: {exc}") from exc
    except BotoCoreError as exc:
        raise PreconditionFailed(f"{what}: {type(exc).__name__}: {exc}") from exc


def _from_answer(what: str, error: ClientError) -> SextonError:
    code, status = code_of(error), status_of(error)
    said = f"{status} {code}: {error.response.get('Error', {}).get('Message', '')}"
    if is_throttle(error) or code in TEMPORARY or (status >= 500 and status != 501):
        return StoreUnavailable(f"{what}: {said}")
    if code in _BAD_REQUEST:
        return InvalidInput(what, expected="a request that the store takes", found=said)
    return PreconditionFailed(f"{what}: {said}")
