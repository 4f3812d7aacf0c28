"""`trace`: the spans of a command or a job in all processes of this home, as one tree."""

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logstore.errors import UnknownObject
from workers.cli.answer_output import Answer, print_note
from workers.cli.command_context import CommandContext
from workers.cli.command_registration import command, create_command_group

if TYPE_CHECKING:
    from workers.cli.trace.trace_tree import LoadedTrace


traces = create_command_group("traces", "Traces.", path="")

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
    from infra.telemetry.span_tree import tree_to_json  # noqa: PLC0415 - start-up time
    from workers.cli.trace.trace_tree import draw_trace_tree  # noqa: PLC0415

    loaded_trace = _find_trace(context, name)
    start_ns = loaded_trace.start_ns  # read once, because the property goes through all spans
    document: dict[str, Any] = {
        **loaded_trace.summarize(),
        "tree": [tree_to_json(root, start_ns) for root in loaded_trace.roots],
    }
    if html is not None:
        from workers.cli.result_files import write_result_file  # noqa: PLC0415 - start-up time
        from workers.cli.trace.trace_page import render_trace_page  # noqa: PLC0415

        write_result_file("html", html, [render_trace_page(loaded_trace)])
        print_note(f"wrote {html}")
        document["html"] = str(html)
    return Answer(document=document, draw=partial(draw_trace_tree, loaded_trace))


def _find_trace(context: CommandContext, name: str) -> "LoadedTrace":
    from infra.telemetry.span_reader import SpanReader  # noqa: PLC0415 - start-up time
    from infra.telemetry.span_tree import build_span_trees  # noqa: PLC0415
    from workers.cli.trace.trace_tree import LoadedTrace  # noqa: PLC0415

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
