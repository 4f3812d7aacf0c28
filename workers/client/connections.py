"""Connections to Temporal, for clients and workers, and what a client compares before its first job."""

import asyncio
import threading
import weakref
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from typing import Any, Final, TypeVar, cast
from urllib.parse import quote

from temporalio.client import Client, Plugin, WorkflowHandle
from temporalio.common import SearchAttributePair, TypedSearchAttributes, WorkflowIDConflictPolicy
from temporalio.runtime import Runtime

from infra.catalog import SqlCatalog, open_catalog
from logstore.ports.catalog import Topic
from workers.client.payload_codec import data_converter
from workers.client.temporal_access import temporal_access, unreached
from workers.client.tracing import TracedCalls
from workers.identity import refuse_foreign_bucket, require_namespace
from workers.settings import Settings
from workflows import limits, search_attributes
from workflows.deletion.values import DeletionPolicy
from workflows.jobs import Job, Request
from workflows.offload.values import OffloadPolicy

Q = TypeVar("Q", bound=Request)
R = TypeVar("R")
V = TypeVar("V")

_CONNECT_S: Final = 10.0


async def connect_client(
    settings: Settings, *, identity: str | None = None, runtime: Runtime | None = None, plugins: Sequence[Plugin] = ()
) -> Client:
    """A Temporal client that speaks our values and carries our traces.

    Args:
        settings: The address and the namespace.
        identity: Of a worker; otherwise the process's.
        runtime: A worker's, with its metrics.
        plugins: A worker's, which trace its calls too: then nothing else does.

    Raises:
        InvalidInput: Files of keys or certificates cannot be used.
        ServiceFailed: No address is known, no Temporal server answers there, or it and we do not trust each other.
    """
    address = settings.required("temporal_address")
    access, converter = temporal_access(settings), data_converter(settings.payload_key_file)
    try:
        async with asyncio.timeout(_CONNECT_S):  # where nobody refuses, the SDK would wait without end
            client = await Client.connect(
                address,
                namespace=settings.temporal_namespace,
                identity=identity,
                runtime=runtime,
                tls=access.tls or False,
                api_key=access.api_key or None,
                data_converter=converter,
                interceptors=[] if plugins else [TracedCalls()],
                plugins=plugins,
            )
    except (RuntimeError, OSError) as error:  # what temporalio raises when nothing listens, and the time-out
        raise unreached(address, access, error) from error
    access.follow(client)
    return client


def with_client(settings: Settings, work: Callable[[Client], Awaitable[V]]) -> V:
    """The result of some work with a client of its own; for a caller without an event loop.

    Raises:
        InvalidInput, ServiceFailed: As `connect_client`.
    """

    async def connected() -> V:
        return await work(await connect_client(settings))

    return asyncio.run(connected())


async def start_job(
    client: Client,
    job: Job[Q, R],
    request: Q,
    *key: object,
    queue: str,
    summary: str,
    **more: Any,  # noqa: ANN401
) -> WorkflowHandle[Any, R]:
    """Start a job, or join the one of that key that runs; `more` is for `Client.start_workflow`."""
    handle: WorkflowHandle[Any, R] = await client.start_workflow(
        job.name,
        request,
        id=job.id(*key),
        task_queue=queue,
        result_type=job.result,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        static_summary=summary,
        static_details=request.details(),
        **more,
    )
    return handle


def of_topic(topic: Topic) -> SearchAttributePair[Any]:
    """The search attributes by which jobs on a topic are found."""
    return SearchAttributePair(search_attributes.TOPIC, topic.name)


class OwnJobs:
    """Jobs on one namespace, upon one catalog and its store."""

    def __init__(self, client: Client, settings: Settings, catalog: Callable[[], SqlCatalog] | None = None) -> None:
        """Keep the client; nothing is compared or opened yet.

        Args:
            client: Of Temporal.
            settings: Of the catalog and its store.
            catalog: Gives a catalog that its caller has open, and closes; None: the client opens one, and keeps it.
        """
        self.client = client
        self._settings = settings
        self._compared, self._comparing = False, asyncio.Lock()
        self._opened, self._opening = ExitStack(), threading.Lock()
        self._given, self._held = catalog, cast("SqlCatalog | None", None)
        weakref.finalize(self, self._opened.close)  # of a program that does not close it

    def _catalog(self) -> SqlCatalog:
        """The one catalog of this client's life, opened at the first question. It blocks: to be called in a thread."""
        with self._opening:
            if self._held is None:
                url = self._settings.database_url
                self._held = self._given() if self._given else self._opened.enter_context(open_catalog(url))
            return self._held

    def _epoch(self) -> int:
        return self._catalog().ledgers.epoch()

    async def ours(self) -> Client:
        """The client, once primary bucket and namespace were compared with the catalog.

        A job in another namespace would join another catalog's of the same id, or wait for its workers. A bucket that
        cannot be asked now is left to the workers, which compare each one before they use it: the client uses none.

        Raises:
            CatalogMismatch: One of them is another catalog's.
        """
        async with self._comparing:  # many that begin at once compare once
            if not self._compared:
                await require_namespace(self.client, await asyncio.to_thread(self._catalog_id))
                self._compared = True
        return self.client

    def page_of(self, workflow_id: str, run_id: str | None) -> str:
        """The run's page in the Web UI, opened where summary and *Current Details* are; "" where no Web UI is known."""
        settings = self._settings
        if not settings.ui_address or not run_id:
            return ""
        names = (settings.temporal_namespace, "workflows", workflow_id, run_id, "user-metadata")
        return "/".join([f"{settings.ui_address.rstrip('/')}/namespaces", *(quote(name, safe="") for name in names)])

    @property
    def _policy(self) -> DeletionPolicy:
        """The deletion policy that the settings give."""
        settings = self._settings
        return DeletionPolicy(
            parallelism=settings.deletion_parallelism,
            chunk=settings.deletion_chunk,
            max_attempts=settings.deletion_max_attempts,
            retry_interval_s=settings.deletion_retry_interval,
        )

    @property
    def _offload_policy(self) -> OffloadPolicy:
        settings = self._settings
        return OffloadPolicy(
            timeout_s=settings.offload_timeout,
            parallelism=settings.offload_parallelism,
            queue=limits.uploads_queue(settings.task_queue),
        )

    def checked(self, request: V) -> V:
        """The request, refused here where its job would refuse it.

        Raises:
            InvalidInput: A field is beyond its bounds.
        """
        limits.check(request, queue=self._settings.task_queue)
        return request

    async def start(
        self,
        job: Job[Q, R],
        request: Q,
        *key: object,
        summary: str,
        about: Sequence[SearchAttributePair[Any]] = (),
        signal: str | None = None,
        signal_args: Sequence[object] = (),
    ) -> WorkflowHandle[Any, R]:
        """Start a job, or join the one of that key that runs.

        Args:
            job: Which.
            request: Its input.
            key: What its id is made of beside its name.
            summary: What the Web UI shows beside its id.
            about: Search attributes.
            signal: Sent to it, whether it was started or joined.
            signal_args: What the signal says.

        Raises:
            InvalidInput: A field of the request is beyond its bounds.
            CatalogMismatch: Namespace or bucket are another catalog's.
        """
        self.checked(request)
        return await start_job(
            await self.ours(),
            job,
            request,
            *key,
            queue=self._settings.task_queue,
            summary=summary,
            start_signal=signal,
            start_signal_args=signal_args,
            search_attributes=TypedSearchAttributes(about),
        )

    def _catalog_id(self) -> str:
        identities = self._catalog().identities
        refuse_foreign_bucket(self._settings, identities)
        return identities.catalog_id()
