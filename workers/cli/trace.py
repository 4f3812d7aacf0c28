"""`trace`: the spans of a command or a job in all processes of this home, as a tree or as an HTML page."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Group
from rich.text import Text
from rich.tree import Tree

from infra.telemetry.span_reader import SpanReader, SpanRow, WorkflowTrace
from infra.telemetry.span_tree import (
    RUN_WORKFLOW_PREFIX,
    SpanNode,
    build_span_trees,
    count_errors,
    describe_missing_or_merged_children,
    group_equal_siblings,
    tree_to_json,
)
from logstore.errors import UnknownObject
from workers.cli.command_context import CommandContext
from workers.cli.command_registration import command, create_command_group
from workers.cli.output import Answer, print_note, write_result_file
from workers.human_readable_values import escape_unprintable, format_table_cell, format_time_to_microsecond
from workers.pages import render_template

traces = create_command_group("traces", path="")

_TRACE_ID = re.compile(r"[0-9a-fA-F]{32}")
_MAX_RELATED_TRACES = 10

Id = Annotated[str, typer.Argument(metavar="ID", help="A workflow's id (its newest run) or a trace's id, 32 digits.")]
Html = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="Write a page with a timeline, for any browser.")
]


@command(traces, "trace", "trim-topic/7", "4bf92f3577b34da6a3ce929d0e0e4736 --html trace.html")
def show_trace(context: CommandContext, name: Id, *, html: Html = None) -> Answer:
    """Draw the spans of a trace as a tree: what called what, when, for how long, with what error.

    A trace contains the command, the workflows that it started, their activities, and every S3, SQL and ZooKeeper call.
    Equal spans next to each other are one line, with their number, total and longest duration, except with `--wide`.
    """
    loaded_trace = _find_trace(context, name)
    start_ns = loaded_trace.start_ns  # read once, because the property goes through all spans
    document: dict[str, Any] = {
        **loaded_trace.summarize(),
        "tree": [tree_to_json(root, start_ns) for root in loaded_trace.roots],
    }
    if html is not None:
        write_result_file("html", html, [render_trace_page(loaded_trace)])
        print_note(f"wrote {html}")
        document["html"] = str(html)
    return Answer(document=document, draw=partial(draw_trace_tree, loaded_trace))


def _find_trace(context: CommandContext, name: str) -> "LoadedTrace":
    reader = SpanReader(context.settings.traces_dir)
    is_trace_id = _TRACE_ID.fullmatch(name) is not None
    workflow_traces = [] if is_trace_id else reader.find_workflow_traces(name)
    if not is_trace_id and not workflow_traces:
        raise _make_unknown_trace_error(context, "a workflow that has spans", name)
    newest = workflow_traces[0] if workflow_traces else None
    later = [trace for trace in workflow_traces if newest and trace.is_start_only and trace.start_ns > newest.start_ns]
    if later:
        trace_id = later[0].trace_id
        print_note(
            f"{name} was started later as well: its run's spans are written a second after it, in trace {trace_id}"
        )
    rows = reader.read_trace(newest.trace_id if newest else name.lower())
    if not rows.spans:
        raise _make_unknown_trace_error(context, "a trace that has spans", name)
    return LoadedTrace(
        trace_id=newest.trace_id if newest else name.lower(),
        workflow_id=None if is_trace_id else name,
        roots=build_span_trees(rows),
        omitted_spans=rows.dropped_spans,
        unreadable_lines=rows.unreadable_lines,
        related=workflow_traces[1 : _MAX_RELATED_TRACES + 1],
    )


def _make_unknown_trace_error(context: CommandContext, expected: str, name: str) -> UnknownObject:
    """Return the error of an unknown id. It names the collector, which may have spans of other machines."""
    collector = context.services.find_collector()
    hint = f"; the collector at {collector} gets all spans too: look there" if collector else ""
    expected = f"{expected} in {context.settings.traces_dir}, where files are kept for a time{hint}"
    return UnknownObject("id", expected=expected, found=name)


_MAX_ERROR_LENGTH = 300
_LABELS: Mapping[str, str] = {  # labels by attribute, in the order of a line
    "sexton.topic": "topic",
    "sexton.ledger": "ledger",
    "sexton.ledgers": "ledgers",
    "sexton.rows": "rows",
    "sexton.row_range": "row range",
    "sexton.outcome": "outcome",
    "sexton.attempt": "attempt",
    "sexton.exit_code": "exit code",
    "sexton.bundle": "bundle",
    "sexton.run": "run",
    "sexton.tasks": "tasks",
    "spark.failed_tasks": "failed tasks",
    "spark.master": "master",
    "aws.s3.key": "key",
    "aws.s3.prefix": "prefix",
    "sexton.keys": "keys",
    "sexton.found": "found",
    "aws.error_code": "answer",
    "db.response.status_code": "answer",
    "temporalWorkflowID": "workflow",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTrace:
    trace_id: str
    workflow_id: str | None  # id by which the trace was found
    roots: list[SpanNode]
    omitted_spans: int
    unreadable_lines: int
    related: list[WorkflowTrace]  # other traces of the workflow, newest first

    @property
    def start_ns(self) -> int:
        """Start of the earliest span, which may not be the root, because clocks of machines differ."""
        return min(node.span.start_ns for root in self.roots for node in root.walk())

    @property
    def end_ns(self) -> int:
        return max(node.span.end_ns for root in self.roots for node in root.walk())

    def summarize(self) -> dict[str, object]:
        spans = [node.span for root in self.roots for node in root.walk()]
        return {
            "trace_id": self.trace_id,
            "workflow_id": self.workflow_id,
            "started": format_time_to_microsecond(self.start_ns // 1_000),
            "duration_ms": round((self.end_ns - self.start_ns) / 1e6, 3),
            "spans": sum(span.count for span in spans) + self.omitted_spans,
            "errors": count_errors(self.roots),
            "left_out": self.omitted_spans,
            "unreadable": self.unreadable_lines,
            "services": sorted({span.service for span in spans}),
            "related": [
                {
                    "trace_id": trace.trace_id,
                    "run_id": trace.run_id,
                    "span": trace.name,
                    "at": format_time_to_microsecond(trace.start_ns // 1_000),
                }
                for trace in self.related
            ],
        }


def draw_trace_tree(loaded_trace: LoadedTrace, wide: bool) -> Group:
    """Draw a heading, the trees of spans, and related traces. With `wide`, equal spans are not joined in one line."""
    summary, start_ns = loaded_trace.summarize(), loaded_trace.start_ns  # read once, because both go through all spans
    errors = "error" if summary["errors"] == 1 else "errors"
    duration = format_duration_ns(loaded_trace.end_ns - start_ns)
    head = Text.assemble(
        (f"trace {loaded_trace.trace_id}\n", "bold"),
        f"{summary['started']}, {duration}, {summary['spans']:,} spans, ",
        (f"{summary['errors']:,} {errors}", "bold red" if summary["errors"] else ""),
    )
    trees = [_draw_tree(root if wide else group_equal_siblings(root), start_ns) for root in loaded_trace.roots]
    return Group(head, *trees, *_draw_remarks_and_related_traces(loaded_trace))


def _draw_remarks_and_related_traces(loaded_trace: LoadedTrace) -> Iterator[Text]:
    if loaded_trace.omitted_spans:
        yield Text(f"{loaded_trace.omitted_spans:,} more spans are not shown: the trace has too many")
    if loaded_trace.unreadable_lines:
        yield Text(f"lines of the trace that cannot be read, and were passed over: {loaded_trace.unreadable_lines:,}")
    if loaded_trace.related:
        yield Text("other traces that name the workflow, newest first of its runs:")
    for related in loaded_trace.related:
        yield Text(f"  {related.trace_id}  {escape_unprintable(related.name)}", style="dim")


def _draw_tree(root: SpanNode, start_ns: int) -> Tree:
    top = Tree(_draw_span(root, start_ns, {}), guide_style="dim")
    pending: list[tuple[SpanNode, Tree, Mapping[str, Any]]] = [(root, top, {})]
    while pending:
        node, branch, inherited = pending.pop()
        inherited = inherit_attributes(node, inherited)
        pending += [(child, branch.add(_draw_span(child, start_ns, inherited)), inherited) for child in node.children]
    return top


def inherit_attributes(node: SpanNode, inherited: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes that lines below the span need not repeat: `inherited`, and attributes of the span."""
    return {**inherited, **node.span.attributes, "service": node.span.service}


