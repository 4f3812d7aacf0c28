"""What an answer of S3 means: which answers are the store's own, and the one place where its errors become ours.

Such an answer says nothing of what the store did. It is taken for none, so the request is sent again; what counts
as done is only what bears the marks that S3 gives each of its answers.

Source: Amazon S3 API Reference, response elements of each operation.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    FlexibleChecksumError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    ParamValidationError,
    ReadTimeoutError,
    SSLError,
)
from botocore.exceptions import ConnectionError as BotoConnectionError
from botocore.parsers import ResponseParserError

from logstore.errors import InvalidInput, ServiceRefused, SextonError, StoreUnavailable

if TYPE_CHECKING:
    from botocore.model import OperationModel
    from mypy_boto3_s3 import S3Client


class ForeignAnswer(BotoCoreError):
    """Success was answered, and not by the store."""

    fmt = "{status} without the marks of the store's own answer: {lacks}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Marks:
    """The marks of a success that the store itself answered."""

    statuses: tuple[int, ...] = (200,)
    etag: bool = False
    empty: bool = False  # no body at all
    inside: bytes = b""  # an element that the body holds


_ETAG = _Marks(etag=True, empty=True)
_NOTHING = _Marks(statuses=(204,), empty=True)
_MARKS: Final[Mapping[str, _Marks]] = {
    "PutObject": _ETAG,
    "GetObject": _Marks(statuses=(200, 206), etag=True),
    "HeadObject": _Marks(etag=True),
    "DeleteObject": _NOTHING,
    "DeleteObjects": _Marks(inside=b"DeleteResult"),
    "ListObjectsV2": _Marks(inside=b"ListBucketResult"),
    "CreateMultipartUpload": _Marks(inside=b"UploadId"),
    "UploadPart": _ETAG,
    "CompleteMultipartUpload": _Marks(inside=b"ETag"),
    "AbortMultipartUpload": _NOTHING,
    "ListMultipartUploads": _Marks(inside=b"ListMultipartUploadsResult"),
}


def require_own_answers(client: "S3Client") -> None:
    """Raise `ForeignAnswer` for each success of `client` that the store did not give; errors are judged elsewhere."""
    client.meta.events.register("before-parse.s3", _check)


def _check(operation_model: "OperationModel", response_dict: Mapping[str, Any], **_: object) -> None:
    status, marks = response_dict["status_code"], _MARKS.get(operation_model.name)
    if marks is None or status >= 300:
        return
    lacks = _lacks(marks, status, response_dict["headers"], response_dict["body"])
    if lacks:
        if not isinstance(response_dict["body"], bytes):  # a stream
            response_dict["body"].close()
        raise ForeignAnswer(status=status, lacks=lacks)


def _lacks(marks: _Marks, status: int, headers: Mapping[str, str], body: Any) -> str | None:  # noqa: ANN401 - bytes, or a stream
    if status not in marks.statuses:
        return f"expected status {marks.statuses[0]}"
    if marks.etag and not headers.get("ETag"):
        return "expected an ETag, found none"
    if marks.empty and body:
        return f"expected no body, found {body[:60]!r}"
    if marks.inside and not re.search(rb"<(?:\w+:)?" + marks.inside + rb"[\s/>]", body):
        return f"expected {marks.inside.decode()}, found {body[:60]!r}"
    if status == 206 and not headers.get("Content-Range"):
        return "expected a Content-Range, found none"
    return None


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
BAD_KEY = frozenset({"InvalidObjectName", "KeyTooLongError"})  # said of the request's own key, to any caller
BAD_REQUEST = BAD_KEY | {
    "EntityTooLarge",
    "InvalidArgument",
    "InvalidRequest",
    "InvalidURI",
    "MetadataTooLarge",
}  # said of one request; another one may be taken
_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"})
_MOVED = frozenset({
    "AuthorizationHeaderMalformed",
    "IllegalLocationConstraintException",
    "MovedPermanently",
    "PermanentRedirect",
    "Redirect",
    "TemporaryRedirect",
})  # fmt: skip
_ADVICE = (
    (frozenset({"NoSuchBucket", "InvalidBucketName"}), "create the bucket, or correct its name"),
    (frozenset({"AccessDenied", "AllAccessDisabled", "AccountProblem"}), "check what the credentials may do there"),
    (
        frozenset({"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "InvalidSecurity"}),
        "check s3_access_key and s3_secret_key",
    ),
    (_EXPIRED, "renew the credentials"),
    (frozenset({"RequestTimeTooSkewed"}), "set this machine's clock, and look at the store's"),
    (_MOVED, "set s3_region and s3_endpoint to where the bucket is"),
)
_MAY_PASS = _EXPIRED | {"RequestTimeTooSkewed", "TemporaryRedirect", "Redirect"}
"""Refusals that the same request, signed anew, may not meet: tokens are renewed, a paused process signed long ago."""
_MAY_PASS_STATUS = frozenset({302, 307, 405, 501})
_UNREACHABLE = (
    BotoConnectionError,
    HTTPClientError,
    IncompleteReadError,
    FlexibleChecksumError,
    ForeignAnswer,
    ResponseParserError,
)

_WHY = (
    (ConnectTimeoutError, "no answer in time"),
    (ReadTimeoutError, "no answer in time"),
    (SSLError, "no trusted connection"),
    (EndpointConnectionError, "nobody answers"),
    (ResponseParserError, "the answer is not the store's own"),
    (IncompleteReadError, "the answer ended early"),
    (FlexibleChecksumError, "the answer was damaged on its way"),
    (BotoConnectionError, "the connection broke"),
)
_LOOK = "run `sexton up`, or correct SEXTON_S3_ENDPOINT"
_TRUST = "check s3_ca_file, or correct SEXTON_S3_ENDPOINT"
_DISTRUST = re.compile(r"certificate verify failed: (.+?) \(_ssl|(hostname .*?doesn't match [^)\"]*)")


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
        StoreUnavailable: No answer, a damaged one, one that the store did not give, a fault of the store, or a wish
            to slow down.
        InvalidInput: The store cannot take the key that was asked for.
        ServiceRefused: The store refuses us: no such bucket, no permission, bad credentials, or an answer that is
            none of those we know.
    """
    try:
        yield
    except ClientError as exc:
        raise _from_answer(what, exc) from exc
    except ParamValidationError as exc:
        problem = f"{what}: the name of the bucket cannot be one"
        raise _refused(problem, "InvalidParameter", advice="correct the bucket's name") from exc
    except _UNREACHABLE as exc:
        look = _TRUST if isinstance(exc, SSLError) else _LOOK
        raise StoreUnavailable(f"S3: {what}: {_unheard(exc)}; {look}") from exc
    except CredentialRetrievalError as exc:
        problem, advice = f"{what}: no credentials were got", "look at what gives this machine its credentials"
        raise _refused(problem, "CredentialRetrievalError", advice=advice, may_pass=True) from exc
    except NoCredentialsError as exc:
        advice = "set s3_access_key and s3_secret_key, or give this machine a role"
        raise _refused(f"{what}: no credentials are known", "NoCredentialsError", advice=advice) from exc
    except BotoCoreError as exc:
        kind = type(exc).__name__
        raise _refused(f"{what}: {kind}: {exc}", kind, advice="check the settings that begin with s3_") from exc


