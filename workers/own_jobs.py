"""Before a client starts a job it compares store and namespace with the catalog."""

import asyncio
from urllib.parse import quote

from temporalio.client import Client

from workers import namespace
from workers.identity import own_store
from workers.settings import Settings


class OwnJobs:
    """Jobs on one namespace, upon one catalog and its store."""

    def __init__(self, client: Client, settings: Settings) -> None:
        """Compare nothing yet."""
        self.client = client
        self._settings = settings
        self._compared = False

    async def ours(self) -> Client:
        """The client, once primary bucket and namespace were seen to be the catalog's; both are compared once.

        A job in another namespace would join another catalog's of the same id, or wait for its workers.

        Raises:
            CatalogMismatch: One of them is not.
            StoreUnavailable, ServiceRefused: The object store did not answer, or refuses us.
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
        with own_store(self._settings) as catalog:
            return catalog.identities.catalog_id()
