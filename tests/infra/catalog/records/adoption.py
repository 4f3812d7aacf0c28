"""A catalog that is lost: what it was at a flush comes back, and storage is as it is."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from infra.catalog import Database, SqlCatalog
from logstore.log.ledgers import SHARDS
from logstore.ports.catalog.adoption import AdoptionReport
from logstore.ports.objects import Buckets, OwnedStore
from logstore.records.services.adopting import Adopter
from tests.faults.world import World
from workers.assembly.log import LogStore, Stores

_FREE_IDS = 1_000_000
_LOADED = (
    "UPDATE catalog SET epoch = epoch + 1, next_ledger_id = (SELECT ledger_ceiling FROM record_log)",
    f"UPDATE record_log SET state = 'ADOPTING', ledger_ceiling = ledger_ceiling + {_FREE_IDS}",
    "UPDATE pending_deletion SET claim_workflow = NULL, claim_run = NULL, claim_until_us = NULL",
    "UPDATE transaction_coordinator SET next_sequence = (SELECT transaction_ceiling FROM record_log)",
    "DELETE FROM run",
    "UPDATE delayed_index SET unsealed = 0",
)
"""The difference between a copy of a catalog and one that was loaded from its record log."""


@dataclass
class LostDatabase:
    """A database that can be flushed and lost. A flush here is a copy of the file, and so is a backup."""

    database: Path
    buckets: Callable[[SqlCatalog], tuple[OwnedStore, Buckets]]  # the primary one, and tiered ones
    _copies: list[Path] = field(default_factory=list)

    def flush(self) -> None:
        """Keep what the catalog holds at this moment."""
        copy = self.database.with_suffix(f".flushed-{len(self._copies)}")
        with closing(sqlite3.connect(self.database, timeout=60)) as now, closing(sqlite3.connect(copy)) as kept:
            now.execute(
                "UPDATE record_log SET flushed_us = CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)"
            )
            now.commit()
            now.backup(kept)
        self._copies.append(copy)

    def lose(self, *changes: str) -> None:
        """Remove the database, and load what was flushed last, with changes in SQL: the catalog is to be adopted."""
        for left in self.database.parent.glob(f"{self.database.name}*"):
            if left not in self._copies:
                left.unlink()
        with closing(sqlite3.connect(self._copies[-1])) as kept, closing(sqlite3.connect(self.database)) as new:
            kept.backup(new)
            for statement in (*_LOADED, *changes):
                new.execute(statement)
            new.commit()

    @contextmanager
    def adopter(self, application: str = "sexton") -> Iterator[Adopter]:
        """As the process that rebuilds has it."""
        database = Database(f"sqlite:///{self.database}")
        try:
            catalog = SqlCatalog(database)
            primary, tiered = self.buckets(catalog)
            yield Adopter(
                adoption=catalog.adoption,
                objects=primary,
                buckets=tiered,
                application=application,
                threads=2,
            )
        finally:
            database.close()

    def adopt(self) -> AdoptionReport:
        """All of it."""
        with self.adopter() as adopter:
            for shard in range(SHARDS):
                adopter.adopt(shard)
            return adopter.finish()


class Losing(LostDatabase):
    """That of a world in memory."""

    def __init__(self, world: World) -> None:
        """Begin as the world is."""
        super().__init__(world.database, lambda catalog: _of(world._buckets(catalog)))
        self.world = world

    def process(self) -> AbstractContextManager[LogStore]:
        """A writer or a reader."""
        return self.world.process()


def _of(stores: Stores) -> tuple[OwnedStore, Buckets]:
    return stores.primary, stores.tiered
