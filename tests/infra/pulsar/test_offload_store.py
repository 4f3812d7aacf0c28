"""Reads of the bucket with offloads, on a real SeaweedFS and on peers that lie."""

import pytest

from infra.pulsar.offload_store import OffloadStore, open_offload_store
from logstore.errors import InvalidInput, StoreUnavailable
from logstore.pulsar.offload_objects import OffloadKey, OffloadRole
from tests.infra.objects.peer import Answer, Request, scripted
from tests.infra.objects.test_store import store_at
from tests.infra.pulsar.offloads import begin_upload, put_objects, state

_DATA = OffloadKey("1fdb3d1e-70a5-4d4e-8d8c-1f2f3a4b5c6d", 1)


@pytest.mark.external_service
def test_an_object_is_read_with_its_metadata_and_an_absent_one_is_none(offloads: OffloadStore) -> None:
    put_objects(offloads, _DATA, (OffloadRole.DATA,))
    stored = offloads.read_object(_DATA)
    assert stored is not None
    assert (stored.size_bytes, stored.metadata) == (100, state("data"))
    assert abs((stored.modified_us or 0) - offloads.read_clock_us()) < 60_000_000
    assert offloads.read_object(OffloadKey(_DATA.uuid, 1, OffloadRole.INDEX)) is None


@pytest.mark.external_service
def test_uploads_to_exactly_the_key_are_read_with_their_parts(offloads: OffloadStore) -> None:
    """Keys of ledgers 1 and 12 have the same beginning."""
    ended = begin_upload(offloads, _DATA, parts=1)
    for attempt, parts in ((_DATA, 2), (_DATA, 0), (OffloadKey(_DATA.uuid, 12), 1)):
        begin_upload(offloads, attempt, parts=parts)
    offloads.objects.client.abort_multipart_upload(Bucket=offloads.bucket, Key=str(_DATA), UploadId=ended)
    uploads = offloads.read_uploads(_DATA)
    assert sorted(upload.size_bytes for upload in uploads) == [0, 2_000]
    assert all(abs((upload.changed_us or 0) - offloads.read_clock_us()) < 60_000_000 for upload in uploads)
    assert sorted(upload.key for upload in offloads.list_uploads("1fdb")) == [str(_DATA), str(_DATA), f"{_DATA}2"]
    assert not list(offloads.list_uploads("2"))


def _upload_page(*parts: tuple[int, str], truncated: bool = False, marker: int = 0) -> Answer:
    elements = "".join(
        f"<Part><PartNumber>{number}</PartNumber><Size>5</Size><ETag>e</ETag>{time}</Part>" for number, time in parts
    )
    flag = f"<IsTruncated>{str(truncated).lower()}</IsTruncated><NextPartNumberMarker>{marker}</NextPartNumberMarker>"
    return Answer(200, f"<ListPartsResult>{flag}{elements}</ListPartsResult>".encode())


_TIME = "<LastModified>2026-01-02T03:04:05Z</LastModified>"
_UPLOADS = Answer(
    200,
    f"<ListMultipartUploadsResult><IsTruncated>false</IsTruncated><Upload><Key>{_DATA}</Key><UploadId>u</UploadId>"
    "<Initiated>2026-01-01T00:00:00Z</Initiated></Upload></ListMultipartUploadsResult>".encode(),
)


@pytest.mark.parametrize(("last_time", "is_known"), [(_TIME, True), ("", False)])
def test_parts_are_read_page_by_page_and_a_part_without_a_time_makes_the_time_unknown(
    last_time: str, is_known: bool
) -> None:
    def script(request: Request) -> Answer:
        if "uploads" in request.query:
            return _UPLOADS
        is_first = request.query.get("part-number-marker", "0") == "0"
        return _upload_page((1, _TIME), truncated=True, marker=1) if is_first else _upload_page((2, last_time))

    with scripted(script) as peer:
        (upload,) = OffloadStore(store_at(peer)).read_uploads(_DATA)
    assert (upload.size_bytes, upload.changed_us is not None) == (10, is_known)


def test_parts_that_are_truncated_without_a_way_to_the_rest_are_no_answer() -> None:
    def script(request: Request) -> Answer:
        return _UPLOADS if "uploads" in request.query else _upload_page((1, _TIME), truncated=True)

    with scripted(script) as peer, pytest.raises(StoreUnavailable, match="truncated"):
        OffloadStore(store_at(peer)).read_uploads(_DATA)


def test_a_cluster_without_a_bucket_is_refused_by_the_name_of_the_setting() -> None:
    with pytest.raises(InvalidInput, match="pulsar_offload_bucket"):
        open_offload_store(None)
