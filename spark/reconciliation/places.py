"""Where the native back end of a reconciliation reads: one database, one primary bucket, and tiered ones."""

from dataclasses import dataclass, field

from spark.sources.objects import StoreAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class NativePlaces:
    """What tasks need to reach both sides; it travels within them."""

    database_url: str = field(repr=False)
    primary: StoreAddress
    tiered: tuple[StoreAddress, ...]  # every bucket that carries this catalog's marker, at the configured store
    application: str

    @property
    def stores(self) -> tuple[StoreAddress, ...]:
        """All buckets."""
        return (self.primary, *self.tiered)

    def at(self, bucket: str) -> StoreAddress:
        """A bucket by its name."""
        return next(one for one in self.stores if one.bucket == bucket)
