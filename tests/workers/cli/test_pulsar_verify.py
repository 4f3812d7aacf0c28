"""`pulsar verify` says whether an apply has lost anything, and exits with it."""

from collections import Counter
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from infra.pulsar.apply_verification import ApplyVerification, DeletedLedgerState, SpaceState
from infra.pulsar.scan_facts import ScannedReference, ScanProblem
from logstore.ports.catalog.deletion import Claim
from logstore.ports.catalog.reconciliation import RunKind
from logstore.reconciliation.findings import FindingKind
from tests.fakes.object_store import Fault, FaultKind, StoreOperation
from tests.workers.cli.cluster_plans import RUN_ID, PlannedCluster
from tests.workers.cli.conftest import Run, document
from tests.workers.cli.fakes import FakeCommandServices
from tests.workflows.pulsar.cluster_plans import orphan_ledger

_JOURNAL = object()


@pytest.fixture
def planned(services: FakeCommandServices, tmp_path: Path) -> PlannedCluster:
    planned = PlannedCluster(tmp_path, [orphan_ledger(7)])
    planned.catalog.cluster_journal = _JOURNAL
    services.log.catalog = planned.catalog
    return planned


@pytest.fixture
def applied(planned: PlannedCluster) -> PlannedCluster:
    planned.store_apply([])
    return planned


@pytest.fixture
def result(services: FakeCommandServices) -> ApplyVerification:
    """What the look at the cluster will say."""
    result = ApplyVerification(
        references=11,
        planned_dangling=1,
        ledgers=Counter({DeletedLedgerState.ABSENT: 3, DeletedLedgerState.RESTORED: 1}),
        space_ledgers=Counter({SpaceState.RECLAIMED: 2, SpaceState.AWAITING: 1}),
        space_bytes=Counter({SpaceState.RECLAIMED: 600, SpaceState.AWAITING: 100}),
        unstated_ledgers=1,
        orphans_left=4,
    )

    def verify(settings: Any, apply_run: Any, journal: Any, findings: Any) -> ApplyVerification:
        assert settings is not None
        assert apply_run.run_id == f"apply-{RUN_ID}"
        assert journal is _JOURNAL
        if findings:
            assert [finding.ledger_id for _, finding in findings.iterate_findings(FindingKind.ORPHAN_LEDGER)] == [7]
        else:
            result.orphans_left = None
        return result

    services.verify_pulsar_apply = verify  # type: ignore[method-assign]
    return result


def test_answer_has_the_fixed_fields_and_says_what_the_bytes_are(
    run: Run, applied: PlannedCluster, result: ApplyVerification
) -> None:
    answer = document(run("pulsar", "verify", RUN_ID, "--json"))
    assert answer == {
        "run_id": RUN_ID,
        "missing_referenced": 0,
        "orphans_left": 4,
        "reclaimed_bytes": 600,
        "bytes": {"reclaimed": 600, "awaiting_collection": 100, "unknown": 0},
        "ledgers": {"reclaimed": 2, "awaiting_collection": 1, "unknown": 0},
        "unstated_ledgers": 1,
        "journal": {"absent": 3, "restored": 1, "replaced": 0},
        "references": 11,
        "dangling": {"planned": 1, "new": 0},
        "complete": True,
        "certificate": None,
        "missing": [],
        "new_dangling": [],
        "problem_count": 0,
        "problems": [],
    }
    shown = " ".join(run("pulsar", "verify", RUN_ID).stdout.split())
    assert "3 absent, 1 restored" in shown
    assert "bookies have the ledgers until their next garbage collection" in shown


def test_missing_ledger_fails_the_command_with_the_path_that_needs_it(
    run: Run, applied: PlannedCluster, result: ApplyVerification
) -> None:
    """It fails also if something could not be read."""
    result.missing.add(ScannedReference(7, "managed-ledgers/t/ns/persistent/a", "ledgers"))
    result.problems.add(ScanProblem("schemas/t/ns/a", "a field is unknown"))
    answer = document(run("pulsar", "verify", RUN_ID, "--json"), 1)
    assert answer["missing_referenced"] == 1
    assert answer["missing"] == [{"ledger_id": 7, "path": "/managed-ledgers/t/ns/persistent/a", "field": "ledgers"}]
    assert "/managed-ledgers/t/ns/persistent/a" in run("pulsar", "verify", RUN_ID).stdout


def test_what_cannot_be_read_is_told_with_its_own_code(
    run: Run, applied: PlannedCluster, result: ApplyVerification
) -> None:
    result.problems.add(ScanProblem("schemas/t/ns/a", "a field is unknown"))
    answer = document(run("pulsar", "verify", RUN_ID, "--json"), 4)
    assert (answer["complete"], answer["problem_count"]) == (False, 1)
    assert answer["problems"] == [{"path": "/schemas/t/ns/a", "reason": "a field is unknown"}]


