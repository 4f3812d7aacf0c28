"""One span per S3 call, made from botocore's own events."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, StatusCode

if TYPE_CHECKING:
    from botocore.awsrequest import AWSResponse
    from botocore.model import OperationModel
    from mypy_boto3_s3 import S3Client

_tracer = trace.get_tracer("sexton.objects")
_SPAN = "sexton_span"  # where the request's own context carries it between events
_EXPECTED = frozenset({304, 404, 409, 412, 416})  # answers, not faults: an absent key, a key already taken


def observe_client(client: "S3Client") -> None:
    """Give each call of `client` a span: method, bucket, key or prefix or number of keys; never a payload.

    Without a tracer provider this costs next to nothing. A key that is absent or already taken is no error.

    Source: PostHog #97438: an expected "already started" shown as an error span hides the real ones.
    """
    events = client.meta.events
    events.register("provide-client-params.s3", _begin)
    events.register("after-call.s3", _end)
    events.register("after-call-error.s3", _fail)


def _begin(params: Mapping[str, Any], model: "OperationModel", context: dict[str, Any], **_: object) -> None:
    span = _tracer.start_span(f"S3.{model.name}", kind=SpanKind.CLIENT, attributes=_facts(model.name, params))
    if span.is_recording():
        context[_SPAN] = span


def _end(http_response: "AWSResponse", parsed: Mapping[str, Any], context: dict[str, Any], **_: object) -> None:
    span: Span | None = context.pop(_SPAN, None)
    if span is None:
        return
    status: int = http_response.status_code
    span.set_attributes({"http.response.status_code": status, **_counts(parsed)})
    if status >= 300:
        code = str(parsed.get("Error", {}).get("Code", status))
        span.set_attribute("aws.error_code", code)
        if status not in _EXPECTED:
            span.set_status(StatusCode.ERROR, code)
    span.end()


def _fail(exception: Exception, context: dict[str, Any], **_: object) -> None:
    span: Span | None = context.pop(_SPAN, None)
    if span is not None:
        span.set_status(StatusCode.ERROR, type(exception).__name__)
        span.end()


def _facts(method: str, params: Mapping[str, Any]) -> dict[str, str | int]:
    facts: dict[str, str | int] = {"rpc.system": "aws-api", "rpc.service": "S3", "rpc.method": method}
    for name, attribute in (("Bucket", "aws.s3.bucket"), ("Key", "aws.s3.key"), ("Prefix", "aws.s3.prefix")):
        if name in params:
            facts[attribute] = str(params[name])
    if "Delete" in params:
        facts["sexton.keys"] = len(params["Delete"]["Objects"])
    if isinstance(params.get("Body"), bytes):
        facts["sexton.bytes"] = len(params["Body"])
    return facts


def _counts(parsed: Mapping[str, Any]) -> dict[str, int]:
    counts = {}
    for name, attribute in (("Contents", "found"), ("Deleted", "deleted"), ("Errors", "failed")):
        if name in parsed:
            counts[f"sexton.{attribute}"] = len(parsed[name])
    return counts
