"""Looks at a Pulsar cluster for commands. Everything is read only."""

from infra.pulsar.cluster_access import PulsarCluster
from infra.pulsar.cluster_check import ClusterCheck, check_cluster
from infra.pulsar.ledger_explanation import LedgerExplanation, explain_ledger
from logstore.errors import InvalidInput
from workers.assembly.zookeeper_credentials import identity_and_tls_from_settings
from workers.settings import Settings

SESSION_TIMEOUT_S = 10.0  # a person waits


def pulsar_cluster_from_settings(settings: Settings) -> PulsarCluster:
    """Return the addresses of the cluster.

    Raises:
        InvalidInput: `pulsar_zookeeper` is empty, or a setting of TLS is invalid.
    """
    if not settings.pulsar_zookeeper:
        expected = "the ZooKeeper of a Pulsar cluster, as host:2181"
        raise InvalidInput("pulsar_zookeeper", expected=expected, found="nothing")
    auth, tls = identity_and_tls_from_settings(settings, "pulsar_zookeeper")
    return PulsarCluster(
        zookeeper=settings.pulsar_zookeeper,
        ledgers_root=settings.pulsar_ledgers_root.strip("/"),
        auth=auth,
        tls=tls,
        session_timeout_s=SESSION_TIMEOUT_S,
    )


def check_pulsar_cluster(settings: Settings) -> ClusterCheck:
    cluster = pulsar_cluster_from_settings(settings)
    with cluster.open_reader() as reader:
        return check_cluster(reader, cluster.ledgers_root)


def explain_pulsar_ledger(settings: Settings, ledger_id: int, *, now_ms: int) -> LedgerExplanation:
    cluster = pulsar_cluster_from_settings(settings)
    with cluster.open_reader() as reader:
        return explain_ledger(reader, cluster.ledgers_root, ledger_id, now_ms=now_ms)
