"""Connections that jobs are started with and workers are run on, and what is compared before the first job."""

import asyncio
from typing import Final
from urllib.parse import quote

from temporalio.client import Client
from temporalio.contrib.opentelemetry import OpenTelemetryPlugin
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.runtime import Runtime

from infra.catalog import open_catalog
from logstore.errors import ServiceFailed
from workers.identity import namespace
from workers.identity.stores import refuse_foreign_bucket
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


class OwnJobs:
    """Jobs on one namespace, upon one catalog and its store."""

    def __init__(self, client: Client, settings: Settings) -> None:
        """Compare nothing yet."""
        self.client = client
        self._settings = settings
        self._compared = False

    async def ours(self) -> Client:
        """The client, once primary bucket and namespace were compared with the catalog.

        A job in another namespace would join another catalog's of the same id, or wait for its workers. A bucket that
        cannot be asked now is left to the workers, which compare each one before they use it: the client uses none.

        Raises:
            CatalogMismatch: One of them is another catalog's.
        """
        if not self._compared:
            await namespace.require(self.client, await asyncio.to_thread(self._catalog_id))
            self._compared = True
        return self.client

    def page_of(self, workflow_id: str, run_id: str | None) -> str:
        """The run's page in the Web UI, opened where summary and *Current Details* are; "" where no Web UI is known."""
        settings = self._settings
        if not settings.ui_address or not run_id:
            return ""
        names = (settings.temporal_namespace, "workflows", workflow_id, run_id, "user-metadata")
        return "/".join([f"{settings.ui_address.rstrip('/')}/namespaces", *(quote(name, safe="") for name in names)])

    def _catalog_id(self) -> str:
        with open_catalog(self._settings.database_url) as catalog:
            refuse_foreign_bucket(self._settings, catalog.identities)
            return catalog.identities.catalog_id()
