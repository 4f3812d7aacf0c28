"""The database of a replica: it follows a record log, and serves reads."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from logstore.records.kinds import RecordKind
from logstore.records.manifest import Manifest

if TYPE_CHECKING:
    import pyarrow as pa

Versions = Callable[[RecordKind], "Iterator[pa.Table]"]
"""Versions of a kind that are to be applied, range by range of ids: no record is in two ranges. They may be asked for
again, and are the same then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """Up to where a database has applied the record log: this manifest, and all before."""

    catalog_id: str
    epoch: int
    manifest: int  # its number
    stamp: str
    replica: str  # the name under which it was seeded, and acknowledges


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedRecords:
    """What one step has changed."""

    records: int = 0  # rows of records that were written
    tombstones: int = 0
    removed: int = 0  # topics and ledgers that tombstones, or newer topics of their names, have removed


class ReplicaDatabase(Protocol):
    """A database that is a replica of one catalog. It refuses ordinary writes from its first step on."""

    def applied(self) -> Applied | None:
        """Up to where; None: the database is empty.

        Raises:
            PreconditionFailed: It holds something else than a replica.
            CatalogVersionMismatch: It is of another build's version.
            StoreUnavailable: It does not answer.
        """

    def apply(
        self, manifest: Manifest, versions: Versions, *, seen: Applied | None, replica: str, seed: bool
    ) -> AppliedRecords:
        """Apply versions, and say that the database has this manifest: in one transaction.

        Args:
            manifest: From which they come.
            versions: All that are newer than what was applied; with `seed`, all.
            seen: What `applied` said when they were chosen.
            replica: The name under which it acknowledges from then on.
            seed: Remove first what the database holds.

        Raises:
            PreconditionFailed: It was empty then, and holds something else now.
            CatalogBusy: It has applied something else since: look again.
            OutcomeUnknown: The connection broke while committing: look again.
        """
