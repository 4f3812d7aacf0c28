"""Resources of one command: settings, catalog, log store and Temporal client. Each is opened at its first use."""

import os
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from infra.telemetry.span_reader import ERROR_TYPE_ATTRIBUTE
from logstore.errors import SextonError
from logstore.subjects import LEDGERS, MAX_LEDGERS, TOPIC, AttributeValue
from logstore.validated_names import TopicName, check_producer_or_actor_name

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from logstore.catalog import Catalog
    from logstore.ports.catalog.log import Topic
    from workers.assembly.log_store import LogStore
    from workers.cli.command_errors import CommandFailure
    from workers.client import Sexton
    from workers.settings import LoadedSettings, Settings

Say = Callable[[str], None]
_Result = TypeVar("_Result")
_FLUSH_TIMEOUT_S = 2.0  # a person must not wait long for a dead collector
_MAX_SPAN_ERROR_CHARACTERS = 1_000  # the failure has the full text
_ATTRIBUTE_BY_ARGUMENT = {"workflow_id": "temporalWorkflowID", "bundle": "sexton.bundle"}


def _import_on_call(module: str, name: str) -> Callable[..., Any]:
    def call(*arguments: object, **options: object) -> object:
        return getattr(import_module(module), name)(*arguments, **options)

    return staticmethod(call)


class CommandTraceSpan:
    def __init__(self, span: "Span") -> None:
        self._span = span

    @property
    def trace_id(self) -> str:
        return f"{self._span.get_span_context().trace_id:032x}"

    def record_result(self, code: int, facts: "Mapping[str, AttributeValue]", failure: "CommandFailure | None") -> None:
        self._span.set_attributes({**facts, "sexton.exit_code": code})
        if failure is not None:
            from opentelemetry.trace import StatusCode  # noqa: PLC0415 - loaded already

            self._span.set_attribute(ERROR_TYPE_ATTRIBUTE, failure.type)
            description = f"{failure.type}: {failure.message}"[:_MAX_SPAN_ERROR_CHARACTERS]
            self._span.set_status(StatusCode.ERROR, description)


class CommandServices:
    """Functions by which commands open everything outside `workers.cli`. Tests replace these functions."""

    def load(self, flags: Mapping[str, object]) -> "LoadedSettings":
        """Read all settings. Only this function reads the process's environment and working directory."""
        from workers.settings import load_settings  # noqa: PLC0415

        return load_settings(flags, os.environ, Path.cwd())

    def open_catalog(self, settings: "Settings") -> AbstractContextManager["Catalog"]:
        from logstore.catalog import open_catalog  # noqa: PLC0415

        return open_catalog(settings.database_url, registration_timeout_s=settings.registration_timeout)

    @contextmanager
    def trace_command_and_prune_span_files(
        self, settings: "Settings", command: str, began_ns: int
    ) -> Iterator["CommandTraceSpan"]:
        from opentelemetry import trace  # noqa: PLC0415

        from infra.telemetry.tracing import prune_span_files_if_due, start_tracing  # noqa: PLC0415

        provider = start_tracing("sexton", traces_dir=settings.traces_dir)
        span = trace.get_tracer("sexton.cli").start_span(command, start_time=began_ns)
        try:
            with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
                yield CommandTraceSpan(span)
        finally:
            provider.force_flush(round(_FLUSH_TIMEOUT_S * 1000))
            prune_span_files_if_due(
                settings.traces_dir, older_than_s=settings.trace_retention, max_bytes=settings.trace_max_bytes
            )

    def find_collector(self) -> str | None:
        from infra.telemetry import find_collector_url  # noqa: PLC0415

        return find_collector_url(os.environ)

    async def connect(self, settings: "Settings", catalog: "Callable[[], Catalog]") -> "Sexton":
        from workers.client import Sexton  # noqa: PLC0415

        return await Sexton.connect(settings, catalog)

    open_log = _import_on_call("workers.assembly.log_store_from_settings", "open_log_store_on_catalog")
    apply_preview = _import_on_call("workers.assembly.activities", "create_apply_preview")
    roll_policy = _import_on_call("workers.assembly.log_store_from_settings", "roll_policy_from_settings")
    open_directory = _import_on_call("workers.operations.bundle_owners", "open_directory")
    upgrade = _import_on_call("workers.operations.embedded_stack", "upgrade_catalog")
    up = _import_on_call("workers.operations.embedded_stack", "start_stack")
    down = _import_on_call("workers.operations.embedded_stack", "stop_stack")
    status = _import_on_call("workers.operations.service_checks", "check_services")
    doctor = _import_on_call("workers.operations.service_checks", "check_installation")
    demo = _import_on_call("workers.demo", "run_demo")
    rebuild = _import_on_call("workers.hosting.rebuild_and_follow", "rebuild_catalog")
    abandon_rebuild = _import_on_call("workers.hosting.rebuild_and_follow", "abandon_rebuild")
    replay = _import_on_call("workers.hosting.history_replay", "replay_history")
    follow = _import_on_call("workers.hosting.rebuild_and_follow", "follow_records")
    check_pulsar_cluster = _import_on_call("workers.operations.pulsar_cluster", "check_pulsar_cluster")
    read_pulsar_transactions = _import_on_call("workers.operations.pulsar_cluster", "read_pulsar_transactions")
    require_abortable_pulsar_transactions = _import_on_call(
        "workers.operations.pulsar_cluster", "require_abortable_pulsar_transactions"
    )
    explain_pulsar_ledger = _import_on_call("workers.operations.pulsar_cluster", "explain_pulsar_ledger")
    require_pulsar_cluster = _import_on_call("workers.assembly.pulsar_cluster", "pulsar_cluster_from_settings")
    scan_pulsar_index_buckets = _import_on_call("workers.operations.pulsar_cluster", "scan_pulsar_index_buckets")
    verify_pulsar_apply = _import_on_call("workers.operations.pulsar_cluster", "verify_pulsar_apply")
    run_worker = _import_on_call("workers.hosting.worker_process", "run_worker")


