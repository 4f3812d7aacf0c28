"""The root of the command line, and the surroundings that its process needs; `registry` says where its commands are."""

import codecs
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
  sexton topic subscribe persistent://public/default/orders billing --from earliest
  echo '{"payload": "two apples"}' | sexton topic append persistent://public/default/orders --file -
  sexton topic roll persistent://public/default/orders
  sexton topic ack persistent://public/default/orders --subscription billing --to 0:0
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
    _make_fit()
    # Temporal's core writes its log to descriptor 1 itself: that goes to stderr, and answers to a copy of it
    sys.stdout = os.fdopen(os.dup(1), "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors)
    os.dup2(2, 1)
    gc.set_threshold(_RARELY)
    try:
        app()
    except SystemExit as ended:
        _end(ended.code if isinstance(ended.code, int) else 0)


def _make_fit() -> None:
    """Open what is closed, and begin again in UTF-8 where the locale is ASCII: names and paths hold any letter."""
    _open_what_is_closed()
    if codecs.lookup(sys.getfilesystemencoding()).name == "ascii" and os.environ.get("PYTHONUTF8") != "1":
        again = [sys.executable, *sys.orig_argv[1:]]
        os.execve(sys.executable, again, {**os.environ, "PYTHONUTF8": "1"})  # noqa: S606 - ourselves
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def _open_what_is_closed() -> None:
    """As read-only: what is written to a stdout that is closed is an error, and not lost without a word."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_WRONLY if number == 2 else os.O_RDONLY)  # takes the lowest number: this one
    sys.stdin = sys.stdin or os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8", closefd=False)


def _end(code: int) -> NoReturn:
    """End the process at once.

    Temporal's threads let go of Python objects a moment after they answered: an interpreter that is finalizing by then
    aborts under them ("PyGILState_Release", exit 134). And what could not be written would be tried, and told, again.
    By now every answer is printed, every file closed, and spans are flushed.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(code)
