"""Which catalog a store belongs to: the marker that each bucket of a catalog carries, and the rule that compares it.

An empty listing of a store that is not the catalog's says nothing of the catalog's ledgers. So no object counts
as absent from a bucket before the bucket's marker was seen to name this catalog.
"""

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from logstore.errors import CatalogMismatch

MARKER_KEY: Final = "sexton-catalog.json"
"""Key of the marker, in every bucket of a catalog; no ledger and no record block is ever named so."""

PROBE_PREFIX: Final = "sexton-probe-"
"""Start of the keys of objects with which `sexton doctor` tests a bucket. Plans ignore such objects."""

_CATALOG: Final = "catalog_id"


class Role(StrEnum):
    """The use of a bucket. Stored by name."""

    PRIMARY = "primary"
    TIERED = "tiered"
    RECORDS = "records"
    REPLICA = "replica"  # of the record log

    @property
    def single(self) -> bool:
        """Whether a catalog has one bucket of this role, for ever; of the others it may have several."""
        return self not in {Role.TIERED, Role.REPLICA}

    def holds(self, key: str) -> bool:
        """Whether a key is one that a catalog writes into its bucket of this role."""
        return bool(_KEYS[self].match(key))

    @property
    def prefix(self) -> str:
        """Where to list for such keys."""
        return _PREFIXES[self]


_PREFIXES: Final = {
    Role.PRIMARY: "ledgers/",
    Role.TIERED: "",
    Role.RECORDS: "records/",
    Role.REPLICA: "records/",
}
_KEYS: Final = {
    Role.PRIMARY: re.compile("ledgers/"),
    Role.TIERED: re.compile(r"[^/]+-ledger-[0-9]+(-index)?\Z"),
    Role.RECORDS: re.compile("records/"),
    Role.REPLICA: re.compile("records/"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedBucket:
    """A bucket as the settings, or an offload context, name it."""

    role: Role
    bucket: str
    address: str  # of the store, for messages; empty: AWS

    def __str__(self) -> str:
        return f"{self.role.value} bucket {self.bucket} at {self.address or 'AWS'}"


class MarkerState(StrEnum):
    """How a bucket stands to a catalog."""

    OURS = "OURS"  # its marker names this catalog
    FOREIGN = "FOREIGN"  # its marker names another one
    LOST = "LOST"  # this catalog has marked it, and the marker is not there
    ELSEWHERE = "ELSEWHERE"  # this catalog has marked another bucket of its role, and this one not, or for another role
    UNMARKED = "UNMARKED"  # it has no marker, and this catalog has marked none of its role


def judge(
    found: str | None, *, catalog_id: str, named: NamedBucket, marked: Collection[tuple[Role, str]]
) -> MarkerState:
    """Compare a bucket with the catalog.

    Args:
        found: The catalog that its marker names, or None where it has no marker.
        catalog_id: This catalog's.
        named: Which bucket.
        marked: Role and name of every bucket that this catalog has marked.
    """
    if found not in {None, catalog_id}:
        return MarkerState.FOREIGN
    known = (named.role, named.bucket) in marked
    elsewhere = not known and named.role.single and any(role is named.role for role, _ in marked)
    if found:  # a bucket of another role has our marker as well, and holds nothing of this one
        return MarkerState.ELSEWHERE if elsewhere and _roles(named.bucket, marked) else MarkerState.OURS
    if known:
        return MarkerState.LOST
    return MarkerState.ELSEWHERE if elsewhere else MarkerState.UNMARKED


def _roles(bucket: str, marked: Collection[tuple[Role, str]]) -> str:
    """For what this catalog has marked the bucket, in words; empty: for nothing."""
    return " and ".join(sorted(role.value for role, name in marked if name == bucket))


def refusal(
    standing: MarkerState,
    found: str | None,
    *,
    catalog_id: str,
    named: NamedBucket,
    marked: Collection[tuple[Role, str]],
) -> CatalogMismatch | None:
    """Why a bucket of that standing is not used; None where it may be, or may become the catalog's."""
    expected = f"the marker of catalog {catalog_id}"
    match standing:
        case MarkerState.FOREIGN:
            advice = "check bucket, endpoint and database: they are not of one store"
            return CatalogMismatch(str(named), expected=expected, found=f"that of catalog {found}", advice=advice)
        case MarkerState.LOST:
            advice = "another store answers at this address, or the bucket was emptied"
            if not named.role.single:
                advice += f"; two {named.role.value} buckets need two names, also where they are at two endpoints"
            return CatalogMismatch(str(named), expected=expected, found="no marker", advice=advice)
        case MarkerState.ELSEWHERE:
            names = ", ".join(sorted(bucket for role, bucket in marked if role is named.role))
            advice = f"this catalog's {named.role.value} bucket is {names}"
            roles = _roles(named.bucket, marked)
            told = f"the marker of its {roles} bucket" if found else "no marker"
            return CatalogMismatch(str(named), expected=expected, found=told, advice=advice)
        case MarkerState.OURS | MarkerState.UNMARKED:
            return None


def marker_content(catalog_id: str) -> bytes:
    """The marker's content: one JSON object, the same for every bucket and every process of a catalog."""
    return json.dumps({_CATALOG: catalog_id}).encode()


def describe_owner(content: bytes) -> str:
    """The catalog that a marker names; of a marker that cannot be read, its first bytes: its catalog is unknown."""
    named = _named(content)
    return f"unreadable ({content[:80].decode('utf-8', errors='replace')!r})" if named is None else named


def is_marker(content: bytes) -> bool:
    """Whether the content names a catalog, whichever one."""
    return _named(content) is not None


def _named(content: bytes) -> str | None:
    try:
        told = json.loads(content)
    except (ValueError, RecursionError):
        return None
    named = told.get(_CATALOG) if isinstance(told, dict) else None
    return named if isinstance(named, str) else None
