"""Responses of S3: checks that they come from the store, a fast parser, errors of Sexton, and retries.

A gateway in front of the store may answer 200 without a request to the store. Each successful response of S3 has known
marks, such as an ETag or a certain XML element. A success without these marks counts as no response.

Source: Amazon S3 API Reference, response elements of each operation.
"""

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

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
from botocore.utils import parse_timestamp

from logstore.errors import InvalidInput, ServiceRefused, SextonError, StoreUnavailable
from logstore.retrying_clock import Backoff, Clock

if TYPE_CHECKING:
    from botocore.model import OperationModel
    from mypy_boto3_s3 import S3Client


_ReadElement = Callable[[ET.Element, str], dict[str, Any]]


def use_fast_list_and_delete_parser(client: "S3Client") -> None:
    """Let `client` parse `Contents` and `Deleted` with a parser that takes half the time of botocore's parser.

    Listed objects then have only a key, a size in bytes and a time of change. Deleted objects have only a key.

    The XML parser in C extracts the elements that a response may repeat a thousand times. Botocore parses all other
    elements. Botocore also parses a response that does not match S3's description, and reports the error.
    """
    client.meta.events.register(
        "before-parse.s3.ListObjectsV2", _build_element_extractor("Contents", _parse_listed_object)
    )
    client.meta.events.register(
        "before-parse.s3.DeleteObjects", _build_element_extractor("Deleted", _parse_deleted_key)
    )


def _parse_listed_object(element: ET.Element, namespace: str) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "Key": _required_text(element, namespace + "Key"),
        "Size": int(_required_text(element, namespace + "Size")),
    }
    modified = element.findtext(namespace + "LastModified")
    if modified:
        fields["LastModified"] = _parse_timestamp(modified)
    return fields


def _parse_deleted_key(element: ET.Element, namespace: str) -> dict[str, Any]:
    return {"Key": _required_text(element, namespace + "Key")}


def _build_element_extractor(name: str, read: _ReadElement) -> Callable[..., None]:
    def extract_elements(
        response_dict: MutableMapping[str, Any], customized_response_dict: MutableMapping[str, Any], **_: object
    ) -> None:
        if response_dict["status_code"] != 200:
            return
        try:
            root = ET.fromstring(response_dict["body"])  # noqa: S314 - the parser that botocore uses for all answers
            namespace = root.tag[: root.tag.find("}") + 1]
            extracted = [read(element, namespace) for element in root.iterfind(namespace + name)]
        except (ET.ParseError, ValueError):
            return
        if extracted:
            other_elements = [element for element in root if element.tag != namespace + name]
            if any(element.tag.rpartition("}")[2] == name for element in other_elements):
                return  # elements of two namespaces: only botocore combines them
            root[:] = other_elements
            response_dict["body"] = ET.tostring(root).replace(b"\r", b"&#13;")  # a bare \r would become a line feed
            customized_response_dict[name] = extracted

    return extract_elements


def _required_text(element: ET.Element, tag: str) -> str:
    text = element.findtext(tag)
    if text is None:
        raise ValueError(tag)
    return text


def _parse_timestamp(value: str) -> datetime:
    try:
        return datetime.fromisoformat(value)  # the format of S3, parsed in C
    except ValueError:  # other stores may use the date format of HTTP headers
        parsed: datetime = parse_timestamp(value)
        return parsed


class ForeignResponse(BotoCoreError):
    fmt = "{status} without the marks of the store's own answer: {problem}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _SuccessMarks:
    statuses: tuple[int, ...] = (200,)
    has_etag: bool = False
    has_empty_body: bool = False
    body_element: bytes = b""  # name of an XML element in the body


