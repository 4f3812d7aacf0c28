"""A trace as one HTML page with a timeline; it loads nothing and runs no script."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from infra.telemetry.lost_spans import RUN_WORKFLOW_PREFIX
from infra.telemetry.span_reader import SpanRow
from infra.telemetry.span_tree import SpanNode, group_equal_siblings, remark
from workers.cli.trace.lines import FoundTrace, facts, length, said
from workers.pages.texts import format_value, render_template

_OPEN_DEPTH: Final = 8  # deeper spans are hidden until they are opened, except those on the way to an error
_MOST_ROWS: Final = 20_000  # of a page: a browser still scrolls through them
_MOST_ALIKE: Final = 1_000  # of equal spans, one by one
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
_ACTIVITY: Final = ("StartActivity:", "RunActivity:")
_WORKFLOW: Final = (
    RUN_WORKFLOW_PREFIX,
    "StartWorkflow:",
    "SignalWithStart",
    "StartChildWorkflow:",
    "Handle",
    "Validate",
    "Query",
    "Signal",
)
_SPARK: Final = ("Spark ", "start Spark", "bulk ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A line of the page: a span, or the end of those that are below one."""

    ends: bool = False
    branch: bool = False  # others are below it
    open: bool = False
    on_the_way: bool = False  # it failed, or one below it did
    depth: int = 0
    name: str = ""
    kind: str = ""
    error: str = ""
    lost: bool = False
    facts: list[tuple[str, str]] = field(default_factory=list)
    remark: str = ""
    after: str = ""
    at: str = ""
    clock: str = ""
    took: str = ""
    left: str = ""  # where its bar begins, and how wide it is, in percent
    wide: str = ""


def page(found: FoundTrace) -> str:
    """The page; everything that stands in a span is escaped."""
    about = found.facts()
    drawing = _Drawing(found)
    for root in found.roots:
        drawing.draw(group_equal_siblings(root))
    shown = {row.kind for row in drawing.rows}
    return render_template(
        "trace.html",
        title=found.workflow_id or found.trace_id,
        trace_id=found.trace_id,
        began=about["started"],
        took=length(found.end_ns - found.start_ns),
        spans=about["spans"],
        errors=about["errors"],
        services=about["services"],
        kinds=[(kind, words) for kind, words in _KINDS.items() if kind in shown],
        ticks=[drawing.tick(left) for left in _TICKS],
        rows=drawing.rows,
        notes=list(_notes(found, drawing.left_out)),
    )


def _notes(found: FoundTrace, not_drawn: int) -> Iterator[str]:
    if found.left_out:
        yield f"{found.left_out:,} more spans are not shown: the trace has too many."
    if not_drawn:
        yield f"{not_drawn:,} spans are in no line of their own here; `sexton trace --json` has every span."
    if found.unreadable:
        yield f"Lines of the trace that cannot be read, and were passed over: {found.unreadable:,}."


class _Drawing:
    """Lines of one trace, and how many spans had no room."""

    def __init__(self, found: FoundTrace) -> None:
        self._start_ns = found.start_ns
        self._whole_ns = max(1, found.end_ns - found.start_ns)
        self._room = _MOST_ROWS
        self._failed: set[int] = set()  # by identity: nodes that failed, or one below them did
        self.rows: list[Row] = []
        self.left_out = 0

    def tick(self, percent: int) -> dict[str, str]:
        """A mark of the axis."""
        at_ns = self._whole_ns * percent // 100
        return {"left": str(percent), "relative": length(at_ns), "absolute": _clock(self._start_ns + at_ns)}

    def draw(self, root: SpanNode) -> None:
        """Add the lines of a tree."""
        self._failed = _failed(root)
        self._add(root, {}, 0)

    def _add(self, node: SpanNode, above: Mapping[str, Any], depth: int) -> None:
        if self._room <= 0:
            self.left_out += sum(1 for _ in node.walk())
            return
        self._room -= 1
        below = node.grouped_nodes[:_MOST_ALIKE] or node.children
        self.left_out += max(0, len(node.grouped_nodes) - _MOST_ALIKE)
        failed = id(node) in self._failed
        calls = all(one.span.is_call for one in node.children)  # a database is asked much for each step
        closed = bool(node.grouped_nodes) or (not failed and (calls or depth >= _OPEN_DEPTH))
        self.rows.append(self._row(node, above, depth, branch=bool(below), opened=not closed, failed=failed))
        if below:
            known = above if node.grouped_nodes else said(node, above)
            for child in below:
                self._add(child, known, depth + 1)
            self.rows.append(Row(ends=True))

    def _row(
        self, node: SpanNode, known: Mapping[str, Any], depth: int, *, branch: bool, opened: bool, failed: bool
    ) -> Row:
        span = node.span
        left = 100 * (span.start_ns - self._start_ns) / self._whole_ns
        told = [(name, format_value(value)) for name, value in facts(node, known)]
        if known.get("service") != span.service:
            told.insert(0, ("in", span.service))
        if span.count > 1:
            told.insert(0, ("longest", length(span.longest_ns)))
        return Row(
            branch=branch,
            open=opened,
            on_the_way=failed,
            depth=depth,
            name=f"{span.name} x {span.count:,}" if span.count > 1 else span.name,
            kind=_kind(node.grouped_nodes[0].span if node.grouped_nodes else span),
            error=span.error or "",
            lost=span.is_lost,
            facts=told,
            remark="" if node.has_example_children else remark(node),
            after=length(span.start_ns - self._start_ns),
            at=_moment(span.start_ns).isoformat(timespec="microseconds"),
            clock=_clock(span.start_ns),
            took=length(span.total_ns if span.count > 1 else node.duration_ns),
            left=f"{left:.3f}",
            wide=f"{min(100 * node.duration_ns / self._whole_ns, 100 - left):.3f}",
        )


def _failed(root: SpanNode) -> set[int]:
    """The identities of nodes that failed, or one below them did: each node is looked at once, the deepest first."""
    nodes, waiting = [], [root]
    while waiting:
        node = waiting.pop()
        nodes.append(node)
        waiting += node.grouped_nodes or node.children  # what a group shows below is below one of its spans
    found: set[int] = set()
    for node in reversed(nodes):
        if node.span.error or any(id(child) in found for child in node.children):
            found.add(id(node))
    return found


def _kind(span: SpanRow) -> str:
    system = str(span.attributes.get("db.system.name", ""))
    if span.name.startswith("S3.") or "rpc.system" in span.attributes:
        return "s3"
    if system:
        return "zookeeper" if system == "zookeeper" else "sql"
    for kind, begins in (("activity", _ACTIVITY), ("workflow", _WORKFLOW), ("spark", _SPARK)):
        if span.name.startswith(begins):
            return kind
    return "workflow" if span.is_lost else "program"


def _moment(at_ns: int) -> datetime:
    return datetime.fromtimestamp(at_ns // 1_000_000_000, UTC).replace(microsecond=at_ns // 1_000 % 1_000_000)


def _clock(at_ns: int) -> str:
    return _moment(at_ns).strftime("%H:%M:%S.%f")[:-3]
