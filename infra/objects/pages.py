"""Pages of a thousand keys, whose repeated elements the C parser of XML reads, in half of the time of botocore.

A listing of ten million objects is ten thousand such pages. botocore walks the description of the answer for each
element; here the elements that repeat are taken out of the answer first, and added to what botocore makes of the rest.
An answer that is not as S3 describes it is left to botocore, which says what is wrong with it.

Source: Amazon S3 API Reference, ListObjectsV2 and DeleteObjects, response elements.
"""

import xml.etree.ElementTree as ET
from collections.abc import Callable, MutableMapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from botocore.utils import parse_timestamp

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_Read = Callable[[ET.Element, str], dict[str, Any]]


def read_pages_fast(client: "S3Client") -> None:
    """Have `client` read `Contents` and `Deleted` here.

    Of an object that is its key, its size in bytes and its time, of a deleted one its key; no more of it is ever read.
    """
    client.meta.events.register("before-parse.s3.ListObjectsV2", _taking("Contents", _stored))
    client.meta.events.register("before-parse.s3.DeleteObjects", _taking("Deleted", _deleted))


def _stored(element: ET.Element, space: str) -> dict[str, Any]:
    found: dict[str, Any] = {"Key": _text(element, space + "Key"), "Size": int(_text(element, space + "Size"))}
    modified = element.findtext(space + "LastModified")
    if modified:
        found["LastModified"] = _timestamp(modified)
    return found


def _deleted(element: ET.Element, space: str) -> dict[str, Any]:
    return {"Key": _text(element, space + "Key")}


def _taking(name: str, read: _Read) -> Callable[..., None]:
    """A handler that takes each element of this name out of an answer, and adds what was read of them all."""

    def take(
        response_dict: MutableMapping[str, Any], customized_response_dict: MutableMapping[str, Any], **_: object
    ) -> None:
        if response_dict["status_code"] != 200:
            return
        try:
            root = ET.fromstring(response_dict["body"])  # noqa: S314 - the parser that botocore uses for all answers
            space = root.tag[: root.tag.find("}") + 1]
            found = [read(each, space) for each in root.iterfind(space + name)]
        except (ET.ParseError, ValueError):
            return
        if found:
            rest = [each for each in root if each.tag != space + name]
            if any(each.tag.rpartition("}")[2] == name for each in rest):
                return  # of two namespaces, which only botocore reads together
            root[:] = rest
            response_dict["body"] = ET.tostring(root).replace(b"\r", b"&#13;")  # a bare one would be read as a new line
            customized_response_dict[name] = found

    return take


def _text(element: ET.Element, tag: str) -> str:
    """The text of an element that must be there.

    Raises:
        ValueError: It is not there.
    """
    text = element.findtext(tag)
    if text is None:
        raise ValueError(tag)
    return text


def _timestamp(value: str) -> datetime:
    """A time as S3 writes it, parsed in C, or as other stores may write it."""
    try:
        return datetime.fromisoformat(value)
    except ValueError:  # the date format of HTTP headers
        parsed: datetime = parse_timestamp(value)
        return parsed
