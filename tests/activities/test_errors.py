"""The edge to Temporal: every error of ours arrives under its own name, and says whether to retry."""

import inspect

import pytest

from logstore import errors
from logstore.errors import OutcomeUnknown, RetryableError, SextonError, TerminalError
from workers.interceptors import to_application_error

CLASSES = [one for _, one in inspect.getmembers(errors, inspect.isclass) if issubclass(one, SextonError)]


def made(kind: type[SextonError]) -> SextonError:
    """An error of that class: of what its construction names, text where text is taken, else a number."""
    if kind.__init__ is Exception.__init__:
        return kind("a sentence")
    named = list(inspect.signature(kind).parameters.values())
    return kind(**{one.name: "a sentence" if one.annotation is str else 1 for one in named})


@pytest.mark.parametrize("kind", CLASSES)
def test_error_of_ours_keeps_its_class_name_and_its_verdict(kind: type[SextonError]) -> None:
    """Temporal matches the exact name and never a base class; only terminal errors are not retried."""
    error = made(kind)
    mapped = to_application_error(error)
    assert (mapped.type, mapped.message) == (kind.__name__, str(error))
    assert mapped.non_retryable is issubclass(kind, TerminalError)


def test_error_tree_has_no_class_on_both_sides() -> None:
    """An error is retryable, terminal or of unknown outcome, never two of them."""
    for kind in CLASSES:
        assert sum(issubclass(kind, side) for side in (RetryableError, TerminalError, OutcomeUnknown)) <= 1
