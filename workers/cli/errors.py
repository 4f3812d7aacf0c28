"""The one place where errors become exit codes, and JSON documents where JSON is asked for."""

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

_TRACE = "sexton_trace_id"  # where an error keeps it on its way to `failure_of`
_FIELDS = "sexton_field_by_spelling"


class ExitCode(IntEnum):
    """The process's answer to its shell."""

    DONE = 0
    FAILED = 1  # every error that is not named in `_BY_CLASS`
    USAGE = 2  # a usage that the parser refuses, or bad input
    REFUSED = 3  # by a guard or a precondition
    UNREACHABLE = 4  # a service that cannot be reached or refuses us
    PARTIAL = 5  # finished in part: outcomes other than success, dead letters
    INTERRUPTED = 130


class Interrupted(SextonError):
    """Ctrl-C, or what a program sends in its place."""

    def __init__(self, left: str = "what was done stays done, and what was started in Temporal goes on") -> None:
        """Say what it means for what was begun."""
        super().__init__(f"interrupted: {left}")


_OUTSIDE = (StoreUnavailable, CatalogBusy, ServiceFailed, LookupRefused, ConnectionError, TimeoutError)
_BY_CLASS: tuple[tuple[type[Exception] | tuple[type[Exception], ...], ExitCode], ...] = (
    (Interrupted, ExitCode.INTERRUPTED),
    (InvalidInput, ExitCode.USAGE),
    (PreconditionFailed, ExitCode.REFUSED),
    (_OUTSIDE, ExitCode.UNREACHABLE),
)

_SUCCESS = frozenset({"DELETED", "ALREADY_GONE"})
_PARTIAL_FAILURES = frozenset({"DEAD_LETTERED", "STILL_IN_USE", "INVALID", "METADATA_MISMATCH"})


@dataclass(frozen=True, slots=True)
class Failure:
    """An error as the command line tells it."""

    code: ExitCode
    type: str  # the error's class name, whichever process raised it
    message: str
    field: str | None = None
    expected: bool = True  # False: a fault of ours, shown with its traceback
    trace_id: str | None = None  # where its spans are

    def document(self) -> dict[str, object]:
        """`{"error": {"type", "message", "field"?, "trace_id"?}}`."""
        told: dict[str, object] = {"type": self.type, "message": self.message}
        more = {"field": self.field, "trace_id": self.trace_id}
        return {"error": told | {name: value for name, value in more.items() if value is not None}}


def error_named(name: str) -> type[SextonError] | None:
    """The class of ours with that name, or None: how an error that crossed Temporal is recognised."""
    return next((found for found in _tree(SextonError) if found.__name__ == name), None)


def _tree(root: type[SextonError]) -> Iterator[type[SextonError]]:
    yield root
    for child in root.__subclasses__():
        yield from _tree(child)


def code_of(kind: type[BaseException]) -> ExitCode:
    """The exit code of an error class."""
    return next((code for base, code in _BY_CLASS if issubclass(kind, base)), ExitCode.FAILED)


def code_of_outcomes(outcomes: Mapping[str, int]) -> ExitCode:
    """`PARTIAL` when any row ended, or still waits, without its copy being gone."""
    left = sum(count for outcome, count in outcomes.items() if outcome not in _SUCCESS)
    return ExitCode.PARTIAL if left else ExitCode.DONE


def failure_of(error: BaseException) -> Failure:
    """Classify any error, wherever it was raised: here, in a workflow or in Temporal's client."""
    remote = None if isinstance(error, SextonError) else _remote(error)  # ours says more than what it came from
    failure = _own(error) if remote is None else remote
    typed = error.__dict__.get(_FIELDS, {}).get(failure.field)
    if typed is not None:
        message = failure.message
        if message.startswith(f"{failure.field}:"):
            message = f"{typed}{message.removeprefix(str(failure.field))}"
        failure = replace(failure, field=typed, message=message)
    return failure if failure.trace_id else replace(failure, trace_id=error.__dict__.get(_TRACE))


def name_fields(error: BaseException, field_by_spelling: Mapping[str, str]) -> None:
    """Let `failure_of` name the error's field as it was typed, however the code that refused it spells it."""
    error.__dict__[_FIELDS] = field_by_spelling


def name_trace(error: BaseException, trace_id: str | None) -> None:
    """Let the error say which trace it was met in, for `failure_of`; one that a job has named comes first there."""
    error.__dict__[_TRACE] = trace_id


def _own(error: BaseException) -> Failure:
    known = isinstance(error, SextonError | OSError)
    field = getattr(error, "field", None) if isinstance(error, InvalidInput) else None
    name = type(error).__name__
    return Failure(code_of(type(error)), name, str(error) or name, field, expected=known)


def _remote(error: BaseException) -> Failure | None:
    if "temporalio" not in sys.modules:  # nothing of Temporal's can have been raised
        return None
    from temporalio.exceptions import ApplicationError  # noqa: PLC0415
    from temporalio.service import RPCError  # noqa: PLC0415

    from workers.client.temporal_faults import service_failure  # noqa: PLC0415
    from workers.hosting.facts import FIELD, TRACE_ID, detail_of  # noqa: PLC0415

    chain = list(_causes(error))
    # another trace than the command's where it joined a job that ran already
    traces = (detail_of(link.details, TRACE_ID) for link in chain if isinstance(link, ApplicationError))
    for link in chain:  # the outermost: a workflow that gave up knows more than the activity that failed last
        if isinstance(link, ApplicationError) and link.type:
            field = detail_of(link.details, FIELD)
            return Failure(
                _code_of_name(link.type), link.type, link.message, field, trace_id=next(filter(None, traces), None)
            )
    for link in chain:
        if isinstance(link, RPCError):
            fault = service_failure(link)
            if fault is not None:
                return Failure(ExitCode.UNREACHABLE, type(fault).__name__, str(fault))
            return Failure(ExitCode.FAILED, "RPCError", f"temporal: {link.message} ({link.status.name})")
    return None


def _code_of_name(name: str) -> ExitCode:
    kind = error_named(name)
    if kind is not None:
        return code_of(kind)
    return ExitCode.PARTIAL if name in _PARTIAL_FAILURES else ExitCode.FAILED


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error and what caused it, outermost first; Temporal's failures chain through `cause`."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = getattr(error, "cause", None) or error.__cause__
