"""Reader of the span files of all processes of a home. The files may be larger than memory.

Only lines that contain the wanted id are parsed. After `MAX_SPANS_PER_TRACE` spans, equal server requests are added up
in one row.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

MAX_SPANS_PER_TRACE: Final = 50_000
ATTEMPT_ATTRIBUTE: Final = "sexton.attempt"  # number of the attempt at an activity, from 1
ERROR_TYPE_ATTRIBUTE: Final = "error.type"
_MAX_TRACES_PER_WORKFLOW: Final = 1_000  # the newest are kept
_RUN_PREFIXES = ("RunWorkflow:", "RunActivity:", "StartActivity:", "StartChildWorkflow:")  # names within a run
_ID_ATTRIBUTES = ("temporalWorkflowID", "temporalRunID")
_START_PREFIXES = ("StartWorkflow:", "SignalWithStartWorkflow:")


@dataclass(slots=True, kw_only=True)
class SpanRow:
    """Span from a file, or the sum of `count` spans with the same parent, name and error."""

    span_id: str
    parent_id: str | None
    name: str
    service: str
    start_ns: int
    end_ns: int
    error: str | None = None  # description of the status; None unless the status is an error
    attributes: Mapping[str, Any] = field(default_factory=dict)
    is_call: bool = False  # request to a server, without child spans
    is_lost: bool = False  # placeholder for spans that no file has
    count: int = 1
    total_ns: int = 0  # sum of the durations
    longest_ns: int = 0  # longest duration


@dataclass(slots=True, kw_only=True)
class TraceRows:
    trace_id: str
    spans: dict[str, SpanRow] = field(default_factory=dict)  # by span id, which removes duplicates
    dropped_spans: int = 0  # spans beyond `MAX_SPANS_PER_TRACE`, except calls, which are summed
    unreadable_lines: int = 0  # lines with the trace's id that are cut short by a crash, or damaged


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowTrace:
    """Trace with spans that name a workflow. `name` and `start_ns` are those of the span with the lowest `rank`."""

    trace_id: str
    run_id: str | None
    name: str
    start_ns: int
    rank: int  # 0: a span of the workflow's own run; 1: a start of the workflow; 2: another request to it

    @property
    def is_start_only(self) -> bool:
        """Whether the trace only starts the workflow. The run's spans are in another trace, or not written yet."""
        return self.rank == 1


class SpanReader:
    """Reader of the `*.jsonl` files of one directory, which need not exist."""

    def __init__(self, traces_dir: Path) -> None:
        self._traces_dir = traces_dir

    def read_trace(self, trace_id: str) -> TraceRows:
        """Return the spans of a trace. An unknown trace has none. `trace_id` has 32 lower-case hexadecimal digits."""
        trace, sums = TraceRows(trace_id=trace_id), dict[tuple[str | None, str, str | None], SpanRow]()
        for row in self._read_rows_containing(f'"{trace_id}"'):
            if row is None:
                trace.unreadable_lines += 1
            elif row["trace_id"] == trace_id:
                _add_sum_or_drop_span(trace, sums, _span_from_row(row))
        trace.spans.update((span.span_id, span) for span in sums.values())
        return trace

    def find_workflow_traces(self, workflow_id: str) -> list[WorkflowTrace]:
        """Return the traces that name the workflow, ascending by `rank`, and the newest first within a rank."""
        trace_by_id: dict[str, WorkflowTrace] = {}
        for row in self._read_rows_containing(json.dumps(workflow_id)):
            attributes = (row or {}).get("attributes") or {}
            if row is not None and attributes.get("temporalWorkflowID") == workflow_id:
                _keep_best_ranked_trace(trace_by_id, row, attributes.get("temporalRunID"))
        return sorted(trace_by_id.values(), key=_precedence)

    def _read_rows_containing(self, needle: str) -> Iterator[dict[str, Any] | None]:
        needle_bytes = needle.encode()
        for path in sorted(self._traces_dir.glob("*.jsonl")):
            try:
                with path.open("rb") as file:
                    for line in file:
                        if needle_bytes in line:
                            yield _parse_line(line)
            except FileNotFoundError:  # pruned meanwhile
                continue


