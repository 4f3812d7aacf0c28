"""A command's tools, built when it is first asked for: settings, the catalog, the log, Temporal's client.

`Services` is the seam to the rest of the roof: every call into `infra.catalog`, `infra.telemetry`, `workers.assembly`,
`workers.client`, `workers.operations`, `workers.demo` and `workers.hosting` that opens something is made there and
nowhere else here. Tests pass their own as the root context's object (`CliRunner().invoke(app, args, obj=services)`).
"""

import os
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from logstore.errors import SextonError
from logstore.names import TopicName, check_name
from workers.hosting.facts import ERROR_TYPE, EXIT_CODE, Fact, command_facts, sentence

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from infra.catalog import SqlCatalog
    from logstore.ports.catalog import Topic
    from workers.assembly.log import LogStore
    from workers.cli.errors import Failure
    from workers.client import Sexton
    from workers.settings import LoadedSettings, Settings

Say = Callable[[str], None]
_T = TypeVar("_T")
_FLUSH_S = 2.0  # a collector that does not answer must not hold up a person


def _late(module: str, name: str) -> Callable[..., Any]:
    """A function of another module, which is imported when the function is called."""

    def call(*given: object, **named: object) -> object:
        return getattr(import_module(module), name)(*given, **named)

    return staticmethod(call)


class CommandSpan:
    """A command in its trace: its facts and how it ended."""

    def __init__(self, span: "Span") -> None:
        """Speak of `span`, which its maker ends."""
        self._span = span

    @property
    def trace_id(self) -> str:
        """The trace's id, 32 lower-case hexadecimal digits."""
        return f"{self._span.get_span_context().trace_id:032x}"

    def tell(self, code: int, facts: "Mapping[str, Fact]", failure: "Failure | None") -> None:
        """How the command ended, what it was about and, if it failed, why."""
        self._span.set_attributes({**facts, EXIT_CODE: code})
        if failure is not None:
            from opentelemetry.trace import StatusCode  # noqa: PLC0415 - loaded already

            self._span.set_attribute(ERROR_TYPE, failure.type)
            self._span.set_status(StatusCode.ERROR, sentence(failure.type, failure.message))


class Services:
    """The calls that commands make. Imports are inside, so that `sexton --help` loads no vendor SDK."""

    def load(self, flags: Mapping[str, object]) -> "LoadedSettings":
        """Read all settings; the only place of the command line that looks at the process's surroundings."""
        from workers.settings import load_settings  # noqa: PLC0415

        return load_settings(flags, os.environ, Path.cwd())

    def open_catalog(self, settings: "Settings") -> AbstractContextManager["SqlCatalog"]:
        """The catalog alone."""
        from infra.catalog import open_catalog  # noqa: PLC0415

        return open_catalog(settings.database_url, registration_timeout_s=settings.registration_timeout)

    @contextmanager
    def tracing(self, settings: "Settings", command: str, began_ns: int) -> Iterator["CommandSpan"]:
        """One span over the command, under which the client's, the catalog's and the bucket's come."""
        from opentelemetry import trace  # noqa: PLC0415

        from infra.telemetry.span_files import prune_span_files_hourly  # noqa: PLC0415
        from infra.telemetry.tracing import start_tracing  # noqa: PLC0415

        tracing = start_tracing("sexton", traces_dir=settings.traces_dir)
        span = trace.get_tracer("sexton.cli").start_span(command, start_time=began_ns)
        try:
            with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
                yield CommandSpan(span)
        finally:
            tracing.flush(timeout_s=_FLUSH_S)
            prune_span_files_hourly(
                settings.traces_dir, older_than_s=settings.trace_retention, max_bytes=settings.trace_max_bytes
            )

    def collector(self) -> str | None:
        """Where spans are sent beside the home's files, if anywhere."""
        from infra.telemetry import find_collector_url  # noqa: PLC0415

        return find_collector_url(os.environ)

    async def connect(self, settings: "Settings", catalog: "Callable[[], SqlCatalog]") -> "Sexton":
        """The client of Temporal, which asks the command's own catalog.

        Raises:
            ServiceFailed: Temporal did not answer.
        """
        from workers.client import Sexton  # noqa: PLC0415

        return await Sexton.connect(settings, catalog)

    open_log = _late("workers.assembly.adapters", "log_over")
    apply_preview = _late("workers.assembly.activities", "apply_preview")
    roll_policy = _late("workers.assembly.adapters", "roll_policy")
    open_directory = _late("workers.operations.owners", "open_directory")
    upgrade = _late("workers.operations.stack", "upgrade_catalog")
    up = _late("workers.operations.stack", "up")
    down = _late("workers.operations.stack", "down")
    status = _late("workers.operations.status", "status")
    doctor = _late("workers.operations.status", "doctor")
    demo = _late("workers.demo", "run_demo")
    rebuild = _late("workers.hosting.databases", "rebuild_catalog")
    abandon_rebuild = _late("workers.hosting.databases", "abandon_rebuild")
    replay = _late("workers.hosting.replaying", "replay")
    follow = _late("workers.hosting.databases", "follow_records")
    run_worker = _late("workers.hosting.fleet", "run_worker")


