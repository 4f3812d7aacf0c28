"""`pulsar check` and `pulsar explain` on a real ZooKeeper that holds a cluster's metadata."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kazoo.client import KazooClient

from infra.coordination.zookeeper_session import EnsembleOptions
from infra.pulsar import index_bucket_scan
from logstore.errors import UnknownObject
from logstore.pulsar.znode_names import format_ledger_path
from tests.infra.pulsar.conftest import cluster, ensemble, zookeeper
from tests.infra.pulsar.fake_bookie import answer_with, run_bookie, seal_entry
from tests.infra.pulsar.test_cluster_check import write_cluster
from tests.logstore.pulsar import wire
from tests.workers.cli.conftest import Run, document
from tests.workers.cli.fakes import FakeCommandServices

__all__ = ["cluster", "ensemble", "zookeeper"]

_TOPIC = "managed-ledgers/t/ns/persistent/a"
_OWNED = {"application": "pulsar", "component": "managed-ledger", "pulsar/managed-ledger": "t/ns/persistent/a"}


@pytest.fixture
def own_cluster(services: FakeCommandServices, ensemble: EnsembleOptions, cluster: KazooClient) -> KazooClient:
    """A client of the cluster that the settings name."""
    services.environ["SEXTON_PULSAR_ZOOKEEPER"] = ensemble.hosts
    return cluster


@pytest.mark.external_service
def test_a_check_answers_identity_and_capabilities(run: Run, own_cluster: KazooClient) -> None:
    write_cluster(own_cluster)
    answer = document(run("pulsar", "check", "--json"))
    assert (answer["ok"], answer["cluster"]) == (True, "east")
    assert answer["identity"].startswith("5f0a/")
    names = "layout ledger_manager identity metadata_service managed_ledgers bookies brokers admin offloads"
    assert [row["name"] for row in answer["capabilities"]] == [*names.split(), "shared_clusters", "configuration_store"]
    shown = run("pulsar", "check")
    assert "cluster east, identity 5f0a/" in shown.output


@pytest.mark.external_service
def test_a_check_of_another_ensemble_fails(run: Run, own_cluster: KazooClient) -> None:
    answer = document(run("pulsar", "check", "--json"), code=4)
    assert (answer["ok"], answer["cluster"]) == (False, "")


@pytest.mark.external_service
def test_an_explanation_answers_owner_references_and_verdict(run: Run, own_cluster: KazooClient) -> None:
    write_cluster(own_cluster)
    path = format_ledger_path(8)
    own_cluster.create(f"/ledgers/{path}", wire.ledger_metadata(custom=_OWNED))
    orphan = document(run("pulsar", "explain", "8", "--json"))
    assert orphan["owner"] == {"component": "managed-ledger", "path": f"/{_TOPIC}"}
    assert (orphan["references"], orphan["verdict"]) == ([], "young")
    own_cluster.create(f"/{_TOPIC}", wire.managed_ledger([8]), makepath=True)
    referenced = document(run("pulsar", "explain", "8", "--json"))
    assert referenced["references"] == [{"path": f"/{_TOPIC}", "field": "ledgers"}]
    assert (referenced["verdict"], referenced["reason"]) == ("referenced", f"/{_TOPIC} refers to it")
    assert referenced["metadata"]["bookies"] == ["bk0"]
    assert f"/{_TOPIC} (ledgers)" in run("pulsar", "explain", "8", "--wide").output


@pytest.mark.external_service
def test_a_ledger_that_the_cluster_has_not_is_refused(run: Run, own_cluster: KazooClient) -> None:
    write_cluster(own_cluster)
    assert document(run("pulsar", "explain", "99", "--json"), code=2)["error"]["field"] == "ledger_id"


_SOON_MS = 4_102_444_800_000  # 2100-01-01


@pytest.fixture
def with_buckets(own_cluster: KazooClient) -> Iterator[KazooClient]:
    """A partitioned topic and another one, with a bucket that is stored, one without ledger, and one without bookie."""
    stored = wire.index_bucket(({1: [1, 2], 2: [3]}, _SOON_MS, _SOON_MS + 5_000), ({2: [9]}, 1_000, 2_000))
    write_cluster(own_cluster)
    with run_bookie(answer_with(seal_entry(21, 0, stored))) as bookie:
        ledgers = {21: [f"127.0.0.1:{bookie.address.port}"], 23: ["127.0.0.1:1"]}
        for ledger_id, bookies in ledgers.items():
            metadata = wire.ledger_metadata(bookies=bookies, length=77)
            own_cluster.create(f"/ledgers/{format_ledger_path(ledger_id)}", metadata, makepath=True)
        parent = "/managed-ledgers/t/ns/persistent"
        for path, buckets in {
            f"{parent}/x-partition-0/billing": {"1_2": "21", "3_3": "22"},
            f"{parent}/x-partition-10/billing": {"4_5": "23"},
            f"{parent}/x-partition-9/none": {},
            f"{parent}/other/my+sub": {"1_2": "24"},
            f"{parent}/x-partition-01/billing": {"1_2": "25"},
        }.items():
            own_cluster.create(path, wire.cursor(-1, buckets=buckets), makepath=True)
        yield own_cluster


@pytest.mark.external_service
@pytest.mark.parametrize("topic", ["t/ns/x", "persistent://t/ns/x"])
def test_buckets_of_a_topic_are_listed_with_those_of_its_partitions(
    topic: str, run: Run, with_buckets: KazooClient
) -> None:
    stored, dangling, unreadable = document(run("pulsar", "delayed", topic, "--json"), code=4)
    assert stored == {
        "topic": "persistent://t/ns/x-partition-0",
        "subscription": "billing",
        "first_ledger": 1,
        "last_ledger": 2,
        "ledger_id": 21,
        "state": "stored",
        "messages": 4,
        "segments": 2,
        "size_bytes": 77,
        "next_due": "2100-01-01T00:00:00Z",
        "problem": "",
    }
    assert (dangling["ledger_id"], dangling["state"], dangling["messages"]) == (22, "dangling", None)
    assert (unreadable["topic"], unreadable["state"]) == ("persistent://t/ns/x-partition-10", "unreadable")
    assert "127.0.0.1:1" in unreadable["problem"]


@pytest.mark.external_service
def test_buckets_of_all_topics_are_listed_and_what_cannot_be_read_is_among_them(
    run: Run, with_buckets: KazooClient
) -> None:
    with_buckets.create("/managed-ledgers/t/ns/persistent/other/damaged", b"\xff")
    with_buckets.create("/managed-ledgers/t/ns/unknown/a", b"", makepath=True)
    rows = document(run("pulsar", "delayed", "--json"), code=4)
    states = {(row["topic"].rpartition("/")[2], row["subscription"], row["ledger_id"]): row["state"] for row in rows}
    assert states == {
        ("x-partition-0", "billing", 21): "stored",
        ("x-partition-0", "billing", 22): "dangling",
        ("x-partition-10", "billing", 23): "unreadable",
        ("other", "my sub", 24): "dangling",
        ("x-partition-01", "billing", 25): "dangling",
        ("other", "damaged", None): "unreadable",
        ("a", "", None): "unreadable",
    }
    answer = run("pulsar", "delayed")
    assert answer.exit_code == 4
    shown = answer.output
    assert "index buckets: 3 dangling, 1 stored, 3 unreadable" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert "persistent://t/ns/x-partition-10" in shown
    assert "2100-01-01 00:00" in shown


@pytest.mark.external_service
def test_a_bucket_that_is_deleted_during_the_command_is_left_out(
    run: Run, with_buckets: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker deletes the ledger first, and then the name."""
    path = "/managed-ledgers/t/ns/persistent/x-partition-0/billing"
    read_buckets = index_bucket_scan._read_buckets

    def read_and_remove_name(*arguments: Any) -> Any:
        with_buckets.set(path, wire.cursor(-1, buckets={"1_2": "21"}))
        return read_buckets(*arguments)

    monkeypatch.setattr(index_bucket_scan, "_read_buckets", read_and_remove_name)
    rows = document(run("pulsar", "delayed", "t/ns/x", "--json"), code=4)
    assert [row["ledger_id"] for row in rows] == [21, 23]


