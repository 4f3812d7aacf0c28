"""A worker keeps the span files of its home within their age and size."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

from infra.telemetry.pruning import prune
from workers.settings import Settings

_EVERY_S: Final = 300.0

_log = logging.getLogger(__name__)


@asynccontextmanager
async def traces_pruned(settings: Settings, *, every_s: float = _EVERY_S) -> AsyncIterator[None]:
    """Prune the home's span files at once, and then every `every_s` seconds while the block runs.

    A folder that cannot be read or written is logged, and tried again.
    """
    pruning = asyncio.create_task(_prune(settings, every_s))
    try:
        yield
    finally:
        pruning.cancel()
        with suppress(asyncio.CancelledError):
            await pruning


async def _prune(settings: Settings, every_s: float) -> None:
    limits = {"older_than_s": settings.trace_retention, "most_bytes": settings.trace_max_bytes}
    while True:
        try:
            removed = await asyncio.to_thread(prune, settings.traces_dir, **limits)
        except OSError as error:
            _log.warning("span files are not pruned: %s", error)
        else:
            if removed:
                _log.info("removed %d span files, by age or by size", removed)
        await asyncio.sleep(every_s)
