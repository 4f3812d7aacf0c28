"""Fences of bundles in SQL. Each acquisition raises the fence. Each write under a lease locks and checks the fence."""

import logging
import time
from collections.abc import Collection, Sequence
from copy import copy
from functools import partial
from typing import Any, Self, TypeVar

from sqlalchemy import Connection, Row, Select, select

from logstore.catalog import tables as t
from logstore.catalog.catalog_row import read_catalog_row
from logstore.catalog.engine.database import CatalogAdapter
from logstore.catalog.engine.dialect_sql import build_dialect_insert
from logstore.errors import CatalogBusy, InvalidInput, NotOwner
from logstore.failpoints import effect
from logstore.ownership import BundleId, Lease

_log = logging.getLogger(__name__)

T = TypeVar("T")

_F = t.bundle_fence.c
_SELECT: Select[Any] = select(_F.bundle, _F.counter, _F.worker_id)
_MAX_TOTAL_WAIT_S = 4.0  # for all rows that other transactions lock: about half a session timeout
_MAX_ROW_WAIT_S = 2.0  # for one locked row: many times the duration of a write under a lease
_ROWS_PER_STATEMENT = 1_000  # with four parameters a row, within the limits of both databases


class Fences(CatalogAdapter):
    """Fences of bundles. After a worker has raised a bundle's fence, only this worker may write for the bundle.

    In PIP-57, which has no fences, a bundle owner may write until it notices that its session has expired.
    """

    def count_bundles(self) -> int:
        return self._db.read(_read_bundle_count)

    def raise_fences(self, bundles: Collection[BundleId], worker_id: str) -> list[Lease]:
        """Raise the fences of bundles. Return the new leases, ascending by bundle.

        After the commit, writes under earlier leases are refused. For each bundle, the call waits some seconds for
        running writes under the earlier lease. If such a write does not end, for example because its worker is paused,
        the result has no lease of this bundle. A lease alone does not make the caller the bundle owner. The caller must
        also have the bundle's node in ZooKeeper, and must read the node again after this call.

        Each counter is inserted or incremented by an upsert, so that two workers never get the same number. Rows are
        locked ascending. Rows that a writer has locked are raised last, so that a paused writer delays only its own
        bundle.

        Idempotency: none. A repeated call raises the fences again, and the leases of the first call become outdated.

        Raises:
            InvalidInput: A bundle is not in this catalog, or the worker has no name.
        """
        if not bundles:
            return []
        ordered = sorted(set(bundles))
        with effect("catalog.raise_fence"):
            leases = self._db.write(lambda connection: self._raise_unlocked_fences(connection, ordered, worker_id))
            locked = sorted(set(ordered) - {lease.bundle for lease in leases})
            return sorted(leases + self._raise_locked_fences(locked, worker_id), key=lambda lease: lease.bundle)

    def _raise_unlocked_fences(
        self, connection: Connection, bundles: Sequence[BundleId], worker_id: str
    ) -> list[Lease]:
        _require_valid_request(connection, bundles, worker_id)
        query = select(_F.bundle).where(_F.bundle.in_(bundles)).order_by(_F.bundle)
        existing = set(connection.execute(query).scalars())
        unlocked = set(connection.execute(query.with_for_update(key_share=True, skip_locked=True)).scalars())
        raisable_bundles = [bundle for bundle in bundles if bundle in unlocked or bundle not in existing]
        return self._upsert_fences(connection, raisable_bundles, worker_id)

    def _raise_locked_fences(self, bundles: Sequence[BundleId], worker_id: str) -> list[Lease]:
        """Queue for the lock of each row, so that busy writers cannot delay this call for ever."""
        leases: list[Lease] = []
        deadline_s = time.monotonic() + _MAX_TOTAL_WAIT_S
        for bundle in bundles:
            if time.monotonic() >= deadline_s:
                break
            raise_one = partial(self._upsert_fences, bundles=[bundle], worker_id=worker_id)
            try:
                leases += self._db.write(raise_one, patience_s=_MAX_ROW_WAIT_S)
            except CatalogBusy as error:
                _log.warning("bundle %s: a write under an earlier lease does not end: %s", bundle, error)
        return leases

    def _upsert_fences(self, connection: Connection, bundles: Sequence[BundleId], worker_id: str) -> list[Lease]:
        holder = {"worker_id": worker_id, "raised_us": self._db.now_us(connection)}
        counters: dict[int, int] = {}
        for start in range(0, len(bundles), _ROWS_PER_STATEMENT):
            page = bundles[start : start + _ROWS_PER_STATEMENT]
            rows = [{"bundle": bundle, "counter": 1, **holder} for bundle in page]
            put = build_dialect_insert(connection.dialect.name, t.bundle_fence).values(rows)
            raised = put.on_conflict_do_update(index_elements=[_F.bundle], set_={"counter": _F.counter + 1, **holder})
            counters |= {row.bundle: row.counter for row in connection.execute(raised.returning(_F.bundle, _F.counter))}
        return [Lease(bundle=bundle, fence=int(counters[bundle]), worker_id=worker_id) for bundle in bundles]

    def get_newest_lease(self, bundle: BundleId) -> Lease | None:
        """Return the lease of the last acquisition, or `None` if no worker ever acquired the bundle."""
        query = _SELECT.where(_F.bundle == bundle)
        row = self._db.read(lambda connection: connection.execute(query).first())
        return None if row is None else Lease(bundle=bundle, fence=row.counter, worker_id=row.worker_id)

    def list_newest_leases(self) -> list[Lease]:
        """Return the newest lease of each bundle that was ever acquired, ascending by bundle."""
        rows = self._db.read(lambda connection: connection.execute(_SELECT.order_by(_F.bundle)).all())
        return [Lease(bundle=BundleId(row.bundle), fence=row.counter, worker_id=row.worker_id) for row in rows]

    def require_newest_lease(self, lease: Lease) -> None:
        """Raise `NotOwner` if the bundle has a newer lease."""
        query = _SELECT.where(_F.bundle == lease.bundle)
        _require_same_fence(self._db.read(lambda connection: connection.execute(query).first()), lease)


