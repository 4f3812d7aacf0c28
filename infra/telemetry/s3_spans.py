"""Spans of S3 calls, from botocore's events. Each call has one span."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, StatusCode

if TYPE_CHECKING:
    from botocore.awsrequest import AWSResponse
    from botocore.model import OperationModel
    from mypy_boto3_s3 import S3Client

_tracer = trace.get_tracer("sexton.objects")
_CONTEXT_KEY = "sexton_span"  # key of the span in the request's context
_EXPECTED_STATUSES = frozenset({304, 404, 409, 412, 416})  # no failures: an absent key, a key already taken


def trace_s3_calls(client: "S3Client") -> None:
    """Record a span for each call of `client`, never with the content of an object.

    An absent key, or a key that is taken, is no error in a span. Without a tracer provider, the cost is negligible.

    Source: PostHog #97438: error spans of expected errors hide real errors.
    """
    events = client.meta.events
    events.register("provide-client-params.s3", _begin_span)
    events.register("after-call.s3", _end_span)
    events.register("after-call-error.s3", _fail_span)


def _begin_span(params: Mapping[str, Any], model: "OperationModel", context: dict[str, Any], **_: object) -> None:
    span = _tracer.start_span(
        f"S3.{model.name}", kind=SpanKind.CLIENT, attributes=_build_request_attributes(model.name, params)
    )
    if span.is_recording():
        context[_CONTEXT_KEY] = span


def _end_span(http_response: "AWSResponse", parsed: Mapping[str, Any], context: dict[str, Any], **_: object) -> None:
    span: Span | None = context.pop(_CONTEXT_KEY, None)
    if span is None:
        return
    status: int = http_response.status_code
    span.set_attributes({"http.response.status_code": status, **_build_result_counts(parsed)})
    if status >= 300:
        code = str(parsed.get("Error", {}).get("Code", status))
        span.set_attribute("aws.error_code", code)
        if status not in _EXPECTED_STATUSES:
            span.set_status(StatusCode.ERROR, code)
    span.end()


def _fail_span(exception: Exception, context: dict[str, Any], **_: object) -> None:
    span: Span | None = context.pop(_CONTEXT_KEY, None)
    if span is not None:
        span.set_status(StatusCode.ERROR, type(exception).__name__)
        span.end()


def _build_request_attributes(method: str, params: Mapping[str, Any]) -> dict[str, str | int]:
    attributes: dict[str, str | int] = {"rpc.system": "aws-api", "rpc.service": "S3", "rpc.method": method}
    for name, attribute in (("Bucket", "aws.s3.bucket"), ("Key", "aws.s3.key"), ("Prefix", "aws.s3.prefix")):
        if name in params:
            attributes[attribute] = str(params[name])
    if "Delete" in params:
        attributes["sexton.keys"] = len(params["Delete"]["Objects"])
    if isinstance(params.get("Body"), bytes):
        attributes["sexton.bytes"] = len(params["Body"])
    return attributes


def _build_result_counts(parsed: Mapping[str, Any]) -> dict[str, int]:
    counts = {}
    for name, attribute in (("Contents", "found"), ("Deleted", "deleted"), ("Errors", "failed")):
        if name in parsed:
            counts[f"sexton.{attribute}"] = len(parsed[name])
    return counts
