"""Signs of life around what has no units to count: one transaction, one upload."""

import contextvars
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from temporalio import activity

from activities.defined import raise_if_cancelled

_BEAT_EVERY_S = 2.0  # a fifth of the heartbeat timeout


@contextmanager
def beating() -> Iterator[None]:
    """Heartbeat from a thread of its own until the block, or the decorated activity, ends.

    Without it a worker that is killed in a transaction is taken for busy until the whole timeout of the activity
    has passed, and its job stands still that long.

    It beats on after a cancellation: the activity ends after the unit in hand, and until then nobody begins it anew.

    Raises:
        CancelledError: The activity was cancelled before it began.
    """
    raise_if_cancelled()
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(_BEAT_EVERY_S):
            activity.heartbeat()

    context = contextvars.copy_context()  # knows the activity
    thread = threading.Thread(target=context.run, args=(beat,), name="beating", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
