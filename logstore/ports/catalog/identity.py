"""Port of the catalog's id and of the buckets with the catalog's marker."""

from collections.abc import Sequence
from typing import Protocol

from logstore.identity.bucket_markers import BucketRole
from logstore.ports.catalog.inspection import InspectedCopy


class CatalogIdentity(Protocol):
    def catalog_id(self) -> str: ...

    def list_marked_buckets(self) -> frozenset[tuple[BucketRole, str]]:
        """Return role and name of each bucket whose marker was recorded."""

    def record_marker(self, role: BucketRole, bucket: str) -> None:
        """Record that the bucket has the marker. From now on the bucket is refused if its marker is missing.

        Idempotency: keyed by role and bucket. The recorded time is that of the first call.
        """

    def list_expected_copies(self, role: BucketRole, bucket: str, *, limit: int) -> Sequence[InspectedCopy]:
        """Return copies that the bucket must have if the bucket belongs to this catalog.

        LIVE copies come first, then detached copies that are not deleted. Both groups are sorted by age, newest first.
        A tiered copy is selected if its offload context names the bucket. For the bucket of the record log the result
        is empty.
        """
