"""A Pulsar cluster without ZooKeeper: what a check says of it is given."""

from dataclasses import replace

from logstore.pulsar.cluster_check import ClusterCapability, ClusterCheck

IDENTITY = "5f0a/1/2"


class FakePulsarCluster:
    """The port `PulsarClusterAccess`."""

    def __init__(self) -> None:
        """Begin with a cluster of which all is well."""
        self.result = ClusterCheck(cluster="east", identity=IDENTITY, capabilities=())
        self.has_bucket = False
        self.errors: list[Exception] = []  # of the next calls

    def fail_check(self, name: str, detail: str) -> None:
        """Let a check fail."""
        capability = ClusterCapability(name=name, ok=False, detail=detail)
        self.result = replace(self.result, capabilities=(*self.result.capabilities, capability))

    def replace_cluster(self) -> None:
        """Let the settings name another cluster from now on."""
        self.result = replace(self.result, identity="77aa/8/9")

    def check(self) -> ClusterCheck:
        """See the port."""
        if self.errors:
            raise self.errors.pop(0)
        return self.result

    def has_offload_bucket(self) -> bool:
        """See the port."""
        return self.has_bucket

    def read_identity(self) -> str:
        """See the port."""
        return self.check().identity
