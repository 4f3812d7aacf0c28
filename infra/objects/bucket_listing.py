"""Listings of a bucket in key order. A listing is complete or raises an error."""

import operator
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING

from infra.objects.s3_responses import RequestRetries
from logstore.errors import StoreUnavailable, Unsupported
from logstore.ports.object_storage import ObjectInfo
from logstore.stop_checks import raise_if_stopped

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import ListObjectsV2OutputTypeDef, ListObjectsV2RequestTypeDef

OBJECTS_PER_PAGE = 1_000
"""Maximum number of objects in one response."""
_BY_KEY = operator.attrgetter("key")


class BucketListing:
    """Listing of one bucket.

    SeaweedFS (4.48, tested) sorts by path, not by bytes: `x/1` comes before `x-1`. A listing after the key `x` skips
    the folder `x`. Therefore:

    1. This class sorts each page.
    2. A request sends a `StartAfter` below the requested key.
    3. A page that begins before the end of the last page is an error, because callers rely on the order.
    """

    def __init__(
        self, client: "S3Client", bucket: str, retries: RequestRetries, *, prefix: str, start_after: str
    ) -> None:
        self._client, self._retries = client, retries
        self._prefix, self._start_after = prefix, start_after
        self._operation = f"list {bucket}/{prefix}"
        self._request: ListObjectsV2RequestTypeDef = {"Bucket": bucket, "Prefix": prefix}

    def iterate_objects(self, first_page: int = OBJECTS_PER_PAGE) -> Iterator[ObjectInfo]:
        previous_key = ""
        if first_page < OBJECTS_PER_PAGE:
            self._request["MaxKeys"] = first_page
        for page in self._read_pages():
            objects = self._sort_objects(page)
            if not objects:
                continue
            self._require_prefix_and_order(objects[0].key, objects[-1].key, previous_key)
            previous_key = objects[-1].key
            if objects[0].key > self._start_after:
                yield from objects
            else:
                yield from (item for item in objects if item.key > self._start_after)

    def list_folder(self) -> Iterator[str | ObjectInfo]:
        self._request["Delimiter"] = "/"
        previous_folders: set[str] = set()
        for page in self._read_pages():
            folders = {entry["Prefix"] for entry in page.get("CommonPrefixes", ())}
            objects = self._sort_objects(page)
            for name in (*folders, *(item.key for item in objects)):
                is_folder = name in folders
                relative_name = name.removeprefix(self._prefix).removesuffix("/" if is_folder else "")
                if not name.startswith(self._prefix) or "/" in relative_name or (is_folder and not name.endswith("/")):
                    raise StoreUnavailable(f"{self._operation}: the answer holds what is not directly there: {name!r}")
            yield from sorted(folders - previous_folders)  # a store may repeat the last folder of the previous page
            yield from objects
            previous_folders = folders

    def _read_pages(self) -> Iterator["ListObjectsV2OutputTypeDef"]:
        start_after = lower_start_after_for_path_order(self._start_after, self._prefix)
        if start_after:
            self._request["StartAfter"] = start_after
        while True:
            page = self._retries.request(self._operation, self._read_page)
            yield page
            if not page["IsTruncated"]:
                return
            raise_if_stopped()
            token = page.get("NextContinuationToken")
            if not token or token == self._request.get("ContinuationToken"):
                raise StoreUnavailable(f"{self._operation}: the answer is truncated, yet names no way to its rest")
            self._request.pop("StartAfter", None)
            self._request.pop("MaxKeys", None)
            self._request["ContinuationToken"] = token

    def _read_page(self) -> "ListObjectsV2OutputTypeDef":
        page = self._client.list_objects_v2(**self._request)
        if "IsTruncated" not in page:
            raise StoreUnavailable(f"{self._operation}: expected a listing, found an answer without IsTruncated")
        return page

    def _sort_objects(self, page: "ListObjectsV2OutputTypeDef") -> list[ObjectInfo]:
        objects = [
            ObjectInfo(
                key=entry["Key"], size_bytes=entry["Size"], modified_us=to_microseconds(entry.get("LastModified"))
            )
            for entry in page.get("Contents", ())
        ]
        keys = [item.key for item in objects]
        if not all(map(operator.lt, keys, keys[1:])):
            objects.sort(key=_BY_KEY)  # by code point, which is the order of the UTF-8 bytes
        return objects

    def _require_prefix_and_order(self, first_key: str, last_key: str, previous_key: str) -> None:
        if not (first_key.startswith(self._prefix) and last_key.startswith(self._prefix)):
            raise StoreUnavailable(
                f"{self._operation}: the answer holds keys of another prefix: {first_key!r} to {last_key!r}"
            )
        if previous_key and first_key <= previous_key:
            raise Unsupported(
                f"{self._operation}: expected keys in the order of their bytes, found {first_key!r} after "
                f"{previous_key!r}"
            )


def lower_start_after_for_path_order(start_after: str, prefix: str) -> str:
    """Return a `StartAfter`, not above `start_after`, for a complete listing even if the store sorts by path.

    The result is empty if only a listing of the whole prefix is complete.
    """
    if start_after <= prefix:
        return ""
    end = next((index for index in range(len(prefix), len(start_after)) if start_after[index] < "/"), len(start_after))
    while end > len(prefix):
        lowered = chr(ord(start_after[end - 1]) - 1)
        end -= 1
        if "/" < lowered <= "~":
            return start_after[:end] + lowered
    return ""


def to_microseconds(modified: datetime | None) -> int | None:
    """Return the time in microseconds since 1970, exactly."""
    if modified is None:
        return None
    return int(modified.timestamp()) * 1_000_000 + modified.microsecond
