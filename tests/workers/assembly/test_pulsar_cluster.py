"""Addresses of a Pulsar cluster from settings."""

import pickle
from pathlib import Path

import pytest

from infra.objects.s3_store import BucketAddress
from infra.pulsar.broker_admin import BrokerAdminAddress
from infra.pulsar.cluster_access import PulsarCluster
from logstore.errors import InvalidInput
from logstore.setting_files import PemFiles
from tests.tls_servers import TlsCertificateAuthority
from workers.assembly.pulsar_cluster import pulsar_cluster_from_settings
from workers.settings import Settings


def _cluster(home: Path, **settings: object) -> PulsarCluster:
    return pulsar_cluster_from_settings(Settings.model_validate({"home": home, "pulsar_zookeeper": "h:1"} | settings))


def test_a_cluster_with_nothing_but_a_zookeeper_has_neither_admin_nor_offloads(tmp_path: Path) -> None:
    cluster = _cluster(tmp_path)
    assert (cluster.zookeeper, cluster.configuration_store) == ("h:1", "")
    assert (cluster.admin, cluster.offloads, cluster.shared_clusters) == (None, None, ())
    assert cluster.reads_per_s == 5_000


def test_every_setting_of_the_cluster_reaches_the_executors(tmp_path: Path) -> None:
    ca, token = str(TlsCertificateAuthority(tmp_path).ca), tmp_path / "token"
    token.write_text("t\n")
    cluster = _cluster(
        tmp_path,
        pulsar_configuration_store="global:2181/pulsar",
        pulsar_zookeeper_ca_file=ca,
        pulsar_ledgers_root="/bk/ledgers",
        pulsar_log_roots="/bk/pulsar/functions, /dl/packages",
        pulsar_shared_clusters="west,north",
        pulsar_reads_per_s=500,
        pulsar_admin_url="https://broker:8443",
        pulsar_admin_token_file=str(token),
        pulsar_admin_ca_file=ca,
        pulsar_offload_bucket="offloads",
        pulsar_offload_endpoint="http://s3:8333",
        pulsar_offload_region="eu",
        pulsar_offload_access_key="key",
        pulsar_offload_secret_key="secret",
        pulsar_offload_ca_file=ca,
    )
    assert pickle.loads(pickle.dumps(cluster)) == PulsarCluster(  # noqa: S301 - our own value
        zookeeper="h:1",
        configuration_store="global:2181/pulsar",
        ledgers_root="bk/ledgers",
        log_roots=("bk/pulsar/functions", "dl/packages"),
        tls=PemFiles(ca=ca),
        session_timeout_s=10,
        reads_per_s=500,
        admin=BrokerAdminAddress(url="https://broker:8443", token_file=str(token), ca_file=ca),
        offloads=BucketAddress("offloads", "offloads", "http://s3:8333", "eu", "key", "secret", ca),
        shared_clusters=("west", "north"),
    )


@pytest.mark.parametrize("name", ["pulsar_admin_token_file", "pulsar_admin_ca_file", "pulsar_offload_ca_file"])
def test_a_file_that_cannot_be_read_is_refused_before_any_request(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        _cluster(tmp_path, **{name: str(tmp_path / "absent")})
    assert refused.value.field == name


@pytest.mark.parametrize("reads", [99, 1_000_001])
def test_the_rate_of_reads_has_bounds(tmp_path: Path, reads: int) -> None:
    with pytest.raises(ValueError, match="pulsar_reads_per_s"):
        _cluster(tmp_path, pulsar_reads_per_s=reads)


@pytest.mark.parametrize("url", ["http://user:canary@broker", "http://broker?token=canary", "http://broker#canary"])
def test_an_admin_url_with_a_secret_is_refused_without_showing_it(tmp_path: Path, url: str) -> None:
    with pytest.raises(InvalidInput, match="pulsar_admin_url: expected a URL without user") as refused:
        _cluster(tmp_path, pulsar_admin_url=url)
    assert "canary" not in str(refused.value)
