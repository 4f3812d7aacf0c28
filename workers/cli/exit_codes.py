"""Exit codes and JSON documents of errors."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum

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
    failure = (None if isinstance(error, SextonError) else _classify_temporal_error(error)) or _classify_local_error(
        error
    )
    spelling = error.__dict__.get(_SPELLINGS_ATTRIBUTE, {}).get(failure.field)
    if spelling is not None:
        message = failure.message
        if message.startswith(f"{failure.field}:"):
            message = f"{spelling}{message.removeprefix(str(failure.field))}"
        failure = replace(failure, field=spelling, message=message)
    return failure if failure.trace_id else replace(failure, trace_id=error.__dict__.get(_TRACE_ID_ATTRIBUTE))


def set_field_spellings(error: BaseException, field_by_spelling: Mapping[str, str]) -> None:
    """Make `classify_error` name the error's field as the user types it, as an option or an argument."""
    error.__dict__[_SPELLINGS_ATTRIBUTE] = field_by_spelling


def set_trace_id(error: BaseException, trace_id: str | None) -> None:
    """Make `classify_error` name this trace, unless the error names a job's trace."""
    error.__dict__[_TRACE_ID_ATTRIBUTE] = trace_id


def _classify_local_error(error: BaseException) -> CommandFailure:
    is_expected = isinstance(error, SextonError | OSError)
    field = getattr(error, "field", None) if isinstance(error, InvalidInput) else None
    name = type(error).__name__
    return CommandFailure(get_exit_code(type(error)), name, str(error) or name, field, is_expected=is_expected)


def _classify_temporal_error(error: BaseException) -> CommandFailure | None:
    if "temporalio" not in sys.modules:  # without this import, the error is not from Temporal's client
        return None
    from temporalio.exceptions import ApplicationError  # noqa: PLC0415
    from temporalio.service import RPCError  # noqa: PLC0415

    from workers.client.temporal_faults import (  # noqa: PLC0415
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
