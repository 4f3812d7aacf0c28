"""Stop checks between the units of long work.

A unit is at most one request to a store, one part of an object, one ledger or one topic. A stop check also applies in a
thread that runs in a copy of the context.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_check: ContextVar[Callable[[], None]] = ContextVar("sexton_unit_check", default=lambda: None)


@contextmanager
def use_stop_check(check: Callable[[], None]) -> Iterator[None]:
    """Call `check` between units within the block or the decorated function. If `check` raises, the work ends."""
    token = _check.set(check)
    try:
        yield
    finally:
        _check.reset(token)


def raise_if_stopped() -> None:
    """Call the stop check. If the check raises, the work ends as if its process had died here."""
    _check.get()()
