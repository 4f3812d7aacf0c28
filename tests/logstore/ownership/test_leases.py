"""The lease that a write carries."""

import dataclasses

import pytest

from logstore.ownership import BundleId, Lease


def test_lease_is_a_value_that_nobody_changes() -> None:
    """Equal by content, frozen: a lease in hand is the one that was verified."""
    lease = Lease(bundle=BundleId(3), fence=7, worker_id="w-1")
    assert lease == Lease(bundle=BundleId(3), fence=7, worker_id="w-1")
    assert lease != Lease(bundle=BundleId(3), fence=8, worker_id="w-1")
    with pytest.raises(dataclasses.FrozenInstanceError):
        lease.fence = 8  # type: ignore[misc]


def test_lease_reads_as_bundle_fence_and_worker() -> None:
    """An error that shows it names the object."""
    assert str(Lease(bundle=BundleId(3), fence=7, worker_id="w-1")) == "bundle 3, fence 7 of worker w-1"
