"""How a function becomes a command: `--json`, `--wide` and `--home` in any place, one answer, one exit code."""

import inspect
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

import typer

from workers.cli.context import CommandContext, Services
from workers.cli.errors import ExitCode, Interrupted, failure_of, name_fields, name_trace
from workers.cli.output import Answer, emit, note, trace_line
from workers.cli.usage import PlainCommand, PlainGroup, UsageError, field_by_spelling, refusal

Body = TypeVar("Body", bound=Callable[..., Answer])

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout, all else on stderr.")]
HomeFlag = Annotated[
    str | None, typer.Option("--home", metavar="DIR", help="Where the stack lives (SEXTON_HOME; default .sexton).")
]
WideFlag = Annotated[bool, typer.Option("--wide", help="Show all of a table, however wide it gets.")]

_ORDERS = "persistent://public/default/orders"
_EXAMPLE_COLUMNS = 78  # of a terminal's 80 the help leaves the first and the last one free
_SHELL_WORD = re.compile(r"(?:'[^']*'|\"[^\"]*\"|[^\s'\"])+")


@dataclass(slots=True)
class GlobalOptions:
    """Options before the command's own name; any level may add to them."""

    services: Services = field(default_factory=Services)
    as_json: bool = False
    home: str | None = None
    wide: bool = False

    def add(self, *, as_json: bool, home: str | None, wide: bool) -> None:
        """Take what another level says; the innermost `--home` wins."""
        self.as_json = self.as_json or as_json
        self.wide = self.wide or wide
        self.home = home if home is not None else self.home


class CommandGroup(PlainGroup):
    """The root command: every error leaves through here, with its exit code and, if asked for, as JSON."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        """Run, report, exit; `standalone_mode` is ignored, since Typer's own reporting is replaced."""
        del standalone_mode
        given = list(sys.argv[1:] if args is None else args)
        try:
            if args is None:
                _check_readable(given)
            code = super().main(given, prog_name, complete_var, False, windows_expand_args, **extra)
            if code == ExitCode.INTERRUPTED and not isinstance(code, ExitCode):  # the parser's, not a command's answer
                code = _report(Interrupted(), as_json=_asks_for_json(given))
        except Exception as error:  # noqa: BLE001 - the edge: every error becomes an exit code here
            code = _report(error, as_json=_asks_for_json(given))
        sys.exit(int(code) if isinstance(code, int) else 0)


def _check_readable(args: Sequence[str]) -> None:
    for one in args:
        if any("\ud800" <= char <= "\udfff" for char in one):
            raise UsageError("arguments", expected="text in the encoding of the locale", found=one)


def _asks_for_json(args: Sequence[str]) -> bool:
    """Whether `--json` was given anywhere; the parser may have failed before it came that far."""
    return "--json" in (args[: args.index("--")] if "--" in args else args)


def _report(error: Exception, *, as_json: bool) -> ExitCode:
    if isinstance(error, typer.TyperException):
        error = refusal(error)
    failure = failure_of(error)
    if not failure.expected:
        sys.stderr.write("".join(traceback.format_exception(error)))
    if as_json:
        emit(Answer(document=failure.document()), as_json=True, stdout=sys.stdout)
    note(failure.message, heading="error: ")
    trace_line(None if failure.code is ExitCode.USAGE else failure.trace_id)  # spans say nothing of bad usage
    if failure.code is ExitCode.UNREACHABLE:
        sys.stderr.write("Try 'sexton status': it asks every service.\n")
    if isinstance(error, UsageError) and error.ctx is not None:
        sys.stderr.write(f"Try '{error.ctx.command_path} --help'.\n")
    return failure.code


class Group(typer.Typer):
    """A group of commands."""

    path = ""  # what stands before their names


def group(name: str, about: str, *, path: str | None = None) -> Group:
    """An empty group of commands; `path` is what stands before their names, by default the group's name."""
    made = Group(
        name=name,
        cls=PlainGroup,
        help=about,
        no_args_is_help=True,
        add_completion=False,  # the root has it
        rich_markup_mode="rich",
        callback=_take_options,
    )
    made.path = name if path is None else path
    return made


def _take_options(ctx: typer.Context, *, json: JsonFlag = False, home: HomeFlag = None, wide: WideFlag = False) -> None:
    options(ctx).add(as_json=json, home=home, wide=wide)


