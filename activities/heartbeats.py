"""Definition of activities, and heartbeats to Temporal. Heartbeats can also renew claims.

Temporal's SDK can raise a cancellation in the thread of a synchronous activity at any instruction. In CPython 3.11,
`Thread.start` waits for ever if a cancellation is raised in it. Activities are therefore defined so that the SDK raises
nothing in their threads. An activity checks for a cancellation between two units of work.
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
from logstore.stop_checks import use_stop_check

P = ParamSpec("P")
R = TypeVar("R")


def define_activity(*, name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Define a synchronous activity named `capability.verb`. A cancellation takes effect between two units of work."""

    def define(method: Callable[P, R]) -> Callable[P, R]:
        stoppable = use_stop_check(raise_if_cancelled)(method)
        return activity.defn(name=name, no_thread_cancel_exception=True)(stoppable)

    return define


def raise_if_cancelled() -> None:
    """Raise `CancelledError` if the workflow, the server, or the worker's shutdown has cancelled the activity."""
    if activity.in_activity() and activity.is_cancelled():
        raise CancelledError("Cancelled")


_BEAT_INTERVAL_S = 2.0  # a fifth of the heartbeat timeout, so that one slow call does not cause a timeout
_THREAD_RETRY_S = 0.5  # after the machine could not start a thread

_log = logging.getLogger(__name__)


