"""Whether a catalog is complete: one that was rebuilt takes in what storage holds before anything else is written.

Until then an append would get the place of one that was answered before the loss, and a ledger could be taken for one
that nobody needs.
"""

from typing import Final

from sqlalchemy import Connection, select

from infra.catalog import tables as t
from logstore.errors import CatalogAdopting

READY: Final = "READY"


def require_ready(connection: Connection) -> None:
    """Refuse a write to a catalog that is not complete.

    Raises:
        CatalogAdopting: It was rebuilt, and adoption has not ended.
    """
    state = connection.execute(select(t.record_log.c.state)).scalar()
    if state != READY:
        raise CatalogAdopting(
            f"catalog: expected one that is complete, found one that is {state}: it was rebuilt, and takes in what "
            "storage holds; wait until `sexton records rebuild` has ended, or run it again"
        )
