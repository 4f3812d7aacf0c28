"""Signs of life: heartbeats to Temporal, and claims renewed with them."""

import contextvars
import threading
import time
from collections.abc import Callable
from typing import Self

from temporalio import activity

from activities.defined import raise_if_cancelled
from logstore.errors import SextonError, TerminalError

_BEAT_EVERY_S = 2.0  # a fifth of the heartbeat timeout: one slow call is no death
_LEAST_S = 0.5  # between two beats: the server hears of each first one, and work done sooner needs none
_RENEW_EVERY_S = 15.0  # a quarter of a claim: three renewals may fail before it lapses


class Pulse:
    """Beats per unit of work, and while one unit takes long; renews the claim at most every 15 s.

    A page that the store throttles, or a catalog that makes a writer wait, outlasts a heartbeat timeout. A retry
    would then run beside work that is well alive (dust-tt/dust#4272), hence a thread that beats for it. It beats on
    after a cancellation, which is raised at the next unit.
    """

    def __init__(self, renew: Callable[[], object], *, just_claimed: bool = False) -> None:
        """Take how the claim is renewed, and whether it was taken this moment."""
        self._renew = renew
        self._renewed = time.monotonic() if just_claimed else 0.0
        self._beaten = time.monotonic()
        self._examined = 0
        self._objects = 0
        self._lost: TerminalError | None = None
        self._ended = threading.Event()
        context = contextvars.copy_context()  # knows the activity
        self._thread = threading.Thread(target=context.run, args=(self._live,), name="pulse", daemon=True)

    def __enter__(self) -> Self:
        """Renew at once unless just claimed, so that work starts under a live claim.

        Raises:
            ClaimHeld: Another workflow is at work.
        """
        if not self._renewed:
            self._renew()
            self._renewed = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def examined(self) -> None:
        """Count one ledger looked at.

        Raises:
            ClaimHeld: Another workflow took the work over.
            CancelledError: The activity was cancelled.
        """
        self._examined += 1
        self._beat()

    def deleted(self, objects: int) -> None:
        """Count objects that storage confirmed; raises like `examined`."""
        self._objects += objects
        self._beat()

    def _beat(self) -> None:
        raise_if_cancelled()
        if self._lost:
            raise self._lost
        if time.monotonic() - self._beaten >= _LEAST_S:
            self._heartbeat()

    def _heartbeat(self) -> None:
        self._beaten = time.monotonic()
        activity.heartbeat(self._examined, self._objects)

    def _live(self) -> None:
        while not self._ended.wait(_BEAT_EVERY_S):
            self._heartbeat()
            if time.monotonic() - self._renewed >= _RENEW_EVERY_S:
                self._try_to_renew()

    def _try_to_renew(self) -> None:
        try:
            self._renew()
            self._renewed = time.monotonic()
        except TerminalError as error:
            self._lost = error
        except SextonError:
            return  # the catalog is away: the next beat tries again
