"""Trees of a trace's spans: each span below its parent.

Spans that are in no file get placeholders: spans of unfinished work, and spans of a process that was killed. The
children of a missing span show the place of its placeholder, because they name workflow run and attempt.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from infra.telemetry.span_reader import ATTEMPT_ATTRIBUTE, SpanRow, TraceRows, add_up_spans

WORKFLOW_ID_ATTRIBUTE: Final = "temporalWorkflowID"
RUN_WORKFLOW_PREFIX: Final = "RunWorkflow:"
START_ACTIVITY_PREFIX: Final = "StartActivity:"
_RUN_ID_ATTRIBUTE: Final = "temporalRunID"
_RUN_ACTIVITY_PREFIX: Final = "RunActivity:"
_RUNNING_OR_LOST_TEXT: Final = "not ended yet, or its span is lost"
_LOST_TEXT: Final = "its span is lost"
_KILLED_TEXT: Final = "no span: its worker was killed, or lost it"


def add_placeholder_spans(spans: dict[str, SpanRow]) -> None:
    """Add placeholders to `spans` for missing parents, and for missing attempts between known attempts.

    The placeholder of an activity becomes a child of the workflow run that its children name. Any other placeholder
    becomes a child of the trace's root, if there is only one root.
    """
    orphans: dict[str, list[SpanRow]] = defaultdict(list)
    for span in spans.values():
        if span.parent_id is not None and span.parent_id not in spans:
            orphans[span.parent_id].append(span)
    lost_parents = {span_id: _build_placeholder_parent(span_id, children) for span_id, children in orphans.items()}
    spans.update(lost_parents)
    run_span_ids = {
        _run_key(span): span_id for span_id, span in spans.items() if span.name.startswith(RUN_WORKFLOW_PREFIX)
    }
    for lost in lost_parents.values():
        if lost.attributes.get(_RUN_ID_ATTRIBUTE) and not lost.name.startswith(START_ACTIVITY_PREFIX):
            run_span_ids.setdefault(_run_key(lost), lost.span_id)
    root_ids = [span_id for span_id, span in spans.items() if span.parent_id is None and not span.is_lost]
    (root_id,) = root_ids if len(root_ids) == 1 else (None,)
    for lost in lost_parents.values():
        run_id = run_span_ids.get(_run_key(lost)) if lost.name.startswith(START_ACTIVITY_PREFIX) else None
        lost.parent_id = run_id or root_id
    spans.update((attempt.span_id, attempt) for attempt in list(_build_attempt_gap_placeholders(spans)))


def _build_placeholder_parent(span_id: str, children: Sequence[SpanRow]) -> SpanRow:
    names = {child.name for child in children}
    # The workflow's next run may be a child, too. It has another of Temporal's run ids.
    steps = [child for child in children if not child.name.startswith(RUN_WORKFLOW_PREFIX)] or children
    shared_ids = {
        key: values.pop()
        for key in (WORKFLOW_ID_ATTRIBUTE, _RUN_ID_ATTRIBUTE)
        if len(values := {step.attributes[key] for step in steps if key in step.attributes}) == 1
    }
    subject = str(shared_ids.get(WORKFLOW_ID_ATTRIBUTE, "a span"))
    name, attributes = f"{subject}: {_RUNNING_OR_LOST_TEXT}", shared_ids
    if len(names) == 1 and (shared_name := names.pop()).startswith(_RUN_ACTIVITY_PREFIX):
        name = f"{START_ACTIVITY_PREFIX}{shared_name.removeprefix(_RUN_ACTIVITY_PREFIX)}: {_LOST_TEXT}"
    elif all(child.name.startswith(RUN_WORKFLOW_PREFIX) for child in children):
        name, attributes = f"start of {subject}: {_LOST_TEXT}", {}
    time_ns = min(child.start_ns for child in children), max(child.end_ns for child in children)
    return _build_placeholder_span(span_id, name, time_ns, children[0], attributes)


def _run_key(span: SpanRow) -> tuple[Any, Any]:
    return span.attributes.get(WORKFLOW_ID_ATTRIBUTE), span.attributes.get(_RUN_ID_ATTRIBUTE)


def _build_attempt_gap_placeholders(spans: Mapping[str, SpanRow]) -> Iterator[SpanRow]:
    """Yield one placeholder for each gap in an activity's attempt numbers, with start and end of the gap."""
    attempts_by_parent: dict[str, list[SpanRow]] = defaultdict(list)
    for span in spans.values():
        if span.parent_id is not None and span.name.startswith(_RUN_ACTIVITY_PREFIX) and attempt_number(span):
            attempts_by_parent[span.parent_id].append(span)
    for parent_id, attempts in attempts_by_parent.items():
        previous_number, previous_end_ns = 0, spans[parent_id].start_ns
        for span in sorted(attempts, key=attempt_number):
            first, last = previous_number + 1, attempt_number(span) - 1
            if first <= last:
                label = f"attempt {first}" if first == last else f"attempts {first:,} to {last:,}"
                end_ns = max(previous_end_ns, span.start_ns)
                time_ns = min(previous_end_ns, end_ns), end_ns
                lost = _build_placeholder_span(f"{parent_id}-{first}", span.name, time_ns, span, {})
                lost.parent_id, lost.error = parent_id, f"{label}: {_KILLED_TEXT}"
                yield lost
            previous_number, previous_end_ns = attempt_number(span), span.end_ns


