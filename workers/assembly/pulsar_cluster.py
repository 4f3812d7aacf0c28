"""Addresses of the Pulsar cluster that the settings name."""

from urllib.parse import urlsplit

from infra.objects.s3_store import BucketAddress
from infra.pulsar.broker_admin import BrokerAdminAddress
from infra.pulsar.cluster_access import PulsarCluster
from logstore.errors import InvalidInput
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
