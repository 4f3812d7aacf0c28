"""`replay`: a job's history against the workflows of this build, at full speed or in Python's debugger."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logstore.errors import InvalidInput
from workers.cli.command import command, group
from workers.cli.context import CommandContext
from workers.cli.errors import ExitCode
from workers.cli.output import Answer, note

if TYPE_CHECKING:
    from temporalio.client import WorkflowHistory

replays = group("replays", "Replays.")

_MOST_BYTES = 256 * 1024 * 1024  # Temporal ends a run at 50 MB, which are less than that as JSON

Id = Annotated[str, typer.Argument(metavar="WORKFLOW_ID", help="The job, as `sexton workflow list` shows it.")]
Run = Annotated[str | None, typer.Option("--run-id", metavar="ID", help="An earlier run of it; the newest by default.")]
From = Annotated[
    Path | None,
    typer.Option("--history", metavar="FILE", help="Its history as JSON, of the Web UI or `temporal workflow show`."),
]
Debug = Annotated[bool, typer.Option("--debug", help="Stop in Python's debugger at the first line of the workflow.")]


@command(
    replays,
    "replay",
    examples=[
        "sexton replay trim-topic/7",
        "sexton replay trim-topic/7 --history trim-topic.json",
        "sexton replay trim-topic/7 --debug",
    ],
)
def replay(
    context: CommandContext, workflow_id: Id, *, history: From = None, run_id: Run = None, debug: Debug = False
) -> Answer:
    """Replay a job's history against the workflows of this build: do they go the way that is recorded?

    Nothing is done again: the answers of activities are those in the history. A job that a new build would not go on
    with says so here, with the event where the ways part. Without `--history` it is read from Temporal.
    """
    if history is not None and run_id is not None:
        raise InvalidInput("run_id", expected="none with --history, because a file is of one run", found=run_id)
    found = _history(context, workflow_id, history, run_id)
    if debug:
        note("h lists the debugger's commands; b FILE:LINE stops elsewhere too, c goes on")
    done = context.services.replay(found, debug=debug, settings=context.settings)
    failed = "nondeterminism" if done.nondeterministic else "failure"
    told: dict[str, Any] = {
        "replayed": done.failure is None,
        "workflow_id": workflow_id,
        "run_id": done.run_id,
        "type": done.type,
        "events": done.events,
        **({} if done.failure is None else {failed: done.failure}),
    }
    return Answer(document=told, code=ExitCode.DONE if done.failure is None else ExitCode.FAILED)


def _history(context: CommandContext, workflow_id: str, file: Path | None, run_id: str | None) -> "WorkflowHistory":
    if file is None:
        return context.with_client(lambda client: client.history_of(workflow_id, run_id))
    from temporalio.client import WorkflowHistory  # noqa: PLC0415 - start-up time

    try:
        if file.stat().st_size > _MOST_BYTES:
            raise InvalidInput("history", expected=f"a file of at most {_MOST_BYTES:,} bytes", found=file)
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput("history", expected=f"a file that can be read ({error})", found=file) from error
    try:
        found = WorkflowHistory.from_json(workflow_id, text)
    except Exception as error:  # the SDK raises what its parsers raise, of many kinds
        expected = "a history as JSON, of the Web UI or of `temporal workflow show --output json`"
        raise InvalidInput("history", expected=expected, found=f"{file} ({type(error).__name__})") from error
    for event in found.events[:1]:
        recorded = event.workflow_execution_started_event_attributes.workflow_id
        if recorded not in {"", workflow_id}:  # what old servers wrote does not say
            raise InvalidInput("history", expected=f"one of {workflow_id}", found=f"{file} of {recorded}")
    return found
