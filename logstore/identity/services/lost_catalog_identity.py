"""Buckets of a catalog whose database is lost. The marker of the records bucket has the catalog's id."""

from collections.abc import Iterable, Sequence

from logstore.errors import CatalogMismatch
from logstore.identity.bucket_markers import BucketRole, MarkerState, NamedBucket, describe_named_catalog, is_marker
from logstore.identity.services.marker_checked_buckets import MarkerCheckedBucket, MarkerChecker, read_marker
from logstore.ports.catalog.inspection import InspectedCopy
from logstore.ports.object_storage import ObjectStore


class LostCatalogIdentity:
    """`CatalogIdentity` without a database. A bucket in `marked` is refused if its marker is missing."""

    def __init__(self, catalog_id: str, marked: Iterable[tuple[BucketRole, str]] = ()) -> None:
        self._catalog_id, self._marked = catalog_id, frozenset(marked)

    @classmethod
    def read_from_bucket(cls, bucket: NamedBucket, store: ObjectStore) -> "LostCatalogIdentity":
        """Return the identity of the catalog whose record log is in a bucket.

        Raises:
            CatalogMismatch: The bucket has no readable marker.
            StoreUnavailable: The object store did not answer, or its answers contradict each other.
        """
        content = read_marker(store)
        if content is None or not is_marker(content):
            advice = "check bucket and endpoint: a catalog with a record log has put one there"
            found = "none" if content is None else describe_named_catalog(content)
            raise CatalogMismatch(str(bucket), expected="the marker of a catalog", found=found, advice=advice)
        return cls(describe_named_catalog(content), [(bucket.role, bucket.bucket)])

    def catalog_id(self) -> str:
        return self._catalog_id

    def list_marked_buckets(self) -> frozenset[tuple[BucketRole, str]]:
        return self._marked

    def record_marker(self, role: BucketRole, bucket: str) -> None:
        """Do nothing, because there is no catalog yet."""

    def list_expected_copies(self, role: BucketRole, bucket: str, *, limit: int) -> Sequence[InspectedCopy]:  # noqa: ARG002 - of the port
        return []

    def get_checked_bucket(self, bucket: NamedBucket, store: ObjectStore) -> MarkerCheckedBucket:
        """Return a bucket that must have the marker of this catalog. The marker is read before the first use."""
        identity = LostCatalogIdentity(self._catalog_id, [*self._marked, (bucket.role, bucket.bucket)])
        return MarkerChecker(identity).get_checked_bucket(bucket, lambda: store)

    def has_marker(self, bucket: NamedBucket, store: ObjectStore) -> bool:
        """Return whether the bucket is marked. Raise the errors of `MarkerChecker.require_ours_or_unmarked`."""
        return (
            MarkerChecker(LostCatalogIdentity(self._catalog_id)).require_ours_or_unmarked(bucket, store)
            is MarkerState.OURS
        )
