"""Conversion of errors of the command line's parser into `InvalidInput`: field, expected, found."""

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from logstore.errors import InvalidInput
from workers.cli.answer_output import flush_and_report_lost_output
from workers.cli.exit_codes import set_field_spellings


class UsageError(InvalidInput):
    """Error of a command line that cannot be parsed. The message refers to the help of the command in `ctx`."""

    def __init__(self, field: str, *, expected: str, found: object, ctx: Any = None) -> None:  # noqa: ANN401
        super().__init__(field, expected=expected, found=found)
        self.ctx = ctx


class _UnquotedWord(str):
    __slots__ = ()
    __repr__ = str.__str__


NOTHING: Final = _UnquotedWord("nothing")
"""Value of `found` in the error of a missing argument."""


class CommandWithUsageErrors(TyperCommand):
    """Command whose help shows no types of flags. Its errors name an option or argument as the user types it."""

    def get_params(self, ctx: Any) -> list[Any]:  # noqa: ANN401 - Typer does not export the class of a context
        return _hide_flag_types(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401
        ctx.allow_extra_args = True
        try:
            extra_args = _parse_flush_and_report_lost_output(partial(super().parse_args, ctx, args))
        except InvalidInput as error:  # raised by the callback of an option
            set_field_spellings(error, get_fields_by_spelling(ctx))
            raise
        if extra_args and not ctx.resilient_parsing:
            arguments = [param.display_name_raw for param in self.get_params(ctx) if _is_argument(param)]
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
                raise UsageError("command", expected=_describe_command_names(ctx), found=NOTHING, ctx=ctx)
            with flush_and_report_lost_output(sys.stdout):
                if text := ctx.get_help():  # empty if Rich has printed it
                    typer.echo(text)
            raise typer.Exit(2)
        return _parse_flush_and_report_lost_output(partial(super().parse_args, ctx, args))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:  # noqa: ANN401
        names = self.list_commands(ctx)
        if args[0] not in names and not args[0].startswith("-") and not ctx.resilient_parsing:
            expected = f"a command of `{ctx.command_path}` (nearest: {_find_nearest(args[0], names)})"
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


def _is_argument(parameter: Any) -> bool:  # noqa: ANN401 - an argument or an option
    return bool(parameter.param_type_name == "argument")


def to_usage_error(error: typer.TyperException) -> UsageError:
    """Convert an error of Typer's parser. Typer exports only the base class, so attributes tell subclasses apart."""
    parameter: Any = getattr(error, "param", None)
    ctx: Any = getattr(error, "ctx", None)
    option = getattr(error, "option_name", None)
    if hasattr(error, "possibilities"):
        nearest = ""
        if str(option).startswith("--"):
            options = [param for param in ctx.command.get_params(ctx) if not _is_argument(param)]
            names = [name for param in options for name in [*param.opts, *param.secondary_opts]]
            nearest = f" (nearest: {_find_nearest(str(option), names)})"
        return UsageError("option", expected=f"one that `{ctx.command_path}` has{nearest}", found=option, ctx=ctx)
    if option is not None:  # a value is missing, or a flag has a value
        if "requires" in error.message:
            return UsageError(option.lstrip("-"), expected="a value", found=NOTHING, ctx=ctx)
        return UsageError(option.lstrip("-"), expected="no value: it is a flag", found=_UnquotedWord("one"), ctx=ctx)
    if parameter is not None:
        found = NOTHING if hasattr(error, "param_type") else _find_refused_value(error)
        return UsageError(
            get_field_name(parameter), expected=_describe_expected_values(parameter), found=found, ctx=ctx
        )
    return UsageError("command", expected=_describe_command_names(ctx), found=NOTHING, ctx=ctx)


def get_field_name(parameter: Any) -> str:  # noqa: ANN401
    """Return the name of an option without dashes, or of an argument in lower case."""
    if _is_argument(parameter):
        return str(parameter.display_name_raw).strip("[].").lower()
    return str(max(parameter.opts, key=len)).lstrip("-")


def get_fields_by_spelling(ctx: Any) -> dict[str, str]:  # noqa: ANN401
    """Return the names of parameters as users type them. The keys are other spellings that errors may contain."""
    fields = [get_field_name(parameter) for parameter in ctx.command.get_params(ctx)]
    return {
        re.sub("[-_]", sign, field): field for field in fields for sign in "-_ " if re.sub("[-_]", sign, field) != field
    }


def _find_nearest(name: str, names: Sequence[str]) -> str:
    return get_close_matches(name, names, n=1, cutoff=0.0)[0]


def _describe_command_names(ctx: Any) -> str:  # noqa: ANN401
    names = ctx.command.list_commands(ctx) if isinstance(ctx.command, TyperGroup) else []
    return f"one of {', '.join(names)}" if names else "a command"


def _describe_expected_values(parameter: Any) -> str:  # noqa: ANN401
    kind = parameter.type_descriptor
    if kind.is_choice:
        return f"one of {', '.join(str(getattr(choice, 'value', choice)) for choice in kind.choices)}"
    if "int" in str(kind.annotation):
        return describe_whole_numbers(kind.parameter_info.min, kind.parameter_info.max)
    if "float" in str(kind.annotation):
        return _describe_number_range("a number", kind.parameter_info.min, kind.parameter_info.max)
    return "true or false" if kind.annotation is bool else "a value"


def describe_whole_numbers(minimum: float | None, maximum: float | None) -> str:
    """Return a phrase for whole numbers within inclusive bounds. `None` means no bound."""
    return _describe_number_range("a whole number", minimum, maximum)


def _describe_number_range(kind: str, minimum: float | None, maximum: float | None) -> str:
    if minimum is not None and maximum is not None:
        return f"{kind} from {minimum:,} to {maximum:,}"
    if minimum is not None:
        return f"{kind}, {minimum:,} or more"
    return kind if maximum is None else f"{kind}, {maximum:,} or less"


def _find_refused_value(error: BaseException) -> object:
    details = (detail for detail in _iterate_validations(error) if "input" in detail)
    return next((detail["input"] for detail in details), error.__class__.__name__)


def _iterate_validations(error: BaseException | None) -> Iterator[Mapping[str, Any]]:
    list_details = getattr(error, "errors", None) or getattr(error.__cause__ if error else None, "errors", None)
    for detail in list_details() if list_details else ():
        yield from _iterate_validations(detail.get("ctx", {}).get("error"))
        yield detail
