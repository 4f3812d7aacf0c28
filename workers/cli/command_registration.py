"""Registration of functions as commands of Typer. The global options may be anywhere in the command line."""

import inspect
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from logstore.errors import InvalidInput
from workers.cli.command_context import CommandContext, CommandServices
from workers.cli.command_errors import (
    NOTHING,
    ExitCode,
    Interrupted,
    UsageError,
    classify_error,
    describe_command_names,
    find_nearest,
    is_argument,
    set_field_spellings,
    set_trace_id,
    to_usage_error,
)
from workers.cli.job_commands import CommandLineJob, JobOrAnswer
from workers.cli.output import Answer, flush_and_report_lost_output, print_note, print_trace_note, write_answer

Body = TypeVar("Body", bound=Callable[..., JobOrAnswer])

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout, all else on stderr.")]
HomeFlag = Annotated[
    str | None, typer.Option("--home", metavar="DIR", help="Where the stack lives (SEXTON_HOME; default .sexton).")
]
WideFlag = Annotated[bool, typer.Option("--wide", help="Show all of a table, however wide it gets.")]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for the workflow's result.")]

_EXAMPLE_TOPIC = "persistent://public/default/orders"
_EXAMPLE_COLUMNS = 78  # 80 columns less a margin of one column on each side
_SHELL_WORD = re.compile(r"(?:'[^']*'|\"[^\"]*\"|[^\s'\"])+")


@dataclass(slots=True)
class GlobalOptions:
    services: CommandServices = field(default_factory=CommandServices)
    as_json: bool = False
    home: str | None = None
    wide: bool = False

    def add(self, *, as_json: bool, home: str | None, wide: bool) -> None:
        self.as_json = self.as_json or as_json
        self.wide = self.wide or wide
        self.home = home if home is not None else self.home


