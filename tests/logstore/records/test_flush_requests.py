"""Waiting for the record log: a flush that begins after the question, shared by all that ask meanwhile."""

import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from logstore.catalog.records.outbox import RecordOutbox
from logstore.errors import CatalogBusy, StoreUnavailable
from logstore.records.services.flusher import SharedFlushes


class _Catalog:
    """Tombstones that are in no block, as the outbox tells them, and a flusher of them."""

    def __init__(self, *unflushed: int) -> None:
        self.waiting = set(unflushed)
        self.flushes = 0
        self.midway: Callable[[], None] = lambda: None  # between what a flush reads, and its end
        self.lock = threading.Lock()

    def find_unflushed_ledgers(self, ledger_ids: Sequence[int]) -> frozenset[int]:
        with self.lock:
            return frozenset(self.waiting & set(ledger_ids))

    def flush(self) -> None:
        with self.lock:
            self.flushes += 1
            read = set(self.waiting)
        self.midway()
        with self.lock:
            self.waiting -= read


def _requests(catalog: _Catalog) -> SharedFlushes:
    return SharedFlushes(cast("RecordOutbox", catalog), catalog)


def test_what_is_flushed_needs_no_flush() -> None:
    """A flush costs two objects and three transactions."""
    catalog = _Catalog(1)
    _requests(catalog).wait_until_flushed([2, 3])
    assert catalog.flushes == 0


def test_what_is_not_flushed_is_flushed_once() -> None:
    """Whatever else is in the outbox."""
    catalog = _Catalog(1, 2)
    requests = _requests(catalog)
    requests.wait_until_flushed([1])
    requests.wait_until_flushed([2])
    assert (catalog.flushes, catalog.waiting) == (1, set())


def test_flush_that_runs_already_does_not_count_for_who_asks_now() -> None:
    """It may have read the catalog before; all that ask meanwhile share the next one."""
    catalog, begun, go_on = _Catalog(1), threading.Event(), threading.Event()
    requests = _requests(catalog)

    def first_only() -> None:
        catalog.midway = lambda: None
        begun.set()
        assert go_on.wait(60)

    catalog.midway = first_only
    with ThreadPoolExecutor(9) as pool:
        running = [pool.submit(requests.wait_until_flushed, [1])]
        assert begun.wait(60)
        with catalog.lock:
            catalog.waiting |= set(range(2, 10))
        running += [pool.submit(requests.wait_until_flushed, [number]) for number in range(2, 10)]
        _until(lambda: _waiters(requests) == 8)
        go_on.set()
        for one in running:
            one.result(60)
    assert (catalog.flushes, catalog.waiting) == (2, set())


def test_flush_that_fails_fails_who_asked_for_it_and_the_next_one_flushes_anew() -> None:
    """Nobody waits for ever for a flush that died."""
    catalog = _Catalog(1)
    requests = _requests(catalog)

    def fail() -> None:
        catalog.midway = lambda: None
        raise StoreUnavailable("planned")

    catalog.midway = fail
    with pytest.raises(StoreUnavailable, match="planned"):
        requests.wait_until_flushed([1])
    requests.wait_until_flushed([1])
    assert (catalog.flushes, catalog.waiting) == (2, set())


def test_threads_that_wait_for_a_flush_that_fails_share_its_failure() -> None:
    """While the record log is away none of them waits for the flushes of all others to fail."""
    catalog = _Catalog(*range(1, 10))
    requests = _requests(catalog)
    begun, go_on = threading.Event(), threading.Event()

    def fail() -> None:
        begun.set()
        assert go_on.wait(60)
        raise StoreUnavailable("planned")

    catalog.midway = fail
    with ThreadPoolExecutor(9) as pool:
        running = [pool.submit(requests.wait_until_flushed, [1])]
        assert begun.wait(60)
        running += [pool.submit(requests.wait_until_flushed, [number]) for number in range(2, 10)]
        _until(lambda: _waiters(requests) == 8)
        go_on.set()
        for one in running:
            with pytest.raises(StoreUnavailable, match="planned"):
                one.result(60)
    assert catalog.flushes == 2, "the first one, which may have read the catalog too early, and one for all others"


def test_thread_whose_flush_was_given_up_leaves_others_to_flush_themselves() -> None:
    """A cancellation is of one activity alone."""
    catalog = _Catalog(1)
    requests = _requests(catalog)
    begun, go_on = threading.Event(), threading.Event()

    def give_up() -> None:
        if catalog.flushes == 2:
            catalog.midway = lambda: None
            raise KeyboardInterrupt
        begun.set()
        assert go_on.wait(60)

    catalog.midway = give_up
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(requests.wait_until_flushed, [1])
        assert begun.wait(60)
        with catalog.lock:
            catalog.waiting |= {2, 3}
        others = [pool.submit(requests.wait_until_flushed, [number]) for number in (2, 3)]
        _until(lambda: _waiters(requests) == 2)
        go_on.set()
        first.result(60)
        ended = [one.exception(60) for one in others]
    assert [type(one) for one in ended if one] == [KeyboardInterrupt]
    assert (catalog.flushes, catalog.waiting) == (3, set())


def test_ledger_that_a_flush_leaves_is_refused_by_name() -> None:
    """Its objects stay."""
    catalog = _Catalog(7)
    requests: Any = SharedFlushes(cast("RecordOutbox", catalog), _Nothing())
    with pytest.raises(CatalogBusy, match="record log: a flush left 1 of 2 ledgers, as 7"):
        requests.wait_until_flushed([6, 7])


class _Nothing:
    """A flusher that writes nothing."""

    def flush(self) -> None:
        return


def _waiters(requests: SharedFlushes) -> int:
    waiting: Collection[object] = requests._changed._waiters  # type: ignore[attr-defined]  # CPython's
    return len(waiting)


def _until(holds: Callable[[], bool]) -> None:
    while not holds():
        threading.Event().wait(0.001)
