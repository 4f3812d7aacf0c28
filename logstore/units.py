"""Long work is done in units, and its caller may end it between two of them.

A unit is at most one request to a store, one part of an object, one ledger or one topic. Code that goes through many
calls `raise_if_stopped` before each; the caller says with `use_stop_check` what is to be asked there. Threads that get a copy of
the context ask the same.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar


def _never() -> None:
    """The check outside of `use_stop_check`: nothing ends the work."""


_check: ContextVar[Callable[[], None]] = ContextVar("sexton_unit_check", default=_never)


@contextmanager
def use_stop_check(check: Callable[[], None]) -> Iterator[None]:
    """Within the block, or the decorated function, `check` is called between units; what it raises ends the work."""
    token = _check.set(check)
    try:
        yield
    finally:
        _check.reset(token)


def raise_if_stopped() -> None:
    """Go on, or raise what ends the work: it then stands as if its process had died here."""
    _check.get()()
