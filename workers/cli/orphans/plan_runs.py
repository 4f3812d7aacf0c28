"""Group `orphans`, its argument RUN_ID, and the answer of a started plan or apply."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

import typer

from logstore.errors import InvalidInput, PreconditionFailed
from workers.cli.answer_output import Answer, print_note
from workers.cli.command_registration import create_command_group
from workers.cli.exit_codes import ExitCode

orphans = create_command_group("orphans", "What storage holds and nothing refers to: find it, look at it, remove it.")

_RUN_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")


def check_run_id(run_id: str) -> str:
    if not _RUN_ID.fullmatch(run_id):
        raise InvalidInput("run id", expected="that of a plan, as `orphans list` shows it", found=run_id)
    return run_id


RunId = Annotated[
    str, typer.Argument(metavar="RUN_ID", callback=check_run_id, help="Of a plan, as `orphans list` shows it.")
]


def mark_as_refused(answer: Answer, document: Mapping[str, object], refusal: PreconditionFailed) -> Answer:
    """Return the answer of a dry run, with its document, as that of an apply that would be refused."""
    print_note(f"it would be refused: {refusal}")
    error = {"type": type(refusal).__name__, "message": str(refusal)}
    return replace(answer, document={**document, "error": error}, code=ExitCode.REFUSED)


def answer_started_plan(run: Mapping[str, object]) -> Answer:
    plan_id = str(run["workflow_id"]).partition("/")[2]
    print_note(f"once it has ended: sexton orphans report {plan_id}")
    display = {"plan": plan_id, "workflow": run["workflow_id"], "Temporal's run": run["run_id"]}
    return Answer(document={**run, "plan": plan_id}, display=display)
