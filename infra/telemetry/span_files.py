"""Finished spans as lines of JSON, one file per service and process."""

import json
import logging
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import format_span_id, format_trace_id

ROLL_BYTES: Final = 16 * 1024 * 1024

_log = logging.getLogger(__name__)
_encode = json.JSONEncoder(default=str, separators=(",", ":")).encode  # made once: json.dumps makes one per call


class SpanFileExporter(SpanExporter):
    """Appends each batch with one write to `{service}-{pid}.jsonl`, readable by its owner alone.

    A file of more than `ROLL_BYTES` is put aside as `{service}-{pid}.{nanoseconds}.jsonl`, so that pruning can take it
    while the process lives. A directory that cannot be written costs the spans, never the work; it is logged once.
    """

    def __init__(self, traces_dir: Path, service: str) -> None:
        self._traces_dir, self._service = traces_dir, service
        self._lock = threading.Lock()
        self._complained = False
        self._resource: Resource | None = None
        self._resource_text = ""

    @property
    def path(self) -> Path:
        """The file of this process; another one after a fork."""
        return self._traces_dir / f"{self._service}-{os.getpid()}.jsonl"

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Write the batch; FAILURE where that is impossible."""
        lines = "".join(map(self._line, spans))
        try:
            with self._lock:
                self._append(lines.encode())
        except OSError as error:
            if not self._complained:
                self._complained = True
                _log.warning("spans are lost: %s cannot be written: %s", self.path, error)
            return SpanExportResult.FAILURE
        return SpanExportResult.SUCCESS

    def _line(self, span: ReadableSpan) -> str:
        if span.resource is not self._resource:  # a process has one, and spelling it costs as much as the rest
            self._resource, self._resource_text = span.resource, _encode(dict(span.resource.attributes or {}))
        return f'{_encode(as_row(span))[:-1]},"resource":{self._resource_text}}}\n'

    def _append(self, data: bytes) -> None:
        self._traces_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while data:  # one write as a rule; a full disk may take a part
                data = data[os.write(handle, data) :]
            full = os.fstat(handle).st_size > ROLL_BYTES
        finally:
            os.close(handle)
        if full:
            self.path.rename(self.path.with_suffix(f".{time.time_ns()}.jsonl"))


def as_row(span: ReadableSpan) -> dict[str, Any]:
    """The span as JSON knows it: ids as lower-case hex, times as integer nanoseconds since 1970.

    Without the resource, which is the same for all spans of a provider.
    """
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
