"""Clusters with orphan ledgers: one in memory, and one on a real ZooKeeper."""

from typing import Protocol

from kazoo.client import KazooClient

from logstore.ports.pulsar_cluster import PulsarClusterAccess
from logstore.pulsar.znode_names import format_ledger_path
from logstore.reconciliation.findings import Finding
from tests.fakes.pulsar_cluster import FakePulsarCluster
from tests.infra.pulsar.planted_orphans import OF_TOPIC, TOPIC, plant_orphan, write
from tests.logstore.pulsar import wire
from tests.workflows.pulsar.cluster_plans import orphan_ledger


class ClusterWorld(Protocol):
    """A cluster and its own writers."""

    @property
    def access(self) -> PulsarClusterAccess:
        """Access of jobs."""

    def plant(self, ledger_id: int) -> Finding:
        """Create an orphan ledger, and return it as a plan would."""

    def write_ledger(self, ledger_id: int, data: bytes) -> None:
        """Change the value of a ledger."""

    def remove(self, ledger_id: int) -> None:
        """Delete a ledger."""

    def create_anew(self, ledger_id: int) -> None:
        """Delete a ledger, and create it again with the same value."""

    def refer_to(self, ledger_id: int) -> None:
        """Let a topic refer to a ledger."""

    def replace_cluster(self) -> None:
        """Make the cluster anew."""

    def read(self, ledger_id: int) -> bytes | None:
        """Return the value of a ledger."""


class MemoryCluster:
    """The fake."""

    def __init__(self) -> None:
        self.access = FakePulsarCluster()

    def plant(self, ledger_id: int) -> Finding:
        self.access.ledgers[ledger_id] = b"ledger"
        return orphan_ledger(ledger_id)

    def write_ledger(self, ledger_id: int, data: bytes) -> None:
        version, czxid = self.access.get_znode_state(ledger_id)
        self.access.ledgers[ledger_id], self.access.znode_states[ledger_id] = data, (version + 1, czxid)

    def remove(self, ledger_id: int) -> None:
        del self.access.ledgers[ledger_id]

    def create_anew(self, ledger_id: int) -> None:
        self.access.create_ledger(ledger_id, self.access.ledgers[ledger_id])

    def refer_to(self, ledger_id: int) -> None:
        self.access.referenced.add(ledger_id)

    def replace_cluster(self) -> None:
        self.access.replace_cluster()

    def read(self, ledger_id: int) -> bytes | None:
        return self.access.ledgers.get(ledger_id)


class ZooKeeperCluster:
    """Cluster below the chroot of the client."""

    def __init__(self, client: KazooClient, access: PulsarClusterAccess) -> None:
        self.access, self._client = access, client
        write(client, "ledgers/INSTANCEID", b"5f0a")
        write(client, "managed-ledgers")
        write(client, "admin/policies/t", b"{}")

    def plant(self, ledger_id: int) -> Finding:
        return plant_orphan(self._client, ledger_id, OF_TOPIC)

    def write_ledger(self, ledger_id: int, data: bytes) -> None:
        self._client.set(_path(ledger_id), data)

    def remove(self, ledger_id: int) -> None:
        self._client.delete(_path(ledger_id))

    def create_anew(self, ledger_id: int) -> None:
        value = self.read(ledger_id)
        self.remove(ledger_id)
        self._client.create(_path(ledger_id), value)

    def refer_to(self, ledger_id: int) -> None:
        write(self._client, TOPIC, wire.managed_ledger([ledger_id, 9]))

    def replace_cluster(self) -> None:
        self._client.set("/ledgers/INSTANCEID", b"77aa")

    def read(self, ledger_id: int) -> bytes | None:
        return self._client.get(_path(ledger_id))[0] if self._client.exists(_path(ledger_id)) else None


def _path(ledger_id: int) -> str:
    return f"/ledgers/{format_ledger_path(ledger_id)}"
