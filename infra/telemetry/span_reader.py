"""The span files of a home, read again: every process's, rolled ones too, line by line.

Files may be larger than memory. A line is taken apart only where it holds the id that is looked for, and of one trace
at most `MOST_SPANS` spans are kept: of calls beyond that, which have no spans under them, only sums.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

MOST_SPANS: Final = 50_000
ATTEMPT: Final = "sexton.attempt"  # attribute: which attempt at an activity, from 1
_MOST_TRACES: Final = 1_000  # that name one workflow; the newest are kept
_OWN = ("RunWorkflow:", "RunActivity:", "StartActivity:", "StartChildWorkflow:")  # spans of the workflow's own run
_IDS = ("temporalWorkflowID", "temporalRunID")  # attributes
_STARTS = ("StartWorkflow:", "SignalWithStartWorkflow:")


@dataclass(slots=True, kw_only=True)
class SpanRow:
    """A span as its file has it; with a `count` above 1 it stands for as many equal calls."""

    span_id: str
    parent_id: str | None
    name: str
    service: str
    start_ns: int
    end_ns: int
    error: str | None = None  # the status's sentence; None where the status is no error
    attributes: Mapping[str, Any] = field(default_factory=dict)
    call: bool = False  # a request to a server: nothing is under it
    lost: bool = False  # stands for spans that no file has
    count: int = 1
    total_ns: int = 0  # of all that it stands for
    most_ns: int = 0  # of the longest of them


@dataclass(slots=True, kw_only=True)
class TraceRows:
    """The spans of one trace."""

    trace_id: str
    spans: dict[str, SpanRow] = field(default_factory=dict)  # by span id: one that was written twice is there once
    left_out: int = 0  # neither kept nor summed: spans that are no calls, beyond the most
    unreadable: int = 0  # lines that hold the trace's id and are no span: cut short by a crash, or damaged


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowTrace:
    """A trace that names a workflow."""

    trace_id: str
    run_id: str | None
    name: str  # of the span that names it last
    start_ns: int
    rank: int  # 0: of the workflow's own run; 1: of a start; 2: of whatever else spoke to it

    @property
    def started(self) -> bool:
        """Whether it starts the workflow and has no span of its run: it joined another, or that is not written yet."""
        return self.rank == 1


class SpanReader:
    """Reads the `*.jsonl` files of one directory."""

    def __init__(self, traces_dir: Path) -> None:
        """Open nothing yet; a directory that does not exist has no spans."""
        self._traces_dir = traces_dir

    def trace(self, trace_id: str) -> TraceRows:
        """All spans of the trace; none where it is not known.

        Args:
            trace_id: 32 lower-case hexadecimal digits.
        """
        found, sums = TraceRows(trace_id=trace_id), dict[tuple[str | None, str, str | None], SpanRow]()
        for row in self._rows(f'"{trace_id}"'):
            if row is None:
                found.unreadable += 1
            elif row["trace_id"] == trace_id:
                _keep(found, sums, _span(row))
        found.spans.update((one.span_id, one) for one in sums.values())
        return found

    def sightings(self, workflow_id: str) -> list[WorkflowTrace]:
        """Traces that name the workflow: first those of its own runs, and among these the newest first."""
        found: dict[str, WorkflowTrace] = {}
        for row in self._rows(json.dumps(workflow_id)):
            attributes = (row or {}).get("attributes") or {}
            if row is not None and attributes.get("temporalWorkflowID") == workflow_id:
                _sight(found, row, attributes.get("temporalRunID"))
        return sorted(found.values(), key=_precedence)

    def _rows(self, needle: str) -> Iterator[dict[str, Any] | None]:
        """Spans whose line holds `needle`; None for such a line that is no span."""
        wanted = needle.encode()
        for path in sorted(self._traces_dir.glob("*.jsonl")):
            try:
                with path.open("rb") as file:
                    for line in file:
                        if wanted in line:
                            yield _parsed(line)
            except FileNotFoundError:  # pruned since
                continue


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and _is_span(row) else None


def _is_span(row: Mapping[str, Any]) -> bool:
    """Whether it has what is read of it, each of its type and within its bounds."""
    texts, maps = ("trace_id", "span_id", "name"), ("status", "attributes", "resource")
    return (
        all(isinstance(row.get(name), str) for name in texts)
        and isinstance(row.get("parent_id"), str | None)
        and _is_time(row.get("start_ns"))
        and (row.get("end_ns") is None or _is_time(row["end_ns"]))
        and all(isinstance(row.get(name) or {}, Mapping) for name in maps)
        and isinstance((row.get("status") or {}).get("description"), str | None)
        and all(isinstance((row.get("attributes") or {}).get(name), str | None) for name in _IDS)
    )


def _is_time(found: object) -> bool:
    return isinstance(found, int) and 0 <= found < 2**63


def _span(row: Mapping[str, Any]) -> SpanRow:
    """The span; one that ended before it began, because the clock was set back meanwhile, took no time."""
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
        call="db.system.name" in attributes or "rpc.system" in attributes,
        total_ns=end - start,
        most_ns=end - start,
    )


def _keep(found: TraceRows, sums: dict[tuple[str | None, str, str | None], SpanRow], span: SpanRow) -> None:
    earlier = found.spans.get(span.span_id)
    if earlier is not None or len(found.spans) < MOST_SPANS:
        if earlier is None or span.end_ns > earlier.end_ns:
            found.spans[span.span_id] = span
    elif span.call:
        key = (span.parent_id, span.name, span.error)
        sums[key] = add(sums[key], span) if key in sums else span
    else:
        found.left_out += 1


def add(one: SpanRow, other: SpanRow) -> SpanRow:
    """A row that stands for both; its own facts are those of the first."""
    return replace(
        one,
        start_ns=min(one.start_ns, other.start_ns),
        end_ns=max(one.end_ns, other.end_ns),
        attributes={},
        count=one.count + other.count,
        total_ns=one.total_ns + other.total_ns,
        most_ns=max(one.most_ns, other.most_ns),
    )


def _sight(found: dict[str, WorkflowTrace], row: Mapping[str, Any], run_id: str | None) -> None:
    name: str = row["name"]
    rank = 0 if name.startswith(_OWN) else 1 if name.startswith(_STARTS) else 2
    seen = WorkflowTrace(trace_id=row["trace_id"], run_id=run_id, name=name, start_ns=row["start_ns"], rank=rank)
    earlier = found.get(seen.trace_id)
    if earlier is None or _precedence(seen) < _precedence(earlier):
        found[seen.trace_id] = seen
    if len(found) > _MOST_TRACES:
        del found[max(found.values(), key=_precedence).trace_id]


def _precedence(one: WorkflowTrace) -> tuple[int, int]:
    return one.rank, -one.start_ns
