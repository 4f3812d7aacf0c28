"""A trace as one HTML page with a timeline; it loads nothing and runs no script."""

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from infra.telemetry.span_tree import Node, folded
from workers.cli.texts import plain
from workers.cli.trace.lines import FoundTrace, facts, length, said

_OPEN_DEPTH = 6  # deeper spans are folded until they are clicked, except those on the way to an error
_STYLE = """
:root { color-scheme: light dark; --line: #8883; --bar: #3b7dd8; --bad: #d64545; --dim: #777; }
body { font: 14px/1.45 system-ui, sans-serif; margin: 1.5rem; }
h1 { font-size: 1.1rem; margin: 0 0 .3rem; } code { font-size: .95em; }
.about { color: var(--dim); margin: 0 0 1rem; } .bad { color: var(--bad); font-weight: 600; }
details > :not(summary) { margin-left: 1.1rem; } summary { list-style: none; cursor: pointer; }
summary::-webkit-details-marker { display: none; }
summary .name::before { content: "▸ "; color: var(--dim); } details[open] > summary .name::before { content: "▾ "; }
.span { display: flex; border-bottom: 1px solid var(--line); padding: .15rem 0; align-items: center; }
.span .text { flex: 1 1 auto; min-width: 0; overflow-wrap: anywhere; padding-right: 1rem; }
.span .took { flex: 0 0 6rem; text-align: right; padding-right: .6rem; font-variant-numeric: tabular-nums; }
.span .track { flex: 0 0 38vw; height: .8rem; position: relative; background: var(--line); }
.track i { position: absolute; top: 0; bottom: 0; min-width: 2px; background: var(--bar); }
.error .track i { background: var(--bad); } .error .name { color: var(--bad); font-weight: 600; }
.fact { color: var(--dim); font-size: .9em; margin-left: .5rem; }
.fact.bad { color: var(--bad); } .leaf { padding-left: .9rem; }
"""


def page(found: FoundTrace) -> str:
    """The page; everything that stands in a span is escaped."""
    about = found.facts()
    title = escape(found.workflow_id or found.trace_id)
    bad = f'<span class="bad">{about["errors"]:,} errors</span>' if about["errors"] else "0 errors"
    rows = "".join("".join(_rows(folded(root), {}, found)) for root in found.roots)
    left = f"<p>{found.left_out:,} more spans are not shown.</p>" if found.left_out else ""
    if found.unreadable:
        left += f"<p>Lines of the trace that cannot be read, and were passed over: {found.unreadable:,}.</p>"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>'
        f"<h1>{title}</h1>"
        f'<p class="about">trace <code>{found.trace_id}</code>, {about["started"]}, '
        f"{length(found.end_ns - found.start_ns)}, {about['spans']:,} spans, {bad}</p>"
        f"{rows}{left}</body></html>\n"
    )


def _rows(node: Node, above: Mapping[str, Any], found: FoundTrace) -> Iterator[str]:
    row = _row(node, above, found)
    if not node.children:
        yield f'<div class="leaf">{row}</div>'
        return
    failed = any(below.span.error for below in node.walk())
    yield f"<details{' open' if failed or node.depth < _OPEN_DEPTH else ''}><summary>{row}</summary>"
    for child in node.children:
        yield from _rows(child, said(node, above), found)
    yield "</details>"


def _row(node: Node, known: Mapping[str, Any], found: FoundTrace) -> str:
    span, whole = node.span, max(1, found.end_ns - found.start_ns)
    left, wide = 100 * (span.start_ns - found.start_ns) / whole, 100 * node.length_ns / whole
    times = f" x {span.count:,}, {length(span.total_ns)} in all" if span.count > 1 else ""
    told = [f"{name}={plain(value)}" for name, value in facts(node, known)]
    if known.get("service") != span.service:
        told.insert(0, span.service)
    error = f'<span class="fact bad">{escape(span.error)}</span>' if span.error else ""
    shown = "".join(f'<span class="fact">{escape(one)}</span>' for one in told)
    took = length(span.most_ns if span.count > 1 else node.length_ns)
    return (
        f'<div class="span{" error" if span.error else ""}" title="+{length(span.start_ns - found.start_ns)}">'
        f'<div class="text"><span class="name">{escape(span.name)}{times}</span>{shown}{error}</div>'
        f'<div class="took">{took}</div>'
        f'<div class="track"><i style="left:{left:.3f}%;width:{min(wide, 100 - left):.3f}%"></i></div></div>'
    )
