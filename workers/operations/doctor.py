"""`doctor`: whether this machine and the services have what Sexton needs."""

import asyncio
import time
from collections.abc import Callable

from infra.catalog import open_catalog
from infra.objects import clock_s
from infra.stack.java import find_java
from logstore.errors import ServiceFailed
from workers.assembly.adapters import primary_bucket
from workers.client import search_attributes
from workers.client.connections import connect_client
from workers.operations.owners import open_directory, overview
from workers.operations.status import Row, checked, status
from workers.settings import Settings

_CLOCK_S = 5.0  # S3 refuses signatures whose clock is 15 minutes off; five seconds is already worth a word


def doctor(settings: Settings) -> list[Row]:
    """As `status`, and Java, search attributes, ownership and clock."""
    checks: dict[str, Callable[[Settings], str]] = {
        "java": lambda _: f"Java {find_java().version}",
        "search attributes": _search_attributes,
        "ownership": _ownership,
        "clock": _clock,
    }
    return [*status(settings), *(checked(name, check, settings) for name, check in checks.items())]


def _search_attributes(settings: Settings) -> str:
    async def ask() -> None:
        await search_attributes.require(await connect_client(settings))

    asyncio.run(ask())
    return "all registered"


def _ownership(settings: Settings) -> str:
    with open_catalog(settings.database_url) as catalog:
        if settings.ownership == "single":
            return f"{overview(catalog.fences, None)}; ownership=single"
        with open_directory(settings, catalog.fences.bundles(), catalog.identities.catalog_id()) as directory:
            found = overview(catalog.fences, directory)
    if not found.workers:
        raise ServiceFailed(
            "ownership", f"{found}, no worker has a session", advice="start one, or read a worker's log"
        )
    return f"{found}; workers: {', '.join(worker.worker_id for worker in found.workers)}"


def _clock(settings: Settings) -> str:
    if not settings.store_is_known:
        settings.required("s3_endpoint")
    off = time.time() - clock_s(primary_bucket(settings, hasty=True))
    if abs(off) > _CLOCK_S:
        problem = f"this machine and the object store differ by {off:.0f} s"
        raise ServiceFailed("clock", problem, advice="set both by one time service")
    return f"within {_CLOCK_S:.0f} s of the object store's"
