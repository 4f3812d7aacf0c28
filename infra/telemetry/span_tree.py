"""The spans of a trace as a tree: each call below its caller, with start, length and error."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from infra.telemetry.lost_spans import RUN, START, WORKFLOW_ID, attempt_of, stand_in
from infra.telemetry.span_reader import SpanRow, TraceRows, add

_DEEPEST: Final = 200  # spans under each other; deeper ones stand beside, so that any tree can be walked and printed
_EQUAL_CALLS: Final = 4  # this many equal siblings, or more, share one line
_EQUAL_STEPS: Final = 8  # the same of siblings that have spans under them: the longest is shown in full
_FIRST_ATTEMPTS, _LAST_ATTEMPTS = 4, 12  # at an activity: each has a line of its own, however equal they are


@dataclass(slots=True)
class Node:
    """A span, and those that it caused, ascending by start."""

    span: SpanRow
    children: "list[Node]" = field(default_factory=list)
    example: bool = False  # its children are those of the longest of the spans that it stands for
    alike: "list[Node]" = field(default_factory=list)  # these, ascending by start; none where it stands for itself
    depth: int = 0

    @property
    def length_ns(self) -> int:
        """From its start to its end."""
        return self.span.end_ns - self.span.start_ns

    def walk(self) -> "Iterator[Node]":
        """This one and all below, parents first."""
        waiting = [self]  # no generators within each other: each span would pass through all above it
        while waiting:
            node = waiting.pop()
            yield node
            waiting += reversed(node.children)


def span_trees(rows: TraceRows) -> list[Node]:
    """The trees of a trace, ascending by start: one, unless spans of others' parents are part of it.

    A span whose parent is in no file (a workflow that still runs, a process that was killed) gets a stand-in for it,
    which says so. A workflow that goes on in a new run stands beside its earlier run, and not below it.
    """
    spans = dict(rows.spans)
    stand_in(spans)
    nodes = {span_id: Node(span) for span_id, span in spans.items()}
    roots: list[Node] = []
    parents = _parents(spans)
    for span_id, node in sorted(nodes.items(), key=lambda item: item[1].span.start_ns):
        parent = parents[span_id]
        (nodes[parent].children if parent is not None else roots).append(node)
    for root in roots:
        _level(root)
    return roots


def _parents(spans: Mapping[str, SpanRow]) -> dict[str, str | None]:
    """The span that each stands below; None for a root, and for one span of a cycle, which only damaged files have."""
    found: dict[str, str | None] = {}
    ends: set[str] = set()  # those whose way up is known to end
    for span_id in spans:
        way: list[str] = []
        at: str | None = span_id
        while at is not None and at not in ends:
            if at in found:  # met on this way already: a cycle
                found[at] = None
                break
            way.append(at)
            above = found[at] = spans[at].parent_id
            at = above
        ends.update(way)
        for one in reversed(way):  # an earlier run of a workflow stands beside the later one
            above = found[one]
            if above is not None and _goes_on(spans[above], spans[one]):
                found[one] = found[above]
    return found


def _goes_on(earlier: SpanRow, later: SpanRow) -> bool:
    """Whether both are runs of one workflow."""
    same = earlier.attributes.get(WORKFLOW_ID) == later.attributes.get(WORKFLOW_ID)
    return later.name.startswith(RUN) and earlier.name == later.name and same


def _level(root: Node) -> None:
    """Give each node its depth; nodes that are too deep move up to the deepest level that is allowed."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        for child in node.children:  # grows meanwhile
            child.depth = node.depth + 1
            if child.depth >= _DEEPEST:
                node.children += child.children
                child.children = []
        waiting += node.children


def with_groups(node: Node) -> Node:
    """The tree with one line for many equal siblings: how many, how long in all, how long the longest."""
    groups: dict[tuple[str, str | None, bool], list[Node]] = defaultdict(list)
    alone, alike = _attempts(node)
    for child in alike:
        groups[child.span.name, child.span.error, bool(child.children)].append(child)
    children = [with_groups(child) for child in alone]
    for (_, _, steps), group in groups.items():
        many = len(group) >= (_EQUAL_STEPS if steps else _EQUAL_CALLS)
        children += [_one(group)] if many else [with_groups(child) for child in group]
    children.sort(key=lambda child: child.span.start_ns)
    return replace(node, children=children)


def _attempts(node: Node) -> tuple[list[Node], list[Node]]:
    """The attempts that get a line each, and the other children, of which equal ones may share a line.

    Attempts are those at the activity that the span starts.
    """
    if not node.span.name.startswith(START):
        return [], node.children
    made = sorted((child for child in node.children if attempt_of(child.span)), key=lambda one: attempt_of(one.span))
    end = max(_FIRST_ATTEMPTS, len(made) - _LAST_ATTEMPTS)
    others = [child for child in node.children if not attempt_of(child.span)]
    return made[:_FIRST_ATTEMPTS] + made[end:], made[_FIRST_ATTEMPTS:end] + others


def _one(group: list[Node]) -> Node:
    span = group[0].span
    for other in group[1:]:
        span = add(span, other.span)
    failed = [node for node in group if any(below.span.error for below in node.walk())]
    alike = [with_groups(node) for node in group]
    shown = alike[group.index(max(failed or group, key=lambda node: node.length_ns))]
    return Node(replace(span, attributes={}), shown.children, bool(shown.children), alike, depth=shown.depth)


def remark(node: Node) -> str:
    """A remark on the span beside its facts; "" for most."""
    if node.example:
        return "below: the longest of them"
    if node.span.name.startswith(START) and not node.children:
        return "no attempt has a span: not begun, still at work, or its worker was killed"
    return ""


def errors(nodes: Iterable[Node]) -> int:
    """How many spans failed."""
    return sum(node.span.count for root in nodes for node in root.walk() if node.span.error)


def document(node: Node, origin_ns: int) -> dict[str, Any]:
    """The tree as JSON knows it, times in milliseconds since `origin_ns`."""
    span = node.span
    summed = {"count": span.count, "total_ms": _ms(span.total_ns), "longest_ms": _ms(span.most_ns)}
    return {
        "name": span.name,
        "span_id": span.span_id,
        "parent_id": span.parent_id,
        "service": span.service,
        "offset_ms": _ms(span.start_ns - origin_ns),
        "duration_ms": _ms(node.length_ns),
        "error": span.error,
        **({"lost": True} if span.lost else {}),
        **(summed if span.count > 1 else {}),
        "attributes": dict(span.attributes),
        "children": [document(child, origin_ns) for child in node.children],
    }


def _ms(duration_ns: int) -> float:
    return round(duration_ns / 1e6, 3)
