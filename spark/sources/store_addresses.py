"""Addresses of the catalog and of its buckets, which executors get within tasks."""

from dataclasses import dataclass, field

from infra.objects.s3_store import BucketAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogAddresses:
    database_url: str = field(repr=False)
    primary: BucketAddress
    tiered: tuple[BucketAddress, ...]  # every bucket with this catalog's marker, at the configured store
    application: str

    @property
    def stores(self) -> tuple[BucketAddress, ...]:
        return (self.primary, *self.tiered)
