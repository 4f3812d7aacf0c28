"""`pulsar plan`, and `orphans list` and `report` on a plan of a cluster."""

from pathlib import Path

import pytest

from logstore.positions import LedgerId
from logstore.pulsar.cluster_findings import Hazard, make_hazard
from logstore.pulsar.plan_jobs import NO_OFFLOAD_BUCKET
from logstore.reconciliation.findings import CLUSTER_KINDS, Finding, FindingKind
from tests.workers.cli.cluster_plans import INCOMPLETE_REASON, RUN_ID, PlannedCluster
from tests.workers.cli.conftest import Run, document
from tests.workers.cli.fakes import FakeCommandServices
from tests.workflows.pulsar.cluster_plans import orphan_ledger

_TOPIC = "managed-ledgers/t/ns/persistent/a"
_FINDINGS = [
    orphan_ledger(7),
    Finding(kind=FindingKind.ORPHAN_OFFLOAD, ledger_id=LedgerId(8), bucket="cold", key="0a-ledger-8", size_bytes=5),
    Finding(kind=FindingKind.DANGLING_REFERENCE, ledger_id=LedgerId(9), key=f"/{_TOPIC}"),
    Finding(
        kind=FindingKind.DANGLING_REFERENCE,
        ledger_id=LedgerId(10),
        bucket="cold",
        key=f"/{_TOPIC}",
        statement={"owner": _TOPIC, "verdict": "data_lost"},
    ),
    make_hazard(Hazard.SHADOW_TOPICS, 1, ["t/ns/persistent/copy"]),
]


@pytest.fixture
def planned(services: FakeCommandServices, tmp_path: Path) -> PlannedCluster:
    planned = PlannedCluster(tmp_path, _FINDINGS)
    services.environ["SEXTON_PULSAR_ZOOKEEPER"] = "127.0.0.1:1"
    services.client.plan_pulsar = planned.plan_pulsar  # type: ignore[attr-defined]
    services.log.catalog = planned.catalog
    return planned


@pytest.fixture
def incomplete(planned: PlannedCluster, services: FakeCommandServices) -> PlannedCluster:
    planned.make_incomplete()
    return planned


def test_plan_answers_findings_and_what_was_scanned(run: Run, planned: PlannedCluster) -> None:
    told = run("pulsar", "plan", "--json")
    answer = document(told)
    zeros = dict.fromkeys((kind.value for kind in CLUSTER_KINDS), 0)
    found = {"orphan_ledger": 1, "orphan_offload": 1, "dangling_reference": 2, "hazard": 1}
    assert (answer["run_id"], answer["findings"]) == (RUN_ID, zeros | found)
    assert answer["bytes"] == zeros | {"orphan_ledger": 300, "orphan_offload": 5}
    assert (answer["complete"], answer["incomplete"]) == (True, [])
    assert (answer["left_out"], answer["rows_before"]) == ([NO_OFFLOAD_BUCKET], None)
    assert f"not compared: {NO_OFFLOAD_BUCKET}" in told.stderr
    assert answer["scanned"] == {"ledgers": 18, "references": 11}
    assert answer["workflow_id"] == f"plan-pulsar/{RUN_ID}"
    (asked,) = planned.started
    assert (asked["older_than_s"], asked["between_s"], asked["unsafe_age"]) == (None, 600.0, False)


def test_incomplete_plan_says_why_and_is_no_failure(run: Run, incomplete: PlannedCluster) -> None:
    told = run("pulsar", "plan", "--json")
    assert (document(told)["complete"], document(told)["incomplete"]) == (False, [INCOMPLETE_REASON])
    assert f"incomplete: {INCOMPLETE_REASON}" in told.stderr
    assert "no, so that no orphan is confirmed" in run("pulsar", "plan").stdout


@pytest.mark.parametrize("option", [("--between", "9m"), ("--older-than", "23h")])
def test_times_below_the_floors_need_unsafe_age(option: tuple[str, str], run: Run, planned: PlannedCluster) -> None:
    message = document(run("pulsar", "plan", *option, "--json"), 3)["error"]["message"]
    assert message.startswith(f"{option[0].removeprefix('--')}: expected")
    assert planned.started == []
    document(run("pulsar", "plan", *option, "--unsafe-age", "--json"))
    assert planned.started[0]["unsafe_age"] is True


def test_without_a_cluster_the_setting_is_named(
    run: Run, planned: PlannedCluster, services: FakeCommandServices
) -> None:
    del services.environ["SEXTON_PULSAR_ZOOKEEPER"]
    assert document(run("pulsar", "plan", "--json"), 2)["error"]["field"] == "pulsar_zookeeper"
    assert planned.started == []


def test_report_shows_ledgers_with_their_owners(run: Run, planned: PlannedCluster) -> None:
    rows = document(run("orphans", "report", RUN_ID, "--json"))
    names = ("ledger_id", "path", "version", "owner", "verdict", "confirmed")
    assert [tuple(row[name] for name in names) for row in rows] == [
        (9, f"/{_TOPIC}", None, None, None, None),
        (10, f"/{_TOPIC}", None, f"/{_TOPIC}", "data_lost", None),
        (7, "/ledgers/00/0000/L0007", 0, "/managed-ledgers/t/ns/persistent/gone", "owner_absent", True),
        (8, None, None, None, None, None),
        (None, None, None, None, None, None),
    ], "readers of what dangles may fail, so these findings come first"
    told = run("orphans", "report", RUN_ID).stdout
    assert "2 dangling_reference, 1 orphan_ledger, 1 orphan_offload, 1 hazard" in told
    assert NO_OFFLOAD_BUCKET in told
    assert "11, second scan at 2025-11-22T08:26:40Z" in told


def test_report_of_an_incomplete_plan_confirms_no_orphan(run: Run, incomplete: PlannedCluster) -> None:
    """What was not read may refer to it, whatever the job that verified the orphan knew."""
    (row,) = document(run("orphans", "report", RUN_ID, "--kind", "orphan_ledger", "--json"))
    assert row["confirmed"] is False
    assert "confirmed" not in row["statement"]
    told = run("orphans", "report", RUN_ID, "--kind", "orphan_ledger").stdout
    assert [line.split()[:4] for line in told.splitlines() if "orphan_ledger" in line][-1][1:] == [
        "orphan_ledger",
        "7",
        "no",
    ]


def test_page_shows_owners_and_why_a_plan_is_incomplete(run: Run, incomplete: PlannedCluster, tmp_path: Path) -> None:
    page = tmp_path / "cluster.html"
    assert run("orphans", "report", RUN_ID, "--html", str(page)).exit_code == 0
    text = page.read_text(encoding="utf-8")
    assert f"Incomplete: {INCOMPLETE_REASON}" in text
    assert "Bytes in storage by owner" in text
    assert "<title>/managed-ledgers/t/ns/persistent/gone: 300 B</title>" in text
    assert "<td>owner_absent</td><td>no</td>" in text.replace("\n", "")


def test_list_names_plans_of_clusters(run: Run, incomplete: PlannedCluster) -> None:
    (row,) = document(run("orphans", "list", "--json"))
    assert (row["run_id"], row["kind"], row["complete"]) == (RUN_ID, "cluster-plan", False)
    assert row["counts"]["dangling_reference"] == 2
    assert "incomplete: 1 orphan_ledger" in run("orphans", "list").stdout
