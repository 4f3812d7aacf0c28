"""Refusals of guards as results of completed jobs. A refused job has changed nothing, so it is not shown as failed."""

from collections.abc import Collection

from temporalio.exceptions import ActivityError, ApplicationError

from logstore.deletion.intents import RequestRefusal


def refusal_from_error(error: ActivityError, types: Collection[str]) -> RequestRefusal | None:
    cause = error.cause
    if not isinstance(cause, ApplicationError) or cause.type is None or cause.type not in types:
        return None
    return RequestRefusal(type=cause.type, message=cause.message, details=list(cause.details))


def refusal_from_error_or_raise(error: ActivityError, types: Collection[str]) -> RequestRefusal:
    refusal = refusal_from_error(error, types)
    if refusal is None:
        raise error
    return refusal


def format_refusal(refusal: RequestRefusal) -> str:
    return f"**Refused**, nothing changed: {refusal.message} ({refusal.type})"
