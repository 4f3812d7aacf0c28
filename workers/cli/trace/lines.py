"""A trace as lines of a tree, for a terminal: errors in red, and ids and times in grey."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text
from rich.tree import Tree

from infra.telemetry.span_tree import SpanNode, count_errors, group_equal_siblings, remark
from workers.pages.texts import escape_unprintable, format_time_us, format_value

if TYPE_CHECKING:
    from infra.telemetry.span_reader import WorkflowTrace

_MOST_ERROR = 300
FACTS: Mapping[str, str] = {  # attribute -> how a line calls it, in the order of the line
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
class FoundTrace:
    """A trace, and how it was come by."""

    trace_id: str
    workflow_id: str | None
    roots: list[SpanNode]
    left_out: int
    unreadable: int
    related: "list[WorkflowTrace]"

    @property
    def start_ns(self) -> int:
        """When its first span began: clocks of machines differ, so that it may be another than the root."""
        return min(node.span.start_ns for root in self.roots for node in root.walk())

    @property
    def end_ns(self) -> int:
        """When its last span ended."""
        return max(node.span.end_ns for root in self.roots for node in root.walk())

    def facts(self) -> dict[str, object]:
        """Facts about it as a whole."""
        nodes = [node.span for root in self.roots for node in root.walk()]
        return {
            "trace_id": self.trace_id,
            "workflow_id": self.workflow_id,
            "started": format_time_us(self.start_ns // 1_000),
            "duration_ms": round((self.end_ns - self.start_ns) / 1e6, 3),
            "spans": sum(span.count for span in nodes) + self.left_out,
            "errors": count_errors(self.roots),
            "left_out": self.left_out,
            "unreadable": self.unreadable,
            "services": sorted({span.service for span in nodes}),
            "related": [
                {
                    "trace_id": at.trace_id,
                    "run_id": at.run_id,
                    "span": at.name,
                    "at": format_time_us(at.start_ns // 1_000),
                }
                for at in self.related
            ],
        }


def drawn(found: FoundTrace, every: bool) -> Group:
    """The whole answer: a line about the trace, its trees, and where else the workflow was spoken of."""
    facts, start_ns = found.facts(), found.start_ns  # once: it looks at all spans
    many = "error" if facts["errors"] == 1 else "errors"
    failed = Text(f"{facts['errors']:,} {many}", style="bold red" if facts["errors"] else "")
    head = Text(f"trace {found.trace_id}\n", style="bold")
    about = f"{facts['started']}, {length(found.end_ns - start_ns)}, {facts['spans']:,} spans, "
    parts = [head.append(about, style="not bold").append_text(failed)]
    trees = [_tree(root if every else group_equal_siblings(root), start_ns) for root in found.roots]
    return Group(*parts, *trees, *_rest(found))


def _rest(found: FoundTrace) -> Iterator[Text]:
    if found.left_out:
        yield Text(f"{found.left_out:,} more spans are not shown: the trace has too many")
    if found.unreadable:
        yield Text(f"lines of the trace that cannot be read, and were passed over: {found.unreadable:,}")
    if found.related:
        yield Text("other traces that name the workflow, newest first of its runs:")
    for one in found.related:
        yield Text(f"  {one.trace_id}  {escape_unprintable(one.name)}", style="dim")


def _tree(root: SpanNode, origin_ns: int) -> Tree:
    top = Tree(line(root, origin_ns, {}), guide_style="dim")
    waiting: list[tuple[SpanNode, Tree, Mapping[str, Any]]] = [(root, top, {})]
    while waiting:
        node, branch, above = waiting.pop()
        known = said(node, above)
        waiting += [(child, branch.add(line(child, origin_ns, known)), known) for child in node.children]
    return top


def said(node: SpanNode, above: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes that a reader knows below this span: those of all spans above it, and its own."""
    return {**above, **node.span.attributes, "service": node.span.service}


def line(node: SpanNode, origin_ns: int, known: Mapping[str, Any]) -> Text:
    """A span: name, how long, when it began, its error, and what is not `known` yet: the service, what it was about."""
    span = node.span
    text = Text(escape_unprintable(span.name), style="bold red" if span.error else "")
    if span.count > 1:
        text.append(
            f" x {span.count:,}  {length(span.total_ns)} in all, longest {length(span.longest_ns)}", style="cyan"
        )
    else:
        text.append(f"  {length(node.duration_ns)}", style="cyan")
    text.append(f" +{length(span.start_ns - origin_ns)}", style="dim")
    if known.get("service") != span.service:
        text.append(f" [{escape_unprintable(span.service)}]", style="magenta")
    if span.error:
        text.append(f"  error: {escape_unprintable(span.error[:_MOST_ERROR])}", style="bold red")
    for name, value in facts(node, known):
        text.append(f" {name}=", style="dim").append(escape_unprintable(format_value(value)), "none")
    if said_beside := remark(node):
        text.append(f"  {said_beside}", style="dim")
    return text


def facts(node: SpanNode, known: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The attributes for the line; one that a span above has shown is not shown again."""
    for attribute, name in FACTS.items():
        value = node.span.attributes.get(attribute)
        if value not in (None, "") and known.get(attribute) != value:
            yield name, value


def length(duration_ns: int) -> str:
    """A duration for people, to three digits."""
    if duration_ns < 1_000_000_000:
        return f"{duration_ns / 1e6:.3g} ms" if duration_ns < 999_500_000 else "1 s"
    seconds = duration_ns / 1e9
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"
