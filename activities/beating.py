"""Signs of life around what has no units to count: one transaction, one upload."""

import contextvars
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from temporalio import activity

_BEAT_EVERY_S = 2.0  # a fifth of the heartbeat timeout


@contextmanager
def beating() -> Iterator[None]:
    """Heartbeat from a thread of its own until the block, or the decorated activity, ends.

    Without it a worker that is killed in a transaction is taken for busy until the whole timeout of the activity
    has passed, and its job stands still that long.

    A cancellation is raised in the activity's thread by the number of that thread. CPython 3.11 lends this number to a
    thread that is being started, which then dies of the cancellation before it has said that it runs, and `start` waits
    for ever. So a cancellation waits until the thread runs.
    """
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(_BEAT_EVERY_S) and not activity.is_cancelled():
            activity.heartbeat()

    context = contextvars.copy_context()  # knows the activity
    thread = threading.Thread(target=context.run, args=(beat,), name="beating", daemon=True)
    with activity.shield_thread_cancel_exception():
        thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
