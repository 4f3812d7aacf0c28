"""Access of jobs to the Pulsar cluster that the settings name. Its parts are imported when a job needs them."""

from logstore.pulsar.cluster_check import ClusterCheck
from workers.settings import Settings


class PulsarClusterOfSettings:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def check(self) -> ClusterCheck:
        from workers.assembly.pulsar_cluster import check_pulsar_cluster  # noqa: PLC0415 - start-up time

        return check_pulsar_cluster(self._settings)

    def has_offload_bucket(self) -> bool:
        return bool(self._settings.pulsar_offload_bucket)

    def read_identity(self) -> str:
        from workers.assembly.pulsar_cluster import read_pulsar_cluster_identity  # noqa: PLC0415 - start-up time

        return read_pulsar_cluster_identity(self._settings)
