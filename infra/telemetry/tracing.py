"""Tracing of one process: tracer provider and exporters. Safe under replay of workflows.

Finished spans go to JSON lines, one file per service and process. The files are pruned by age and total size.
"""

import json
import logging
import os
import random
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from opentelemetry import trace
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import Status, format_span_id, format_trace_id

from infra.telemetry import find_collector_url

if TYPE_CHECKING:
    from temporalio.contrib.opentelemetry import ReplaySafeTracerProvider


MAX_SPAN_FILE_BYTES: Final = 16 * 1024 * 1024

_log = logging.getLogger(__name__)
_encode = json.JSONEncoder(default=str, separators=(",", ":")).encode  # json.dumps would build an encoder per call


class SpanFileExporter(SpanExporter):
    """Exporter that appends each batch with one write to `{service}-{pid}.jsonl`, mode 0600.

    A file of more than `MAX_SPAN_FILE_BYTES` is renamed to `{service}-{pid}.{nanoseconds}.jsonl`, so that it can be
    pruned.
    """

    def __init__(self, traces_dir: Path, service: str) -> None:
        self._traces_dir, self._service = traces_dir, service
        self._lock = threading.Lock()
        self._has_warned = False
        self._resource: Resource | None = None
        self._resource_text = ""

    @property
    def path(self) -> Path:
        return self._traces_dir / f"{self._service}-{os.getpid()}.jsonl"

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        lines = "".join(map(self._format_line, spans))
        try:
            with self._lock:
                self._append_to_file(lines.encode())
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                _log.warning("spans are lost: %s cannot be written: %s", self.path, error)
            return SpanExportResult.FAILURE
        return SpanExportResult.SUCCESS

    def _format_line(self, span: ReadableSpan) -> str:
        if span.resource is not self._resource:  # encoded once, because this costs as much as the rest of the line
            self._resource, self._resource_text = span.resource, _encode(dict(span.resource.attributes or {}))
        return f'{_encode(span_to_json(span))[:-1]},"resource":{self._resource_text}}}\n'

    def _append_to_file(self, data: bytes) -> None:
        self._traces_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while data:  # normally one write; a disk that is nearly full may take a part
                data = data[os.write(handle, data) :]
            is_full = os.fstat(handle).st_size > MAX_SPAN_FILE_BYTES
        finally:
            os.close(handle)
        if is_full:
            self.path.rename(self.path.with_suffix(f".{time.time_ns()}.jsonl"))


def span_to_json(span: ReadableSpan) -> dict[str, Any]:
    """Return the span as JSON, without its resource. Ids are lower-case hexadecimal, times nanoseconds since 1970."""
    context = span.get_span_context()
    return {
        "trace_id": format_trace_id(context.trace_id) if context else "",
        "span_id": format_span_id(context.span_id) if context else "",
        "parent_id": format_span_id(span.parent.span_id) if span.parent else None,
        "name": span.name,
        "kind": span.kind.name.lower(),
        "start_ns": span.start_time,
        "end_ns": span.end_time,
        "status": {"code": span.status.status_code.name.lower(), "description": span.status.description},
        "attributes": dict(span.attributes or {}),
        "events": [
            {"name": event.name, "time_ns": event.timestamp, "attributes": dict(event.attributes or {})}
            for event in span.events
        ],
    }


_FILE_NAME: Final = re.compile(r"[a-z0-9-]+-(?P<pid>[0-9]+)(?P<rolled>\.[0-9]+)?\.jsonl")
_MAX_FILES: Final = 2_000  # each command leaves a file, and a reader opens all files
_RECENT_CHANGE_S: Final = 60.0  # a new process with a reused pid may be about to write to the file
_PRUNE_INTERVAL_S: Final = 3_600.0
_PRUNE_MARK_NAME: Final = ".pruned"  # file whose modification time is that of the last pruning by a command


@dataclass(frozen=True, slots=True, kw_only=True)
class _SpanFile:
    path: Path
    changed_s: float  # since 1970
    size_bytes: int
    pid: int | None  # the writing process; None for a renamed file, which no process writes to


def prune_span_files(traces_dir: Path, *, older_than_s: float, max_bytes: int) -> int:
    """Remove span files, the oldest first. Return the number of files that this call removed.

    Remove files unchanged for `older_than_s`, then more files until at most 2,000 files with at most `max_bytes` in
    total remain. Keep files to which live processes write, and files changed within the last minute. Several processes
    may prune at once.
    """
    files = sorted(_list_span_files(traces_dir), key=lambda file: file.changed_s)
    remaining_bytes, remaining_files = sum(file.size_bytes for file in files), len(files)
    now_s, removed_files = time.time(), 0
    for file in files:
        is_old = file.changed_s < now_s - older_than_s
        if not is_old and remaining_bytes <= max_bytes and remaining_files <= _MAX_FILES:
            break
        if file.changed_s > now_s - _RECENT_CHANGE_S or (file.pid is not None and _is_process_alive(file.pid)):
            continue
        remaining_bytes, remaining_files = remaining_bytes - file.size_bytes, remaining_files - 1
        with suppress(FileNotFoundError):  # another process has removed it
            file.path.unlink()
            removed_files += 1
    return removed_files


def prune_span_files_if_due(traces_dir: Path, *, older_than_s: float, max_bytes: int) -> None:
    """Call `prune_span_files`, at most once an hour among all processes. Ignore errors of the file system."""
    mark = traces_dir / _PRUNE_MARK_NAME
    with suppress(OSError):
        try:
            if mark.stat().st_mtime > time.time() - _PRUNE_INTERVAL_S:
                return
        except FileNotFoundError:
            if not traces_dir.is_dir():
                return
        mark.touch(mode=0o600)
        prune_span_files(traces_dir, older_than_s=older_than_s, max_bytes=max_bytes)


