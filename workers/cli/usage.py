"""Refusals of the parser of the command line, in the form of all other bad input: field, expected, found."""

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Any, Final, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from logstore.errors import InvalidInput
from workers.cli.errors import name_fields
from workers.cli.output import writing


class UsageError(InvalidInput):
    """A command line that cannot be read; `ctx` is that of the command whose help tells more."""

    def __init__(self, field: str, *, expected: str, found: object, ctx: Any = None) -> None:  # noqa: ANN401
        """Say it like any other bad input."""
        super().__init__(field, expected=expected, found=found)
        self.ctx = ctx


class _Bare(str):
    """A word that is shown without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


NOTHING: Final = _Bare("nothing")
"""Stands for a value that is missing."""


class PlainCommand(TyperCommand):
    """A command whose help names no type of a flag, and whose refusals have the common form."""

    def get_params(self, ctx: Any) -> list[Any]:  # noqa: ANN401 - Typer does not export the class of a context
        """Parameters; a flag takes no value and therefore has no type to show."""
        return [_untyped(one) for one in super().get_params(ctx)]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401
        """Read the arguments; arguments that are left over are refused here."""
        ctx.allow_extra_args = True
        try:
            left = _heard(partial(super().parse_args, ctx, args))
        except InvalidInput as error:  # a callback's
            name_fields(error, field_by_spelling(ctx))
            raise
        if left and not ctx.resilient_parsing:
            raise UsageError("arguments", expected=f"no more than {_takes(self, ctx)}", found=left[0], ctx=ctx)
        return left


class PlainGroup(TyperGroup):
    """A group of such commands, which names the nearest command to one that does not exist."""

    def get_params(self, ctx: Any) -> list[Any]:  # noqa: ANN401
        """See `PlainCommand`."""
        return [_untyped(one) for one in super().get_params(ctx)]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401
        """Read what stands before the command's name; without one, the help is shown, but not in the place of JSON."""
        if not args and not ctx.resilient_parsing:
            if getattr(ctx.find_root().obj, "as_json", False):
                raise UsageError("command", expected=_one_of(ctx), found=NOTHING, ctx=ctx)
            _show_help(ctx)
        return _heard(partial(super().parse_args, ctx, args))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:  # noqa: ANN401
        """The command of that name."""
        known = self.list_commands(ctx)
        if args[0] not in known and not args[0].startswith("-") and not ctx.resilient_parsing:
            expected = f"a command of `{ctx.command_path}` (nearest: {_nearest(args[0], known)})"
            raise UsageError("command", expected=expected, found=args[0], ctx=ctx)
        return super().resolve_command(ctx, args)


def _show_help(ctx: Any) -> NoReturn:  # noqa: ANN401
    with writing(sys.stdout):
        if text := ctx.get_help():  # Rich has printed it, and leaves nothing to print
            typer.echo(text)
    raise typer.Exit(2)


def _heard(parse: Callable[[], list[str]]) -> list[str]:
    """Parse, which may print a help or a version in the place of an answer.

    Raises:
        AnswerLost: That cannot be written.
    """
    with writing(sys.stdout):
        return parse()
    raise typer.Exit  # its reader has heard enough


def _untyped(parameter: Any) -> Any:  # noqa: ANN401 - an argument or an option
    if getattr(parameter, "is_bool_flag", False) and parameter.metavar is None:
        parameter.metavar = ""
    return parameter


def _takes(command: Any, ctx: Any) -> str:  # noqa: ANN401
    names = [one.display_name_raw for one in command.get_params(ctx) if one.param_type_name == "argument"]
    return " ".join(names) or "options"


def refusal(error: typer.TyperException) -> UsageError:
    """The parser's error as ours; Typer exports only the root of these errors, so their attributes tell them apart."""
    parameter: Any = getattr(error, "param", None)
    ctx: Any = getattr(error, "ctx", None)
    option = getattr(error, "option_name", None)
    if hasattr(error, "possibilities"):
        near = f" (nearest: {_nearest(str(option), _options(ctx))})" if str(option).startswith("--") else ""
        return UsageError("option", expected=f"one that `{ctx.command_path}` has{near}", found=option, ctx=ctx)
    if option is not None:  # a value that is missing, or one too many
        takes = "requires" in error.message
        return UsageError(
            option.lstrip("-"),
            expected="a value" if takes else "no value: it is a flag",
            found=NOTHING if takes else _Bare("one"),
            ctx=ctx,
        )
    if parameter is not None:
        found = NOTHING if hasattr(error, "param_type") else _refused_value(error)
        return UsageError(field_of(parameter), expected=_rule(parameter), found=found, ctx=ctx)
    return UsageError("command", expected=_one_of(ctx), found=NOTHING, ctx=ctx)


def field_of(parameter: Any) -> str:  # noqa: ANN401
    """The parameter as typed: an option without its leading dashes, an argument as the help shows it, in lower case."""
    if parameter.param_type_name == "argument":
        return str(parameter.display_name_raw).strip("[].").lower()
    return str(max(parameter.opts, key=len)).lstrip("-")


def field_by_spelling(ctx: Any) -> dict[str, str]:  # noqa: ANN401
    """The command's parameters as typed, by each other spelling that an error raised elsewhere may have for them."""
    typed = [field_of(parameter) for parameter in ctx.command.get_params(ctx)]
    return {
        re.sub("[-_]", sign, field): field for field in typed for sign in "-_ " if re.sub("[-_]", sign, field) != field
    }


def _options(ctx: Any) -> list[str]:  # noqa: ANN401
    params: Sequence[Any] = ctx.command.get_params(ctx)
    return [name for one in params if one.param_type_name == "option" for name in [*one.opts, *one.secondary_opts]]


def _nearest(name: str, known: Sequence[str]) -> str:
    return get_close_matches(name, known, n=1, cutoff=0.0)[0]


def _one_of(ctx: Any) -> str:  # noqa: ANN401
    names = ctx.command.list_commands(ctx) if isinstance(ctx.command, TyperGroup) else []
    return f"one of {', '.join(names)}" if names else "a command"


def _rule(parameter: Any) -> str:  # noqa: ANN401
    """The values that the parameter takes, as a phrase."""
    kind = parameter.type_descriptor
    if kind.is_choice:
        return f"one of {', '.join(str(getattr(one, 'value', one)) for one in kind.choices)}"
    if "int" in str(kind.annotation):
        return whole_number(kind.parameter_info.min, kind.parameter_info.max)
    if "float" in str(kind.annotation):
        return bounded("a number", kind.parameter_info.min, kind.parameter_info.max)
    return "true or false" if kind.annotation is bool else "a value"


def whole_number(least: float | None, most: float | None) -> str:
    """A rule for whole numbers, with bounds where there are any."""
    return bounded("a whole number", least, most)


def bounded(kind: str, least: float | None, most: float | None) -> str:
    """A rule for such numbers, with bounds where there are any."""
    if least is not None and most is not None:
        return f"{kind} from {least:,} to {most:,}"
    if least is not None:
        return f"{kind}, {least:,} or more"
    return kind if most is None else f"{kind}, {most:,} or less"


def _refused_value(error: BaseException) -> object:
    """The value that pydantic refused, the first one of a list."""
    for told in _validations(error):
        if "input" in told:
            return told["input"]
    return error.__class__.__name__


def _validations(error: BaseException | None) -> Iterator[Mapping[str, Any]]:
    """Pydantic's errors, innermost first."""
    ask = getattr(error, "errors", None) or getattr(error.__cause__ if error else None, "errors", None)
    for told in ask() if ask else ():
        yield from _validations(told.get("ctx", {}).get("error"))
        yield told
