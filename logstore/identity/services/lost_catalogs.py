"""Buckets of a catalog whose database is lost: the marker of its records bucket says which catalog it was."""

from collections.abc import Iterable, Sequence

from logstore.errors import CatalogMismatch
from logstore.identity.markers import MarkerState, NamedBucket, Role, describe_owner, is_marker
from logstore.identity.services.own_stores import OwnStore, OwnStores, read_marker
from logstore.ports.catalog import InspectedCopy
from logstore.ports.objects import ObjectStore


class LostCatalog:
    """The `Identities` of a catalog that cannot be asked: nothing is recorded, and nothing is evidence."""

    def __init__(self, catalog_id: str, marked: Iterable[tuple[Role, str]] = ()) -> None:
        """Take its id, and buckets that are refused without its marker."""
        self._catalog_id, self._marked = catalog_id, frozenset(marked)

    @classmethod
    def of(cls, named: NamedBucket, store: ObjectStore) -> "LostCatalog":
        """The catalog whose records are in a bucket.

        Raises:
            CatalogMismatch: The bucket has no marker that can be read, so nothing says whose it is.
            StoreUnavailable: The store did not answer, or its answers contradict each other.
        """
        content = read_marker(store)
        if content is None or not is_marker(content):
            advice = "check bucket and endpoint: a catalog with a record log has put one there"
            found = "none" if content is None else describe_owner(content)
            raise CatalogMismatch(str(named), expected="the marker of a catalog", found=found, advice=advice)
        return cls(describe_owner(content), [(named.role, named.bucket)])

    def catalog_id(self) -> str:
        """See `Identities.catalog_id`."""
        return self._catalog_id

    def marked_buckets(self) -> frozenset[tuple[Role, str]]:
        """See `Identities.marked`."""
        return self._marked

    def record_marker(self, role: Role, bucket: str) -> None:
        """Nothing is recorded: there is no catalog yet."""

    def known_copies(self, role: Role, bucket: str, *, limit: int) -> Sequence[InspectedCopy]:  # noqa: ARG002 - of the port
        """Nothing is known."""
        return []

    def own(self, named: NamedBucket, store: ObjectStore) -> OwnStore:
        """A bucket that must carry the marker, compared before its first use."""
        known = LostCatalog(self._catalog_id, [*self._marked, (named.role, named.bucket)])
        return OwnStores(known).own(named, lambda: store)

    def carries_marker(self, named: NamedBucket, store: ObjectStore) -> bool:
        """Whether a bucket carries the catalog's marker; one without any is left to its first use.

        Raises:
            CatalogMismatch: It is another catalog's.
            StoreUnavailable, ServiceRefused: The store did not answer, or refuses us.
        """
        return OwnStores(LostCatalog(self._catalog_id)).look(named, store) is MarkerState.OURS
