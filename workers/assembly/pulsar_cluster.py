"""Access to the Pulsar cluster that the settings name. Its parts are imported when a command or a job needs them."""

from collections.abc import Collection
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from logstore.errors import InvalidInput
from logstore.ports.pulsar_cluster import ClusterChanges, ClusterTransactions
from logstore.pulsar.cluster_check import ClusterCheck
from workers.settings import Settings, read_secret_file
from workers.settings.tls_files import identity_and_tls_from_settings, read_tls_files

if TYPE_CHECKING:
    from infra.objects.s3_store import BucketAddress
    from infra.pulsar.broker_admin import BrokerAdminAddress
    from infra.pulsar.cluster_access import PulsarCluster

SESSION_TIMEOUT_S = 10.0  # a person waits
_OFFLOADS = "offloads"  # role of the bucket


def pulsar_cluster_from_settings(settings: Settings) -> "PulsarCluster":
    """Return the addresses of the cluster.

    Raises:
        InvalidInput: `pulsar_zookeeper` is empty, or a file that a setting names is invalid.
    """
    from infra.pulsar.cluster_access import PulsarCluster  # noqa: PLC0415 - start-up time

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


def _admin_address_from_settings(settings: Settings) -> "BrokerAdminAddress | None":
    from infra.pulsar.broker_admin import BrokerAdminAddress  # noqa: PLC0415 - start-up time

    token_file = settings.pulsar_admin_token_file
    if token_file:
        read_secret_file("pulsar_admin_token_file", token_file)  # refuse a bad file before any request
    ca_file = read_tls_files(settings, "pulsar_admin").ca
    if not settings.pulsar_admin_url:
        return None
    parts = urlsplit(settings.pulsar_admin_url)
    if parts.username is not None or parts.query or parts.fragment:
        expected = "a URL without user, query and fragment; a token belongs into pulsar_admin_token_file"
        raise InvalidInput("pulsar_admin_url", expected=expected, found="(hidden)")
    return BrokerAdminAddress(url=settings.pulsar_admin_url, token_file=token_file, ca_file=ca_file)


def _offload_bucket_from_settings(settings: Settings) -> "BucketAddress | None":
    from infra.objects.s3_store import BucketAddress  # noqa: PLC0415 - start-up time

    ca_file = read_tls_files(settings, "pulsar_offload").ca
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


class PulsarClusterOfSettings:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def check(self) -> ClusterCheck:
        from infra.pulsar.cluster_check import check_cluster  # noqa: PLC0415 - start-up time

        return check_cluster(pulsar_cluster_from_settings(self._settings))

    def has_offload_bucket(self) -> bool:
        return bool(self._settings.pulsar_offload_bucket)

    def is_offload_bucket_exclusive(self) -> bool:
        return self._settings.pulsar_offload_bucket_exclusive

    def has_admin_api(self) -> bool:
        return bool(self._settings.pulsar_admin_url)

    def read_identity(self) -> str:
        from infra.pulsar.cluster_check import read_cluster_identity  # noqa: PLC0415 - start-up time

        cluster = pulsar_cluster_from_settings(self._settings)
        with cluster.open_reader(parallel_sessions=1) as reader:
            return read_cluster_identity(reader, cluster.ledgers_root)

    def find_existing_ledgers(self, ledger_ids: Collection[int]) -> frozenset[int]:
        from infra.pulsar.ledger_scan import find_existing_ledgers  # noqa: PLC0415 - start-up time

        cluster = pulsar_cluster_from_settings(self._settings)
        with cluster.open_reader(parallel_sessions=1) as reader:
            return find_existing_ledgers(reader, cluster.ledgers_root, list(ledger_ids))

    def is_bookkeeper_exclusive(self) -> bool:
        return self._settings.pulsar_bookkeeper_exclusive

    def open_changes(
        self, holder: str, *, shadow_topics: Collection[str] = (), overtakes: str = "", continues: bool = False
    ) -> AbstractContextManager[ClusterChanges]:
        from infra.pulsar.cluster_changes import open_cluster_changes  # noqa: PLC0415 - start-up time

        return open_cluster_changes(
            pulsar_cluster_from_settings(self._settings),
            holder,
            shadow_topics=shadow_topics,
            overtakes=overtakes,
            continues=continues,
        )

    def release_lease(self, holder: str) -> None:
        from infra.pulsar.cluster_changes import release_cluster_lease  # noqa: PLC0415 - start-up time

        release_cluster_lease(pulsar_cluster_from_settings(self._settings), holder)

    def open_transactions(self) -> AbstractContextManager[ClusterTransactions]:
        from infra.pulsar.broker_transactions import open_broker_transactions  # noqa: PLC0415 - start-up time

        return open_broker_transactions(pulsar_cluster_from_settings(self._settings))
