"""How every activity is defined: its cancellation is asked for between units of work, and never raised in its thread.

Temporal's SDK can raise a cancellation in the thread of a synchronous activity, by that thread's number and at any
instruction. CPython 3.11 lends this number to a thread that is being started, which then dies of the cancellation
before it has said that it runs, and `Thread.start` waits for ever; thread pools start theirs so as well.
"""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from temporalio import activity
from temporalio.exceptions import CancelledError

from logstore.units import ended_by

P = ParamSpec("P")
R = TypeVar("R")


def defined(*, name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Define a synchronous activity under its name, `capability.verb`; it ends between two units once cancelled."""

    def define(method: Callable[P, R]) -> Callable[P, R]:
        stoppable = ended_by(raise_if_cancelled)(method)
        return activity.defn(name=name, no_thread_cancel_exception=True)(stoppable)

    return define


def raise_if_cancelled() -> None:
    """End the activity if it was cancelled: by its workflow, by a worker that ends, or by the server after a timeout.

    Raises:
        CancelledError: It was.
    """
    if activity.in_activity() and activity.is_cancelled():
        raise CancelledError("Cancelled")
