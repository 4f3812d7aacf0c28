"""Errors of commands: exit codes, JSON documents, and errors of the parser as field, expected and found."""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from enum import IntEnum
from typing import Any, Final

import typer
from typer.core import TyperGroup

from logstore.errors import (
    CatalogBusy,
    InvalidInput,
    LookupRefused,
    PreconditionFailed,
    ServiceFailed,
    SextonError,
    StoreUnavailable,
)

# Attributes of errors, by which `classify_error` gets data about the command.
_TRACE_ID_ATTRIBUTE = "sexton_trace_id"
_SPELLINGS_ATTRIBUTE = "sexton_field_by_spelling"


class ExitCode(IntEnum):
    DONE = 0
    FAILED = 1  # every error without a code in `_CODE_BY_CLASS`
    USAGE = 2  # invalid usage or invalid input
    REFUSED = 3  # refused by a guard or a precondition
    UNREACHABLE = 4  # a service cannot be reached, or refuses access
    PARTIAL = 5  # finished in part: not every outcome is a success
    INTERRUPTED = 130


class Interrupted(SextonError):
    """Interruption of the command by Ctrl-C or by a signal of another program."""

    def __init__(self, remains: str = "what was done stays done, and what was started in Temporal goes on") -> None:
        super().__init__(f"interrupted: {remains}")


_UNREACHABLE = (StoreUnavailable, CatalogBusy, ServiceFailed, LookupRefused, ConnectionError, TimeoutError)
_CODE_BY_CLASS: tuple[tuple[type[Exception] | tuple[type[Exception], ...], ExitCode], ...] = (
    (Interrupted, ExitCode.INTERRUPTED),
    (InvalidInput, ExitCode.USAGE),
    (PreconditionFailed, ExitCode.REFUSED),
    (_UNREACHABLE, ExitCode.UNREACHABLE),
)
_SUCCESSES = frozenset({"DELETED", "ALREADY_GONE"})
_PARTIAL_FAILURES = frozenset({"DEAD_LETTERED", "STILL_IN_USE", "INVALID", "METADATA_MISMATCH"})


@dataclass(frozen=True, slots=True)
class CommandFailure:
    code: ExitCode
    type: str  # name of the error's class, even if another process raised it
    message: str
    field: str | None = None
    is_expected: bool = True  # False: a bug of this program, printed with its traceback
    trace_id: str | None = None

    def to_document(self) -> dict[str, object]:
        """Return `{"error": {"type", "message", "field"?, "trace_id"?}}`."""
        optional = {"field": self.field, "trace_id": self.trace_id}
        present = {name: value for name, value in optional.items() if value is not None}
        return {"error": {"type": self.type, "message": self.message, **present}}


def find_error_class(name: str) -> type[SextonError] | None:
    """Return the subclass of `SextonError` with this name. Temporal stores only the name of an error's class."""
    return next((kind for kind in _iterate_subclasses(SextonError) if kind.__name__ == name), None)


def _iterate_subclasses(root: type[SextonError]) -> Iterator[type[SextonError]]:
    yield root
    for child in root.__subclasses__():
        yield from _iterate_subclasses(child)


def get_exit_code(kind: type[BaseException]) -> ExitCode:
    return next((code for base, code in _CODE_BY_CLASS if issubclass(kind, base)), ExitCode.FAILED)


def get_exit_code_of_outcomes(outcomes: Mapping[str, int]) -> ExitCode:
    failures = sum(count for outcome, count in outcomes.items() if outcome not in _SUCCESSES)
    return ExitCode.PARTIAL if failures else ExitCode.DONE


def classify_error(error: BaseException) -> CommandFailure:
    """Classify an error that was raised in this process, in a workflow or in Temporal's client."""
    # A `SextonError` has a better message than its cause.
    failure = None if isinstance(error, SextonError) else _classify_temporal_error(error)
    if failure is None:
        name, is_expected = type(error).__name__, isinstance(error, SextonError | OSError)
        field = error.field if isinstance(error, InvalidInput) else None
        failure = CommandFailure(get_exit_code(type(error)), name, str(error) or name, field, is_expected=is_expected)
    spelling = error.__dict__.get(_SPELLINGS_ATTRIBUTE, {}).get(failure.field)
    if spelling is not None:
        message = failure.message
        if message.startswith(f"{failure.field}:"):
            message = f"{spelling}{message.removeprefix(str(failure.field))}"
        failure = replace(failure, field=spelling, message=message)
    return failure if failure.trace_id else replace(failure, trace_id=error.__dict__.get(_TRACE_ID_ATTRIBUTE))


