"""HTML page of a trace, with a timeline."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from infra.telemetry.span_reader import SpanRow
from infra.telemetry.span_tree import (
    RUN_WORKFLOW_PREFIX,
    SpanNode,
    describe_missing_or_merged_children,
    group_equal_siblings,
)
from workers.cli.trace.trace_tree import (
    LoadedTrace,
    format_duration_ns,
    inherit_attributes,
    iterate_labelled_own_attributes,
)
from workers.human_readable_values import format_table_cell
from workers.pages.html_templates import render_template

_OPEN_DEPTH: Final = 8  # deeper spans are collapsed, except spans with an error below them
_MAX_ROWS: Final = 20_000  # a browser can still scroll through so many rows
_MAX_EQUAL_SPANS: Final = 1_000  # maximum number of equal spans that get rows of their own
_TICKS: Final = (0, 25, 50, 75, 100)
_KINDS: Final = {
    "program": "program",
    "workflow": "workflow",
    "activity": "activity",
    "s3": "S3",
    "sql": "SQL",
    "zookeeper": "ZooKeeper",
    "spark": "Spark",
}
_PREFIXES_BY_KIND: Final = {
    "activity": ("StartActivity:", "RunActivity:"),
    "workflow": (
        *(RUN_WORKFLOW_PREFIX, "StartWorkflow:", "SignalWithStart", "StartChildWorkflow:"),
        *("Handle", "Validate", "Query", "Signal"),
    ),
    "spark": ("Spark ", "start Spark", "bulk "),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineRow:
    is_end: bool = False
    is_branch: bool = False  # whether the row has rows below
    is_open: bool = False
    has_failure: bool = False  # whether the row's span or a span below has an error
    depth: int = 0
    name: str = ""
    kind: str = ""
    error: str = ""
    is_lost: bool = False
    facts: list[tuple[str, str]] = field(default_factory=list)
    remark: str = ""
    offset: str = ""  # time after the start of the trace
    time: str = ""
    clock: str = ""
    duration: str = ""
    left_percent: str = ""  # position of the row's bar
    width_percent: str = ""


def render_trace_page(loaded_trace: LoadedTrace) -> str:
    summary = loaded_trace.summarize()
    rows = _TimelineRowBuilder(loaded_trace)
    for root in loaded_trace.roots:
        rows.add_tree(group_equal_siblings(root))
    kinds = {row.kind for row in rows.rows}
    return render_template(
        "trace.html",
        title=loaded_trace.workflow_id or loaded_trace.trace_id,
        trace_id=loaded_trace.trace_id,
        began=summary["started"],
        took=format_duration_ns(loaded_trace.end_ns - loaded_trace.start_ns),
        spans=summary["spans"],
        errors=summary["errors"],
        services=summary["services"],
        kinds=[(kind, label) for kind, label in _KINDS.items() if kind in kinds],
        ticks=[rows.make_tick(percent) for percent in _TICKS],
        rows=rows.rows,
        notes=list(_make_notes(loaded_trace, rows.omitted_spans)),
    )


def _make_notes(loaded_trace: LoadedTrace, omitted_on_page: int) -> Iterator[str]:
    if loaded_trace.omitted_spans:
        yield f"{loaded_trace.omitted_spans:,} more spans are not shown: the trace has too many."
    if omitted_on_page:
        yield f"{omitted_on_page:,} spans are in no line of their own here; `sexton trace --json` has every span."
    if loaded_trace.unreadable_lines:
        yield f"Lines of the trace that cannot be read, and were passed over: {loaded_trace.unreadable_lines:,}."


class _TimelineRowBuilder:
    def __init__(self, loaded_trace: LoadedTrace) -> None:
        self._start_ns = loaded_trace.start_ns
        self._duration_ns = max(1, loaded_trace.end_ns - loaded_trace.start_ns)
        self._remaining_rows = _MAX_ROWS
        self._failed_ids: set[int] = set()
        self.rows: list[TimelineRow] = []
        self.omitted_spans = 0

    def make_tick(self, percent: int) -> dict[str, str]:
        offset_ns = self._duration_ns * percent // 100
        absolute = _format_clock(self._start_ns + offset_ns)
        return {"left": str(percent), "relative": format_duration_ns(offset_ns), "absolute": absolute}

    def add_tree(self, root: SpanNode) -> None:
        self._failed_ids = _find_failed_nodes(root)
        self._add_rows_of_subtree(root, {}, 0)

    def _add_rows_of_subtree(self, node: SpanNode, inherited: Mapping[str, Any], depth: int) -> None:
        if self._remaining_rows <= 0:
            self.omitted_spans += sum(1 for _ in node.walk())
            return
        self._remaining_rows -= 1
        children = node.grouped_nodes[:_MAX_EQUAL_SPANS] or node.children
        self.omitted_spans += max(0, len(node.grouped_nodes) - _MAX_EQUAL_SPANS)
        has_failure = id(node) in self._failed_ids
        # Calls are collapsed, because a span often has many of them.
        has_only_calls = all(child.span.is_call for child in node.children)
        is_closed = bool(node.grouped_nodes) or (not has_failure and (has_only_calls or depth >= _OPEN_DEPTH))
        self.rows.append(self._make_row(node, inherited, depth, is_open=not is_closed, is_branch=bool(children)))
        if children:
            attributes = inherited if node.grouped_nodes else inherit_attributes(node, inherited)
            for child in children:
                self._add_rows_of_subtree(child, attributes, depth + 1)
            self.rows.append(TimelineRow(is_end=True))

    def _make_row(
        self, node: SpanNode, inherited: Mapping[str, Any], depth: int, *, is_open: bool, is_branch: bool
    ) -> TimelineRow:
        span = node.span
        left_percent = 100 * (span.start_ns - self._start_ns) / self._duration_ns
        facts = [(label, format_table_cell(value)) for label, value in iterate_labelled_own_attributes(node, inherited)]
        if inherited.get("service") != span.service:
            facts.insert(0, ("in", span.service))
        if span.count > 1:
            facts.insert(0, ("longest", format_duration_ns(span.longest_ns)))
        return TimelineRow(
            is_branch=is_branch,
            is_open=is_open,
            has_failure=id(node) in self._failed_ids,
            depth=depth,
            name=f"{span.name} x {span.count:,}" if span.count > 1 else span.name,
            kind=_classify_span_by_subsystem(node.grouped_nodes[0].span if node.grouped_nodes else span),
            error=span.error or "",
            is_lost=span.is_lost,
            facts=facts,
            remark="" if node.has_example_children else describe_missing_or_merged_children(node),
            offset=format_duration_ns(span.start_ns - self._start_ns),
            time=_to_datetime(span.start_ns).isoformat(timespec="microseconds"),
            clock=_format_clock(span.start_ns),
            duration=format_duration_ns(span.total_ns if span.count > 1 else node.duration_ns),
            left_percent=f"{left_percent:.3f}",
            width_percent=f"{min(100 * node.duration_ns / self._duration_ns, 100 - left_percent):.3f}",
        )


def _find_failed_nodes(root: SpanNode) -> set[int]:
    nodes, pending = [], [root]
    while pending:
        node = pending.pop()
        nodes.append(node)
        pending += node.grouped_nodes or node.children  # children of a group belong to one span of the group
    failed_ids: set[int] = set()
    for node in reversed(nodes):  # children before parents
        if node.span.error or any(id(child) in failed_ids for child in node.children):
            failed_ids.add(id(node))
    return failed_ids


def _classify_span_by_subsystem(span: SpanRow) -> str:
    system = str(span.attributes.get("db.system.name", ""))
    if span.name.startswith("S3.") or "rpc.system" in span.attributes:
        return "s3"
    if system:
        return "zookeeper" if system == "zookeeper" else "sql"
    for kind, prefixes in _PREFIXES_BY_KIND.items():
        if span.name.startswith(prefixes):
            return kind
    return "workflow" if span.is_lost else "program"


def _to_datetime(moment_ns: int) -> datetime:
    return datetime.fromtimestamp(moment_ns // 1_000_000_000, UTC).replace(microsecond=moment_ns // 1_000 % 1_000_000)


def _format_clock(moment_ns: int) -> str:
    return _to_datetime(moment_ns).strftime("%H:%M:%S.%f")[:-3]
