"""Listings in key order: complete, or an error."""

import operator
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING

from infra.objects.answers import translated
from infra.objects.retries import Retries
from logstore.errors import StoreUnavailable, Unsupported
from logstore.ports.objects import ObjectInfo
from logstore.units import between_units

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import ListObjectsV2OutputTypeDef, ListObjectsV2RequestTypeDef

PAGE = 1_000
"""Objects that a store shows in one answer, unless it is asked for fewer."""
_KEY = operator.attrgetter("key")


class Listing:
    """One listing of one bucket.

    SeaweedFS (4.48, run here) sorts by path and not by bytes (`x/1` before `x-1`), and skips the folder `x`
    when asked for what follows `x`. Hence pages are put in order, `StartAfter` is sent a little early, and a
    disorder that spans pages is an error: a consumer that merges two sorted streams would lose keys.
    """

    def __init__(self, client: "S3Client", bucket: str, retries: Retries, *, prefix: str, start_after: str) -> None:
        self._client, self._retries = client, retries
        self._prefix, self._start_after = prefix, start_after
        self._what = f"list {bucket}/{prefix}"
        self._request: ListObjectsV2RequestTypeDef = {"Bucket": bucket, "Prefix": prefix}

    def objects(self, first_page: int = PAGE) -> Iterator[ObjectInfo]:
        """The objects in ascending order of keys, a page being fetched when the one before is used up.

        Args:
            first_page: How many the first page may have.

        Raises:
            StoreUnavailable: A page could not be had, or does not belong to this listing.
            Unsupported: The store's order is not that of the keys, over more than a page.
        """
        last = ""
        if first_page < PAGE:
            self._request["MaxKeys"] = first_page
        for page in self._pages():
            found = self._in_order(page)
            if not found:
                continue
            self._check_edges(found[0].key, found[-1].key, last)
            last = found[-1].key
            if found[0].key > self._start_after:
                yield from found
            else:
                yield from (each for each in found if each.key > self._start_after)

    def level(self) -> Iterator[str | ObjectInfo]:
        """Objects directly at the prefix, and folders there, each once.

        Raises:
            StoreUnavailable: A page could not be had, or does not belong to this listing.
        """
        self._request["Delimiter"] = "/"
        last: set[str] = set()
        for page in self._pages():
            folders = {each["Prefix"] for each in page.get("CommonPrefixes", ())}
            objects = self._in_order(page)
            for name in (*folders, *(each.key for each in objects)):
                self._check_level(name, is_folder=name in folders)
            yield from sorted(folders - last)  # a store may open a page with the folder that ended the one before
            yield from objects
            last = folders

    def _check_level(self, name: str, *, is_folder: bool) -> None:
        below = name.removeprefix(self._prefix).removesuffix("/" if is_folder else "")
        if not name.startswith(self._prefix) or "/" in below or (is_folder and not name.endswith("/")):
            raise StoreUnavailable(f"{self._what}: the answer holds what is not directly there: {name!r}")

    def _pages(self) -> Iterator["ListObjectsV2OutputTypeDef"]:
        early = earlier(self._start_after, self._prefix)
        if early:
            self._request["StartAfter"] = early
        while True:
            page = self._retries.ask(self._page)
            yield page
            if not page["IsTruncated"]:
                return
            between_units()
            token = page.get("NextContinuationToken")
            if not token or token == self._request.get("ContinuationToken"):
                raise StoreUnavailable(f"{self._what}: the answer is truncated, yet names no way to its rest")
            self._request.pop("StartAfter", None)
            self._request.pop("MaxKeys", None)
            self._request["ContinuationToken"] = token

    def _page(self) -> "ListObjectsV2OutputTypeDef":
        with translated(self._what):
            page = self._client.list_objects_v2(**self._request)
        if "IsTruncated" not in page:
            raise StoreUnavailable(f"{self._what}: expected a listing, found an answer without IsTruncated")
        return page

    def _in_order(self, page: "ListObjectsV2OutputTypeDef") -> list[ObjectInfo]:
        found = [
            ObjectInfo(key=each["Key"], size_bytes=each["Size"], modified_us=micros(each.get("LastModified")))
            for each in page.get("Contents", ())
        ]
        keys = [each.key for each in found]
        if not all(map(operator.lt, keys, keys[1:])):
            found.sort(key=_KEY)  # by code point, which is the order of the UTF-8 bytes
        return found

    def _check_edges(self, first: str, final: str, last: str) -> None:
        if not (first.startswith(self._prefix) and final.startswith(self._prefix)):
            raise StoreUnavailable(f"{self._what}: the answer holds keys of another prefix: {first!r} to {final!r}")
        if last and first <= last:
            raise Unsupported(
                f"{self._what}: expected keys in the order of their bytes, found {first!r} after {last!r}"
            )


def earlier(start_after: str, prefix: str) -> str:
    """A key at or before `start_after` from which a listing misses nothing, even in a store that sorts by path.

    A store that sorts by path puts `x/1` before `x-1`; a listing after `x-1` would miss keys below `x/`, and one after
    `w` has them. So the key is cut where a character below `/` stands, and its last character is lowered by one. Empty
    where only a listing of the whole prefix is complete.
    """
    if start_after <= prefix:
        return ""
    end = next((at for at in range(len(prefix), len(start_after)) if start_after[at] < "/"), len(start_after))
    while end > len(prefix):
        lowered = chr(ord(start_after[end - 1]) - 1)
        end -= 1
        if "/" < lowered <= "~":
            return start_after[:end] + lowered
    return ""


def micros(modified: datetime | None) -> int | None:
    """Microseconds since 1970, exactly."""
    if modified is None:
        return None
    return int(modified.timestamp()) * 1_000_000 + modified.microsecond
