"""Client that starts jobs. It first checks that the namespace and the primary bucket belong to the catalog."""

import asyncio
import shlex
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import fields
from typing import Any, Final, TypeVar, cast
from urllib.parse import quote

from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle
from temporalio.common import SearchAttributePair, TypedSearchAttributes, WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode

from logstore.catalog import Catalog, open_catalog
from logstore.errors import PreconditionFailed
from workers.catalog_match import mark_namespace_as_own, refuse_foreign_primary_bucket
from workers.settings import Settings
from workers.validation_refusals import require_valid_input
from workflows import search_attributes
from workflows.deletion.job_definitions import DeletionPolicy
from workflows.job_definition import DescribedJobInput, JobDefinition
from workflows.offload.job_definitions import OffloadLimits
from workflows.task_queues import uploads_queue

Q = TypeVar("Q", bound=DescribedJobInput)
R = TypeVar("R")
V = TypeVar("V")
Handle = WorkflowHandle[Any, R]

_FREE_FIELDS: Final = {"actor", "reason", "carried", "carried_last"}
"""Fields of a request that may differ from those of a run that it joins."""


async def start_job(
    client: Client,
    job: JobDefinition[Q, R],
    request: Q,
    *,
    queue: str,
    summary: str = "",
    joins_same_request_only: bool = False,
    **options: Any,  # noqa: ANN401
) -> Handle[R]:
    """Start a job, or join the run with the same workflow id.

    Empty `summary` means the job's own. With `joins_same_request_only`, actor, reason and carried progress may differ,
    but nothing else. `options` are keyword arguments of `Client.start_workflow`.

    Raises:
        PreconditionFailed: A workflow of another type, or one of another request, runs under the job's id.
    """
    workflow_id, checked_run_id = job.id_of_request(request), ""
    if options.get("start_signal"):  # a workflow of another type may understand the signal differently
        checked_run_id = await _refuse_run_of_other_type(client, workflow_id, job.name)
    handle: Handle[R] = await client.start_workflow(
        job.name,
        request,
        id=workflow_id,
        task_queue=queue,
        result_type=job.result,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        static_summary=summary or job.summary(request),
        static_details=request.details(),
        **options,
    )
    if not _is_new_run(handle):
        if handle.result_run_id != checked_run_id:
            await _refuse_run_of_other_type(client, workflow_id, job.name)
        if joins_same_request_only:
            await _refuse_run_of_other_request(client, handle, request)
    return handle


def _is_new_run(handle: Handle[R]) -> bool:
    """Return whether the server says that the call started this run. If not, the call may have joined the run."""
    response = getattr(handle, "_start_workflow_response", None)  # the SDK has no public access to this response
    return bool(response and response.started)


async def _refuse_run_of_other_type(client: Client, workflow_id: str, name: str) -> str:
    """Return the id of the newest run, or "" without a run. Raise an error if a workflow of another type runs."""
    try:
        description = await client.get_workflow_handle(workflow_id).describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return ""
        raise
    if description.workflow_type != name and description.status is WorkflowExecutionStatus.RUNNING:
        end = f"temporal workflow terminate --workflow-id {shlex.quote(workflow_id)}"
        raise PreconditionFailed(
            f"workflow {workflow_id}: expected the type {name}, found {description.workflow_type!r}, which runs under"
            f" this id. Find out who started it; `{end}` ends it"
        )
    return description.run_id or ""


async def _refuse_run_of_other_request(client: Client, handle: Handle[R], request: DescribedJobInput) -> None:
    """Raise `PreconditionFailed` if the run that was joined has other options than `request`."""
    first = await anext(handle.fetch_history_events(page_size=1))
    payloads = first.workflow_execution_started_event_attributes.input.payloads
    (started,) = await client.data_converter.decode(payloads, [type(request)])
    for field in fields(request):  # type: ignore[arg-type]
        expected, found = getattr(request, field.name), getattr(started, field.name)
        if field.name not in _FREE_FIELDS and found != expected:
            raise PreconditionFailed(
                f"workflow {handle.id}: expected {field.name} {expected!r}, found a run with {found!r}. Wait until it"
                " has ended, or join it with the same options"
            )


