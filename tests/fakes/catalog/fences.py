"""Fences of bundles in memory."""

from collections.abc import Collection
from typing import TYPE_CHECKING

from logstore.errors import InvalidInput, NotOwner
from logstore.failpoints import effect
from logstore.ownership import BundleId, Lease
from logstore.ports.catalog import Fence

if TYPE_CHECKING:
    from tests.fakes.catalog.state import FakeCatalog


class FakeFences:
    """The `Fences` port."""

    def __init__(self, catalog: "FakeCatalog") -> None:
        self._catalog = catalog

    def bundles(self) -> int:
        return self._catalog.bundles

    def raise_fences(self, bundles: Collection[BundleId], worker_id: str) -> list[Lease]:
        if not bundles:
            return []
        with effect("catalog.raise_fence"), self._catalog.lock:
            if not worker_id:
                raise InvalidInput("worker_id", expected="the name of a worker", found=worker_id)
            for bundle in bundles:
                if not 0 <= bundle < self._catalog.bundles:
                    raise InvalidInput("bundle", expected=f"0 to {self._catalog.bundles - 1}", found=bundle)
            return [self._raise(bundle, worker_id) for bundle in sorted(set(bundles))]

    def _raise(self, bundle: BundleId, worker_id: str) -> Lease:
        last = self._catalog.fence_rows.get(bundle)
        counter = last.counter + 1 if last else 1
        fence = Fence(bundle=bundle, counter=counter, worker_id=worker_id, raised_us=self._catalog.now_us)
        self._catalog.fence_rows[bundle] = fence
        return Lease(bundle=bundle, fence=counter, worker_id=worker_id)

    def fence(self, bundle: BundleId) -> Fence | None:
        with self._catalog.lock:
            return self._catalog.fence_rows.get(bundle)

    def fences(self) -> list[Fence]:
        with self._catalog.lock:
            return [fence for _, fence in sorted(self._catalog.fence_rows.items())]

    def verify(self, lease: Lease) -> None:
        with self._catalog.lock:
            self.hold(lease)

    def hold(self, lease: Lease | None) -> None:
        """Require the lease, if there is one, to be its bundle's last; the catalog's lock keeps it so."""
        if lease is None:
            return
        row = self._catalog.fence_rows.get(lease.bundle)
        if row is None or (row.counter, row.worker_id) != (lease.fence, lease.worker_id):
            found = f"fence {row.counter} of worker {row.worker_id}" if row else "that nobody ever acquired it"
            raise NotOwner(lease.bundle, expected=f"fence {lease.fence} of worker {lease.worker_id}", found=found)
