"""Port of the Pulsar cluster that the settings name. Nothing is written to it."""

from typing import Protocol

from logstore.pulsar.cluster_check import ClusterCheck


class PulsarClusterAccess(Protocol):
    """Access to one cluster. Each call opens a session of its own.

    `check` and `read_identity` raise `InvalidInput` if the settings name no cluster. They raise `ServiceFailed` or
    `StoreUnavailable` if ZooKeeper cannot be reached.
    """

    def check(self) -> ClusterCheck:
        """Read what a plan needs of the cluster, and its identity."""

    def has_offload_bucket(self) -> bool:
        """Return whether the settings name the bucket of offloads."""

    def read_identity(self) -> str:
        """Return the identity that `check` names."""
