"""A worker whose database is not the catalog any more ends: another one was rebuilt from the record log meanwhile.

It would go on to take work of the new catalog's jobs from their queues and answer from what the old database says. What
it deletes is refused by its buckets in any case; the work is left to workers of the new catalog by its end.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

from logstore.errors import CatalogMismatch, CatalogOutdated, SextonError
from logstore.ports.catalog import Records
from logstore.ports.objects import OwnedStore
from logstore.records.services.publishing import require_current
from workers.assembly.log import LogStore

_log = logging.getLogger(__name__)


@asynccontextmanager
async def watched(
    log: LogStore, *, every_s: float, ask: Callable[[Records, OwnedStore], None] = require_current
) -> "AsyncIterator[asyncio.Task[CatalogMismatch | CatalogOutdated]]":
    """Ask while the block runs; the task ends with the refusal, and with nothing else.

    Args:
        log: Whose catalog and record log are asked.
        every_s: Between two questions, in seconds, above 0. A store that does not answer is asked again.
        ask: For tests.
    """
    watch = asyncio.create_task(_refusal(partial(ask, log.catalog.records, log.record_objects), every_s))
    try:
        yield watch
    finally:
        watch.cancel()


async def _refusal(still_current: Callable[[], None], every_s: float) -> CatalogMismatch | CatalogOutdated:
    while True:
        await asyncio.sleep(every_s)
        try:
            await asyncio.to_thread(still_current)
        except (CatalogMismatch, CatalogOutdated) as refusal:
            _log.error("this worker ends, because its database is not the catalog any more: %s", refusal)
            return refusal
        except SextonError as error:
            _log.debug("the record log did not say whether the database is the catalog: %s", error)