_ETAG_ONLY = _SuccessMarks(has_etag=True, has_empty_body=True)
_EMPTY = _SuccessMarks(statuses=(204,), has_empty_body=True)
_MARKS_BY_OPERATION: Final[Mapping[str, _SuccessMarks]] = {
    "PutObject": _ETAG_ONLY,
    "GetObject": _SuccessMarks(statuses=(200, 206), has_etag=True),
    "HeadObject": _SuccessMarks(has_etag=True),
    "DeleteObject": _EMPTY,
    "DeleteObjects": _SuccessMarks(body_element=b"DeleteResult"),
    "ListObjectsV2": _SuccessMarks(body_element=b"ListBucketResult"),
    "ListObjectVersions": _SuccessMarks(body_element=b"ListVersionsResult"),
    "CreateMultipartUpload": _SuccessMarks(body_element=b"UploadId"),
    "UploadPart": _ETAG_ONLY,
    "CompleteMultipartUpload": _SuccessMarks(body_element=b"ETag"),
    "AbortMultipartUpload": _EMPTY,
    "ListMultipartUploads": _SuccessMarks(body_element=b"ListMultipartUploadsResult"),
    "ListParts": _SuccessMarks(body_element=b"ListPartsResult"),
}


def reject_foreign_responses(client: "S3Client") -> None:
    """Make `client` raise `ForeignResponse` for each successful response that lacks the store's marks."""
    client.meta.events.register("before-parse.s3", _require_success_marks)


def _require_success_marks(operation_model: "OperationModel", response_dict: Mapping[str, Any], **_: object) -> None:
    status, marks = response_dict["status_code"], _MARKS_BY_OPERATION.get(operation_model.name)
    if marks is None or status >= 300:
        return
    problem = _find_missing_mark(marks, status, response_dict["headers"], response_dict["body"])
    if problem:
        if not isinstance(response_dict["body"], bytes):  # a stream of GetObject
            response_dict["body"].close()
        raise ForeignResponse(status=status, problem=problem)


def _find_missing_mark(marks: _SuccessMarks, status: int, headers: Mapping[str, str], body: Any) -> str | None:  # noqa: ANN401 - bytes, or a stream
    if status not in marks.statuses:
        return f"expected status {marks.statuses[0]}"
    if marks.has_etag and not headers.get("ETag"):
        return "expected an ETag, found none"
    if marks.has_empty_body and body:
        return f"expected no body, found {body[:60]!r}"
    if marks.body_element and not re.search(rb"<(?:\w+:)?" + marks.body_element + rb"[\s/>]", body):
        return f"expected {marks.body_element.decode()}, found {body[:60]!r}"
    if status == 206 and not headers.get("Content-Range"):
        return "expected a Content-Range, found none"
    return None


