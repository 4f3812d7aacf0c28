"""Pages of keys are read as botocore reads them, and are botocore's where they are not as S3 describes them."""

from collections.abc import Mapping
from typing import Any

import boto3
import pytest
from botocore.config import Config

from infra.objects.s3_store import create_s3_client
from logstore.errors import StoreUnavailable
from tests.infra.objects.peer import Answer, scripted
from tests.infra.objects.test_store import store_at

_XMLNS = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
_OBJECT = """<Contents><Key>a%2Bb/&amp;c%20d</Key><LastModified>2026-11-23T08:00:00.123Z</LastModified>
<ETag>&#34;e&#34;</ETag><Size>7</Size><Owner><ID>x</ID><Size>9</Size></Owner><StorageClass>STANDARD</StorageClass></Contents>"""
_PLAIN = "<Contents><Size>0</Size><Key>z</Key></Contents>"
_OTHER = "<Contents xmlns=''><Size>1</Size><Key>b</Key></Contents>"
_REST = "<IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>"
_LISTINGS = {
    "whole": f"<ListBucketResult {_XMLNS}><EncodingType>url</EncodingType>{_OBJECT}{_REST}{_PLAIN}</ListBucketResult>",
    "no namespace": f"<ListBucketResult>{_REST}{_PLAIN}{_OBJECT}</ListBucketResult>",
    "no object": f"<ListBucketResult {_XMLNS}>{_REST}</ListBucketResult>",
    "two namespaces": f"<ListBucketResult {_XMLNS}>{_REST}{_PLAIN}{_OTHER}</ListBucketResult>",
    "a carriage return": f"<ListBucketResult>{_REST.replace('>t<', '>t&#13;u<')}{_PLAIN}</ListBucketResult>",
    "no size": f"<ListBucketResult>{_REST}<Contents><Key>a</Key></Contents></ListBucketResult>",
}
_DELETED = f"""<DeleteResult {_XMLNS}><Deleted><Key>a&lt;b</Key><VersionId>v</VersionId></Deleted><Error><Key>c</Key>
<Code>AccessDenied</Code><Message>no</Message></Error><Deleted><Key>d</Key></Deleted></DeleteResult>"""


def _both(body: str, ask: str, **params: Any) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """What our client and a bare one make of the same answer."""
    with scripted(lambda _request: Answer(200, body.encode())) as peer:
        bare = boto3.client(
            "s3",
            endpoint_url=peer.endpoint,
            region_name="us-east-1",
            aws_access_key_id="access",
            aws_secret_access_key="secret",
            config=Config(s3={"addressing_style": "path"}),
        )
        ours = create_s3_client(peer.endpoint, "us-east-1", "access", "secret")
        one, other = (getattr(client, ask)(Bucket="bucket", **params) for client in (ours, bare))
    return one, other


@pytest.mark.parametrize("body", _LISTINGS.values(), ids=_LISTINGS)
def test_a_listing_is_read_as_botocore_reads_it(body: str) -> None:
    """Encoded keys, entities, elements in any order and within others; fields that nothing reads are left out."""
    ours, bare = _both(body, "list_objects_v2")
    read = {"Key", "Size", "LastModified"}
    expected = [{name: each[name] for name in read & each.keys()} for each in bare.get("Contents", ())]
    assert list(ours.get("Contents", ())) == expected
    others = bare.keys() - {"Contents", "ResponseMetadata"}
    assert {name: ours[name] for name in others} == {name: bare[name] for name in others}


def test_confirmed_and_refused_keys_are_read_as_botocore_reads_them() -> None:
    """Both kinds stand in one answer, mixed."""
    ours, bare = _both(_DELETED, "delete_objects", Delete={"Objects": [{"Key": "a<b"}]})
    assert [each["Key"] for each in ours["Deleted"]] == [each["Key"] for each in bare["Deleted"]] == ["a<b", "d"]
    assert ours["Errors"] == bare["Errors"] != []


def test_an_answer_that_ends_early_is_no_listing() -> None:
    """Not even one of the objects that it shows."""
    cut = _LISTINGS["whole"][:-30].encode()
    with scripted(lambda _request: Answer(200, cut)) as peer, pytest.raises(StoreUnavailable):
        next(iter(store_at(peer).list("")))


def test_botocore_is_given_no_object_to_read() -> None:
    """Else each page would be read twice."""
    client = create_s3_client("http://127.0.0.1:1", "us-east-1", "access", "secret")
    answer = {"status_code": 200, "headers": {}, "body": _LISTINGS["whole"].encode()}
    added: dict[str, Any] = {}
    client.meta.events.emit(
        "before-parse.s3.ListObjectsV2",
        operation_model=client.meta.service_model.operation_model("ListObjectsV2"),
        response_dict=answer,
        customized_response_dict=added,
    )
    assert [each["Size"] for each in added["Contents"]] == [7, 0]
    assert "Contents" not in str(answer["body"])
