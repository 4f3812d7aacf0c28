"""Connections of clients and workers to Temporal: credentials, a span for each call, and faults of the server."""

import asyncio
import logging
import re
import weakref
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from opentelemetry.trace import SpanKind, get_tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from temporalio.api.errordetails.v1 import NamespaceNotFoundFailure
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
from temporalio.service import RPCError, RPCStatusCode, TLSConfig

from logstore.errors import InvalidInput, ServiceFailed
from logstore.setting_files import PemFiles, read_setting_file
from workers.client.data_converter import make_data_converter
from workers.settings import Settings, read_secret_file, read_temporal_api_key
from workers.settings.tls_files import read_tls_files
from workflows import search_attributes

V = TypeVar("V")

TRACE_ID: Final = "trace_id"
"""Key in the details of a failure."""

FIELD: Final = "field"
"""Key in the details of a failure. The value is the refused field of the input."""

_CHECK_API_KEY_ADVICE: Final = "check temporal_api_key or temporal_api_key_file, and the namespace that the key is for"
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


_log = logging.getLogger(__name__)
_KEY_CHECK_INTERVAL_S: Final = 5.0
_API_KEY_FILE_SETTING: Final = "temporal_api_key_file"
_key_reload_tasks: set[asyncio.Task[None]] = set()  # the event loop holds only weak references to tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class TemporalCredentials:
    tls: TLSConfig | None = field(repr=False)  # includes the private key
    api_key: str = field(repr=False)
    api_key_file: str

    def keep_api_key_current(self, client: Client) -> None:
        """Read the API key file every few seconds, and give each new key to the client, until the client is gone."""
        if self.api_key_file:
            task = asyncio.create_task(_reload_api_key_repeatedly(weakref.ref(client), self.api_key_file))
            _key_reload_tasks.add(task)
            task.add_done_callback(_key_reload_tasks.discard)


def read_temporal_credentials(settings: Settings) -> TemporalCredentials:
    """Read the credentials in the settings, and check them as far as possible without a connection."""
    key = read_temporal_api_key(settings)
    files = read_tls_files(settings, "temporal")
    if settings.temporal_uses_tls and settings.temporal_tls == "off":
        raise InvalidInput("temporal_tls", expected="on, because other settings need TLS", found="off")
    tls = _read_tls_config(files, settings.temporal_server_name) if settings.temporal_uses_tls else None
    return TemporalCredentials(tls=tls, api_key=key, api_key_file=settings.temporal_api_key_file)


def _read_tls_config(files: PemFiles, server_name: str) -> TLSConfig:
    paths = {"ca": files.ca, "cert": files.cert, "key": files.key}
    ca, cert, key = (read_setting_file(f"temporal_{name}_file", path) if path else None for name, path in paths.items())
    return TLSConfig(server_root_ca_cert=ca, client_cert=cert, client_private_key=key, domain=server_name or None)


async def _reload_api_key_repeatedly(client_ref: "weakref.ref[Client]", path: str) -> None:
    last_error = ""
    while True:
        await asyncio.sleep(_KEY_CHECK_INTERVAL_S)
        client = client_ref()
        if client is None:
            return
        try:
            key = await asyncio.to_thread(read_secret_file, _API_KEY_FILE_SETTING, path)
        except InvalidInput as error:  # while the file is missing or incomplete, the last key may still be valid
            if str(error) != last_error:
                _log.warning("the API key stays as it was: %s", error)
            last_error = str(error)
        else:
            last_error = ""
            if key != client.api_key:
                client.api_key = key
                _log.info("the API key was read again")
        del client


_CERTIFICATE_NAME_PATTERN: Final = re.compile(r"[\w.*:-]+(?=[\\\\\"]*\))")
_TLS_FAULTS: Final = (  # columns: part of an error text of the SDK's core, problem, advice
    ("UnknownIssuer", "its certificate is signed by none of our authorities", "check temporal_ca_file"),
    ("NotValidForName", "its certificate is for another name: {names}", "check temporal_server_name"),
    ("Expired", "its certificate has expired", "ask its operator for a new one, or set this machine's clock"),
    ("NotValidYet", "its certificate is not valid yet", "set this machine's clock"),
    ("InvalidCertificate", "its certificate cannot be trusted", "check temporal_ca_file"),
    ("InvalidContentType", "it speaks no TLS", "check temporal_address, or take the settings of its TLS away"),
    ("Unauthenticated", "it does not know us", _CHECK_API_KEY_ADVICE),
    ("PermissionDenied", "it refuses us", _CHECK_API_KEY_ADVICE),
)
_CHECK_SERVERS_ADVICE: Final = "it may be away behind a balancer: see whether its servers run. Otherwise "
_BROKEN_CONNECTION_FAULTS: Final = {  # key: whether the connection has TLS
    True: ("it ended the connection", _CHECK_SERVERS_ADVICE + "it may want our certificate: temporal_cert_file"),
    False: (
        "it ended the connection",
        _CHECK_SERVERS_ADVICE + "correct SEXTON_TEMPORAL_ADDRESS, or set temporal_tls=on if it wants TLS",
    ),
}