def _list_span_files(traces_dir: Path) -> Iterator[_SpanFile]:
    entries: list[os.DirEntry[str]] = []
    with suppress(FileNotFoundError):
        entries += os.scandir(traces_dir)
    for entry in entries:
        match = _FILE_NAME.fullmatch(entry.name)
        if match:
            with suppress(FileNotFoundError):
                stat = entry.stat(follow_symlinks=False)
                pid = None if match["rolled"] else int(match["pid"])
                yield _SpanFile(path=Path(entry.path), changed_s=stat.st_mtime, size_bytes=stat.st_size, pid=pid)


def _is_process_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # a process of another user
        return True
    return True


Provider: TypeAlias = "TracerProvider | ReplaySafeTracerProvider"

_FILE_QUEUE_SPANS = 16_384  # more spans than one page of a batch ends within the delay; further spans are dropped
_FILE_DELAY_MS = 1000  # `sexton trace` shows spans one second after their end
_random: Final = random.SystemRandom()
_EXPECTED_ERROR_PREFIXES: Final = ("WorkflowAlreadyStartedError: ",)
"""Prefixes of the descriptions of expected errors, such as the start of a job that already runs."""


class SystemIdGenerator(IdGenerator):
    """Generator of ids from the operating system's random source.

    The SDK's generator uses the module `random`. A program that seeds this module or forks would repeat ids.
    """

    def generate_span_id(self) -> int:
        return _random.randrange(1, 1 << 64)

    def generate_trace_id(self) -> int:
        return _random.randrange(1, 1 << 128)


class ExpectedErrorFilter(SpanExporter):
    """Exporter that clears the error status which Temporal's SDK sets for expected errors.

    Source: PostHog #97438: error spans of expected errors hide real errors.
    """

    def __init__(self, inner: SpanExporter) -> None:
        self._inner = inner

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return self._inner.export([_clear_expected_error(span) for span in spans])

    def shutdown(self) -> None:
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._inner.force_flush(timeout_millis)


def _clear_expected_error(span: ReadableSpan) -> ReadableSpan:
    if not (span.status.description or "").startswith(_EXPECTED_ERROR_PREFIXES):
        return span
    return ReadableSpan(
        name=span.name,
        context=span.get_span_context(),
        parent=span.parent,
        resource=span.resource,
        attributes=span.attributes,
        events=span.events,
        links=span.links,
        kind=span.kind,
        instrumentation_scope=span.instrumentation_scope,
        status=Status(),
        start_time=span.start_time,
        end_time=span.end_time,
    )


def create_tracer_provider(service: str, *, traces_dir: Path | None, runs_workflows: bool = False) -> Provider:
    """Build a provider that exports to a file under `traces_dir`, and to the OTLP collector of the environment, if any.

    Environment variables `OTEL_…` set the resource, the sampler and the limits. The arguments are those of
    `start_tracing`. With `runs_workflows`, the provider is the replay-safe provider of Temporal's
    `OpenTelemetryPlugin`, whose import takes half a second.

    Source: OpenTelemetry, "OTLP Exporter Configuration" (`OTEL_EXPORTER_OTLP_ENDPOINT` and its variant for traces).
    """
    resource = Resource.create({SERVICE_NAME: service})
    provider: Provider
    if runs_workflows:
        from temporalio.contrib.opentelemetry import create_tracer_provider  # noqa: PLC0415 - half a second

        provider = create_tracer_provider(resource=resource, id_generator=SystemIdGenerator())
    else:
        provider = TracerProvider(resource=resource, id_generator=SystemIdGenerator())
    if traces_dir is not None:
        exporter = SpanFileExporter(traces_dir, service)
        provider.add_span_processor(
            BatchSpanProcessor(
                ExpectedErrorFilter(exporter), max_queue_size=_FILE_QUEUE_SPANS, schedule_delay_millis=_FILE_DELAY_MS
            )
        )
    if find_collector_url(os.environ):
        # Imported here, because most processes have no collector.
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415

        provider.add_span_processor(BatchSpanProcessor(ExpectedErrorFilter(OTLPSpanExporter())))
    return provider


_lock = threading.Lock()
_started: "Provider | None" = None  # OpenTelemetry allows one provider per process


def start_tracing(service: str, *, traces_dir: Path | None, runs_workflows: bool = False) -> Provider:
    """Send this process's spans to a file, and to an OTLP collector if the environment names one.

    The call sets the process's tracer provider, and records a span for every SQL statement from now on. S3 clients
    record their own spans. A second call in a process returns the provider of the first call, because OpenTelemetry
    allows one provider per process.

    Args:
        service: `service.name`, also part of the file's name: lower-case letters, digits and `-`.
        traces_dir: Directory of `{service}-{pid}.jsonl`, mode 0600. `None` means no file. If the directory is not
            writable, a warning is logged and the work continues.
        runs_workflows: Whether this process runs workflows. If so, call this before the workers are built.
    """
    global _started  # noqa: PLW0603 - OpenTelemetry allows one provider per process
    from infra.telemetry.client_spans import trace_all_sql_statements  # noqa: PLC0415 - start-up time

    with _lock:
        if _started is not None:
            _log.debug("tracing runs already: %s joins it", service)
            return _started
        provider = _started = create_tracer_provider(service, traces_dir=traces_dir, runs_workflows=runs_workflows)
        trace.set_tracer_provider(provider)
    trace_all_sql_statements()
    return provider
