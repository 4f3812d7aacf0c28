"""`doctor`: whether this machine and the services have what Sexton needs."""

import asyncio
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError
from temporalio.api.workflowservice.v1 import GetSystemInfoRequest
from temporalio.service import RPCError

from infra.coordination.directory import Directory
from infra.objects import make_client
from infra.stack.java import find_java
from logstore.errors import SextonError
from logstore.ownership import MAX_BUNDLES
from workers import search_attributes
from workers.connections import connect_client, open_catalog
from workers.owners_view import open_directory, open_session, overview
from workers.settings import Settings
from workers.stack import Row, status
from workers.temporal_faults import temporal_fault

_CLOCK_S = 5.0  # S3 refuses signatures whose clock is 15 minutes off; five seconds is already worth a word


def doctor(settings: Settings) -> list[Row]:
    """As `status`, and Java, versions, search attributes, ownership, buckets and clock."""
    checks: dict[str, Callable[[Settings], str]] = {
        "java": lambda _: f"Java {find_java().version}",
        "temporal version": _temporal_version,
        "search attributes": _search_attributes,
        "ownership": _ownership,
        "buckets": _buckets,
        "clock": _clock,
    }
    return [*status(settings), *(_checked(name, check, settings) for name, check in checks.items())]


def elsewhere(settings: Settings, *, only: str = "") -> list[Row]:
    """Services that were not started here, at the addresses that the settings name; all of them, or one."""
    where = {
        "temporal": settings.temporal_address,
        "object store": settings.s3_endpoint or "AWS",
        "zookeeper": settings.zookeeper or "no address",
    }
    checks = {"temporal": _temporal_version, "object store": _buckets}
    if settings.ownership == "zookeeper":
        checks["zookeeper"] = _zookeeper
    found = [_checked(name, check, settings) for name, check in checks.items() if only in {"", name}]
    return [{**row, "detail": f"{where[str(row['name'])]}: {row['detail']}"} for row in found]


def _checked(name: str, check: Callable[[Settings], str], settings: Settings) -> Row:
    try:
        return {"name": name, "ok": True, "detail": check(settings)}
    except RPCError as error:
        return {"name": name, "ok": False, "detail": str(temporal_fault(error) or error.message)}
    except (SextonError, OSError, RuntimeError, BotoCoreError, ClientError) as error:
        return {"name": name, "ok": False, "detail": str(error)}


def _temporal_version(settings: Settings) -> str:
    async def ask() -> str:
        client = await connect_client(settings)
        return str((await client.workflow_service.get_system_info(GetSystemInfoRequest())).server_version)

    return f"server {asyncio.run(ask())}"


def _search_attributes(settings: Settings) -> str:
    async def ask() -> None:
        await search_attributes.require(await connect_client(settings))

    asyncio.run(ask())
    return "all registered"


def _zookeeper(settings: Settings) -> str:
    with open_session(settings) as session:
        return f"{len(Directory(session, MAX_BUNDLES).live_workers())} workers have a session"


def _ownership(settings: Settings) -> str:
    with open_catalog(settings) as catalog:
        if settings.ownership == "single":
            return f"{overview(catalog.fences, None)}; ownership=single"
        with open_directory(settings, catalog.fences.bundles(), catalog.identities.catalog_id()) as directory:
            found = overview(catalog.fences, directory)
    if not found.workers:
        raise RuntimeError(f"{found}: no worker has a session; start one, or read a worker's log")
    return f"{found}; workers: {', '.join(worker.worker_id for worker in found.workers)}"


def _s3(settings: Settings) -> Any:  # noqa: ANN401 - boto3's client
    return make_client(
        settings.s3_endpoint or None,
        settings.s3_region,
        settings.s3_access_key.get_secret_value() or None,
        settings.s3_secret_key.get_secret_value() or None,
    )


def _buckets(settings: Settings) -> str:
    client = _s3(settings)
    names = (settings.primary_bucket, settings.tiered_bucket, settings.records_bucket)
    for name in names:
        client.head_bucket(Bucket=name)
    return ", ".join(names)


def _clock(settings: Settings) -> str:
    answer = _s3(settings).head_bucket(Bucket=settings.primary_bucket)
    told = parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"]).timestamp()
    off = time.time() - told
    if abs(off) > _CLOCK_S:
        raise RuntimeError(f"this machine and the object store differ by {off:.0f} s: set both by one time service")
    return f"within {_CLOCK_S:.0f} s of the object store's"
