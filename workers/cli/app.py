"""The root of the command line; `registry` says where its commands are."""

import gc
import os
import sys
from typing import Annotated

import typer

from workers import VERSION
from workers.cli.command import HomeFlag, JsonFlag, WideFlag, options
from workers.cli.process import end, make_fit
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
    make_fit()
    _keep_stdout_for_answers()
    gc.set_threshold(_RARELY)
    try:
        app()
    except SystemExit as ended:
        end(ended.code if isinstance(ended.code, int) else 0)


def _keep_stdout_for_answers() -> None:
    """Send to stderr what does not pass `sys.stdout`: Temporal's core writes its log to the descriptor itself."""
    sys.stdout = os.fdopen(os.dup(1), "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors)
    os.dup2(2, 1)
