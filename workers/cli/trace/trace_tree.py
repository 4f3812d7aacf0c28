"""Trace as a tree for a terminal, with errors in red and times in grey."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text
from rich.tree import Tree

from infra.telemetry.span_tree import SpanNode, count_errors, describe_missing_or_merged_children, group_equal_siblings
from workers.human_readable_values import escape_unprintable, format_table_cell, format_time_to_microsecond

if TYPE_CHECKING:
    from infra.telemetry.span_reader import WorkflowTrace

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
    related: "list[WorkflowTrace]"  # other traces of the workflow, newest first

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
