"""Finished spans as lines of JSON, one file per service and process; files are deleted by age and by size.

So traces never fill a disk.
"""

import json
import logging
import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
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


_NAME: Final = re.compile(r"[a-z0-9-]+-(?P<pid>[0-9]+)(?P<rolled>\.[0-9]+)?\.jsonl")
_MOST_FILES: Final = 2_000  # each command leaves one, and a reader opens all of them
_FRESH_S: Final = 60.0  # a process may be about to write there, under a number that another one had before
_RARELY_S: Final = 3_600.0
_MARK: Final = ".pruned"  # its time: when a command pruned last


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    path: Path
    changed_s: float  # since 1970
    size_bytes: int
    pid: int | None  # whose it is; None once it was rolled, because no process writes there any more


def prune(traces_dir: Path, *, older_than_s: float, most_bytes: int) -> int:
    """Remove span files, the oldest first; returns how many this call removed.

    The file that a living process writes to is never removed, nor is one that changed within the last minute, nor one
    of another name. Any number of processes may prune at once: each removes what the others would.

    Args:
        traces_dir: Where they are; it need not exist.
        older_than_s: Files that no process has written to for so long go.
        most_bytes: What may stay of all of them together; beyond that, and beyond 2,000 files, the oldest go.
    """
    files = sorted(_files(traces_dir), key=lambda file: file.changed_s)
    left_bytes, left, now, removed = sum(file.size_bytes for file in files), len(files), time.time(), 0
    for file in files:
        old = file.changed_s < now - older_than_s
        if not old and left_bytes <= most_bytes and left <= _MOST_FILES:
            break
        if file.changed_s > now - _FRESH_S or (file.pid is not None and _lives(file.pid)):
            continue
        left_bytes, left = left_bytes - file.size_bytes, left - 1
        with suppress(FileNotFoundError):  # another one was faster
            file.path.unlink()
            removed += 1
    return removed


def prune_rarely(traces_dir: Path, *, older_than_s: float, most_bytes: int) -> None:
    """As `prune`, at most once an hour of all processes that ask; an error of the file system is ignored."""
    mark = traces_dir / _MARK
    with suppress(OSError):
        try:
            if mark.stat().st_mtime > time.time() - _RARELY_S:
                return
        except FileNotFoundError:
            if not traces_dir.is_dir():
                return
        mark.touch(mode=0o600)
        prune(traces_dir, older_than_s=older_than_s, most_bytes=most_bytes)


def _files(traces_dir: Path) -> Iterator[_File]:
    entries: list[os.DirEntry[str]] = []
    with suppress(FileNotFoundError):
        entries += os.scandir(traces_dir)
    for entry in entries:
        found = _NAME.fullmatch(entry.name)
        if found:
            with suppress(FileNotFoundError):
                told = entry.stat(follow_symlinks=False)
                pid = None if found["rolled"] else int(found["pid"])
                yield _File(path=Path(entry.path), changed_s=told.st_mtime, size_bytes=told.st_size, pid=pid)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # another user's
        return True
    return True
