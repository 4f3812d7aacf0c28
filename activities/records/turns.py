"""The record log as a workflow's to work on: of several jobs that would put manifests, one does at a time."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from activities.deletion.claims import own_claim
from activities.heartbeats import renewing
from logstore.errors import SextonError
from logstore.ports.catalog import Records


@contextmanager
def own_turn(records: Records, details: Callable[[], Sequence[object]] = tuple) -> Iterator[bool]:
    """Whether the record log is this workflow's to work on; while the block runs, if so.

    It spares work alone: two that put the same manifest's number are told apart by the store.
    """
    claim = own_claim()
    if not records.claim(claim):
        yield False
        return
    try:
        with renewing(lambda: records.claim(claim), details):
            yield True
    finally:
        with suppress(SextonError):  # it lapses
            records.release(claim.workflow_id)