THROTTLE_CODES = frozenset({
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
TEMPORARY_CODES = THROTTLE_CODES | {
    "BadDigest",
    "ConditionalRequestConflict",
    "IncompleteBody",
    "InternalError",
    "OperationAborted",
    "RequestTimeout",
    "RequestTimeoutException",
    "XAmzContentSHA256Mismatch",
}  # damage in transit, or a conflict that passes: a retry may succeed
ABSENT_CODES = frozenset({"NoSuchKey", "NoSuchVersion"})
BAD_KEY_CODES = frozenset({"InvalidObjectName", "KeyTooLongError"})  # the store refuses the key, whoever sends it
BAD_REQUEST_CODES = BAD_KEY_CODES | {
    "EntityTooLarge",
    "InvalidArgument",
    "InvalidRequest",
    "InvalidURI",
    "MetadataTooLarge",
}  # the store refuses this request; other requests may succeed
_EXPIRED_CODES = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"})
_MOVED_CODES = frozenset({
    "AuthorizationHeaderMalformed",
    "IllegalLocationConstraintException",
    "MovedPermanently",
    "PermanentRedirect",
    "Redirect",
    "TemporaryRedirect",
})  # fmt: skip
_ADVICE_BY_CODES = (
    (frozenset({"NoSuchBucket", "InvalidBucketName"}), "create the bucket, or correct its name"),
    (frozenset({"AccessDenied", "AllAccessDisabled", "AccountProblem"}), "check what the credentials may do there"),
    (
        frozenset({"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "InvalidSecurity"}),
        "check s3_access_key and s3_secret_key",
    ),
    (_EXPIRED_CODES, "renew the credentials"),
    (frozenset({"RequestTimeTooSkewed"}), "set this machine's clock, and look at the store's"),
    (_MOVED_CODES, "set s3_region and s3_endpoint to where the bucket is"),
)
_PASSING_REFUSAL_CODES = _EXPIRED_CODES | {"RequestTimeTooSkewed", "TemporaryRedirect", "Redirect"}
"""Refusals after which a newly signed request may succeed, for example because a token was renewed."""
_PASSING_REFUSAL_STATUSES = frozenset({302, 307, 405, 501})
_NO_VALID_RESPONSE = (
    BotoConnectionError,
    HTTPClientError,
    IncompleteReadError,
    FlexibleChecksumError,
    ForeignResponse,
    ResponseParserError,
)

_REASON_BY_ERROR = (
    (ConnectTimeoutError, "no answer in time"),
    (ReadTimeoutError, "no answer in time"),
    (SSLError, "no trusted connection"),
    (EndpointConnectionError, "nobody answers"),
    (ResponseParserError, "the answer is not the store's own"),
    (IncompleteReadError, "the answer ended early"),
    (FlexibleChecksumError, "the answer was damaged on its way"),
    (BotoConnectionError, "the connection broke"),
)
_ENDPOINT_ADVICE = "run `sexton up`, or correct SEXTON_S3_ENDPOINT"
_TRUST_ADVICE = "check s3_ca_file, or correct SEXTON_S3_ENDPOINT"
_CERTIFICATE_PROBLEM = re.compile(r"certificate verify failed: (.+?) \(_ssl|(hostname .*?doesn't match [^)\"]*)")


def error_code(error: ClientError) -> str:
    """Return the store's error code. If the response has no body, as after HEAD, return the HTTP status as text."""
    return str(error.response.get("Error", {}).get("Code", ""))


def error_status(error: ClientError) -> int:
    """Return the HTTP status, or 0 if there is no response."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def is_throttle(error: BaseException | None) -> bool:
    """Return whether the store asks to slow down. For a `SextonError`, its cause decides."""
    if isinstance(error, SextonError):
        error = error.__cause__
    return isinstance(error, ClientError) and (error_code(error) in THROTTLE_CODES or error_status(error) in {429, 503})


def retry_after_s(error: BaseException | None) -> float:
    """Return the seconds that the store asks to wait, or 0. For a `SextonError`, its cause decides."""
    if isinstance(error, SextonError):
        error = error.__cause__
    if not isinstance(error, ClientError):
        return 0.0
    retry_after = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("retry-after", "")
    return float(retry_after) if retry_after.isdecimal() else 0.0


@contextmanager
def translate_s3_errors(operation: str) -> Iterator[None]:
    """Translate botocore's errors in the block. `operation` is a phrase for messages, such as "get bucket/key".

    Raises:
        StoreUnavailable: The store does not answer, fails, or asks to slow down. Or the response is damaged, or not
            from the store.
        InvalidInput: The store does not support the key.
        ServiceRefused: The store refuses the request, for example because a bucket or a permission is missing.
    """
    try:
        yield
    except ClientError as exc:
        raise _error_from_response(operation, exc) from exc
    except ParamValidationError as exc:
        problem = f"{operation}: the name of the bucket cannot be one"
        raise _refused_error(problem, "InvalidParameter", advice="correct the bucket's name") from exc
    except _NO_VALID_RESPONSE as exc:
        advice = _TRUST_ADVICE if isinstance(exc, SSLError) else _ENDPOINT_ADVICE
        raise StoreUnavailable(f"S3: {operation}: {_describe_missing_response(exc)}; {advice}") from exc
    except CredentialRetrievalError as exc:
        problem, advice = f"{operation}: no credentials were got", "look at what gives this machine its credentials"
        raise _refused_error(problem, "CredentialRetrievalError", advice=advice, may_pass=True) from exc
    except NoCredentialsError as exc:
        advice = "set s3_access_key and s3_secret_key, or give this machine a role"
        raise _refused_error(f"{operation}: no credentials are known", "NoCredentialsError", advice=advice) from exc
    except BotoCoreError as exc:
        kind = type(exc).__name__
        raise _refused_error(
            f"{operation}: {kind}: {exc}", kind, advice="check the settings that begin with s3_"
        ) from exc


def _describe_missing_response(error: Exception) -> str:
    endpoint = getattr(error, "kwargs", {}).get("endpoint_url")
    suffix = f" at {'/'.join(str(endpoint).split('/')[:3])}" if endpoint else ""
    if isinstance(error, ForeignResponse):
        return f"the answer is not the store's own: {error}"
    certificate_problem = _CERTIFICATE_PROBLEM.search(str(error))
    suffix += f" ({certificate_problem[1] or certificate_problem[2]})" if certificate_problem else ""
    reason = next((reason for kind, reason in _REASON_BY_ERROR if isinstance(error, kind)), "no answer")
    return f"{reason}{suffix}"


def _error_from_response(operation: str, error: ClientError) -> SextonError:
    code, status = error_code(error), error_status(error)
    problem = f"{operation}: {status} {code}: {error.response.get('Error', {}).get('Message', '')}"
    if is_throttle(error) or code in TEMPORARY_CODES or (status >= 500 and status != 501):
        return StoreUnavailable(problem)
    if code in {"", str(status)}:  # no error document: a gateway refused the request and did not ask the store
        return StoreUnavailable(f"{problem} (not the store's own answer)")
    if code in BAD_KEY_CODES:
        return InvalidInput(operation, expected="a key that the store takes", found=problem)
    advice = next((advice for codes, advice in _ADVICE_BY_CODES if code in codes), "ask the store's operator")
    return _refused_error(
        problem, code, advice=advice, may_pass=code in _PASSING_REFUSAL_CODES or status in _PASSING_REFUSAL_STATUSES
    )


def _refused_error(problem: str, code: str, *, advice: str, may_pass: bool = False) -> ServiceRefused:
    return ServiceRefused("S3", problem, advice=advice, code=code, may_pass=may_pass)


T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRetries:
    backoff: Backoff = field(default_factory=lambda: Backoff(attempts=6))
    give_up_after_s: float = 120.0  # after the first attempt; no new attempt begins later
    clock: Clock = field(default_factory=Clock)

    @classmethod
    def once(cls) -> Self:
        """Return retries that make one attempt, for commands whose user waits and can run the command again."""
        return cls(backoff=Backoff(attempts=1))

    def call(self, attempt: Callable[[], T]) -> T:
        """Call `attempt` until it succeeds. Wait longer between attempts if the store asks for it.

        Raises:
            StoreUnavailable, ServiceRefused: The error of the last attempt. Other errors, and refusals that will not
                pass, are raised at once.
        """
        return self.clock.retry(
            attempt,
            deadline_s=self.clock.monotonic_s() + self.give_up_after_s,
            backoff=self.backoff,
            is_retryable=_should_retry,
            extra_pause_s=lambda error: min(self.backoff.longest_s, retry_after_s(error)),
        )

    def request(self, operation: str, attempt: Callable[[], T]) -> T:
        """Call `attempt` as `call` does, with `translate_s3_errors` around each attempt."""

        def translated_attempt() -> T:
            with translate_s3_errors(operation):
                return attempt()

        return self.call(translated_attempt)

    def pause(self, failures: int) -> None:
        self.clock.sleep(self.backoff.pause_s(failures))


def _should_retry(error: Exception) -> bool:
    return isinstance(error, StoreUnavailable) or (isinstance(error, ServiceRefused) and error.may_pass)
