"""How an activity is defined, and its signs of life: heartbeats to Temporal, and claims renewed with them.

Temporal's SDK can raise a cancellation in the thread of a synchronous activity, by that thread's number and at any
instruction. CPython 3.11 lends this number to a thread that is being started, which then dies of the cancellation
before it has said that it runs, and `Thread.start` waits for ever; thread pools start theirs so as well.
"""

import contextvars
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import ParamSpec, Self, TypeVar

from temporalio import activity
from temporalio.exceptions import CancelledError

from logstore.errors import SextonError, TerminalError
from logstore.units import use_stop_check

P = ParamSpec("P")
R = TypeVar("R")


def defined(*, name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Define a synchronous activity under its name, `capability.verb`; it ends between two units once cancelled."""

    def define(method: Callable[P, R]) -> Callable[P, R]:
        stoppable = use_stop_check(raise_if_cancelled)(method)
        return activity.defn(name=name, no_thread_cancel_exception=True)(stoppable)

    return define


def raise_if_cancelled() -> None:
    """End the activity if it was cancelled: by its workflow, by a worker that ends, or by the server after a timeout.

    Raises:
        CancelledError: It was.
    """
    if activity.in_activity() and activity.is_cancelled():
        raise CancelledError("Cancelled")


_BEAT_EVERY_S = 2.0  # a fifth of the heartbeat timeout: one slow call is no death
_AGAIN_S = 0.5  # after which a thread is asked for again, where the machine had none to give

_log = logging.getLogger(__name__)


class _Beating:
    """One activity's beats, from a thread of its own that knows the activity, once it was started."""

    def __init__(self, beat: Callable[[], None], name: str) -> None:
        self.due = time.monotonic() + _BEAT_EVERY_S
        self._beat, self._name, self._context = beat, name, contextvars.copy_context()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> bool:
        """Whether it beats now; where the machine gives no thread, it is due again soon."""
        thread = threading.Thread(target=self._context.run, args=(self._live,), name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            self.due = time.monotonic() + _AGAIN_S
            _log.warning("no heartbeat: %s", error)
            return False
        self._thread = thread
        return True

    def end(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _live(self) -> None:
        while not self._ended.is_set():
            try:
                self._beat()
            except CancelledError:
                pass  # of a renewal, between two of its attempts: the activity itself ends after the unit in hand
            except Exception:  # noqa: BLE001 - the work that it beats for goes on; unheard, it would be begun anew beside it
                _log.exception("a heartbeat met a fault that nothing here expects")
            self._ended.wait(_BEAT_EVERY_S)


class _Watch:
    """Starts the beats of those activities that are still at work when their first one is due.

    To start a thread and to await its end costs more than a transaction of the catalog; so one thread of the process
    watches for all that are at work, and sleeps until the first beat that may be due.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._quiet: dict[_Beating, None] = {}  # at work, and not yet beating
        self._wakes = math.inf  # when it looks again
        self._thread: threading.Thread | None = None

    def begin(self, one: _Beating) -> None:
        with self._changed:
            if self._thread is None or not self._thread.is_alive():  # none lives on in a process that was forked
                thread = threading.Thread(target=self._look, name="beats to come", daemon=True)
                thread.start()  # it waits for what is held here; one that cannot be started has nothing to watch
                self._thread = thread
            self._quiet[one] = None
            if one.due < self._wakes:
                self._wakes = one.due
                self._changed.notify()

    def end(self, one: _Beating) -> None:
        with self._changed:
            self._quiet.pop(one, None)
        one.end()

    def _look(self) -> None:
        with self._changed:
            while True:
                now = time.monotonic()
                for one in [one for one in self._quiet if one.due <= now]:
                    if one.start():
                        del self._quiet[one]
                self._wakes = min((one.due for one in self._quiet), default=math.inf)
                self._changed.wait(None if self._wakes == math.inf else max(0.0, self._wakes - now))


_watch = _Watch()


@contextmanager
def _meanwhile(beat: Callable[[], None], *, name: str) -> Iterator[None]:
    """Beat from a thread of its own, which knows the activity, until the block ends; first when a beat is due."""
    beating = _Beating(beat, name)
    _watch.begin(beating)
    try:
        yield
    finally:
        _watch.end(beating)


@contextmanager
def beating(details: Callable[[], Sequence[object]] = tuple) -> Iterator[None]:
    """Heartbeat from a thread of its own until the block, or the decorated activity, ends; with these details.

    Without it a worker that is killed in a transaction is taken for busy until the whole timeout of the activity
    has passed, and its job stands still that long.

    It beats on after a cancellation: the activity ends after the unit in hand, and until then no worker begins it anew.

    Raises:
        CancelledError: The activity was cancelled before it began.
    """
    raise_if_cancelled()
    with _meanwhile(lambda: activity.heartbeat(*details()), name="beating"):
        yield


_LEAST_S = 0.5  # between two beats: the server hears of each first one, and work done sooner needs none
_RENEW_EVERY_S = 15.0  # a quarter of a claim: three renewals may fail before it lapses


@contextmanager
def renewing(renew: Callable[[], object], details: Callable[[], Sequence[object]] = tuple) -> Iterator[None]:
    """As `beating`, and renew at most every 15 s a claim that was taken this moment.

    For claims that spare work alone: one that cannot be renewed, or is another's by now, ends nothing.
    """
    raise_if_cancelled()
    renewed = time.monotonic()

    def live() -> None:
        nonlocal renewed
        activity.heartbeat(*details())
        if time.monotonic() - renewed >= _RENEW_EVERY_S:
            renewed = time.monotonic()
            with suppress(SextonError):  # the catalog is away: the claim lapses, unless it is back before
                renew()

    with _meanwhile(live, name="renewing"):
        yield


@contextmanager
def renewing_many(renew: Callable[[], object], details: Callable[[], Sequence[object]] = tuple) -> Iterator[None]:
    """As `renewing`, for claims whose renewal may itself take longer than a heartbeat may: it holds up none."""
    with beating(details), renewing(renew, details):
        yield


class Heartbeats:
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
        self._beside = _meanwhile(self._live, name="heartbeats")

    def __enter__(self) -> Self:
        """Renew at once unless just claimed, so that work starts under a live claim.

        Raises:
            ClaimHeld: Another workflow is at work.
        """
        if not self._renewed:
            self._renew()
            self._renewed = time.monotonic()
        self._beside.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._beside.__exit__(None, None, None)

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