class CommandContext:
    """Settings and open resources of one command. The resources are closed when the command ends."""

    def __init__(
        self, services: CommandServices, *, command: str, flags: Mapping[str, object], wide: bool = False
    ) -> None:
        self.services = services
        self._command = command
        self.wide = wide
        self._flags = flags
        self._opened = ExitStack()
        self._began_ns = time.time_ns()
        self._span: CommandTraceSpan | None = None

    @cached_property
    def loaded_settings(self) -> "LoadedSettings":
        return self.services.load(self._flags)

    @property
    def settings(self) -> "Settings":
        return self.loaded_settings.settings

    @cached_property
    def catalog(self) -> "Catalog":
        self.require_store()
        self._open_span()
        return self._shared_catalog

    @cached_property
    def _shared_catalog(self) -> "Catalog":
        """Catalog of the command and of its `Sexton` client. Unlike `catalog`, it needs no configured log store."""
        return self._opened.enter_context(self.services.open_catalog(self.settings))

    @cached_property
    def log(self) -> "LogStore":
        log: LogStore = self._opened.enter_context(self.services.open_log(self.catalog, self.settings))
        return log

    def require_store(self) -> None:
        """Raise `ServiceFailed` unless a log store is configured: a stack in the home, or a database."""
        if not self.settings.has_object_store:
            self.settings.require_address("s3_endpoint")

    def _open_span(self) -> "CommandTraceSpan":
        if self._span is None:
            tracing = self.services.trace_command_and_prune_span_files(self.settings, self._command, self._began_ns)
            self._span = self._opened.enter_context(tracing)
        return self._span

    def record_command_result(
        self, code: int, arguments: Mapping[str, object], failure: "CommandFailure | None" = None
    ) -> str | None:
        """Record the end of the command in its span. Return the trace's id, or `None` without a trace.

        If `code` is not 0 and the home exists, a command without a trace gets a trace now.
        """
        if self._span is None and not (code and self._has_home()):
            return None
        span = self._open_span()
        span.record_result(code, _span_attributes_from_arguments(self._command, arguments), failure)
        return span.trace_id

    def _has_home(self) -> bool:
        try:
            return self.settings.home.is_dir()
        except SextonError:  # the settings are invalid
            return False

    @property
    def actor(self) -> str:
        """User of this process, for the audit log. A name that is not printable raises `InvalidInput`."""
        import getpass  # noqa: PLC0415 - start-up time

        try:
            name = getpass.getuser()
        except (OSError, KeyError):  # a user id without a name, as in many containers
            name = f"uid {os.getuid()}"
        return check_producer_or_actor_name("actor", name)

    def get_topic(self, name: str) -> "Topic":
        return self.catalog.topics.get_topic(TopicName.parse_existing(name).encoded)

    def run_with_client(self, use_client: Callable[["Sexton"], Awaitable[_Result]]) -> _Result:
        self.settings.require_address("temporal_address")
        self._open_span()

        import asyncio  # noqa: PLC0415 - start-up time

        async def connect_and_use() -> _Result:
            return await use_client(await self.services.connect(self.settings, lambda: self._shared_catalog))

        return asyncio.run(connect_and_use())

    def close(self) -> None:
        self._opened.close()


def _span_attributes_from_arguments(command: str, arguments: Mapping[str, object]) -> dict[str, AttributeValue]:
    """Return span attributes for the topic, ledgers, workflow and bundle in the arguments of a command."""
    attributes: dict[str, AttributeValue] = {}
    for name, value in arguments.items():
        if isinstance(value, str) and value.startswith("persistent://"):
            attributes[TOPIC] = value
        elif name in {"ledger_id", "ledger"} or (name == "ids" and command.startswith("sexton ledger ")):
            ledgers = [value] if isinstance(value, int) else value
            if isinstance(ledgers, list) and ledgers:
                attributes[LEDGERS] = [int(ledger_id) for ledger_id in ledgers[:MAX_LEDGERS]]
        elif name in _ATTRIBUTE_BY_ARGUMENT and isinstance(value, str):
            attributes[_ATTRIBUTE_BY_ARGUMENT[name]] = value
    return attributes