def options(ctx: typer.Context) -> GlobalOptions:
    """The options of this run; the root context's object may be the `Services` to use."""
    root = ctx.find_root()
    if not isinstance(root.obj, GlobalOptions):
        root.obj = GlobalOptions(root.obj) if isinstance(root.obj, Services) else GlobalOptions()
    ctx.obj = root.obj
    return root.obj


def command(app: Group, name: str, *examples: str) -> Callable[[Body], Body]:
    """Register a function of a `CommandContext` as the command of that name; its docstring is the help text.

    Args:
        app: The group it belongs to.
        name: As it is typed.
        examples: For the help text: what follows the command's name, or whole lines. TOPIC stands for a topic's name.
    """

    def register(body: Body) -> Body:
        typed = " ".join(filter(None, ("sexton", app.path, name)))
        lines = [one if "sexton " in one else f"{typed} {one}".rstrip() for one in examples]
        app.command(name, cls=PlainCommand, help=_help(body, lines))(_runner(body))
        return body

    return register


def _runner(body: Callable[..., Answer]) -> Callable[..., None]:
    def run(ctx: typer.Context, *, json: bool, home: str | None, wide: bool, **arguments: object) -> None:
        given = options(ctx)
        given.add(as_json=json, home=home, wide=wide)
        form = {"as_json": given.as_json, "wide": given.wide}
        name = f"sexton{_path(ctx)}"  # as the contract has it, whatever the program was called
        context = CommandContext(given.services, command=name, flags={"home": given.home}, **form)
        stdout = sys.stdout  # kept for the answer: all other output goes to stderr
        with redirect_stdout(sys.stderr):
            try:
                answer = body(context, **arguments)
                trace_id = context.ended(answer.code, arguments)
            except KeyboardInterrupt as stopped:
                context.ended(ExitCode.INTERRUPTED, arguments)
                raise Interrupted(*stopped.args) from None  # a body may know better what is left
            except Exception as error:
                name_fields(error, field_by_spelling(ctx))
                failure = failure_of(error)
                name_trace(error, context.ended(failure.code, arguments, failure))
                raise
            finally:
                context.close()
        emit(answer.naming(trace_id), stdout=stdout, **form)
        if answer.code:
            trace_line(trace_id)
            raise typer.Exit(answer.code)

    run.__signature__ = _signature(body)  # type: ignore[attr-defined]
    run.__annotations__ = {}
    return run


def _path(ctx: Any) -> str:  # noqa: ANN401 - Typer does not export the class of a parent
    return "" if ctx.parent is None else f"{_path(ctx.parent)} {ctx.info_name}"


def _signature(body: Callable[..., Answer]) -> inspect.Signature:
    """The body's parameters with the first one replaced by Typer's context, and the global options added."""
    kind = inspect.Parameter.KEYWORD_ONLY
    own = [one.replace(kind=kind) for one in list(inspect.signature(body).parameters.values())[1:]]
    ctx = inspect.Parameter("ctx", kind, annotation=typer.Context)
    json = inspect.Parameter("json", kind, default=False, annotation=JsonFlag)
    home = inspect.Parameter("home", kind, default=None, annotation=HomeFlag)
    wide = inspect.Parameter("wide", kind, default=False, annotation=WideFlag)
    return inspect.Signature([ctx, *own, json, home, wide])


def _help(body: Callable[..., Answer], examples: Sequence[str]) -> str:
    text = re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.cleandoc(body.__doc__ or ""))  # the terminal breaks the lines
    shown = "\n".join(_fold_example(line.replace("TOPIC", _ORDERS)) for line in examples)
    return f"{text}\n\nExamples:\n{shown}" if examples else text


def _fold_example(line: str) -> str:
    """Return the example indented, and broken with backslashes so that a terminal of 80 columns does not break it."""
    words = _SHELL_WORD.findall(line)
    lines = [f"  {words[0]}"]
    for word in words[1:]:
        if len(f"{lines[-1]} {word}") > _EXAMPLE_COLUMNS - len(" \\"):
            lines[-1] += " \\"
            lines.append(f"    {word}")
        else:
            lines[-1] += f" {word}"
    return "\n".join(lines)
