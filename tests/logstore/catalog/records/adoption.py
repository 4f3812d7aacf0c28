"""A catalog that is lost: what it was at a flush comes back, and storage is as it is."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Final, Protocol

import psycopg

from logstore.catalog import Catalog, Database
from logstore.records.job_results import RebuildAdoptionResult
from logstore.records.services.upload_adoption import UploadAdopter
from logstore.transactions.transaction_ids_and_states import MAX_COORDINATORS
from tests.faults.simulated_world import World
from workers.assembly.log_store import LogStore

_SHARDS: Final = 16
"""Of 256: worlds here have fewer ledgers, and their ids begin at 0."""

_FREE_IDS: Final = 1_000_000
_LOADED = (
    "UPDATE catalog SET epoch = epoch + 1, next_ledger_id = (SELECT ledger_ceiling FROM record_log)",
    "DELETE FROM transaction_coordinator",
    (
        "INSERT INTO transaction_coordinator (tc_id, next_sequence) WITH RECURSIVE ids (tc_id) AS"
        f" (SELECT 0 UNION ALL SELECT tc_id + 1 FROM ids WHERE tc_id < {MAX_COORDINATORS - 1})"
        " SELECT tc_id, transaction_ceiling FROM ids, record_log"
    ),
    (
        f"UPDATE record_log SET state = 'ADOPTING', ledger_ceiling = ledger_ceiling + {_FREE_IDS},"
        f" topic_ceiling = topic_ceiling + {_FREE_IDS}, transaction_ceiling = transaction_ceiling + {_FREE_IDS}"
    ),
    "UPDATE pending_deletion SET claim_workflow = NULL, claim_run = NULL, claim_until_us = NULL",
    "DELETE FROM run",
    "UPDATE delayed_index SET unsealed = 0",
)
"""The difference between a copy of a catalog and one that was loaded from its record log."""

_NEXT_TOPIC: Final = {
    "sqlite": (
        "DELETE FROM sqlite_sequence WHERE name = 'topic'",
        "INSERT INTO sqlite_sequence (name, seq) SELECT 'topic', topic_ceiling - 1 FROM record_log",
    ),
    "postgresql": (
        "SELECT setval(pg_get_serial_sequence('topic', 'topic_id'), (SELECT topic_ceiling - 1 FROM record_log))",
    ),
}
"""New topics get ids above all that may have been given out; before the ceilings are raised."""


class LostDatabase(Protocol):
    """A database that can be flushed and lost. A flush here is a copy of all rows."""

    def flush(self) -> None:
        """Keep what the catalog holds at this moment."""

    def lose(self, *changes: str) -> None:
        """Put back what was flushed last, with changes in SQL: the catalog is to be adopted."""


class LostFile:
    """SQLite's file."""

    def __init__(self, database: Path) -> None:
        """Nothing is flushed yet."""
        self._database, self._copies = database, list[Path]()

    def flush(self) -> None:
        """See `LostDatabaseEvidence`."""
        copy = self._database.with_suffix(f".flushed-{len(self._copies)}")
        with closing(sqlite3.connect(self._database, timeout=60)) as now, closing(sqlite3.connect(copy)) as kept:
            now.execute(_flushed())
            now.commit()
            now.backup(kept)
        self._copies.append(copy)

    def lose(self, *changes: str) -> None:
        """See `LostDatabaseEvidence`."""
        for left in self._database.parent.glob(f"{self._database.name}*"):
            if left not in self._copies:
                left.unlink()
        with closing(sqlite3.connect(self._copies[-1])) as kept, closing(sqlite3.connect(self._database)) as new:
            kept.backup(new)
            for statement in (*_NEXT_TOPIC["sqlite"], *_LOADED, *changes):
                new.execute(statement)
            new.commit()


class LostServer:
    """A database of PostgreSQL, whose tables are kept beside one another."""

    def __init__(self, url: str) -> None:
        """Nothing is flushed yet."""
        self._url = url.replace("+psycopg", "")

    def flush(self) -> None:
        """See `LostDatabaseEvidence`."""
        copies = "; ".join(f'CREATE TABLE flushed."{one}" AS TABLE public."{one}"' for one in self._tables())
        self._execute(f"{_flushed()}; DROP SCHEMA IF EXISTS flushed CASCADE; CREATE SCHEMA flushed; {copies}")

    def lose(self, *changes: str) -> None:
        """See `LostDatabaseEvidence`."""
        tables = self._tables()
        gone = "; ".join(f'DELETE FROM public."{one}"' for one in tables)
        back = "; ".join(f'INSERT INTO public."{one}" TABLE flushed."{one}"' for one in tables)
        others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        self._execute(f"SELECT pg_terminate_backend(pid) {others}")
        loaded = "; ".join((*_NEXT_TOPIC["postgresql"], *_LOADED, *changes))
        self._execute(f"SET session_replication_role = replica; {gone}; {back}; {loaded}")

    def _tables(self) -> list[str]:
        with psycopg.connect(self._url, autocommit=True) as server:
            found = server.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        return [name for (name,) in found]

    def _execute(self, statements: str) -> None:
        with psycopg.connect(self._url) as server:
            server.execute(statements.encode())


def _flushed() -> str:
    return f"UPDATE record_log SET flushed_us = {time.time_ns() // 1_000}"


class Losing:
    """The database of a world in memory."""

    def __init__(self, world: World, lost: LostDatabase) -> None:
        """Begin as the world is."""
        self.world = world
        self.flush, self.lose = lost.flush, lost.lose

    def process(self) -> AbstractContextManager[LogStore]:
        """A writer or a reader."""
        return self.world.process()

    @contextmanager
    def adopter(self, application: str = "sexton") -> Iterator[UploadAdopter]:
        """As the process that rebuilds has it."""
        database = Database(self.world.url)
        try:
            catalog = Catalog(database)
            stores = self.world._buckets(catalog)
            yield UploadAdopter(
                adoption=catalog.adoption,
                objects=stores.primary,
                buckets=stores.tiered,
                application=application,
                threads=2,
            )
        finally:
            database.close()

    def adopt(self, *, max_absent_share: float = 1.0) -> RebuildAdoptionResult:
        """All that there is; of a handful of ledgers any share may be absent, unless a test asks."""
        with self.adopter() as adopter:
            for shard in range(_SHARDS):
                adopter.compare_and_stage_shard(shard)
            return self.make_catalog_ready(adopter, max_absent_share=max_absent_share)

    def make_catalog_ready(self, adopter: UploadAdopter, *, max_absent_share: float = 1.0) -> RebuildAdoptionResult:
        """Settle everything; a flush here is a copy of all rows, which a test makes when it wants one."""
        database = Database(self.world.url)
        try:
            epoch = Catalog(database).ledgers.catalog_epoch()
        finally:
            database.close()
        return adopter.settle_and_finish(rows_epoch=epoch - 1, flush=lambda: None, max_absent_share=max_absent_share)
