"""Versions of objects: which a bucket has, and deletion of one version for good."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from infra.objects.bulk_delete import record_delete_results
from infra.objects.s3_responses import translate_s3_errors
from infra.objects.s3_store import S3ObjectStore
from infra.objects.single_delete import DeleteOutcomes
from logstore.errors import StoreUnavailable
from logstore.ports.object_storage import DeleteReport
from logstore.stop_checks import raise_if_stopped

if TYPE_CHECKING:
    from mypy_boto3_s3.type_defs import DeleteObjectsOutputTypeDef, ListObjectVersionsOutputTypeDef

_VERSIONS_PER_REQUEST = 1_000


def list_version_ids(objects: S3ObjectStore, key: str) -> list[str]:
    """Return the ids of all versions of exactly this key, without delete markers."""
    version_ids: list[str] = []
    key_marker = version_marker = ""
    while True:
        page = objects.retries.call(partial(_list_page, objects, key, key_marker, version_marker))
        version_ids += [version["VersionId"] for version in page.get("Versions", ()) if version["Key"] == key]
        if not page.get("IsTruncated"):
            return version_ids
        raise_if_stopped()
        key_marker, version_marker = page.get("NextKeyMarker", ""), page.get("NextVersionIdMarker", "")
        if not key_marker:
            raise StoreUnavailable(f"list versions {objects.bucket}/{key}: truncated, yet names no way to its rest")


def delete_versions(objects: S3ObjectStore, versions: Sequence[tuple[str, str]]) -> DeleteReport:
    """Delete versions, each as a key and a version id, at most one of a key. An absent version counts as deleted.

    A temporary error of a key counts as no answer.
    """
    outcomes = DeleteOutcomes()
    for start in range(0, len(versions), _VERSIONS_PER_REQUEST):
        raise_if_stopped()
        page = versions[start : start + _VERSIONS_PER_REQUEST]
        response = objects.retries.call(partial(_delete_page, objects, page))
        errors = {
            failure.get("Key", ""): (failure.get("Code", ""), failure.get("Message", ""))
            for failure in response.get("Errors", ())
        }
        deleted = {success.get("Key", "") for success in response.get("Deleted", ())}
        temporary = record_delete_results([key for key, _ in page], deleted, errors, outcomes)
        outcomes.failed.update(temporary)
        outcomes.unanswered.update(temporary)
    return outcomes.to_report()


def _list_page(
    objects: S3ObjectStore, key: str, key_marker: str, version_marker: str
) -> "ListObjectVersionsOutputTypeDef":
    markers = {"KeyMarker": key_marker, "VersionIdMarker": version_marker} if key_marker else {}
    with translate_s3_errors(f"list versions {objects.bucket}/{key}"):
        return objects.client.list_object_versions(Bucket=objects.bucket, Prefix=key, **markers)  # type: ignore[arg-type]


def _delete_page(objects: S3ObjectStore, page: Sequence[tuple[str, str]]) -> "DeleteObjectsOutputTypeDef":
    entries = [{"Key": key, "VersionId": version_id} for key, version_id in page]
    with translate_s3_errors(f"delete {len(page)} versions of {objects.bucket}"):
        return objects.client.delete_objects(
            Bucket=objects.bucket,
            Delete={"Objects": entries, "Quiet": False},  # type: ignore[typeddict-item]
        )
