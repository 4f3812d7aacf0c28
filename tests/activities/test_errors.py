"""The edge to Temporal: every error of ours arrives under its own name, and says whether to retry."""

import inspect
from datetime import timedelta

import pytest
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from logstore import errors
from logstore.errors import OutcomeUnknown, ProgramMissing, RetryableError, SextonError, TerminalError
from workers.hosting.error_and_subject_interceptors import add_trace_id_to_details, to_application_error

CLASSES = [one for _, one in inspect.getmembers(errors, inspect.isclass) if issubclass(one, SextonError)]


def made(kind: type[SextonError]) -> SextonError:
    """An error of that class: of what its construction names, text where text is taken, else a number."""
    if kind.__init__ is Exception.__init__:
        return kind("a sentence")
    named = list(inspect.signature(kind).parameters.values())
    return kind(**{one.name: "a sentence" if one.annotation is str else 1 for one in named})


@pytest.mark.parametrize("kind", CLASSES)
def test_error_of_ours_keeps_its_class_name_and_its_verdict(kind: type[SextonError]) -> None:
    """Temporal matches the exact name and never a base class; terminal errors and a missing program are not retried."""
    error = made(kind)
    mapped = to_application_error(error)
    assert (mapped.type, mapped.message) == (kind.__name__, str(error))
    assert mapped.non_retryable is issubclass(kind, TerminalError | ProgramMissing)


def test_error_tree_has_no_class_on_both_sides() -> None:
    """An error is retryable, terminal or of unknown outcome, never two of them."""
    for kind in CLASSES:
        assert sum(issubclass(kind, side) for side in (RetryableError, TerminalError, OutcomeUnknown)) <= 1


def test_not_owner_is_no_alarm_and_no_error_of_a_span() -> None:
    """The router waits for that answer; each other error is one (PostHog #97438)."""
    for kind in CLASSES:
        benign = to_application_error(made(kind)).category is ApplicationErrorCategory.BENIGN
        assert benign is (kind is errors.NotOwner)


def test_naming_the_trace_changes_nothing_else_of_a_failure() -> None:
    """The message is matched and compared; details that are there already stay, and the first trace that is named."""
    delay = timedelta(seconds=600)
    given = ApplicationError("503", {"row": 4}, type="StoreUnavailable", non_retryable=True, next_retry_delay=delay)
    named = add_trace_id_to_details(add_trace_id_to_details(given, "a" * 32), "b" * 32)
    assert (named.message, named.type, str(named)) == ("503", "StoreUnavailable", str(given))
    assert (named.non_retryable, named.next_retry_delay, named.category) == (True, delay, given.category)
    assert list(named.details) == [{"row": 4}, {"trace_id": "a" * 32}]
    assert add_trace_id_to_details(given, None) is given
