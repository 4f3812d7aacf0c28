"""The one place where errors become exit codes, and JSON documents for those who asked for JSON.

| code | meaning | errors |
|---|---|---|
| 0 | done | |
| 1 | failed | everything not named below |
| 2 | usage or bad input | `InvalidInput` and what the parser refuses |
| 3 | refused by a guard or precondition | `PreconditionFailed` |
| 4 | a service cannot be reached or refuses us | `StoreUnavailable`, `CatalogBusy`, `ServiceFailed`, `LookupRefused` |
| 5 | finished in part | outcomes other than success, dead letters |
| 130 | interrupted | `Interrupted` |
"""

import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
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


class ExitCode(IntEnum):
    """What the process answers to its shell."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    REFUSED = 3
    UNREACHABLE = 4
    PARTIAL = 5
    INTERRUPTED = 130


class Interrupted(SextonError):
    """Ctrl-C, or what a program sends in its place."""

    def __init__(self, left: str = "what was done stays done, and what was started in Temporal goes on") -> None:
        """Say what it means for what was begun."""
        super().__init__(f"interrupted: {left}")


_BY_CLASS: tuple[tuple[type[Exception], ExitCode], ...] = (
    (Interrupted, ExitCode.INTERRUPTED),
    (InvalidInput, ExitCode.USAGE),
    (PreconditionFailed, ExitCode.REFUSED),
    (StoreUnavailable, ExitCode.UNREACHABLE),
    (CatalogBusy, ExitCode.UNREACHABLE),
    (ServiceFailed, ExitCode.UNREACHABLE),
    (LookupRefused, ExitCode.UNREACHABLE),
    (ConnectionError, ExitCode.UNREACHABLE),
    (TimeoutError, ExitCode.UNREACHABLE),
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
    return failure if failure.trace_id else replace(failure, trace_id=error.__dict__.get(_TRACE))


def name_trace(error: BaseException, trace_id: str | None) -> None:
    """Let the error say which trace it was met in, for `failure_of`; one that a job has named comes first there."""
    error.__dict__[_TRACE] = trace_id


def _own(error: BaseException) -> Failure:
    known = isinstance(error, SextonError | OSError)
    field = getattr(error, "field", None) if isinstance(error, InvalidInput) else None
    return Failure(code_of(type(error)), type(error).__name__, _told(error), field, expected=known)


def _remote(error: BaseException) -> Failure | None:
    if "temporalio" not in sys.modules:  # nothing of Temporal's can have been raised
        return None
    from temporalio.exceptions import ApplicationError  # noqa: PLC0415
    from temporalio.service import RPCError  # noqa: PLC0415

    chain = list(_causes(error))
    for link in chain:  # the outermost: a workflow that gave up knows more than the activity that failed last
        if isinstance(link, ApplicationError) and link.type:
            field = _field(link.type, link.message)
            return Failure(_code_of_name(link.type), link.type, link.message, field, trace_id=_trace_named(chain))
    for link in chain:
        if isinstance(link, RPCError):
            return _rpc(link)
    return None


def _trace_named(chain: Iterable[BaseException]) -> str | None:
    """The trace that a job's failure names: another one than the command's where it joined a job that ran already."""
    from temporalio.exceptions import ApplicationError  # noqa: PLC0415 - loaded already

    from workers.hosting.traced_runs import trace_of  # noqa: PLC0415

    named = (trace_of(link) for link in chain if isinstance(link, ApplicationError))
    return next((trace_id for trace_id in named if trace_id is not None), None)


def _code_of_name(name: str) -> ExitCode:
    kind = error_named(name)
    if kind is not None:
        return code_of(kind)
    return ExitCode.PARTIAL if name in _PARTIAL_FAILURES else ExitCode.FAILED


def _field(name: str, message: str) -> str | None:
    """The field of an `InvalidInput` that crossed Temporal, which carries its message only."""
    kind = error_named(name)
    if kind is None or not issubclass(kind, InvalidInput):
        return None
    field, found, _ = message.partition(": expected ")
    return field if found else None


def _rpc(error: BaseException) -> Failure:
    from temporalio.service import RPCError  # noqa: PLC0415

    from workers.client.temporal_faults import temporal_fault  # noqa: PLC0415

    assert isinstance(error, RPCError)
    fault = temporal_fault(error)
    if fault is not None:
        return Failure(ExitCode.UNREACHABLE, type(fault).__name__, str(fault))
    return Failure(ExitCode.FAILED, "RPCError", f"temporal: {error.message} ({error.status.name})")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error and what caused it, outermost first; Temporal's failures chain through `cause`."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = getattr(error, "cause", None) or error.__cause__


def _told(error: BaseException) -> str:
    return str(error) or type(error).__name__


def traceback_of(error: BaseException) -> str:
    """The error's traceback as text."""
    return "".join(traceback.format_exception(error))
