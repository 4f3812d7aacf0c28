"""Which answers are the store's own: a gateway, a proxy or a login page in between may answer 200 to anything.

Such an answer says nothing of what the store did. It is taken for none, so the request is sent again; what counts
as done is only what bears the marks that S3 gives each of its answers.

Source: Amazon S3 API Reference, response elements of each operation.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from botocore.exceptions import BotoCoreError

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
        _close(response_dict["body"])
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


def _close(body: Any) -> None:  # noqa: ANN401 - bytes, or a stream
    if not isinstance(body, bytes):
        body.close()
