"""A worker hears that its database is not the catalog any more, and of nothing else."""

import asyncio
from types import SimpleNamespace
from typing import Any, Final

from logstore.errors import CatalogOutdated, StoreUnavailable
from workers.hosting.worker_process import watch_catalog_currency

_LOG: Final[Any] = SimpleNamespace(catalog=SimpleNamespace(records=None), record_objects=None)


def test_watch_ends_with_the_refusal_and_not_with_a_store_that_is_silent() -> None:
    """What it asked before is no refusal."""
    answers = iter([None, StoreUnavailable("no answer"), None, CatalogOutdated("another")])
    asked = 0

    def ask(*_: object) -> None:
        nonlocal asked
        asked += 1
        answer = next(answers)
        if answer:
            raise answer

    async def watching() -> object:
        async with watch_catalog_currency(_LOG, interval_s=0.001, require_current=ask) as replaced:
            return await asyncio.wait_for(replaced, 60)

    assert isinstance(asyncio.run(watching()), CatalogOutdated)
    assert asked == 4


def test_watch_ends_with_its_block() -> None:
    """A worker that drains is not asked any more."""

    async def watching() -> bool:
        async with watch_catalog_currency(_LOG, interval_s=3_600) as replaced:
            await asyncio.sleep(0)
        await asyncio.wait([replaced])
        return replaced.cancelled()

    assert asyncio.run(watching())
