"""Id of the catalog, and the buckets with its marker."""

from collections.abc import Sequence
from typing import Protocol

from logstore.identity.bucket_markers import BucketRole
from logstore.ports.catalog.inspection_and_audit import InspectedCopy


class CatalogIdentity(Protocol):
    """Id of the catalog and its buckets."""

    def catalog_id(self) -> str:
        """Return the catalog's UUID, which never changes."""

    def list_marked_buckets(self) -> frozenset[tuple[BucketRole, str]]:
        """Return role and name of every bucket that was recorded as having this catalog's marker."""

    def record_marker(self, role: BucketRole, bucket: str) -> None:
        """Record that the bucket has the marker. From then on the bucket is refused if its marker is missing.

        Idempotency: keyed by role and bucket. The time of the first call stays.
        """

    def list_expected_copies(self, role: BucketRole, bucket: str, *, limit: int) -> Sequence[InspectedCopy]:
        """Return copies that the bucket must hold if it belongs to this catalog.

        LIVE copies come first, then detached copies that are not deleted, each newest first. Tiered copies are selected
        by the bucket in their offload context. The records bucket has no copies.
        """
