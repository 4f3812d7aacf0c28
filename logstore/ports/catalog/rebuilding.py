"""The database into which a lost catalog is rebuilt."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from logstore.identity.markers import Role
from logstore.records.manifest import Manifest
from logstore.records.rebuilding import LoadFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What stands in the database."""

    rebuild: str = ""  # the rebuild that has loaded it, and has not ended; none: it is empty
    state: str = ""  # of its record log: ADOPTING, or READY where the rebuild has but to end


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a catalog begins with that is rebuilt, beside its rows."""

    rebuild: str
    manifest: Manifest  # from which
    epoch: int  # above that of the manifest
    version: int  # the highest that any version has
    stamp: str  # of the manifest that is to be put next: pending
    markers: tuple[tuple[Role, str], ...]  # buckets that carry the catalog's marker
    now_us: int


class Rebuild(Protocol):
    """A load that happens as a whole or not at all, whenever its process dies."""

    def target(self) -> Target:
        """What stands there; looking changes nothing.

        Raises:
            PreconditionFailed: It is not empty, and no rebuild has to go on there.
            CatalogVersionMismatch: It is of another build's version.
            ServiceFailed: It is no catalog's.
            StoreUnavailable: No database answers.
        """

    def load(self, load: Load, files: LoadFiles, proceed: Callable[[], None]) -> None:
        """Load the rows into the empty database, whose state is ADOPTING then; repeating it changes nothing.

        Args:
            load: What the catalog begins with.
            files: Its rows.
            proceed: Called often; what it raises undoes the load.

        Raises:
            As `target`.
        """

    def end(self, rebuild: str) -> None:
        """The rebuild is complete: nothing goes on there any more; repeating it changes nothing."""