class LeaseBoundAdapter(CatalogAdapter):
    """Adapter that may be bound to a lease. The writes of a bound adapter require the lease."""

    _lease: Lease | None = None

    def with_lease(self, lease: Lease | None) -> Self:
        """Return this adapter with a lease. Each write then requires that the lease is the newest lease of its bundle.

        No worker can raise the fence between this check and the commit. With `None`, writes check no fence.
        """
        bound = copy(self)
        bound._lease = lease  # noqa: SLF001 - of the same class
        return bound


def lock_fence_of_lease(connection: Connection, lease: Lease | None) -> None:
    """Lock the lease's fence, so that no process raises the fence before this transaction ends. `None` locks nothing.

    Lock order: after topic, ledger list and ledger; before intents, cursors and runs; and before any write.

    The lock is exclusive. With share locks, a worker that lost the bundle could keep the next bundle owner from raising
    the fence, because in PostgreSQL new share locks overtake a waiting exclusive lock.
    Source: PostgreSQL's README.tuplock.
    """
    if lease is None:
        return
    query = _SELECT.where(_F.bundle == lease.bundle).with_for_update(key_share=True)
    _require_same_fence(connection.execute(query).first(), lease)


def _require_same_fence(row: Row[Any] | None, lease: Lease) -> None:
    """Require an equal counter and the same worker, because a catalog restored from a backup repeats counters."""
    if row is None or (row.counter, row.worker_id) != (lease.fence, lease.worker_id):
        found_fence = (
            "that no worker ever acquired it" if row is None else f"fence {row.counter} of worker {row.worker_id}"
        )
        raise NotOwner(lease.bundle, expected=f"fence {lease.fence} of worker {lease.worker_id}", found=found_fence)


def _read_bundle_count(connection: Connection) -> int:
    return int(read_catalog_row(connection).bundles)


def _require_valid_request(connection: Connection, bundles: Sequence[BundleId], worker_id: str) -> None:
    if not worker_id:
        raise InvalidInput("worker_id", expected="the name of a worker", found=worker_id)
    count = _read_bundle_count(connection)
    for bundle in bundles:
        if not 0 <= bundle < count:
            raise InvalidInput("bundle", expected=f"0 to {count - 1}", found=bundle)
