"""Connections to Temporal, for clients and workers, and the spans of a client's calls."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from opentelemetry.trace import SpanKind, get_tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from temporalio.client import (
    Client,
    Interceptor,
    OutboundInterceptor,
    Plugin,
    QueryWorkflowInput,
    StartWorkflowInput,
    StartWorkflowUpdateInput,
    WorkflowHandle,
    WorkflowUpdateHandle,
)
from temporalio.converter import PayloadConverter
from temporalio.runtime import Runtime

from workers.client.payload_codec import data_converter
from workers.client.temporal_access import temporal_access, unreached
from workers.settings import Settings
from workflows.jobs import Request

Q = TypeVar("Q", bound=Request)
R = TypeVar("R")
V = TypeVar("V")

_CONNECT_S: Final = 10.0
_HEADER: Final = "_tracer-data"  # the SDK's; workers of every language read it


async def connect_client(
    settings: Settings, *, identity: str | None = None, runtime: Runtime | None = None, plugins: Sequence[Plugin] = ()
) -> Client:
    """A Temporal client that speaks our values and carries our traces.

    Args:
        settings: The address and the namespace.
        identity: Of a worker; otherwise the process's.
        runtime: A worker's, with its metrics.
        plugins: A worker's, which trace its calls too: then nothing else does. Its workflows run in `CheckedRunner`,
            which refuses payloads that the client leaves to it.

    Raises:
        InvalidInput: Files of keys or certificates cannot be used.
        ServiceFailed: No address is known, no Temporal server answers there, or it and we do not trust each other.
    """
    address = settings.required("temporal_address")
    access, converter = temporal_access(settings), data_converter(settings.payload_key_file, defers=bool(plugins))
    try:
        async with asyncio.timeout(_CONNECT_S):  # where no peer refuses, the SDK would wait without end
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


class TracedCalls(Interceptor):
    """Makes a span of each start, query and update, and lets the job go on with its trace.

    It does what `OpenTelemetryPlugin` does for a client, with the same names and the same header, and imports no
    worker: that plugin costs a command as much as all its own modules.
    """

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # noqa: A002 - Temporal's word
        """An interceptor that makes the spans and then calls `next`."""
        return _Traced(next)


class _Traced(OutboundInterceptor):
    async def start_workflow(self, input: StartWorkflowInput) -> WorkflowHandle[Any, Any]:  # noqa: A002
        verb = "SignalWithStartWorkflow" if input.start_signal else "StartWorkflow"
        with _span(f"{verb}:{input.workflow}", input):
            return await super().start_workflow(input)

    async def query_workflow(self, input: QueryWorkflowInput) -> Any:  # noqa: A002, ANN401
        with _span(f"QueryWorkflow:{input.query}", input):
            return await super().query_workflow(input)

    async def start_workflow_update(self, input: StartWorkflowUpdateInput) -> WorkflowUpdateHandle[Any]:  # noqa: A002
        with _span(f"StartWorkflowUpdate:{input.update}", input):
            return await super().start_workflow_update(input)


@contextmanager
def _span(name: str, call: StartWorkflowInput | QueryWorkflowInput | StartWorkflowUpdateInput) -> Iterator[None]:
    attributes = {"temporalWorkflowID": call.id}
    with get_tracer(__name__).start_as_current_span(name, kind=SpanKind.CLIENT, attributes=attributes):
        carrier: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(carrier)
        if carrier:
            call.headers = {**call.headers, _HEADER: PayloadConverter.default.to_payloads([carrier])[0]}
        yield
