"""A trace as lines of a tree, for a terminal: errors in red, what is only there to be found again in grey."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text
from rich.tree import Tree

from infra.telemetry.span_tree import Node, folded
from workers.cli.texts import harmless, plain

if TYPE_CHECKING:
    from workers.cli.trace.found import FoundTrace

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
    "aws.s3.key": "key",
    "aws.s3.prefix": "prefix",
    "sexton.keys": "keys",
    "sexton.found": "found",
    "aws.error_code": "answer",
    "temporalWorkflowID": "workflow",
}


def drawn(found: "FoundTrace", every: bool) -> Group:
    """The whole answer: a line about the trace, its trees, and where else the workflow was spoken of."""
    facts = found.facts()
    failed = Text(f"{facts['errors']:,} errors", style="bold red" if facts["errors"] else "")
    head = Text(f"trace {found.trace_id}\n", style="bold")
    about = f"{facts['started']}, {length(found.end_ns - found.start_ns)}, {facts['spans']:,} spans, "
    parts = [head.append(about, style="not bold").append_text(failed)]
    trees = [_tree(root if every else folded(root), found.start_ns) for root in found.roots]
    return Group(*parts, *trees, *_rest(found))


def _rest(found: "FoundTrace") -> Iterator[Text]:
    if found.left_out:
        yield Text(f"{found.left_out:,} more spans are not shown: the trace has too many")
    if found.unreadable:
        yield Text(f"lines of the trace that cannot be read, and were passed over: {found.unreadable:,}")
    if found.related:
        yield Text("other traces that name the workflow, newest first of its runs:")
    for one in found.related:
        yield Text(f"  {one.trace_id}  {harmless(one.name)}", style="dim")


def _tree(root: Node, origin_ns: int) -> Tree:
    top = Tree(line(root, origin_ns, {}), guide_style="dim")
    waiting: list[tuple[Node, Tree, Mapping[str, Any]]] = [(root, top, {})]
    while waiting:
        node, branch, above = waiting.pop()
        known = said(node, above)
        waiting += [(child, branch.add(line(child, origin_ns, known)), known) for child in node.children]
    return top


def said(node: Node, above: Mapping[str, Any]) -> dict[str, Any]:
    """What a reader knows below this span: what all spans above have said, and this one."""
    return {**above, **node.span.attributes, "service": node.span.service}


def line(node: Node, origin_ns: int, known: Mapping[str, Any]) -> Text:
    """A span: name, how long, when it began, its error, and what is not `known` yet: the service, what it was about."""
    span = node.span
    text = Text(harmless(span.name), style="bold red" if span.error else "")
    if span.count > 1:
        text.append(f" x {span.count:,}  {length(span.total_ns)} in all, longest {length(span.most_ns)}", style="cyan")
    else:
        text.append(f"  {length(node.length_ns)}", style="cyan")
    text.append(f" +{length(span.start_ns - origin_ns)}", style="dim")
    if known.get("service") != span.service:
        text.append(f" [{harmless(span.service)}]", style="magenta")
    if span.error:
        text.append(f"  error: {harmless(span.error[:_MOST_ERROR])}", style="bold red")
    for name, value in facts(node, known):
        text.append(f" {name}=", style="dim").append(harmless(plain(value)), "none")
    if node.example:
        text.append("  below: the longest of them", style="dim")
    return text


def facts(node: Node, known: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """What is worth a place in the line; what a span above has said is not said again."""
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