def attempt_number(span: SpanRow) -> int:
    """Return the attempt number of an activity's span, from 1. Return 0 for any other span."""
    number = span.attributes.get(ATTEMPT_ATTRIBUTE)
    return number if isinstance(number, int) else 0


def _build_placeholder_span(
    span_id: str, name: str, time_ns: tuple[int, int], like: SpanRow, attributes: Mapping[str, Any]
) -> SpanRow:
    start, end = time_ns
    return SpanRow(
        span_id=span_id,
        parent_id=None,
        name=name,
        service=like.service,
        start_ns=start,
        end_ns=end,
        attributes=attributes,
        is_lost=True,
        total_ns=end - start,
        longest_ns=end - start,
    )


_MAX_DEPTH: Final = 200  # deeper spans move up, so that any tree can be walked and printed
_MIN_GROUPED_CALLS: Final = 4  # equal siblings without children share a line from this number on
_MIN_GROUPED_STEPS: Final = 8  # the same for siblings with children; only the children of the longest are shown
_FIRST_ATTEMPTS, _LAST_ATTEMPTS = 4, 12  # attempts at an activity that are never grouped


@dataclass(slots=True)
class SpanNode:
    """Span with its children, ascending by start. A node may also be a group of equal siblings."""

    span: SpanRow
    children: "list[SpanNode]" = field(default_factory=list)
    has_example_children: bool = False  # the children are those of the longest span of the group
    grouped_nodes: "list[SpanNode]" = field(default_factory=list)  # nodes of the group, ascending by start
    depth: int = 0

    @property
    def duration_ns(self) -> int:
        return self.span.end_ns - self.span.start_ns

    def walk(self) -> "Iterator[SpanNode]":
        """Yield this node and all nodes below it, parents first."""
        pending = [self]  # iterative, because nested generators would pass each span through all levels
        while pending:
            node = pending.pop()
            yield node
            pending += reversed(node.children)


def build_span_trees(rows: TraceRows) -> list[SpanNode]:
    """Return the trees of a trace, ascending by start. Most traces have one tree.

    The next run of a workflow (continue-as-new) is a sibling of the earlier run, not a child.
    """
    spans = dict(rows.spans)
    add_placeholder_spans(spans)
    node_by_id = {span_id: SpanNode(span) for span_id, span in spans.items()}
    roots: list[SpanNode] = []
    parent_by_id = _find_tree_parent_ids(spans)
    for span_id, node in sorted(node_by_id.items(), key=lambda item: item[1].span.start_ns):
        parent_id = parent_by_id[span_id]
        (node_by_id[parent_id].children if parent_id is not None else roots).append(node)
    for root in roots:
        _set_and_limit_depths(root)
    return roots


def _find_tree_parent_ids(spans: Mapping[str, SpanRow]) -> dict[str, str | None]:
    """Return the parent of each span. If damaged files contain a cycle, one span of the cycle becomes a root."""
    parent_by_id: dict[str, str | None] = {}
    finished: set[str] = set()  # spans whose path to a root is known
    for span_id in spans:
        path: list[str] = []
        current_id: str | None = span_id
        while current_id is not None and current_id not in finished:
            if current_id in parent_by_id:  # already on this path: a cycle
                parent_by_id[current_id] = None
                break
            path.append(current_id)
            parent_id = parent_by_id[current_id] = spans[current_id].parent_id
            current_id = parent_id
        finished.update(path)
        for path_id in reversed(path):  # the next run of a workflow becomes a sibling of the earlier run
            parent_id = parent_by_id[path_id]
            if parent_id is not None and _is_next_run(spans[parent_id], spans[path_id]):
                parent_by_id[path_id] = parent_by_id[parent_id]
    return parent_by_id


