"""Whether a catalog's database takes writes, and has all of its files."""

from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, text

from infra.catalog.engine.database import Database
from logstore.errors import ServiceFailed

_PATIENCE_S: Final = 5.0
_DELETED: Final = " (deleted)"  # what Linux adds to the name of a file that is open and has no name any more


def check_takes_writes(database: Database) -> None:
    """Begin a transaction that writes, and change nothing.

    Raises:
        StoreUnavailable: No database answers, it can be read only, or its disk is full.
        CatalogBusy: Another one held it for five seconds.
    """
    database.write(_lock if not database.is_sqlite else lambda _: None, patience_s=_PATIENCE_S)


def _lock(connection: Connection) -> None:
    """Lock a row such that no other writer waits for it; a standby refuses this."""
    connection.execute(text("SELECT 1 FROM catalog FOR KEY SHARE"))


def lost_write_ahead(database: Database, pids: Collection[int]) -> ServiceFailed | None:
    """What to say where SQLite's write-ahead file was removed while the database was in use; None where all is well.

    Ask before anything opens the database: that puts an empty file in the place of the one that is gone.

    Args:
        database: The catalog's.
        pids: Processes that may have it open; of these Linux tells files that are open and gone.
    """
    if not database.is_sqlite:
        return None
    path = Path(str(database.engine.url.database)).absolute()
    log, index = (path.with_name(path.name + ending) for ending in ("-wal", "-shm"))
    holders = sorted(pid for pid in pids if f"{log.resolve()}{_DELETED}" in _open_files(pid))
    if not holders and (log.exists() or not index.exists()):  # SQLite makes `-wal` first, and removes it last
        return None
    by = f" under process {', '.join(map(str, holders))}" if holders else ""
    advice = "stop all workers (`sexton down`), look whether the last changes are there, and restore a backup if not"
    return ServiceFailed("database", f"its write-ahead file {log} was removed{by}", advice=advice)


def _open_files(pid: int) -> Iterator[str]:
    with suppress(OSError):  # it ended, it is another user's, or the system is not Linux
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                yield str(link.readlink())
