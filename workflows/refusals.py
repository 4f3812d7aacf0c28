"""A guard's refusal as the result of a job that completes: nothing changed, and no failure shows in the Web UI."""

from collections.abc import Collection

from temporalio.exceptions import ActivityError, ApplicationError

from logstore.deletion.intents import GuardRefusal


def find_refusal(error: ActivityError, types: Collection[str]) -> GuardRefusal | None:
    """What the activity refused, if it failed with an error of these types; otherwise None."""
    cause = error.cause
    if not isinstance(cause, ApplicationError) or cause.type is None or cause.type not in types:
        return None
    return GuardRefusal(type=cause.type, message=cause.message, details=list(cause.details))


def require_refusal(error: ActivityError, types: Collection[str]) -> GuardRefusal:
    """What the activity refused.

    Raises:
        ActivityError: The error itself, which is none of these types.
    """
    refusal = find_refusal(error, types)
    if refusal is None:
        raise error
    return refusal


def format_refusal(refusal: GuardRefusal) -> str:
    """Markdown for an operator."""
    return f"**Refused**, nothing changed: {refusal.message} ({refusal.type})"
