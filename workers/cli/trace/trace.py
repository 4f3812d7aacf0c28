"""`trace`: the spans of a command or of a job, of all processes of this home, as one tree."""

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logstore.errors import UnknownObject
from workers.cli.command import command, group
from workers.cli.context import CommandContext
from workers.cli.output import Answer, note

if TYPE_CHECKING:
    from infra.telemetry.span_reader import SpanReader
    from workers.cli.trace.lines import FoundTrace


traces = group("traces", "Traces.", path="")

_TRACE_ID = re.compile(r"[0-9a-fA-F]{32}")
_MOST_RELATED = 10

Id = Annotated[str, typer.Argument(metavar="ID", help="A workflow's id (its newest run) or a trace's id, 32 digits.")]
Html = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="Write a page with a timeline, for any browser.")
]


@command(traces, "trace", "trim-topic/7", "4bf92f3577b34da6a3ce929d0e0e4736 --html trace.html")
def trace(context: CommandContext, name: Id, *, html: Html = None) -> Answer:
    """Draw the spans of a trace as a tree: what called what, when, for how long, with what error.

    A trace joins the command, the workflows that it started, their activities and every S3, SQL and ZooKeeper call.
    Equal spans beside each other are one line (how many, how long in all, how long the longest), but with `--wide`.
    """
    from infra.telemetry.span_reader import SpanReader  # noqa: PLC0415 - start-up time
    from infra.telemetry.span_tree import tree_to_json  # noqa: PLC0415
    from workers.cli.trace.lines import drawn  # noqa: PLC0415

    reader = SpanReader(context.settings.traces_dir)
    found = _found(context, reader, name)
    facts = found.facts()
    start_ns = found.start_ns  # once: it looks at all spans
    told: dict[str, Any] = {**facts, "tree": [tree_to_json(root, start_ns) for root in found.roots]}
    if html is not None:
        _write_page(html, found)
        told["html"] = str(html)
    return Answer(document=told, draw=partial(drawn, found))


def _found(context: CommandContext, reader: "SpanReader", name: str) -> "FoundTrace":
    from infra.telemetry.span_tree import span_trees  # noqa: PLC0415 - start-up time
    from workers.cli.trace.lines import FoundTrace  # noqa: PLC0415

    is_trace = _TRACE_ID.fullmatch(name) is not None
    sightings = [] if is_trace else reader.find_workflow_traces(name)
    if not is_trace and not sightings:
        raise _unknown(context, "a workflow that has spans", name)
    trace_id = name.lower() if is_trace else sightings[0].trace_id
    later = [one.trace_id for one in sightings[1:] if one.is_start_only and one.start_ns > sightings[0].start_ns]
    if later:
        note(f"{name} was started later as well: its run's spans are written a second after it, in trace {later[0]}")
    rows = reader.read_trace(trace_id)
    if not rows.spans:
        raise _unknown(context, "a trace that has spans", name)
    return FoundTrace(
        trace_id=trace_id,
        workflow_id=None if is_trace else name,
        roots=span_trees(rows),
        left_out=rows.dropped_spans,
        unreadable=rows.unreadable_lines,
        related=sightings[1 : _MOST_RELATED + 1],
    )


def _unknown(context: CommandContext, what: str, name: str) -> UnknownObject:
    """Files are pruned, and other machines have their own: a collector, where there is one, may have the spans."""
    collector = context.services.collector()
    where = f"{what} in {context.settings.traces_dir}"
    also = f"; the collector at {collector} gets all spans too: look there" if collector else ""
    return UnknownObject("id", expected=f"{where}, where files are kept for a time{also}", found=name)


def _write_page(path: Path, found: "FoundTrace") -> None:
    from workers.cli.result_files import write_result_file  # noqa: PLC0415 - start-up time
    from workers.cli.trace.page import page  # noqa: PLC0415

    write_result_file("html", path, [page(found)])
    note(f"wrote {path}")