class CommandWithUsageErrors(TyperCommand):
    """Command whose help shows no types of flags. Its errors name an option or argument as the user types it."""

    def get_params(self, ctx: Any) -> list[Any]:  # noqa: ANN401 - Typer does not export the class of a context
        return _hide_flag_types(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401
        ctx.allow_extra_args = True
        try:
            extra_args = _parse_flush_and_report_lost_output(partial(super().parse_args, ctx, args))
        except InvalidInput as error:  # raised by the callback of an option
            set_field_spellings(error, ctx)
            raise
        if extra_args and not ctx.resilient_parsing:
            arguments = [param.display_name_raw for param in self.get_params(ctx) if is_argument(param)]
            expected = f"no more than {' '.join(arguments) or 'options'}"
            raise UsageError("arguments", expected=expected, found=extra_args[0], ctx=ctx)
        return extra_args


class GroupWithUsageErrors(TyperGroup):
    """Group whose error for an unknown command suggests the nearest name."""

    def get_params(self, ctx: Any) -> list[Any]:  # noqa: ANN401
        return _hide_flag_types(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401
        if not args and not ctx.resilient_parsing:
            if getattr(ctx.find_root().obj, "as_json", False):  # the answer must be JSON, not a help text
                raise UsageError("command", expected=describe_command_names(ctx), found=NOTHING, ctx=ctx)
            with flush_and_report_lost_output(sys.stdout):
                if text := ctx.get_help():  # empty if Rich has printed it
                    typer.echo(text)
            raise typer.Exit(2)
        return _parse_flush_and_report_lost_output(partial(super().parse_args, ctx, args))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:  # noqa: ANN401
        names = self.list_commands(ctx)
        if args[0] not in names and not args[0].startswith("-") and not ctx.resilient_parsing:
            expected = f"a command of `{ctx.command_path}` (nearest: {find_nearest(args[0], names)})"
            raise UsageError("command", expected=expected, found=args[0], ctx=ctx)
        return super().resolve_command(ctx, args)


def _parse_flush_and_report_lost_output(parse: Callable[[], list[str]]) -> list[str]:
    with flush_and_report_lost_output(sys.stdout):
        return parse()
    raise typer.Exit  # the reader has closed the pipe


def _hide_flag_types(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        if getattr(parameter, "is_bool_flag", False) and parameter.metavar is None:
            parameter.metavar = ""
    return parameters


class ErrorReportingGroup(GroupWithUsageErrors):
    """Group that turns every error into an exit code and, with `--json`, also into a JSON document."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        del standalone_mode  # this class replaces Typer's error reports
        words = list(sys.argv[1:] if args is None else args)
        try:
            if args is None:
                _check_encoding(words)
            code = super().main(words, prog_name, complete_var, False, windows_expand_args, **extra)
            # The parser returns a plain number. A command returns an `ExitCode`.
            if code == ExitCode.INTERRUPTED and not isinstance(code, ExitCode):
                code = _report_error(Interrupted(), words)
        except Exception as error:  # noqa: BLE001 - every error becomes an exit code here
            code = _report_error(error, words)
        sys.exit(int(code) if isinstance(code, int) else 0)


def _check_encoding(words: Sequence[str]) -> None:
    for word in words:
        if any("\ud800" <= char <= "\udfff" for char in word):
            raise UsageError("arguments", expected="text in the encoding of the locale", found=word)


def _report_error(error: Exception, words: Sequence[str]) -> ExitCode:
    if isinstance(error, typer.TyperException):
        error = to_usage_error(error)
    failure = classify_error(error)
    if not failure.is_expected:
        sys.stderr.write("".join(traceback.format_exception(error)))
    # The parser may have failed before it read the flag.
    if "--json" in (words[: words.index("--")] if "--" in words else words):
        write_answer(Answer(document=failure.to_document()), as_json=True, stdout=sys.stdout)
    print_note(failure.message, heading="error: ")
    # A command line that cannot be parsed has no spans.
    print_trace_note(None if failure.code is ExitCode.USAGE else failure.trace_id)
    if failure.code is ExitCode.UNREACHABLE:
        sys.stderr.write("Try 'sexton status': it asks every service.\n")
    if isinstance(error, UsageError) and error.ctx is not None:
        sys.stderr.write(f"Try '{error.ctx.command_path} --help'.\n")
    return failure.code


class CommandGroup(typer.Typer):
    path = ""
    order: Sequence[str] = ()


def create_command_group(name: str, *, path: str | None = None, about: str = "", order: str = "") -> CommandGroup:
    """Return an empty group of commands. `path` is the text before a command's name in the help, by default `name`.

    The table of the root has the help of its groups; `about` is that of a group in a group. `order` has the names
    of all commands as the help lists them. By default, they are in the order of registration.
    """
    commands = CommandGroup(
        name=name,
        cls=GroupWithUsageErrors,
        help=about,
        no_args_is_help=True,
        add_completion=False,  # only the root has completion
        rich_markup_mode="rich",
        callback=_add_global_options,
    )
    commands.path = name if path is None else path
    commands.order = order.split()
    return commands


def _add_global_options(
    ctx: typer.Context, *, json: JsonFlag = False, home: HomeFlag = None, wide: WideFlag = False
) -> None:
    get_global_options(ctx).add(as_json=json, home=home, wide=wide)


def get_global_options(ctx: typer.Context) -> GlobalOptions:
    """Return the global options of the command line. Tests pass `CommandServices` as the root context's object."""
    root = ctx.find_root()
    if not isinstance(root.obj, GlobalOptions):
        root.obj = GlobalOptions(root.obj) if isinstance(root.obj, CommandServices) else GlobalOptions()
    ctx.obj = root.obj
    return root.obj


def command(app: CommandGroup, name: str, *examples: str) -> Callable[[Body], Body]:
    """Register a command. Its function takes a `CommandContext` first, and the docstring is the help text.

    If the function is annotated to return `JobOrAnswer`, the command gets the option `--wait/--no-wait`.
    An example is the text after the command's name, or a whole line with `sexton`. TOPIC becomes a topic's name.
    """

    def register(body: Body) -> Body:
        typed = " ".join(filter(None, ("sexton", app.path, name)))
        lines = [example if "sexton " in example else f"{typed} {example}".rstrip() for example in examples]
        app.command(name, cls=CommandWithUsageErrors, help=_format_help(body, lines))(_make_typer_function(body))
        if app.order:
            app.registered_commands.sort(key=lambda registered: app.order.index(str(registered.name)))
        return body

    return register


def _make_typer_function(body: Callable[..., JobOrAnswer]) -> Callable[..., None]:
    signature = inspect.signature(body)

    def run(ctx: typer.Context, *, json: bool, home: str | None, wide: bool, **arguments: object) -> None:
        options = get_global_options(ctx)
        options.add(as_json=json, home=home, wide=wide)
        name = f"sexton{_format_command_path(ctx)}"  # always `sexton`, even if the program has another name
        context = CommandContext(options.services, command=name, flags={"home": options.home}, wide=options.wide)
        stdout = sys.stdout  # only for the answer; all other output goes to stderr
        with redirect_stdout(sys.stderr):
            try:
                answer = body(context, **{key: arguments[key] for key in arguments if key in signature.parameters})
                if isinstance(answer, CommandLineJob):
                    answer = answer.run(context, wait=bool(arguments["wait"]))
                trace_id = context.record_command_result(answer.code, arguments)
            except KeyboardInterrupt as interrupt:
                context.record_command_result(ExitCode.INTERRUPTED, arguments)
                raise Interrupted(*interrupt.args) from None  # the message of the command may say what remains
            except Exception as error:
                set_field_spellings(error, ctx)
                failure = classify_error(error)
                set_trace_id(error, context.record_command_result(failure.code, arguments, failure))
                raise
            finally:
                context.close()
        write_answer(answer.with_trace_id(trace_id), stdout=stdout, as_json=options.as_json, wide=options.wide)
        if answer.code:
            print_trace_note(trace_id)
            raise typer.Exit(answer.code)

    # Typer sees its own context, the body's parameters without the first, and the options of all commands.
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter("ctx", kind, annotation=typer.Context),
        *(parameter.replace(kind=kind) for parameter in list(signature.parameters.values())[1:]),
        *(
            [inspect.Parameter("wait", kind, default=True, annotation=Wait)]
            if signature.return_annotation == JobOrAnswer
            else []
        ),
        inspect.Parameter("json", kind, default=False, annotation=JsonFlag),
        inspect.Parameter("home", kind, default=None, annotation=HomeFlag),
        inspect.Parameter("wide", kind, default=False, annotation=WideFlag),
    ]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {}
    return run


def _format_command_path(ctx: Any) -> str:  # noqa: ANN401 - Typer does not export the class of a parent
    return "" if ctx.parent is None else f"{_format_command_path(ctx.parent)} {ctx.info_name}"


def _format_help(body: Callable[..., JobOrAnswer], examples: Sequence[str]) -> str:
    text = re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.cleandoc(body.__doc__ or ""))  # the help wraps the text
    folded = "\n".join(_fold_example(line.replace("TOPIC", _EXAMPLE_TOPIC)) for line in examples)
    return f"{text}\n\nExamples:\n{folded}" if examples else text


def _fold_example(line: str) -> str:
    words = _SHELL_WORD.findall(line)
    lines = [f"  {words[0]}"]
    for word in words[1:]:
        if len(f"{lines[-1]} {word}") > _EXAMPLE_COLUMNS - len(" \\"):
            lines[-1] += " \\"
            lines.append(f"    {word}")
        else:
            lines[-1] += f" {word}"
    return "\n".join(lines)
