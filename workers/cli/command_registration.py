"""Registration of functions as commands. The global options may be anywhere in the command line."""

import inspect
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

import typer

from workers.cli.answer_output import Answer, print_note, print_trace_note, write_answer
from workers.cli.command_context import CommandContext, CommandServices
from workers.cli.exit_codes import ExitCode, Interrupted, classify_error, set_field_spellings, set_trace_id
from workers.cli.usage_errors import (
    CommandWithUsageErrors,
    GroupWithUsageErrors,
    UsageError,
    get_fields_by_spelling,
    to_usage_error,
)

Body = TypeVar("Body", bound=Callable[..., Answer])

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout, all else on stderr.")]
HomeFlag = Annotated[
    str | None, typer.Option("--home", metavar="DIR", help="Where the stack lives (SEXTON_HOME; default .sexton).")
]
WideFlag = Annotated[bool, typer.Option("--wide", help="Show all of a table, however wide it gets.")]

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


def create_command_group(name: str, about: str, *, path: str | None = None) -> CommandGroup:
    """Return an empty group of commands. `path` is the text before a command's name in the help, by default `name`."""
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

    An example is the text after the command's name, or a whole line with `sexton`. TOPIC becomes a topic's name.
    """

    def register(body: Body) -> Body:
        typed = " ".join(filter(None, ("sexton", app.path, name)))
        lines = [example if "sexton " in example else f"{typed} {example}".rstrip() for example in examples]
        app.command(name, cls=CommandWithUsageErrors, help=_format_help(body, lines))(_make_typer_function(body))
        return body

    return register


def _make_typer_function(body: Callable[..., Answer]) -> Callable[..., None]:
    def run(ctx: typer.Context, *, json: bool, home: str | None, wide: bool, **arguments: object) -> None:
        options = get_global_options(ctx)
        options.add(as_json=json, home=home, wide=wide)
        output_options = {"as_json": options.as_json, "wide": options.wide}
        name = f"sexton{_format_command_path(ctx)}"  # always `sexton`, even if the program has another name
        context = CommandContext(options.services, command=name, flags={"home": options.home}, **output_options)
        stdout = sys.stdout  # only for the answer; all other output goes to stderr
        with redirect_stdout(sys.stderr):
            try:
                answer = body(context, **arguments)
                trace_id = context.record_command_result(answer.code, arguments)
            except KeyboardInterrupt as interrupt:
                context.record_command_result(ExitCode.INTERRUPTED, arguments)
                raise Interrupted(*interrupt.args) from None  # the message of the command may say what remains
            except Exception as error:
                set_field_spellings(error, get_fields_by_spelling(ctx))
                failure = classify_error(error)
                set_trace_id(error, context.record_command_result(failure.code, arguments, failure))
                raise
            finally:
                context.close()
        write_answer(answer.with_trace_id(trace_id), stdout=stdout, **output_options)
        if answer.code:
            print_trace_note(trace_id)
            raise typer.Exit(answer.code)

    # Typer sees its own context, the body's parameters without the first, and the global options.
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter("ctx", kind, annotation=typer.Context),
        *(parameter.replace(kind=kind) for parameter in list(inspect.signature(body).parameters.values())[1:]),
        inspect.Parameter("json", kind, default=False, annotation=JsonFlag),
        inspect.Parameter("home", kind, default=None, annotation=HomeFlag),
        inspect.Parameter("wide", kind, default=False, annotation=WideFlag),
    ]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {}
    return run


def _format_command_path(ctx: Any) -> str:  # noqa: ANN401 - Typer does not export the class of a parent
    return "" if ctx.parent is None else f"{_format_command_path(ctx.parent)} {ctx.info_name}"


def _format_help(body: Callable[..., Answer], examples: Sequence[str]) -> str:
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
