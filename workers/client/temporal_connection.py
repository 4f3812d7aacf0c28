"""Connections of clients and workers to Temporal, with a tracing span for each call of a client."""

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

from workers.client.payload_encryption import make_data_converter
from workers.client.temporal_credentials import explain_connection_error, read_temporal_credentials
from workers.settings import Settings

V = TypeVar("V")

_CONNECT_TIMEOUT_S: Final = 10.0
_TRACE_HEADER: Final = "_tracer-data"  # name of the SDK's header, which SDKs of all languages read


async def connect_client(
    settings: Settings, *, identity: str | None = None, runtime: Runtime | None = None, plugins: Sequence[Plugin] = ()
) -> Client:
    """Connect to Temporal with Sexton's data converter and tracing.

    Only a worker passes `identity`, `runtime` and `plugins`. The plugins add the spans, so the client adds none. With
    `plugins`, only `InputCheckingRunner` refuses unreadable workflow payloads.
    """
    address = settings.require_address("temporal_address")
    credentials, converter = (
        read_temporal_credentials(settings),
        make_data_converter(settings.payload_key_file, defers_decryption_errors=bool(plugins)),
    )
    try:
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):  # the SDK waits forever if nobody refuses the connection
            client = await Client.connect(
                address,
                namespace=settings.temporal_namespace,
                identity=identity,
                runtime=runtime,
                tls=credentials.tls or False,
                api_key=credentials.api_key or None,
                data_converter=converter,
                interceptors=[] if plugins else [CallTracingInterceptor()],
                plugins=plugins,
            )
    except (RuntimeError, OSError) as error:  # `RuntimeError`: nothing listens; `OSError`: the timeout
        raise explain_connection_error(address, credentials, error) from error
    credentials.keep_api_key_current(client)
    return client


def run_with_client(settings: Settings, action: Callable[[Client], Awaitable[V]]) -> V:
    async def connect_and_run() -> V:
        return await action(await connect_client(settings))

    return asyncio.run(connect_and_run())


class CallTracingInterceptor(Interceptor):
    """Client interceptor that makes a span of each start, query and update, and adds the trace to the call's headers.

    Its spans and headers are as with the SDK's `OpenTelemetryPlugin`, whose import would double a command's start time.
    """

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # noqa: A002 - Temporal's word
        return _TracingOutboundInterceptor(next)


class _TracingOutboundInterceptor(OutboundInterceptor):
    async def start_workflow(self, input: StartWorkflowInput) -> WorkflowHandle[Any, Any]:  # noqa: A002
        verb = "SignalWithStartWorkflow" if input.start_signal else "StartWorkflow"
        with _trace_call(f"{verb}:{input.workflow}", input):
            return await super().start_workflow(input)

    async def query_workflow(self, input: QueryWorkflowInput) -> Any:  # noqa: A002, ANN401
        with _trace_call(f"QueryWorkflow:{input.query}", input):
            return await super().query_workflow(input)

    async def start_workflow_update(self, input: StartWorkflowUpdateInput) -> WorkflowUpdateHandle[Any]:  # noqa: A002
        with _trace_call(f"StartWorkflowUpdate:{input.update}", input):
            return await super().start_workflow_update(input)


@contextmanager
def _trace_call(name: str, call: StartWorkflowInput | QueryWorkflowInput | StartWorkflowUpdateInput) -> Iterator[None]:
    attributes = {"temporalWorkflowID": call.id}
    with get_tracer(__name__).start_as_current_span(name, kind=SpanKind.CLIENT, attributes=attributes):
        carrier: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(carrier)
        if carrier:
            call.headers = {**call.headers, _TRACE_HEADER: PayloadConverter.default.to_payloads([carrier])[0]}
        yield
