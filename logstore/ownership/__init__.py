"""Ownership of bundles of topics: what a bundle is, which worker takes it or lets it go, the lease of its owner."""

from logstore.ownership.assignment import (
    Acquisition,
    OwnerNode,
    OwnershipView,
    ReownAttempts,
    ReownDecision,
    WorkerLoad,
    decide,
    ranking,
    to_shed,
    to_take,
)
from logstore.ownership.bundles import (
    MAX_BUNDLES,
    BundleId,
    Lease,
    bundle_name,
    bundle_of,
    check_bundles,
    checked_worker_id,
    parse_bundle,
)

__all__ = [
    "MAX_BUNDLES",
    "Acquisition",
    "BundleId",
    "Lease",
    "OwnerNode",
    "OwnershipView",
    "ReownAttempts",
    "ReownDecision",
    "WorkerLoad",
    "bundle_name",
    "bundle_of",
    "check_bundles",
    "checked_worker_id",
    "decide",
    "parse_bundle",
    "ranking",
    "to_shed",
    "to_take",
]
