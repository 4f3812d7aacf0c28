"""The root of the command line; `registry` says where its commands are."""

import gc
import os
import sys
from contextlib import suppress
from typing import Annotated, NoReturn

import typer

from workers import VERSION
from workers.cli.command import HomeFlag, JsonFlag, WideFlag, options
from workers.cli.registry import RootGroup

_ABOUT = """Keep a segmented log store clean: durable jobs that finish whatever crashes.

\b
A first session:
  sexton up
  sexton topic create persistent://public/default/orders
  sexton topic append persistent://public/default/orders --file orders.jsonl
  sexton topic trim persistent://public/default/orders --reason "end of day"
  sexton down
"""

app = typer.Typer(
    name="sexton",
    cls=RootGroup,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,  # Rich alone would take as long as all the rest of `--help`
    pretty_exceptions_enable=False,
)


def _version(*, asked: bool) -> None:
    if asked:
        typer.echo(VERSION)
        raise typer.Exit


@app.callback(help=_ABOUT)
def _root(
    ctx: typer.Context,
    *,
    json: JsonFlag = False,
    home: HomeFlag = None,
    wide: WideFlag = False,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    del version  # its callback has answered already
    options(ctx).add(as_json=json, home=home, wide=wide)


_RARELY = 50_000  # objects made between two looks for garbage; as shipped, those take an eighth of all imports


def main() -> None:
    """Run the command line; the process exits with its code."""
    _keep_stdout_for_answers()
    gc.set_threshold(_RARELY)
    try:
        app()
    except SystemExit as end:
        _leave(end.code)


def _keep_stdout_for_answers() -> None:
    """Send to stderr what does not pass `sys.stdout`: Temporal's core writes its log to the descriptor itself."""
    sys.stdout = os.fdopen(os.dup(1), "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors)
    os.dup2(2, 1)


def _leave(code: str | int | None) -> NoReturn:
    """End the process, at once where Temporal's SDK was used.

    Its threads let go of Python objects a moment after they answered. An interpreter that is finalizing by then
    aborts under them ("PyGILState_Release", exit 134), and a command that did its work would look like a crash.
    By now every answer is printed, every file closed, and spans are flushed.
    """
    if "temporalio.bridge" not in sys.modules or not isinstance(code, int | None):
        raise SystemExit(code)
    with suppress(BrokenPipeError):  # whoever read has heard enough
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code or 0)
