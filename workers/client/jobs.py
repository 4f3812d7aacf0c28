"""How a program starts a job, upon one namespace and one catalog, and which comparison comes before the first one."""

import asyncio
import shlex
import threading
import uuid
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, TypeVar, cast
from urllib.parse import quote

from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle
from temporalio.common import SearchAttributePair, TypedSearchAttributes, WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode

from infra.catalog import SqlCatalog, open_catalog
from logstore.errors import InvalidInput, PreconditionFailed
from logstore.ports.catalog import Topic
from workers.identity import refuse_foreign_bucket, require_namespace
from workers.settings import Settings
from workflows import limits, search_attributes
from workflows.deletion.values import DeletionPolicy
from workflows.jobs import BuildResult, BuildTopicsInput, Job, Request
from workflows.offload.values import OffloadPolicy

Q = TypeVar("Q", bound=Request)
B = TypeVar("B", bound=BuildTopicsInput)
R = TypeVar("R")
V = TypeVar("V")
Handle = WorkflowHandle[Any, R]


async def start_job(
    client: Client,
    job: Job[Q, R],
    request: Q,
    *key: object,
    queue: str,
    summary: str,
    **more: Any,  # noqa: ANN401
) -> Handle[R]:
    """Start a job, or join the one of that key that runs; `more` is for `Client.start_workflow`.

    Raises:
        PreconditionFailed: A workflow of another type runs under the job's id.
    """
    workflow_id, checked_run = job.id(*key), ""
    if more.get("start_signal"):  # before it is sent to a workflow that may understand it otherwise
        checked_run = await _require_type(client, workflow_id, job.name)
    handle: Handle[R] = await client.start_workflow(
        job.name,
        request,
        id=workflow_id,
        task_queue=queue,
        result_type=job.result,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        static_summary=summary,
        static_details=request.details(),
        **more,
    )
    if not _is_new_run(handle) and handle.result_run_id != checked_run:
        await _require_type(client, workflow_id, job.name)
    return handle


def _is_new_run(handle: Handle[R]) -> bool:
    """Whether the server said that it started a run. A server that does not say so may have joined one."""
    response = getattr(handle, "_start_workflow_response", None)  # the SDK shows it nowhere else
    return bool(response and response.started)


async def _require_type(client: Client, workflow_id: str, name: str) -> str:
    """Return the id of the newest run, or "" if there is none.

    A workflow of another type that runs is refused: its result would be waited for, and taken for the job's.

    Raises:
        PreconditionFailed: A workflow of another type runs under the id.
    """
    try:
        found = await client.get_workflow_handle(workflow_id).describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return ""
        raise
    if found.workflow_type != name and found.status is WorkflowExecutionStatus.RUNNING:
        end = f"temporal workflow terminate --workflow-id {shlex.quote(workflow_id)}"
        raise PreconditionFailed(
            f"workflow {workflow_id}: expected the type {name}, found {found.workflow_type!r}, which runs under this"
            f" id. Find out who started it; `{end}` ends it"
        )
    return found.run_id or ""


def of_topic(topic: Topic) -> SearchAttributePair[Any]:
    """The search attributes by which jobs on a topic are found."""
    return SearchAttributePair(search_attributes.TOPIC, topic.name)


def of_run(run_id: str) -> SearchAttributePair[Any]:
    """The search attribute by which the job of a run or of a batch is found."""
    return SearchAttributePair(search_attributes.RUN_ID, run_id)


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
    ) -> Handle[R]:
        """Start a job, or join the one of that key that runs.

        Args:
            job: Which.
            request: Its input.
            key: The parts of its id beside its name.
            summary: Shown in the Web UI beside its id.
            about: Search attributes.
            signal: Sent to it, whether it was started or joined.
            signal_args: The signal's values.

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

    async def build_topics(
        self, job: Job[B, BuildResult], topics: Sequence[Topic] | None, request: B
    ) -> Handle[BuildResult]:
        """Start a build of something of many topics, by a run id of its own.

        Args:
            job: Which.
            topics: At least one, at most 10,000; None: every topic that has something to build.
            request: The rest of its input.

        Raises:
            InvalidInput: No topics, too many, or what can be no cluster.
        """
        if topics is not None and not topics:
            raise InvalidInput("topics", expected="at least one, or None for every topic", found=topics)
        run_id = f"{request.runs}-{uuid.uuid4().hex[:12]}"
        request = replace(
            request,
            run_id=run_id,
            topic_ids=sorted({int(one.topic_id) for one in topics or ()}),
            queue=limits.bulk_queue(self._settings.task_queue),
        )
        about: list[SearchAttributePair[Any]] = [of_run(run_id)]
        if topics is not None and len(request.topic_ids) == 1:
            about.append(of_topic(topics[0]))
        summary = f"{request.builds} of {len(request.topic_ids) or 'all'} topics"
        return await self.start(job, request, run_id, summary=summary, about=about)

    def _catalog_id(self) -> str:
        identities = self._catalog().identities
        refuse_foreign_bucket(self._settings, identities)
        return identities.catalog_id()