def _unheard(error: Exception) -> str:
    """Why nothing was heard of the store, in words of ours."""
    where = getattr(error, "kwargs", {}).get("endpoint_url")
    at = f" at {'/'.join(str(where).split('/')[:3])}" if where else ""
    if isinstance(error, ForeignAnswer):
        return f"the answer is not the store's own: {error}"
    distrust = _DISTRUST.search(str(error))
    at += f" ({distrust[1] or distrust[2]})" if distrust else ""
    return next((f"{why}{at}" for kind, why in _WHY if isinstance(error, kind)), f"no answer{at}")


def _from_answer(what: str, error: ClientError) -> SextonError:
    code, status = code_of(error), status_of(error)
    said = f"{what}: {status} {code}: {error.response.get('Error', {}).get('Message', '')}"
    if is_throttle(error) or code in TEMPORARY or (status >= 500 and status != 501):
        return StoreUnavailable(said)
    if code in {"", str(status)}:  # no error document: a gateway in between refused, and nobody asked the store
        return StoreUnavailable(f"{said} (not the store's own answer)")
    if code in BAD_KEY:
        return InvalidInput(what, expected="a key that the store takes", found=said)
    advice = next((advice for codes, advice in _ADVICE if code in codes), "ask the store's operator")
    return _refused(said, code, advice=advice, may_pass=code in _MAY_PASS or status in _MAY_PASS_STATUS)


def _refused(problem: str, code: str, *, advice: str, may_pass: bool = False) -> ServiceRefused:
    return ServiceRefused("S3", problem, advice=advice, code=code, may_pass=may_pass)