def _parse_line(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and _is_span(row) else None


def _is_span(row: Mapping[str, Any]) -> bool:
    text_fields, map_fields = ("trace_id", "span_id", "name"), ("status", "attributes", "resource")
    return (
        all(isinstance(row.get(name), str) for name in text_fields)
        and isinstance(row.get("parent_id"), str | None)
        and _is_time(row.get("start_ns"))
        and (row.get("end_ns") is None or _is_time(row["end_ns"]))
        and all(isinstance(row.get(name) or {}, Mapping) for name in map_fields)
        and isinstance((row.get("status") or {}).get("description"), str | None)
        and all(isinstance((row.get("attributes") or {}).get(name), str | None) for name in _ID_ATTRIBUTES)
    )


def _is_time(value: object) -> bool:
    return isinstance(value, int) and 0 <= value < 2**63


def _span_from_row(row: Mapping[str, Any]) -> SpanRow:
    """Convert a parsed line. The duration is 0 if the clock was set back during the span."""
    status, attributes = row.get("status") or {}, row.get("attributes") or {}
    start = row["start_ns"]
    end = max(start, row.get("end_ns") or 0)
    return SpanRow(
        span_id=row["span_id"],
        parent_id=row.get("parent_id"),
        name=row["name"],
        service=str((row.get("resource") or {}).get("service.name", "unknown")),
        start_ns=start,
        end_ns=end,
        error=(status.get("description") or "error") if status.get("code") == "error" else None,
        attributes=attributes,
        is_call="db.system.name" in attributes or "rpc.system" in attributes,
        total_ns=end - start,
        longest_ns=end - start,
    )


def _add_sum_or_drop_span(
    trace: TraceRows, sums: dict[tuple[str | None, str, str | None], SpanRow], span: SpanRow
) -> None:
    earlier = trace.spans.get(span.span_id)
    if earlier is not None or len(trace.spans) < MAX_SPANS_PER_TRACE:
        if earlier is None or span.end_ns > earlier.end_ns:
            trace.spans[span.span_id] = span
    elif span.is_call:
        key = (span.parent_id, span.name, span.error)
        sums[key] = add_up_spans(sums[key], span) if key in sums else span
    else:
        trace.dropped_spans += 1


def add_up_spans(first: SpanRow, second: SpanRow) -> SpanRow:
    """Return the sum of two rows, with the id, parent, name and service of the first row."""
    return replace(
        first,
        start_ns=min(first.start_ns, second.start_ns),
        end_ns=max(first.end_ns, second.end_ns),
        attributes={},
        count=first.count + second.count,
        total_ns=first.total_ns + second.total_ns,
        longest_ns=max(first.longest_ns, second.longest_ns),
    )


def _keep_best_ranked_trace(trace_by_id: dict[str, WorkflowTrace], row: Mapping[str, Any], run_id: str | None) -> None:
    name: str = row["name"]
    rank = 0 if name.startswith(_RUN_PREFIXES) else 1 if name.startswith(_START_PREFIXES) else 2
    trace = WorkflowTrace(trace_id=row["trace_id"], run_id=run_id, name=name, start_ns=row["start_ns"], rank=rank)
    earlier = trace_by_id.get(trace.trace_id)
    if earlier is None or _precedence(trace) < _precedence(earlier):
        trace_by_id[trace.trace_id] = trace
    if len(trace_by_id) > _MAX_TRACES_PER_WORKFLOW:
        del trace_by_id[max(trace_by_id.values(), key=_precedence).trace_id]


def _precedence(trace: WorkflowTrace) -> tuple[int, int]:
    return trace.rank, -trace.start_ns
