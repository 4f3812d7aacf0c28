"""ZooKeeper's clock is never taken to be later than it is."""

import pytest
from kazoo.client import KazooClient

from infra.pulsar.cluster_clock import read_cluster_clock_ms, read_worker_clock_ms
from infra.pulsar.znode_reads import ZnodeReader

pytestmark = pytest.mark.external_service


def test_the_newest_change_that_was_read_is_the_time(cluster: KazooClient, reader: ZnodeReader) -> None:
    assert read_cluster_clock_ms(reader) == 0, "nothing was read"
    cluster.create("/a", b"")
    newest = cluster.set("/a", b"1")
    assert dict(reader.read(["a", "absent"]))["absent"] is None
    assert read_cluster_clock_ms(reader) == newest.mtime
    assert read_cluster_clock_ms(reader, newest_change_ms=newest.mtime + 1) == newest.mtime + 1


def test_the_load_reports_of_brokers_are_read(cluster: KazooClient, reader: ZnodeReader) -> None:
    cluster.create("/loadbalance/brokers/a:8080", b"", makepath=True)
    newest = cluster.set("/loadbalance/brokers/a:8080", b"{}")
    assert read_cluster_clock_ms(reader) == newest.mtime


def test_a_change_of_the_future_is_one_of_now(reader: ZnodeReader) -> None:
    """ZooKeeper's clock was wrong once: by such a change, every ledger would be old."""
    before_ms = read_worker_clock_ms()
    cluster_ms = read_cluster_clock_ms(reader, newest_change_ms=before_ms + 86_400_000)
    assert before_ms <= cluster_ms <= read_worker_clock_ms()