class _HeartbeatThread:
    def __init__(self, beat: Callable[[], None], name: str) -> None:
        self.due_s = time.monotonic() + _BEAT_INTERVAL_S
        self._beat, self._name, self._context = beat, name, contextvars.copy_context()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def try_start(self) -> bool:
        thread = threading.Thread(target=self._context.run, args=(self._beat_until_end,), name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            self.due_s = time.monotonic() + _THREAD_RETRY_S
            _log.warning("no heartbeat: %s", error)
            return False
        self._thread = thread
        return True

    def end(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _beat_until_end(self) -> None:
        while not self._ended.is_set():
            try:
                self._beat()
            except CancelledError:
                pass  # raised by a renewal; the activity ends after its current unit of work
            except Exception:  # noqa: BLE001 - without heartbeats the work would be started a second time
                _log.exception("a heartbeat met a fault that nothing here expects")
            self._ended.wait(_BEAT_INTERVAL_S)


class _HeartbeatScheduler:
    """Scheduler that starts a heartbeat thread only if the activity still runs when the first heartbeat is due.

    A short activity therefore starts no heartbeat thread. The start of a thread costs more than a SQL transaction.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: dict[_HeartbeatThread, None] = {}  # threads that are not started yet
        self._wakes_s = math.inf
        self._thread: threading.Thread | None = None

    def schedule(self, beater: _HeartbeatThread) -> None:
        with self._changed:
            if self._thread is None or not self._thread.is_alive():  # a fork ends the thread
                thread = threading.Thread(target=self._run_and_start_due_threads, name="beats to come", daemon=True)
                thread.start()  # before `beater` is added, because the start may fail
                self._thread = thread
            self._waiting[beater] = None
            if beater.due_s < self._wakes_s:
                self._wakes_s = beater.due_s
                self._changed.notify()

    def end(self, beater: _HeartbeatThread) -> None:
        with self._changed:
            self._waiting.pop(beater, None)
        beater.end()

    def _run_and_start_due_threads(self) -> None:
        with self._changed:
            while True:
                now_s = time.monotonic()
                for beater in [beater for beater in self._waiting if beater.due_s <= now_s]:
                    if beater.try_start():
                        del self._waiting[beater]
                self._wakes_s = min((beater.due_s for beater in self._waiting), default=math.inf)
                self._changed.wait(None if self._wakes_s == math.inf else max(0.0, self._wakes_s - now_s))


_scheduler = _HeartbeatScheduler()


@contextmanager
def _send_heartbeats_meanwhile(beat: Callable[[], None], *, name: str) -> Iterator[None]:
    beater = _HeartbeatThread(beat, name)
    _scheduler.schedule(beater)
    try:
        yield
    finally:
        _scheduler.end(beater)


@contextmanager
def send_heartbeats(details: Callable[[], Sequence[object]] = tuple) -> Iterator[None]:
    """Send heartbeats with `details` from a separate thread until the `with` block, or the decorated activity, ends.

    After a cancellation, heartbeats go on until the current unit of work has ended, so that no other worker starts the
    activity meanwhile. Raise `CancelledError` if the activity is already cancelled when this function is called.
    """
    raise_if_cancelled()
    with _send_heartbeats_meanwhile(lambda: activity.heartbeat(*details()), name="beating"):
        yield


_MIN_BEAT_INTERVAL_S = 0.5
_RENEWAL_INTERVAL_S = 15.0  # a quarter of a claim, so that three renewals may fail before the claim expires


@contextmanager
def send_heartbeats_and_renew(
    renew: Callable[[], object], details: Callable[[], Sequence[object]] = tuple
) -> Iterator[None]:
    """Send heartbeats as `send_heartbeats` does. Renew a claim, which the caller has just taken, every 15 s.

    A failed renewal does not end the activity. Use this function only for claims that merely avoid repeated work.
    """
    raise_if_cancelled()
    renewed_s = time.monotonic()

    def beat() -> None:
        nonlocal renewed_s
        activity.heartbeat(*details())
        if time.monotonic() - renewed_s >= _RENEWAL_INTERVAL_S:
            renewed_s = time.monotonic()
            with suppress(SextonError):  # without the catalog the claim expires
                renew()

    with _send_heartbeats_meanwhile(beat, name="renewing"):
        yield


@contextmanager
def send_heartbeats_during_renewals(
    renew: Callable[[], object], details: Callable[[], Sequence[object]] = tuple
) -> Iterator[None]:
    """Renew a claim every 15 s. Send heartbeats even while a renewal takes longer than the heartbeat timeout."""
    with send_heartbeats(details), send_heartbeats_and_renew(renew, details):
        yield


class ClaimRenewingHeartbeats:
    """Heartbeats with counts of examined ledgers and deleted objects. A claim is renewed at most every 15 s.

    A throttled request may outlast the heartbeat timeout, and a retry would then run beside the first attempt
    (dust-tt/dust#4272). A thread therefore sends heartbeats too. After a cancellation, this thread goes on, and the
    next call of `count_examined` or `count_deleted` raises `CancelledError`.
    """

    def __init__(self, renew: Callable[[], object], *, just_claimed: bool = False) -> None:
        self._renew = renew
        self._renewed_s = time.monotonic() if just_claimed else 0.0
        self._beaten_s = time.monotonic()
        self._examined = 0
        self._objects = 0
        self._lost_claim_error: TerminalError | None = None
        self._beating = _send_heartbeats_meanwhile(self._send_and_renew, name="heartbeats")

    def __enter__(self) -> Self:
        """Renew the claim unless the caller has just taken it. Raise `ClaimHeld` if another workflow has the claim."""
        if not self._renewed_s:
            self._renew()
            self._renewed_s = time.monotonic()
        self._beating.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._beating.__exit__(None, None, None)

    def count_examined(self) -> None:
        """Count one examined ledger. Raise `CancelledError`, or `ClaimHeld` if another workflow has the claim now."""
        self._examined += 1
        self._raise_if_lost_or_heartbeat()

    def count_deleted(self, objects: int) -> None:
        """Count objects that storage confirmed as deleted. Raise the errors of `count_examined`."""
        self._objects += objects
        self._raise_if_lost_or_heartbeat()

    def _raise_if_lost_or_heartbeat(self) -> None:
        raise_if_cancelled()
        if self._lost_claim_error:
            raise self._lost_claim_error
        if time.monotonic() - self._beaten_s >= _MIN_BEAT_INTERVAL_S:
            self._heartbeat()

    def _heartbeat(self) -> None:
        self._beaten_s = time.monotonic()
        activity.heartbeat(self._examined, self._objects)

    def _send_and_renew(self) -> None:
        self._heartbeat()
        if time.monotonic() - self._renewed_s >= _RENEWAL_INTERVAL_S:
            self._renew_or_keep_error()

    def _renew_or_keep_error(self) -> None:
        try:
            self._renew()
            self._renewed_s = time.monotonic()
        except TerminalError as error:
            self._lost_claim_error = error
        except SextonError:
            return  # the next heartbeat tries again
