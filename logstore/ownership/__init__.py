"""Ownership of bundles of topics: hash ranges, assignment to workers, and leases."""

from logstore.ownership.bundle_assignment import (
    BundleAcquisition,
    BundleOwnerNode,
    OwnershipView,
    ReownAttempts,
    ReownDecision,
    WorkerLoad,
    bundles_to_shed,
    bundles_to_take,
    decide_reown,
    rank_workers,
)
from logstore.ownership.bundles_and_leases import (
    MAX_BUNDLES,
    BundleId,
    Lease,
    bundle_name,
    bundle_of_topic,
    check_bundle_count,
    check_worker_id,
    parse_bundle_name,
)

__all__ = [
    "MAX_BUNDLES",
    "BundleAcquisition",
    "BundleId",
    "BundleOwnerNode",
    "Lease",
    "OwnershipView",
    "ReownAttempts",
    "ReownDecision",
    "WorkerLoad",
    "bundle_name",
    "bundle_of_topic",
    "bundles_to_shed",
    "bundles_to_take",
    "check_bundle_count",
    "check_worker_id",
    "decide_reown",
    "parse_bundle_name",
    "rank_workers",
]
