"""Connections that jobs are started with and workers are run on."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from temporalio.client import Client
from temporalio.contrib.opentelemetry import OpenTelemetryPlugin
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.runtime import Runtime

from infra.catalog import Database, SqlCatalog, check_version
from logstore.errors import ServiceFailed
from workers.settings import Settings

_CONNECT_S: Final = 10.0


async def connect_client(settings: Settings, *, identity: str | None = None, runtime: Runtime | None = None) -> Client:
    """A Temporal client that speaks our values and carries our traces; a worker's has the runtime with its metrics.

    Raises:
        ServiceFailed: No address is known, or no Temporal server answers there.
    """
    address = settings.required("temporal_address")
    try:
        async with asyncio.timeout(_CONNECT_S):  # where nobody refuses, the SDK would wait without end
            return await Client.connect(
                address,
                namespace=settings.temporal_namespace,
                identity=identity,
                runtime=runtime,
                data_converter=pydantic_data_converter,
                plugins=[OpenTelemetryPlugin(add_temporal_spans=True)],
            )
    except (RuntimeError, OSError) as error:  # what temporalio raises when nobody listens, and the time-out
        advice = "see `sexton status`, run `sexton up`, or correct SEXTON_TEMPORAL_ADDRESS"
        raise ServiceFailed("temporal", f"no Temporal server answers at {address}", advice=advice) from error


@contextmanager
def open_catalog(settings: Settings) -> Iterator[SqlCatalog]:
    """The catalog alone, for what a program asks of it before it starts a job.

    Raises:
        CatalogVersionMismatch: The catalog is not of this build's version.
    """
    database = Database(settings.database_url)
    try:
        check_version(database)
        yield SqlCatalog(database)
    finally:
        database.close()
