"""Marker: an object in each bucket of a catalog that names the catalog.

An empty listing of a foreign bucket says nothing about the catalog's ledgers. So an object counts as absent only if the
bucket's marker names this catalog.
"""

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from logstore.errors import CatalogMismatch

MARKER_KEY: Final = "sexton-catalog.json"
"""Key of the marker in every bucket. No ledger and no record block has this key."""

PROBE_PREFIX: Final = "sexton-probe-"
"""Prefix of objects with which `sexton doctor` tests a bucket. Plans ignore these objects."""

_CATALOG_ID_FIELD: Final = "catalog_id"


class BucketRole(StrEnum):
    """Use of a bucket. The catalog stores the value."""

    PRIMARY = "primary"
    TIERED = "tiered"
    RECORDS = "records"
    REPLICA = "replica"  # replica bucket of the record log

    @property
    def is_single(self) -> bool:
        """Whether a catalog has at most one bucket of this role. Another bucket can never replace this bucket."""
        return self not in {BucketRole.TIERED, BucketRole.REPLICA}

    def matches_key(self, key: str) -> bool:
        return bool(_KEY_FORMS[self].match(key))

    @property
    def prefix(self) -> str:
        return _PREFIXES[self]


_PREFIXES: Final = {
    BucketRole.PRIMARY: "ledgers/",
    BucketRole.TIERED: "",
    BucketRole.RECORDS: "records/",
    BucketRole.REPLICA: "records/",
}
_KEY_FORMS: Final = {
    BucketRole.PRIMARY: re.compile("ledgers/"),
    BucketRole.TIERED: re.compile(r"[^/]+-ledger-[0-9]+(-index)?\Z"),
    BucketRole.RECORDS: re.compile("records/"),
    BucketRole.REPLICA: re.compile("records/"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedBucket:
    """Bucket, by its name in the settings or in an offload context."""

    role: BucketRole
    bucket: str
    address: str  # address of the store, for messages; empty: AWS

    def __str__(self) -> str:
        return f"{self.role.value} bucket {self.bucket} at {self.address or 'AWS'}"


class MarkerState(StrEnum):
    OURS = "OURS"  # the marker names this catalog
    FOREIGN = "FOREIGN"  # the marker names another catalog
    LOST = "LOST"  # this catalog has marked the bucket, and the marker is missing
    ELSEWHERE = "ELSEWHERE"  # this catalog has marked another bucket for this role
    UNMARKED = "UNMARKED"  # the bucket has no marker, and may become this catalog's


def compare_marker(
    named_catalog: str | None,
    *,
    catalog_id: str,
    bucket: NamedBucket,
    marked_buckets: Collection[tuple[BucketRole, str]],
) -> MarkerState:
    """Return the relation of a bucket to the catalog, by the bucket's marker.

    `named_catalog` is the catalog in the marker, `None` without a marker. This catalog has marked `marked_buckets`.
    """
    if named_catalog not in {None, catalog_id}:
        return MarkerState.FOREIGN
    is_marked = (bucket.role, bucket.bucket) in marked_buckets
    is_elsewhere = not is_marked and bucket.role.is_single and any(role is bucket.role for role, _ in marked_buckets)
    if named_catalog:  # a bucket that was marked for another role has the same marker, but no object of this role
        return (
            MarkerState.ELSEWHERE if is_elsewhere and _format_roles(bucket.bucket, marked_buckets) else MarkerState.OURS
        )
    if is_marked:
        return MarkerState.LOST
    return MarkerState.ELSEWHERE if is_elsewhere else MarkerState.UNMARKED


def _format_roles(bucket: str, marked: Collection[tuple[BucketRole, str]]) -> str:
    return " and ".join(sorted(role.value for role, name in marked if name == bucket))


def mismatch_error(
    state: MarkerState,
    named_catalog: str | None,
    *,
    catalog_id: str,
    bucket: NamedBucket,
    marked_buckets: Collection[tuple[BucketRole, str]],
) -> CatalogMismatch | None:
    """Return the error for a bucket in this state, or `None` for OURS and UNMARKED."""
    expected = f"the marker of catalog {catalog_id}"
    match state:
        case MarkerState.FOREIGN:
            advice = "check bucket, endpoint and database: they are not of one store"
            return CatalogMismatch(
                str(bucket), expected=expected, found=f"that of catalog {named_catalog}", advice=advice
            )
        case MarkerState.LOST:
            advice = "another store answers at this address, or the bucket was emptied"
            if not bucket.role.is_single:
                advice += f"; two {bucket.role.value} buckets need two names, also where they are at two endpoints"
            return CatalogMismatch(str(bucket), expected=expected, found="no marker", advice=advice)
        case MarkerState.ELSEWHERE:
            names = ", ".join(sorted(name for role, name in marked_buckets if role is bucket.role))
            advice = f"this catalog's {bucket.role.value} bucket is {names}"
            found = (
                f"the marker of its {_format_roles(bucket.bucket, marked_buckets)} bucket"
                if named_catalog
                else "no marker"
            )
            return CatalogMismatch(str(bucket), expected=expected, found=found, advice=advice)
        case MarkerState.OURS | MarkerState.UNMARKED:
            return None


def marker_content(catalog_id: str) -> bytes:
    return json.dumps({_CATALOG_ID_FIELD: catalog_id}).encode()


def describe_named_catalog(content: bytes) -> str:
    """Return the id of the catalog that a marker names, or a text with the first bytes of an unreadable marker."""
    catalog_id = _parse_catalog_id(content)
    return f"unreadable ({content[:80].decode('utf-8', errors='replace')!r})" if catalog_id is None else catalog_id


def is_marker(content: bytes) -> bool:
    return _parse_catalog_id(content) is not None


def _parse_catalog_id(content: bytes) -> str | None:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return None
    catalog_id = document.get(_CATALOG_ID_FIELD) if isinstance(document, dict) else None
    return catalog_id if isinstance(catalog_id, str) else None