def test_other_dangling_references_are_no_failure(run: Run, applied: PlannedCluster, result: ApplyVerification) -> None:
    result.new_dangling.add(ScannedReference(9, "schemas/t/ns/a", "versions"))
    answer = document(run("pulsar", "verify", RUN_ID, "--json"))
    assert answer["dangling"] == {"planned": 1, "new": 1}
    assert answer["new_dangling"] == [{"ledger_id": 9, "path": "/schemas/t/ns/a", "field": "versions"}]


def _store_certificate(services: FakeCommandServices, body: bytes) -> str:
    digest = sha256(b"a certificate").hexdigest()
    key = f"cluster-certificates/apply-{RUN_ID}/0000000003-{digest}.jsonl"
    services.log.record_objects.put_if_absent(key, body, metadata={})
    return key


@pytest.mark.usefixtures("applied", "result")
@pytest.mark.parametrize(("body", "code"), [(b"a certificate", 0), (b"a certificat", 1)])
def test_certificate_is_checked(body: bytes, code: int, run: Run, services: FakeCommandServices) -> None:
    key = _store_certificate(services, body)
    answer = document(run("pulsar", "verify", RUN_ID, "--json"), code)
    assert answer["certificate"] == {"key": key, "removals": 3, "intact": not code, "error": None}
    assert key in run("pulsar", "verify", RUN_ID, "--wide").stdout


def test_certificate_that_cannot_be_read_hides_nothing(
    run: Run, services: FakeCommandServices, applied: PlannedCluster, result: ApplyVerification
) -> None:
    services.log.record_objects.plan(Fault(operation=StoreOperation.LIST, kind=FaultKind.BEFORE))
    answer = document(run("pulsar", "verify", RUN_ID, "--json"), 4)
    assert (answer["missing_referenced"], answer["certificate"]["key"]) == (0, None)
    assert "503" in answer["certificate"]["error"]


def test_plan_without_an_apply_is_refused(run: Run, planned: PlannedCluster, result: ApplyVerification) -> None:
    error = document(run("pulsar", "verify", RUN_ID, "--json"), 3)["error"]
    assert error["message"] == f"plan {RUN_ID}: expected an applied one, found no apply"


def test_apply_whose_plan_has_left_the_catalog_is_verified(
    run: Run, applied: PlannedCluster, result: ApplyVerification
) -> None:
    """A lost catalog, or an undo from the records bucket, leaves the apply alone."""
    applied.catalog.reconciliation.remove(RUN_ID)
    answer = document(run("pulsar", "verify", RUN_ID, "--json"))
    assert (answer["missing_referenced"], answer["orphans_left"]) == (0, None)
    assert "unknown: the plan has left the catalog" in run("pulsar", "verify", RUN_ID).stdout


def test_run_that_is_no_plan_of_a_cluster_is_refused(
    run: Run, applied: PlannedCluster, result: ApplyVerification
) -> None:
    error = document(run("pulsar", "verify", f"apply-{RUN_ID}", "--json"), 3)["error"]
    assert "expected a plan of a Pulsar cluster" in error["message"]
    assert document(run("pulsar", "verify", "pulsar-none", "--json"), 2)["error"]["type"] == "UnknownObject"


def test_apply_of_the_own_store_is_refused(run: Run, applied: PlannedCluster, result: ApplyVerification) -> None:
    claim = Claim(workflow_id="tests", run_id="", ttl_s=60)
    summary = {"actor": "ann", "reason": "", "folder": ""}
    applied.catalog.reconciliation.open_run("apply-plan-1", RunKind.APPLY, claim=claim, summary=summary)
    error = document(run("pulsar", "verify", "plan-1", "--json"), 3)["error"]
    assert error["message"] == "run plan-1: expected an apply in a Pulsar cluster, found one in Sexton's own store"


def test_unfinished_plan_is_refused(run: Run, planned: PlannedCluster, result: ApplyVerification) -> None:
    claim = Claim(workflow_id="tests", run_id="", ttl_s=60)
    planned.catalog.reconciliation.open_run("pulsar-2", RunKind.CLUSTER_PLAN, claim=claim, summary={})
    error = document(run("pulsar", "verify", "pulsar-2", "--json"), 3)["error"]
    assert error["message"].startswith("plan pulsar-2: expected one that finished, found no summary")


def test_without_a_cluster_the_setting_is_named(run: Run, applied: PlannedCluster) -> None:
    assert document(run("pulsar", "verify", RUN_ID, "--json"), 2)["error"]["field"] == "pulsar_zookeeper"