def explain_connection_error(address: str, credentials: TemporalCredentials, error: Exception) -> ServiceFailed:
    """Return the error of a failed connection. It names the setting that may be wrong."""
    text = str(error)
    for part, problem, advice in _TLS_FAULTS:
        if part in text:
            names = ", ".join(_CERTIFICATE_NAME_PATTERN.findall(text.partition("presented:")[2]))
            return ServiceFailed("temporal", f"{address}: {problem.format(names=names)}", advice=advice)
    if "get_system_info" in text and ("hyper::Error" in text or "transport error" in text):
        problem, advice = _BROKEN_CONNECTION_FAULTS[credentials.tls is not None]
        return ServiceFailed("temporal", f"{address}: {problem}", advice=advice)
    advice = "run `sexton up`, or correct SEXTON_TEMPORAL_ADDRESS"
    return ServiceFailed("temporal", f"no Temporal server answers at {address}", advice=advice)


_READ_LOG_ADVICE = "run `sexton up`, or read its log"
_FAULT_BY_STATUS = {
    RPCStatusCode.UNAVAILABLE: ("it does not answer", _READ_LOG_ADVICE),
    RPCStatusCode.DEADLINE_EXCEEDED: ("it does not answer in time", _READ_LOG_ADVICE),
    RPCStatusCode.CANCELLED: ("it does not answer in time", _READ_LOG_ADVICE),
    RPCStatusCode.RESOURCE_EXHAUSTED: ("it takes no more requests for now", "try again later"),
    RPCStatusCode.PERMISSION_DENIED: ("it refuses us", "ask its operator for access to the namespace"),
    RPCStatusCode.UNAUTHENTICATED: ("it does not know us", _CHECK_API_KEY_ADVICE),
    RPCStatusCode.UNIMPLEMENTED: ("it lacks a call that is needed", "is a Temporal server at that address, and new?"),
    RPCStatusCode.INTERNAL: ("it failed", "read its log"),
    RPCStatusCode.UNKNOWN: ("it failed", "is a Temporal server at that address? Read its log"),
    RPCStatusCode.DATA_LOSS: ("it failed", "read its log"),
}


def explain_server_fault(error: RPCError) -> ServiceFailed | None:
    """Return the server's fault. Return `None` if the server works, but refuses this request."""
    problem, advice = _FAULT_BY_STATUS.get(error.status, ("", ""))
    if missing := _find_missing_namespace(error):
        problem = f"there is no namespace {missing}"
        advice = f"correct SEXTON_TEMPORAL_NAMESPACE, or run `temporal operator namespace create {missing}`"
    elif _lacks_search_attributes(error):
        types = {key.name: key.indexed_value_type.name.title().replace("_", "") for key in search_attributes.ALL}
        options = " ".join(f"--name {name} --type {value_type}" for name, value_type in types.items())
        problem = "the namespace lacks our search attributes"
        advice = f"run `temporal operator search-attribute create --namespace NAMESPACE {options}`"
    return ServiceFailed("temporal", problem, advice=advice) if problem else None


def _lacks_search_attributes(error: RPCError) -> bool:
    message = error.message if error.status is RPCStatusCode.INVALID_ARGUMENT else ""
    return "search attribute" in message and any(key.name in message for key in search_attributes.ALL)


def _find_missing_namespace(error: RPCError) -> str | None:
    for detail in error.grpc_status.details:
        failure = NamespaceNotFoundFailure()
        if detail.Unpack(failure):
            return failure.namespace
    return None


def find_detail(details: Sequence[object], key: str) -> str | None:
    values = (detail[key] for detail in details if isinstance(detail, Mapping) and key in detail)
    return next((str(value) for value in values), None)