def deletion_policy(settings: Settings) -> DeletionPolicy:
    return DeletionPolicy(
        parallelism=settings.deletion_parallelism,
        chunk=settings.deletion_chunk,
        max_attempts=settings.deletion_max_attempts,
        retry_interval_s=settings.deletion_retry_interval,
    )


class JobClient:
    def __init__(self, client: Client, settings: Settings, catalog: Callable[[], Catalog] | None = None) -> None:
        self.client = client
        self._settings = settings
        self._is_verified, self._verify_lock = False, asyncio.Lock()
        self._exit_stack, self._catalog_lock = ExitStack(), threading.Lock()
        self._given_catalog, self._cached_catalog = catalog, cast("Catalog | None", None)
        weakref.finalize(self, self._exit_stack.close)  # closes the catalog of a program that does not call `close`

    def _open_catalog_once(self) -> Catalog:
        """Open the catalog at the first call. This blocks, so call it in a thread."""
        with self._catalog_lock:
            if self._cached_catalog is None:
                if self._given_catalog:
                    self._cached_catalog = self._given_catalog()
                else:
                    self._cached_catalog = self._exit_stack.enter_context(open_catalog(self._settings.database_url))
            return self._cached_catalog

    def _read_catalog_epoch(self) -> int:
        return self._open_catalog_once().ledgers.catalog_epoch()

    async def mark_namespace_and_get_client(self) -> Client:
        """Return the client. At the first call, mark the namespace, and check that the primary bucket is not foreign.

        In the namespace of another catalog, a job could join a job of that catalog with the same id. An object
        store that does not answer is no error, because workers check each bucket at the first use.

        Raises:
            CatalogMismatch: The namespace or the bucket belongs to another catalog.
        """
        async with self._verify_lock:  # concurrent first calls must compare only once
            if not self._is_verified:
                await mark_namespace_as_own(self.client, await asyncio.to_thread(self._verified_catalog_id))
                self._is_verified = True
        return self.client

    def format_web_ui_url(self, workflow_id: str, run_id: str | None) -> str:
        """Return the URL of the run's page in the Web UI. Return "" without a `run_id` or without a Web UI."""
        settings = self._settings
        if not settings.ui_address or not run_id:
            return ""
        names = (settings.temporal_namespace, "workflows", workflow_id, run_id, "user-metadata")
        return "/".join([f"{settings.ui_address.rstrip('/')}/namespaces", *(quote(name, safe="") for name in names)])

    @property
    def _deletion_policy(self) -> DeletionPolicy:
        return deletion_policy(self._settings)

    @property
    def _offload_policy(self) -> OffloadLimits:
        settings = self._settings
        return OffloadLimits(
            timeout_s=settings.offload_timeout,
            parallelism=settings.offload_parallelism,
            queue=uploads_queue(settings.task_queue),
        )

    def _queue_of(self, job: JobDefinition[Any, Any]) -> str:
        """Return the task queue for the field `queue` of the job's input."""
        return job.queue(self._settings.task_queue) if job.queue else ""

    def require_valid(self, request: V) -> V:
        require_valid_input(request, self._settings.task_queue)
        return request

    async def start(
        self,
        job: JobDefinition[Q, R],
        request: Q,
        *,
        summary: str = "",
        signal: str | None = None,
        signal_args: Sequence[object] = (),
        attributes: Sequence[SearchAttributePair[Any]] = (),
        joins_same_request_only: bool = False,
    ) -> Handle[R]:
        """Start a job, or join the run with the same workflow id.

        `signal` is also sent to a run that was joined. `attributes` are search attributes besides those of the request.
        For the other parameters see `start_job`.
        """
        self.require_valid(request)
        all_attributes = [*search_attributes.list_attributes_of_request(request), *attributes]
        return await start_job(
            await self.mark_namespace_and_get_client(),
            job,
            request,
            queue=self._settings.task_queue,
            summary=summary,
            joins_same_request_only=joins_same_request_only,
            search_attributes=TypedSearchAttributes(all_attributes),
            start_signal=signal,
            start_signal_args=signal_args,
        )

    def _verified_catalog_id(self) -> str:
        identities = self._open_catalog_once().identities
        refuse_foreign_primary_bucket(self._settings, identities)
        return identities.catalog_id()
