"""Sessions with the ensembles of a cluster, on the real ZooKeeper."""

import pytest
from kazoo.client import KazooClient

from infra.coordination.zookeeper_session import EnsembleOptions
from infra.pulsar.cluster_access import PulsarCluster
from logstore.errors import ServiceFailed


@pytest.mark.external_service
def test_the_configuration_store_is_another_ensemble_only_if_it_is_set(
    ensemble: EnsembleOptions, cluster: KazooClient
) -> None:
    cluster.create("/local")
    cluster.create("/global/only", makepath=True)
    alone = PulsarCluster(zookeeper=ensemble.hosts)
    split = PulsarCluster(zookeeper=ensemble.hosts, configuration_store=f"{ensemble.hosts}/global")
    for access, expected in ((alone, [True, False]), (split, [False, True])):
        with access.open_configuration_reader(parallel_sessions=1) as reader:
            assert [znode is not None for _, znode in reader.read(["local", "only"])] == expected
    with split.open_reader(parallel_sessions=1) as reader:
        assert [znode is not None for _, znode in reader.read(["local", "only"])] == [True, False]


def test_a_configuration_store_that_is_away_is_named_by_its_setting() -> None:
    access = PulsarCluster(zookeeper="127.0.0.1:1", configuration_store="127.0.0.1:2", session_timeout_s=1)
    with (
        pytest.raises(ServiceFailed, match="pulsar_configuration_store"),
        access.open_configuration_reader(parallel_sessions=1),
    ):
        pass


@pytest.mark.external_service
def test_parallel_sessions_share_the_rate_of_reads(ensemble: EnsembleOptions, cluster: KazooClient) -> None:
    access = PulsarCluster(zookeeper=ensemble.hosts, reads_per_s=1_000)
    for sessions, rate in ((1, 1_000), (4, 250)):
        with access.open_reader(parallel_sessions=sessions) as reader:
            assert reader._limiter.units_per_s == rate