def _is_next_run(earlier: SpanRow, later: SpanRow) -> bool:
    is_same_workflow = earlier.attributes.get(WORKFLOW_ID_ATTRIBUTE) == later.attributes.get(WORKFLOW_ID_ATTRIBUTE)
    return later.name.startswith(RUN_WORKFLOW_PREFIX) and earlier.name == later.name and is_same_workflow


def _set_and_limit_depths(root: SpanNode) -> None:
    pending = [root]
    while pending:
        node = pending.pop()
        for child in node.children:  # the loop also visits children that it appends
            child.depth = node.depth + 1
            if child.depth >= _MAX_DEPTH:
                node.children += child.children
                child.children = []
        pending += node.children


def group_equal_siblings(node: SpanNode) -> SpanNode:
    """Return a copy of the tree in which one node replaces many equal siblings.

    Equal siblings have the same name and the same error, and either all or none of them have children.
    """
    groups: dict[tuple[str, str | None, bool], list[SpanNode]] = defaultdict(list)
    single_nodes, groupable_nodes = _split_ungrouped_and_groupable_children(node)
    for child in groupable_nodes:
        groups[child.span.name, child.span.error, bool(child.children)].append(child)
    children = [group_equal_siblings(child) for child in single_nodes]
    for (_, _, has_children), group in groups.items():
        is_merged = len(group) >= (_MIN_GROUPED_STEPS if has_children else _MIN_GROUPED_CALLS)
        children += [_merge_group(group)] if is_merged else [group_equal_siblings(child) for child in group]
    children.sort(key=lambda child: child.span.start_ns)
    return replace(node, children=children)


def _split_ungrouped_and_groupable_children(node: SpanNode) -> tuple[list[SpanNode], list[SpanNode]]:
    """Return children that are never grouped (the first and last attempts at an activity), and all other children."""
    if not node.span.name.startswith(START_ACTIVITY_PREFIX):
        return [], node.children
    attempts = sorted(
        (child for child in node.children if attempt_number(child.span)), key=lambda child: attempt_number(child.span)
    )
    last_index = max(_FIRST_ATTEMPTS, len(attempts) - _LAST_ATTEMPTS)
    others = [child for child in node.children if not attempt_number(child.span)]
    return attempts[:_FIRST_ATTEMPTS] + attempts[last_index:], attempts[_FIRST_ATTEMPTS:last_index] + others


def _merge_group(group: list[SpanNode]) -> SpanNode:
    """Merge the nodes. Keep only the children of the longest node with an error, or else of the longest node."""
    span = group[0].span
    for other in group[1:]:
        span = add_up_spans(span, other.span)
    failed_nodes = [node for node in group if any(below.span.error for below in node.walk())]
    nodes = [group_equal_siblings(node) for node in group]
    example = nodes[group.index(max(failed_nodes or group, key=lambda node: node.duration_ns))]
    return SpanNode(replace(span, attributes={}), example.children, bool(example.children), nodes, depth=example.depth)


def describe_missing_or_merged_children(node: SpanNode) -> str:
    """Return a remark for people about missing or merged children, or "" if there is none."""
    if node.has_example_children:
        return "below: the longest of them"
    if node.span.name.startswith(START_ACTIVITY_PREFIX) and not node.children:
        return "no attempt has a span: not begun, still at work, or its worker was killed"
    return ""


def count_errors(nodes: Iterable[SpanNode]) -> int:
    """Return the number of spans with an error in the trees. Each span of a group counts separately."""
    return sum(node.span.count for root in nodes for node in root.walk() if node.span.error)


def tree_to_json(node: SpanNode, origin_ns: int) -> dict[str, Any]:
    """Return the tree as JSON. Times are in milliseconds. Starts are relative to `origin_ns`."""
    span = node.span
    sums = {"count": span.count, "total_ms": _to_ms(span.total_ns), "longest_ms": _to_ms(span.longest_ns)}
    return {
        "name": span.name,
        "span_id": span.span_id,
        "parent_id": span.parent_id,
        "service": span.service,
        "offset_ms": _to_ms(span.start_ns - origin_ns),
        "duration_ms": _to_ms(node.duration_ns),
        "error": span.error,
        **({"lost": True} if span.is_lost else {}),
        **(sums if span.count > 1 else {}),
        "attributes": dict(span.attributes),
        "children": [tree_to_json(child, origin_ns) for child in node.children],
    }


def _to_ms(duration_ns: int) -> float:
    return round(duration_ns / 1e6, 3)
