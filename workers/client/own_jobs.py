"""What a client sees before it starts a job: that namespace and primary bucket are not another catalog's."""

import asyncio
from urllib.parse import quote

from temporalio.client import Client

from workers.client.connections import open_catalog
from workers.operations import namespace
from workers.operations.identity import refuse_foreign_bucket
from workers.settings import Settings


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
        with open_catalog(self._settings) as catalog:
            refuse_foreign_bucket(self._settings, catalog.identities)
            return catalog.identities.catalog_id()
