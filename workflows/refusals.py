"""A guard's refusal as the result of a job that completes: nothing changed, and no failure shows in the Web UI."""

from collections.abc import Collection

from temporalio.exceptions import ActivityError, ApplicationError

from logstore.deletion.intents import Refusal


def refusal_of(error: ActivityError, types: Collection[str]) -> Refusal | None:
    """What the activity refused, if it failed with an error of these types; otherwise None."""
    cause = error.cause
    if not isinstance(cause, ApplicationError) or cause.type is None or cause.type not in types:
        return None
    return Refusal(type=cause.type, message=cause.message, details=list(cause.details))


def refused(error: ActivityError, types: Collection[str]) -> Refusal:
    """What the activity refused.

    Raises:
        ActivityError: The error itself, which is none of these types.
    """
    refusal = refusal_of(error, types)
    if refusal is None:
        raise error
    return refusal


def shown(refusal: Refusal) -> str:
    """Markdown for an operator."""
    return f"**Refused**, nothing changed: {refusal.message} ({refusal.type})"
