"""Fences of bundles in SQL: raised by each acquisition, locked and compared by each write under a lease."""

import logging
import time
from collections.abc import Collection, Sequence
from copy import copy
from functools import partial
from typing import Any, Self, TypeVar

from sqlalchemy import Connection, Row, Select, select

from infra.catalog import tables as t
from infra.catalog.engine.database import CatalogAdapter
from infra.catalog.engine.dialects import dataclass_from_row, dialect_insert
from infra.catalog.identity.catalog_row import read_catalog_row
from logstore.errors import CatalogBusy, InvalidInput, NotOwner
from logstore.failpoints import effect
from logstore.ownership import BundleId, Lease
from logstore.ports.catalog import Fence

_log = logging.getLogger(__name__)

T = TypeVar("T")

_F = t.bundle_fence.c
_SELECT: Select[Any] = select(_F.bundle, _F.counter, _F.worker_id, _F.raised_us)
_HELD_S = 4.0  # waiting for all that others hold: half of a session timeout, or so
_ONE_HELD_S = 2.0  # for one of them: many times a write under a lease
_PAGE = 1_000  # rows of a statement, of four parameters each: within the bounds of both dialects


class SqlFences(CatalogAdapter):
    """The `Fences` port."""

    def count_bundles(self) -> int:
        return self._db.read(_bundles)

    def raise_fences(self, bundles: Collection[BundleId], worker_id: str) -> list[Lease]:
        """See `Fences.raise_fences`; a statement inserts rows or counts on, so that two never get one number.

        Rows are locked ascending, so that two raises of the same ones cannot deadlock. Those that a writer holds come
        later and one by one: an owner that was paused in the middle of a write keeps its successor from one bundle.
        """
        if not bundles:
            return []
        wanted = sorted(set(bundles))
        with effect("catalog.raise_fence"):
            leases = self._db.write(lambda connection: self._raise_free(connection, wanted, worker_id))
            held = sorted(set(wanted) - {lease.bundle for lease in leases})
            return sorted(leases + self._raise_held(held, worker_id), key=lambda lease: lease.bundle)

    def _raise_free(self, connection: Connection, bundles: Sequence[BundleId], worker_id: str) -> list[Lease]:
        _require_valid(connection, bundles, worker_id)
        known = select(_F.bundle).where(_F.bundle.in_(bundles)).order_by(_F.bundle)
        there = set(connection.execute(known).scalars())
        free = set(connection.execute(known.with_for_update(key_share=True, skip_locked=True)).scalars())
        return self._raise(connection, [one for one in bundles if one in free or one not in there], worker_id)

    def _raise_held(self, bundles: Sequence[BundleId], worker_id: str) -> list[Lease]:
        """In the queue of each one's lock, so that writers without a pause cannot keep us out."""
        leases: list[Lease] = []
        give_up = time.monotonic() + _HELD_S
        for bundle in bundles:
            if time.monotonic() >= give_up:
                break
            raised = partial(self._raise, bundles=[bundle], worker_id=worker_id)
            try:
                leases += self._db.write(raised, patience_s=_ONE_HELD_S)
            except CatalogBusy as error:
                _log.warning("bundle %s: a write under an earlier lease does not end: %s", bundle, error)
        return leases

    def _raise(self, connection: Connection, bundles: Sequence[BundleId], worker_id: str) -> list[Lease]:
        told = {"worker_id": worker_id, "raised_us": self._db.now_us(connection)}
        counters: dict[int, int] = {}
        for at in range(0, len(bundles), _PAGE):
            rows = [{"bundle": bundle, "counter": 1, **told} for bundle in bundles[at : at + _PAGE]]
            put = dialect_insert(connection.dialect.name, t.bundle_fence).values(rows)
            raised = put.on_conflict_do_update(index_elements=[_F.bundle], set_={"counter": _F.counter + 1, **told})
            counters |= {row.bundle: row.counter for row in connection.execute(raised.returning(_F.bundle, _F.counter))}
        return [Lease(bundle=bundle, fence=int(counters[bundle]), worker_id=worker_id) for bundle in bundles]

    def fence(self, bundle: BundleId) -> Fence | None:
        query = _SELECT.where(_F.bundle == bundle)
        row = self._db.read(lambda connection: connection.execute(query).first())
        return None if row is None else dataclass_from_row(Fence, row)

    def fences(self) -> list[Fence]:
        rows = self._db.read(lambda connection: connection.execute(_SELECT.order_by(_F.bundle)).all())
        return [dataclass_from_row(Fence, row) for row in rows]

    def verify(self, lease: Lease) -> None:
        query = _SELECT.where(_F.bundle == lease.bundle)
        _require_last(self._db.read(lambda connection: connection.execute(query).first()), lease)


class LeasedPort(CatalogAdapter):
    """A port that may be bound to a lease, under which it then writes; it holds the lease itself: see `hold_lease`."""

    _lease: Lease | None = None

    def under(self, lease: Lease | None) -> Self:
        bound = copy(self)
        bound._lease = lease  # noqa: SLF001 - of the same class
        return bound


def hold_lease(connection: Connection, lease: Lease | None) -> None:
    """Require the lease to be its bundle's last, and keep it so until this transaction ends; None requires nothing.

    To be called after the locks of topic, ledger list and ledger and before those of intents, cursors and runs, and
    before anything is written. Until the end no other process writes under the lease, and none raises the fence: a
    raise waits for us, or has committed and we are refused.

    A share lock would exclude a raise too. But PostgreSQL lets further share locks pass a waiter for an exclusive
    one, and a worker that lost the bundle and writes on could keep its successor from ever raising the fence. Of the
    exclusive locks this is the one that an update of the row takes itself. Source: PostgreSQL's README.tuplock.

    Raises:
        NotOwner: It was overtaken, or never given.
    """
    if lease is None:
        return
    query = _SELECT.where(_F.bundle == lease.bundle).with_for_update(key_share=True)
    _require_last(connection.execute(query).first(), lease)


def _require_last(row: Row[Any] | None, lease: Lease) -> None:
    """Compare for equality, and the worker too: in a catalog put back from a backup a number comes up again."""
    if row is None or (row.counter, row.worker_id) != (lease.fence, lease.worker_id):
        found = "that no worker ever acquired it" if row is None else f"fence {row.counter} of worker {row.worker_id}"
        raise NotOwner(lease.bundle, expected=f"fence {lease.fence} of worker {lease.worker_id}", found=found)


def _bundles(connection: Connection) -> int:
    return int(read_catalog_row(connection).bundles)


def _require_valid(connection: Connection, bundles: Sequence[BundleId], worker_id: str) -> None:
    if not worker_id:
        raise InvalidInput("worker_id", expected="the name of a worker", found=worker_id)
    count = _bundles(connection)
    for bundle in bundles:
        if not 0 <= bundle < count:
            raise InvalidInput("bundle", expected=f"0 to {count - 1}", found=bundle)
