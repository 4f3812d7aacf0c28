"""kazoo's threads, with an end to every wait.

A call that slips in after a connection was lost, and before kazoo says so, is queued until the next connection, and
whoever asked would wait as long: for as long as ZooKeeper is away.
"""

from typing import Any

from kazoo.handlers.threading import AsyncResult, SequentialThreadingHandler


class PatientHandler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """The usual handler, whose answers are waited for no longer than it is told."""

    def __init__(self, patience_s: float) -> None:
        """Wait that long for an answer, unless its `get` says otherwise."""
        super().__init__()
        self.patience_s = patience_s

    def async_result(self) -> "_Answer":
        """See kazoo's `IHandler.async_result`."""
        return _Answer(self)


class _Answer(AsyncResult):  # type: ignore[misc]
    def get(self, block: bool = True, timeout: float | None = None) -> Any:  # noqa: ANN401 - kazoo's
        return super().get(block, self._handler.patience_s if timeout is None else timeout)