@pytest.mark.external_service
def test_a_silent_bookie_is_waited_for_once(
    run: Run, with_buckets: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_bucket_scan, "_BUCKETS_PER_BATCH", 1)
    monkeypatch.setattr(index_bucket_scan, "_BOOKIE_TIMEOUT_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        bookie_id = f"127.0.0.1:{silent.getsockname()[1]}"
        for ledger_id in range(60, 70):
            metadata = wire.ledger_metadata(bookies=[bookie_id])
            with_buckets.create(f"/ledgers/{format_ledger_path(ledger_id)}", metadata)
        buckets = {f"{ledger_id}_{ledger_id}": str(ledger_id) for ledger_id in range(60, 70)}
        with_buckets.create(
            "/managed-ledgers/t/ns/persistent/many/sub", wire.cursor(-1, buckets=buckets), makepath=True
        )
        rows = document(run("pulsar", "delayed", "t/ns/many", "--json"), code=4)
        assert [row["state"] for row in rows] == ["unreadable"] * 10
        silent.setblocking(False)
        silent.accept()[0].close()
        with pytest.raises(BlockingIOError):
            silent.accept()


@pytest.mark.external_service
def test_a_topic_without_buckets_has_none_and_one_that_does_not_exist_is_refused(
    run: Run, with_buckets: KazooClient
) -> None:
    with_buckets.create("/managed-ledgers/t/ns/persistent/empty", b"")
    assert document(run("pulsar", "delayed", "t/ns/empty", "--json")) == []
    assert "no subscription has index buckets" in run("pulsar", "delayed", "t/ns/empty").output
    assert document(run("pulsar", "delayed", "t/ns/absent", "--json"), code=2)["error"]["field"] == "topic"


@pytest.mark.parametrize("topic", ["orders", "non-persistent://t/ns/x", "t/ns/"])
def test_a_text_that_is_no_topic_is_refused_by_its_field(topic: str, run: Run) -> None:
    error = document(run("pulsar", "delayed", topic, "--json"), code=2)["error"]
    assert error["field"] == "topic"
    assert f"found '{topic}'" in error["message"]


@pytest.mark.parametrize("arguments", [("check",), ("explain", "7"), ("delayed",)])
def test_looks_at_a_cluster_show_progress(
    arguments: tuple[str, ...], run: Run, services: FakeCommandServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may take more than a second."""
    events: list[str] = []

    @contextmanager
    def note_begin_and_end(_text: str) -> Iterator[None]:
        events.append("begin")
        yield
        events.append("end")

    def look(*_: object) -> Any:
        events.append("look")
        raise UnknownObject("topic", expected="a topic", found="none")

    monkeypatch.setattr("workers.cli.pulsar.show_progress_bar", note_begin_and_end)
    for name in ("check_pulsar_cluster", "explain_pulsar_ledger", "scan_pulsar_index_buckets"):
        monkeypatch.setattr(services, name, look)
    run("pulsar", *arguments)
    assert events == ["begin", "look"]


@pytest.mark.parametrize("arguments", [("check",), ("explain", "7"), ("delayed",), ("delayed", "t/ns/x")])
def test_without_a_cluster_the_setting_is_named(run: Run, arguments: tuple[str, ...]) -> None:
    error = document(run("pulsar", *arguments, "--json"), code=2)["error"]
    assert error["field"] == "pulsar_zookeeper"


def test_an_ensemble_that_is_away_is_told_with_its_setting(run: Run, services: FakeCommandServices) -> None:
    services.environ |= {"SEXTON_PULSAR_ZOOKEEPER": "127.0.0.1:1"}
    error = document(run("pulsar", "check", "--json"), code=4)["error"]
    assert "start it or mend the setting `pulsar_zookeeper`" in str(error)
