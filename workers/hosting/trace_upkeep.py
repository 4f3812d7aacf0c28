"""Work beside the serving of queues: a worker keeps the span files of its home within their age and size."""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from infra.telemetry.span_files import prune
from workers.settings import Settings

_EVERY_S: Final = 300.0

_log = logging.getLogger(__name__)


@asynccontextmanager
async def alongside(endless: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Let work that never ends go on while the block runs."""
    task = asyncio.create_task(endless)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def prune_traces(settings: Settings, *, every_s: float = _EVERY_S) -> None:
    """Prune the home's span files at once, and then every `every_s` seconds.

    A folder that cannot be read or written is logged, and tried again.
    """
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
