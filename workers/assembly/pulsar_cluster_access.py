"""Access of jobs to the Pulsar cluster that the settings name. Its parts are imported when a job needs them."""

from logstore.pulsar.cluster_check import ClusterCheck
from workers.settings import Settings


class PulsarClusterOfSettings:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def check(self) -> ClusterCheck:
        from infra.pulsar.cluster_check import check_cluster  # noqa: PLC0415 - start-up time
        from workers.assembly.pulsar_cluster import pulsar_cluster_from_settings  # noqa: PLC0415 - start-up time

        return check_cluster(pulsar_cluster_from_settings(self._settings))

    def has_offload_bucket(self) -> bool:
        return bool(self._settings.pulsar_offload_bucket)

    def read_identity(self) -> str:
        from infra.pulsar.cluster_check import read_cluster_identity  # noqa: PLC0415 - start-up time
        from workers.assembly.pulsar_cluster import pulsar_cluster_from_settings  # noqa: PLC0415 - start-up time

        cluster = pulsar_cluster_from_settings(self._settings)
        with cluster.open_reader(parallel_sessions=1) as reader:
            return read_cluster_identity(reader, cluster.ledgers_root)
