"""Access of jobs to the Pulsar cluster that the settings name. Its parts are imported when a job needs them."""

from collections.abc import Collection
from contextlib import AbstractContextManager

from logstore.ports.pulsar_cluster import ClusterChanges, ClusterTransactions
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

    def is_offload_bucket_exclusive(self) -> bool:
        return self._settings.pulsar_offload_bucket_exclusive

    def has_admin_api(self) -> bool:
        return bool(self._settings.pulsar_admin_url)

    def read_identity(self) -> str:
        from infra.pulsar.cluster_check import read_cluster_identity  # noqa: PLC0415 - start-up time
        from workers.assembly.pulsar_cluster import pulsar_cluster_from_settings  # noqa: PLC0415 - start-up time

        cluster = pulsar_cluster_from_settings(self._settings)
        with cluster.open_reader(parallel_sessions=1) as reader:
            return read_cluster_identity(reader, cluster.ledgers_root)

    def find_existing_ledgers(self, ledger_ids: Collection[int]) -> frozenset[int]:
        from infra.pulsar.ledger_scan import find_existing_ledgers  # noqa: PLC0415 - start-up time
        from workers.assembly.pulsar_cluster import pulsar_cluster_from_settings  # noqa: PLC0415 - start-up time

        cluster = pulsar_cluster_from_settings(self._settings)
        with cluster.open_reader(parallel_sessions=1) as reader:
            return find_existing_ledgers(reader, cluster.ledgers_root, list(ledger_ids))

    def is_bookkeeper_exclusive(self) -> bool:
        return self._settings.pulsar_bookkeeper_exclusive

    def open_changes(
        self, holder: str, *, shadow_topics: Collection[str] = (), overtakes: str = "", continues: bool = False
    ) -> AbstractContextManager[ClusterChanges]:
        from infra.pulsar.cluster_changes import open_cluster_changes  # noqa: PLC0415 - start-up time
        from workers.assembly.pulsar_cluster import pulsar_cluster_from_settings  # noqa: PLC0415 - start-up time

        return open_cluster_changes(
            pulsar_cluster_from_settings(self._settings),
            holder,
            shadow_topics=shadow_topics,
            overtakes=overtakes,
            continues=continues,
        )

    def release_lease(self, holder: str) -> None:
        from infra.pulsar.cluster_changes import release_cluster_lease  # noqa: PLC0415 - start-up time
        from workers.assembly.pulsar_cluster import pulsar_cluster_from_settings  # noqa: PLC0415 - start-up time

        release_cluster_lease(pulsar_cluster_from_settings(self._settings), holder)

    def open_transactions(self) -> AbstractContextManager[ClusterTransactions]:
        from infra.pulsar.broker_transactions import open_broker_transactions  # noqa: PLC0415 - start-up time
        from workers.assembly.pulsar_cluster import pulsar_cluster_from_settings  # noqa: PLC0415 - start-up time

        return open_broker_transactions(pulsar_cluster_from_settings(self._settings))