def _draw_span(node: SpanNode, start_ns: int, inherited: Mapping[str, Any]) -> Text:
    span = node.span
    text = Text(escape_unprintable(span.name), style="bold red" if span.error else "")
    if span.count > 1:
        total, longest = format_duration_ns(span.total_ns), format_duration_ns(span.longest_ns)
        text.append(f" x {span.count:,}  {total} in all, longest {longest}", style="cyan")
    else:
        text.append(f"  {format_duration_ns(node.duration_ns)}", style="cyan")
    text.append(f" +{format_duration_ns(span.start_ns - start_ns)}", style="dim")
    if inherited.get("service") != span.service:
        text.append(f" [{escape_unprintable(span.service)}]", style="magenta")
    if span.error:
        text.append(f"  error: {escape_unprintable(span.error[:_MAX_ERROR_LENGTH])}", style="bold red")
    for label, value in iterate_labelled_own_attributes(node, inherited):
        text.append(f" {label}=", style="dim").append(escape_unprintable(format_table_cell(value)), "none")
    if span_remark := describe_missing_or_merged_children(node):
        text.append(f"  {span_remark}", style="dim")
    return text


def iterate_labelled_own_attributes(node: SpanNode, inherited: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield label and value of the span's attributes. Skip values that are also in `inherited`."""
    for attribute, label in _LABELS.items():
        value = node.span.attributes.get(attribute)
        if value not in (None, "") and inherited.get(attribute) != value:
            yield label, value


def format_duration_ns(duration_ns: int) -> str:
    """Format a duration: below a minute with three digits, otherwise in minutes and seconds, or hours and minutes."""
    if duration_ns < 1_000_000_000:
        return f"{duration_ns / 1e6:.3g} ms" if duration_ns < 999_500_000 else "1 s"
    seconds = duration_ns / 1e9
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, remaining_s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {remaining_s:02} s"


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


def render_trace_page(loaded_trace: LoadedTrace) -> str:
    summary = loaded_trace.summarize()
    rows = _TimelineRowBuilder(loaded_trace)
    for root in loaded_trace.roots:
        rows.add_tree(group_equal_siblings(root))
    kinds = {row.get("kind") for row in rows.rows}
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
        self.rows: list[dict[str, Any]] = []  # as the template takes them
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
            self.rows.append({"is_end": True})

    def _make_row(
        self, node: SpanNode, inherited: Mapping[str, Any], depth: int, *, is_open: bool, is_branch: bool
    ) -> dict[str, Any]:
        span = node.span
        left_percent = 100 * (span.start_ns - self._start_ns) / self._duration_ns
        facts = [(label, format_table_cell(value)) for label, value in iterate_labelled_own_attributes(node, inherited)]
        if inherited.get("service") != span.service:
            facts.insert(0, ("in", span.service))
        if span.count > 1:
            facts.insert(0, ("longest", format_duration_ns(span.longest_ns)))
        return {
            "is_end": False,
            "is_branch": is_branch,  # whether the row has rows below
            "is_open": is_open,
            "has_failure": id(node) in self._failed_ids,  # whether the row's span or a span below has an error
            "depth": depth,
            "name": f"{span.name} x {span.count:,}" if span.count > 1 else span.name,
            "kind": _classify_span_by_subsystem(node.grouped_nodes[0].span if node.grouped_nodes else span),
            "error": span.error or "",
            "is_lost": span.is_lost,
            "facts": facts,
            "remark": "" if node.has_example_children else describe_missing_or_merged_children(node),
            "offset": format_duration_ns(span.start_ns - self._start_ns),  # time after the start of the trace
            "time": _to_datetime(span.start_ns).isoformat(timespec="microseconds"),
            "clock": _format_clock(span.start_ns),
            "duration": format_duration_ns(span.total_ns if span.count > 1 else node.duration_ns),
            "left_percent": f"{left_percent:.3f}",  # position of the row's bar
            "width_percent": f"{min(100 * node.duration_ns / self._duration_ns, 100 - left_percent):.3f}",
        }


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
