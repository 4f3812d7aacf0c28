"""Whether a catalog may be written to: one that was rebuilt takes in what storage holds before anything is written.

Until then an append would get the place of one that was answered before the loss, and a ledger could be taken for one
that nobody needs. A replica's database is written by the record log that it follows, and by nothing else.
"""

from typing import Final

from sqlalchemy import Connection, select

from infra.catalog import tables as t
from logstore.errors import CatalogAdopting

READY: Final = "READY"
REPLICA: Final = "REPLICA"
_REPLICA: Final = (
    "catalog: expected one that may be written to, found a REPLICA, which follows a record log: write to its source;"
    " where that is lost, rebuild a catalog with `sexton records rebuild`"
)


def require_ready(connection: Connection) -> None:
    """Refuse a write to a catalog that is not complete, or that is a replica.

    Raises:
        CatalogAdopting: It was rebuilt, and adoption has not ended; or it is a replica.
    """
    state = connection.execute(select(t.record_log.c.state)).scalar()
    if state == REPLICA:
        raise CatalogAdopting(_REPLICA)
    if state != READY:
        raise CatalogAdopting(
            f"catalog: expected one that is complete, found one that is {state}: it was rebuilt, and takes in what "
            "storage holds; wait until `sexton records rebuild` has ended, or run it again"
        )


def require_no_replica(connection: Connection) -> None:
    """Refuse what no replica may do: an ordinary write, or a manifest of its own.

    Raises:
        CatalogAdopting: The database is a replica's.
    """
    if connection.execute(select(t.record_log.c.state)).scalar() == REPLICA:
        raise CatalogAdopting(_REPLICA)