class CommandContext:
    """One command's surroundings; all that was opened is closed when the command ends."""

    def __init__(
        self, services: Services, *, command: str, flags: Mapping[str, object], as_json: bool, wide: bool = False
    ) -> None:
        """Open nothing yet."""
        self.services = services
        self._command = command
        self.as_json = as_json
        self.wide = wide
        self._flags = flags
        self._open = ExitStack()
        self._began_ns = time.time_ns()
        self._span: CommandSpan | None = None

    @cached_property
    def loaded(self) -> "LoadedSettings":
        """Settings with their origins."""
        return self.services.load(self._flags)

    @property
    def settings(self) -> "Settings":
        """Settings."""
        return self.loaded.settings

    @cached_property
    def catalog(self) -> "SqlCatalog":
        """The catalog, opened at the first use: all that a command needs which asks no bucket.

        Raises:
            ServiceFailed: No stack is known.
        """
        self.require_store()
        self._traced()
        return self._one_catalog

    @cached_property
    def _one_catalog(self) -> "SqlCatalog":
        """Of the body and of the client, which needs no store to be known."""
        return self._open.enter_context(self.services.open_catalog(self.settings))

    @cached_property
    def log(self) -> "LogStore":
        """The log store over the catalog, opened at the first use.

        Raises:
            ServiceFailed: No stack is known.
        """
        log: LogStore = self._open.enter_context(self.services.open_log(self.catalog, self.settings))
        return log

    def require_store(self) -> None:
        """See that a log store is known: a stack in the home, or a database that was configured.

        Without an S3 address but with a database of one's own, the bucket is at AWS.

        Raises:
            ServiceFailed: Neither is.
        """
        if not self.settings.has_object_store:
            self.settings.require("s3_endpoint")

    def _traced(self) -> "CommandSpan":
        if self._span is None:
            tracing = self.services.tracing(self.settings, self._command, self._began_ns)
            self._span = self._open.enter_context(tracing)
        return self._span

    def ended(self, code: int, arguments: Mapping[str, object], failure: "Failure | None" = None) -> str | None:
        """Tell the command's span how it ended; returns the trace's id, None where there is no trace.

        A command that did its work without a trace needs none; one that failed before it had one gets it now, where
        there is a home to keep it.
        """
        if self._span is None and not (code and self._has_home()):
            return None
        span = self._traced()
        span.tell(code, command_facts(self._command, arguments), failure)
        return span.trace_id

    def _has_home(self) -> bool:
        try:
            return self.settings.home.is_dir()
        except SextonError:  # that is what the command failed with
            return False

    @property
    def actor(self) -> str:
        """The user of this process, for the audit log.

        Raises:
            InvalidInput: The environment names a user whose name cannot be printed.
        """
        import getpass  # noqa: PLC0415 - start-up time

        try:
            name = getpass.getuser()
        except (OSError, KeyError):  # a user id without a name, as in many containers
            name = f"uid {os.getuid()}"
        return check_name("actor", name)

    def topic(self, name: str) -> "Topic":
        """The topic a user named.

        Raises:
            UnknownObject: There is none of that name.
        """
        return self.catalog.topics.get(TopicName.known(name).encoded)

    def with_client(self, work: Callable[["Sexton"], Awaitable[_T]]) -> _T:
        """Connect to Temporal and do some work there.

        Raises:
            ServiceFailed: No stack is known, or Temporal did not answer.
        """
        self.settings.require("temporal_address")
        self._traced()

        import asyncio  # noqa: PLC0415 - start-up time

        async def connected() -> _T:
            return await work(await self.services.connect(self.settings, lambda: self._one_catalog))

        return asyncio.run(connected())

    def close(self) -> None:
        """Close what was opened."""
        self._open.close()
