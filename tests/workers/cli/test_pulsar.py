"""`pulsar check` and `pulsar explain` on a real ZooKeeper that holds a cluster's metadata."""

import pytest
from kazoo.client import KazooClient

from infra.coordination.zookeeper_session import EnsembleOptions
from logstore.pulsar.znode_names import format_ledger_path
from tests.infra.pulsar.conftest import cluster, ensemble, zookeeper
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
    assert [row["name"] for row in answer["capabilities"]] == ["layout", "managed_ledgers", "bookies"]
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


@pytest.mark.parametrize("arguments", [("check",), ("explain", "7")])
def test_without_a_cluster_the_setting_is_named(run: Run, arguments: tuple[str, ...]) -> None:
    error = document(run("pulsar", *arguments, "--json"), code=2)["error"]
    assert error["field"] == "pulsar_zookeeper"


def test_an_ensemble_that_is_away_is_told_with_its_setting(run: Run, services: FakeCommandServices) -> None:
    services.environ |= {"SEXTON_PULSAR_ZOOKEEPER": "127.0.0.1:1"}
    error = document(run("pulsar", "check", "--json"), code=4)["error"]
    assert "start it or mend the setting `pulsar_zookeeper`" in str(error)