def set_field_spellings(error: BaseException, ctx: Any) -> None:  # noqa: ANN401 - Typer does not export the class
    """Make `classify_error` name the error's field as the user types it, as an option or an argument of the command."""
    fields = [get_field_name(parameter) for parameter in ctx.command.get_params(ctx)]
    spellings = {re.sub("[-_]", sign, field): field for field in fields for sign in "-_ "}
    error.__dict__[_SPELLINGS_ATTRIBUTE] = spellings


def set_trace_id(error: BaseException, trace_id: str | None) -> None:
    """Make `classify_error` name this trace, unless the error names a job's trace."""
    error.__dict__[_TRACE_ID_ATTRIBUTE] = trace_id


def _classify_temporal_error(error: BaseException) -> CommandFailure | None:
    if "temporalio" not in sys.modules:  # without this import, the error is not from Temporal's client
        return None
    from temporalio.exceptions import ApplicationError  # noqa: PLC0415
    from temporalio.service import RPCError  # noqa: PLC0415

    from workers.client.temporal_connection import (  # noqa: PLC0415
        FIELD,
        TRACE_ID,
        explain_server_fault,
        find_detail,
    )

    chain = list(_iterate_causes(error))
    # If the command joined a running job, the job's trace is not the command's.
    trace_ids = (find_detail(link.details, TRACE_ID) for link in chain if isinstance(link, ApplicationError))
    for link in chain:  # outermost first: the workflow's error explains more than its last activity's error
        if isinstance(link, ApplicationError) and link.type:
            kind = find_error_class(link.type)
            code = ExitCode.PARTIAL if link.type in _PARTIAL_FAILURES else ExitCode.FAILED
            return CommandFailure(
                code if kind is None else get_exit_code(kind),
                link.type,
                link.message,
                find_detail(link.details, FIELD),
                trace_id=next(filter(None, trace_ids), None),
            )
    for link in chain:
        if isinstance(link, RPCError):
            fault = explain_server_fault(link)
            if fault is not None:
                return CommandFailure(ExitCode.UNREACHABLE, type(fault).__name__, str(fault))
            return CommandFailure(ExitCode.FAILED, "RPCError", f"temporal: {link.message} ({link.status.name})")
    return None


def _iterate_causes(error: BaseException | None) -> Iterator[BaseException]:
    visited_ids: set[int] = set()
    while error is not None and id(error) not in visited_ids:
        visited_ids.add(id(error))
        yield error
        error = getattr(error, "cause", None) or error.__cause__


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


def is_argument(parameter: Any) -> bool:  # noqa: ANN401 - an argument or an option
    return bool(parameter.param_type_name == "argument")


def to_usage_error(error: typer.TyperException) -> UsageError:
    """Convert an error of Typer's parser. Typer exports only the base class, so attributes tell subclasses apart."""
    parameter: Any = getattr(error, "param", None)
    ctx: Any = getattr(error, "ctx", None)
    option = getattr(error, "option_name", None)
    if hasattr(error, "possibilities"):
        nearest = ""
        if str(option).startswith("--"):
            options = [param for param in ctx.command.get_params(ctx) if not is_argument(param)]
            names = [name for param in options for name in [*param.opts, *param.secondary_opts]]
            nearest = f" (nearest: {find_nearest(str(option), names)})"
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
    return UsageError("command", expected=describe_command_names(ctx), found=NOTHING, ctx=ctx)


def get_field_name(parameter: Any) -> str:  # noqa: ANN401
    """Return the name of an option without dashes, or of an argument in lower case."""
    if is_argument(parameter):
        return str(parameter.display_name_raw).strip("[].").lower()
    return str(max(parameter.opts, key=len)).lstrip("-")


def find_nearest(name: str, names: Sequence[str]) -> str:
    return get_close_matches(name, names, n=1, cutoff=0.0)[0]


def describe_command_names(ctx: Any) -> str:  # noqa: ANN401
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
