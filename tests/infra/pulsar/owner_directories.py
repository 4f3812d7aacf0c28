"""Directories of owners for tests."""

from infra.pulsar.owner_lookup import OwnerDirectory
from infra.pulsar.policy_directory import PolicyDirectory
from infra.pulsar.znode_reads import ZnodeReader


def make_owner_directory(
    reader: ZnodeReader, *, configuration: ZnodeReader | None = None, shared_clusters: tuple[str, ...] = ()
) -> OwnerDirectory:
    policies = PolicyDirectory(reader, configuration=configuration or reader)
    return OwnerDirectory(reader, "ledgers", policies=policies, shared_clusters=shared_clusters)
