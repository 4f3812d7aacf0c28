"""Looks at a Pulsar cluster for commands. Everything is read only."""

from collections.abc import Iterator
from urllib.parse import urlsplit

from infra.objects.bucket_address import BucketAddress
from infra.pulsar.broker_admin import BrokerAdmin, BrokerAdminAddress
from infra.pulsar.broker_registrations import list_registered_brokers
from infra.pulsar.cluster_access import PulsarCluster
from infra.pulsar.cluster_check import check_cluster, read_cluster_identity
from infra.pulsar.index_bucket_scan import (
    ScannedIndexBucket,
    list_partitions,
    scan_all_index_buckets,
    scan_index_buckets,
)
from infra.pulsar.ledger_explanation import LedgerExplanation, explain_ledger
from infra.pulsar.open_transactions import TransactionReport, read_open_transactions
from infra.pulsar.owner_lookup import open_owner_directory
from infra.pulsar.scan_facts import ScanProblem
from logstore.errors import InvalidInput
from logstore.pulsar.cluster_check import ClusterCheck
from logstore.pulsar.delayed_buckets import parse_topic_argument
from workers.assembly.zookeeper_credentials import identity_and_tls_from_settings
from workers.settings import Settings, read_secret_file
from workers.settings.tls_files import TlsFilePaths

SESSION_TIMEOUT_S = 10.0  # a person waits
_OFFLOADS = "offloads"  # role of the bucket


def pulsar_cluster_from_settings(settings: Settings) -> PulsarCluster:
    """Return the addresses of the cluster.

    Raises:
        InvalidInput: `pulsar_zookeeper` is empty, or a file that a setting names is invalid.
    """
    if not settings.pulsar_zookeeper:
        expected = "the ZooKeeper of a Pulsar cluster, as host:2181"
        raise InvalidInput("pulsar_zookeeper", expected=expected, found="nothing")
    auth, tls = identity_and_tls_from_settings(settings, "pulsar_zookeeper")
    return PulsarCluster(
        zookeeper=settings.pulsar_zookeeper,
        configuration_store=settings.pulsar_configuration_store,
        ledgers_root=settings.pulsar_ledgers_root.strip("/"),
        log_roots=settings.pulsar_log_root_paths,
        auth=auth,
        tls=tls,
        session_timeout_s=SESSION_TIMEOUT_S,
        reads_per_s=settings.pulsar_reads_per_s,
        admin=_admin_address_from_settings(settings),
        offloads=_offload_bucket_from_settings(settings),
        shared_clusters=settings.pulsar_cluster_names,
    )


def _admin_address_from_settings(settings: Settings) -> BrokerAdminAddress | None:
    token_file = settings.pulsar_admin_token_file
    if token_file:
        read_secret_file("pulsar_admin_token_file", token_file)  # refuse a bad file before any request
    ca_file = TlsFilePaths.from_checked_settings(settings, "pulsar_admin").ca
    if not settings.pulsar_admin_url:
        return None
    parts = urlsplit(settings.pulsar_admin_url)
    if parts.username is not None or parts.query or parts.fragment:
        expected = "a URL without user, query and fragment; a token belongs into pulsar_admin_token_file"
        raise InvalidInput("pulsar_admin_url", expected=expected, found="(hidden)")
    return BrokerAdminAddress(url=settings.pulsar_admin_url, token_file=token_file, ca_file=ca_file)


def _offload_bucket_from_settings(settings: Settings) -> BucketAddress | None:
    ca_file = TlsFilePaths.from_checked_settings(settings, "pulsar_offload").ca
    if not settings.pulsar_offload_bucket:
        return None
    return BucketAddress(
        role=_OFFLOADS,
        bucket=settings.pulsar_offload_bucket,
        endpoint=settings.pulsar_offload_endpoint,
        region=settings.pulsar_offload_region,
        access_key=settings.pulsar_offload_access_key.get_secret_value(),
        secret_key=settings.pulsar_offload_secret_key.get_secret_value(),
        ca_file=ca_file,
    )


def check_pulsar_cluster(settings: Settings) -> ClusterCheck:
    return check_cluster(pulsar_cluster_from_settings(settings))


def read_pulsar_transactions(settings: Settings) -> TransactionReport:
    cluster = pulsar_cluster_from_settings(settings)
    if cluster.admin is None:
        expected = "the admin API of a broker or proxy, as http://broker:8080"
        raise InvalidInput("pulsar_admin_url", expected=expected, found="nothing")
    with cluster.open_reader(parallel_sessions=1) as reader:
        admin = BrokerAdmin(cluster.admin, list_registered_brokers(reader))
        return read_open_transactions(admin, reader, cluster.ledgers_root)


def read_pulsar_cluster_identity(settings: Settings) -> str:
    cluster = pulsar_cluster_from_settings(settings)
    with cluster.open_reader(parallel_sessions=1) as reader:
        return read_cluster_identity(reader, cluster.ledgers_root)


def explain_pulsar_ledger(settings: Settings, ledger_id: int) -> LedgerExplanation:
    cluster = pulsar_cluster_from_settings(settings)
    with (
        cluster.open_reader(parallel_sessions=1) as reader,
        open_owner_directory(cluster, reader, parallel_sessions=1) as owners,
    ):
        return explain_ledger(reader, owners, cluster.ledgers_root, ledger_id, log_roots=cluster.log_roots)


def scan_pulsar_index_buckets(settings: Settings, topic: str | None) -> Iterator[ScannedIndexBucket | ScanProblem]:
    """Yield the index buckets of a topic and its partitions, or those of all topics.

    Raises:
        InvalidInput: The text is no topic's name, or the cluster has no such topic.
    """
    managed_ledger = None if topic is None else parse_topic_argument(topic)
    cluster = pulsar_cluster_from_settings(settings)
    with cluster.open_reader(parallel_sessions=1) as reader:
        if managed_ledger is None:
            yield from scan_all_index_buckets(reader, cluster.ledgers_root)
        else:
            yield from scan_index_buckets(reader, cluster.ledgers_root, list_partitions(reader, managed_ledger))
