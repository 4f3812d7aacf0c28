"""`orphans apply` and `orphans undo` on a plan of a cluster."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from logstore.field_bounds import MAX_LEDGER_IDS
from logstore.ports.catalog.deletion import Claim
from logstore.ports.catalog.reconciliation import JournaledLedger, JournaledRemoval, RunKind
from logstore.pulsar.znode_names import format_ledger_path
from logstore.reconciliation.findings import ApplyCounts, FateOfFinding, Finding, FindingFate
from tests.fakes.object_store import Fault, FaultKind, StoreOperation
from tests.logstore.pulsar import wire
from tests.workers.cli.cluster_plans import CATALOG_ID, INCOMPLETE_REASON, RUN_ID, PlannedCluster
from tests.workers.cli.conftest import Run, document
from tests.workers.cli.fakes import FakeCommandServices, FakeJobHandle
from tests.workflows.pulsar.cluster_plans import (
    abandoned_upload,
    orphan_ledger,
    orphan_managed_ledger,
    orphan_offload,
)
from workflows.pulsar.job_definitions import ApplyPulsarResult, UndoPulsarResult

_CERTIFICATE = f"cluster-certificates/apply-{RUN_ID}/0000000002-{'0' * 64}.jsonl"
_RESTORED = JournaledLedger(
    ledger_id=7,
    path=format_ledger_path(7),
    version=0,
    czxid=7,
    data=wire.ledger_metadata(state=3, last_entry=4),
    restoration="restored",
    stored_data="stored",
)


def _changed_at(ledger_id: int, changed_us: int, *, confirmed: bool = True) -> Finding:
    finding = orphan_ledger(ledger_id)
    statement = {**finding.statement, "confirmed": str(confirmed).lower()}
    return replace(finding, newest_us=changed_us, statement=statement)


class ChangingClient:
    """Client whose applies and undos end at once. `asked` has the arguments of each."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.stopped = ""
        self.failures: dict[str, str] = {}
        self.undone = {"restored": 1, "stored": 1}

    async def apply_pulsar(self, run_id: str, **asked: Any) -> Any:
        self.asked.append(asked)
        failed = len(self.failures)
        counts = ApplyCounts(applied={"orphan_ledger": 2}, size_bytes=600, failed=failed, failures=self.failures)
        result = ApplyPulsarResult(run_id=run_id, done=counts, stopped=self.stopped, certificate=_CERTIFICATE)
        return FakeJobHandle(result, id=f"apply-pulsar/{run_id}")  # type: ignore[arg-type]

    async def undo_pulsar(self, run_id: str, **asked: Any) -> Any:
        self.asked.append(asked)
        result = UndoPulsarResult(run_id=run_id, counts=self.undone)
        return FakeJobHandle(result, id=f"undo-pulsar/{run_id}")  # type: ignore[arg-type]


class Journal:
    """Journal with one ledger, which an undo has put back."""

    def __init__(self) -> None:
        self.ledgers = [_RESTORED]
        self.removals: list[JournaledRemoval] = []

    def list_ledgers(self, run_id: str, *, after: int, **_: Any) -> list[JournaledLedger]:
        assert run_id == f"apply-{RUN_ID}"
        return [each for each in self.ledgers if each.ledger_id > after]

    def list_removals(self, run_id: str, *, after: int, **_: Any) -> list[JournaledRemoval]:
        """Return the removals that no undo puts back."""
        return [removal for removal in self.removals if removal.number > after]


@pytest.fixture
def changing(services: FakeCommandServices) -> ChangingClient:
    client = ChangingClient()
    services.client.apply_pulsar = client.apply_pulsar  # type: ignore[attr-defined]
    services.client.undo_pulsar = client.undo_pulsar  # type: ignore[attr-defined]
    return client


@pytest.fixture
def planned(services: FakeCommandServices, tmp_path: Path) -> PlannedCluster:
    findings = [_changed_at(7, 30), _changed_at(8, 10), _changed_at(9, 20), _changed_at(10, 5, confirmed=False)]
    planned = PlannedCluster(tmp_path, findings, ledgers=100)
    planned.catalog.cluster_journal = Journal()
    services.environ |= {"SEXTON_PULSAR_ZOOKEEPER": "127.0.0.1:1", "SEXTON_PULSAR_BOOKKEEPER_EXCLUSIVE": "true"}
    services.log.catalog = planned.catalog
    return planned


def test_dry_run_prints_the_exact_paths_oldest_first(run: Run, planned: PlannedCluster) -> None:
    """No job is started, and the cluster is not asked."""
    answer = document(run("orphans", "apply", RUN_ID, "--dry-run", "--json"))
    assert [row["ledger_id"] for row in answer["paths"]] == [8, 9, 7]
    assert answer["paths"][0] == {
        "kind": "orphan_ledger",
        "ledger_id": 8,
        "path": "/ledgers/00/0000/L0008",
        "version": 0,
        "changed": "1970-01-01T00:00:00Z",
        "bytes": 300,
        "verdict": "owner_absent",
        "owner": "/managed-ledgers/t/ns/persistent/gone",
        "bucket": None,
        "parts": [],
    }
    assert (answer["applied"], answer["bytes"], answer["left"]) == ({"orphan_ledger": 3}, {"orphan_ledger": 900}, 0)
    shown = run("orphans", "apply", RUN_ID, "--dry-run").stdout.split()
    assert [word for word in shown if word.startswith("/ledgers/")] == [row["path"] for row in answer["paths"]]


@pytest.mark.parametrize(
    ("options", "ids", "left"),
    [(("--limit", "2"), [8, 9], 1), (("--include-unconfirmed",), [10, 8, 9, 7], 0), (("--limit", "9"), [8, 9, 7], 0)],
)
def test_dry_run_obeys_the_options(
    options: tuple[str, ...], ids: list[int], left: int, run: Run, planned: PlannedCluster
) -> None:
    answer = document(run("orphans", "apply", RUN_ID, "--dry-run", *options, "--json"))
    assert [row["ledger_id"] for row in answer["paths"]] == ids
    assert answer["left"] == left


@pytest.fixture
def planned_mixture(services: FakeCommandServices, tmp_path: Path) -> PlannedCluster:
    findings = [_changed_at(7, 30), orphan_offload(8), abandoned_upload(9), orphan_managed_ledger()]
    planned = PlannedCluster(tmp_path, findings, ledgers=100)
    planned.catalog.cluster_journal = Journal()
    services.environ |= {
        "SEXTON_PULSAR_ZOOKEEPER": "127.0.0.1:1",
        "SEXTON_PULSAR_BOOKKEEPER_EXCLUSIVE": "true",
        "SEXTON_PULSAR_OFFLOAD_BUCKET": "tiered",
        "SEXTON_PULSAR_OFFLOAD_BUCKET_EXCLUSIVE": "true",
        "SEXTON_PULSAR_ADMIN_URL": "http://127.0.0.1:1",
    }
    services.log.catalog = planned.catalog
    return planned


def test_dry_run_lists_exact_keys_of_what_no_undo_puts_back(run: Run, planned_mixture: PlannedCluster) -> None:
    dry_run = ("orphans", "apply", RUN_ID, "--dry-run", "--json")
    assert document(run(*dry_run))["applied"] == {"orphan_ledger": 1}
    told = run(*dry_run, "--include-irreversible", "--include-unconfirmed")
    answer = document(told)
    key = orphan_offload(8).key
    assert [(row["kind"], row["path"], row["parts"]) for row in answer["paths"]] == [
        ("orphan_ledger", "/ledgers/00/0000/L0007", []),
        ("orphan_offload", key, [key, f"{key}-index"]),
        ("abandoned_upload", abandoned_upload(9).key, [f"{abandoned_upload(9).key}?uploadId=upload-9"]),
        ("orphan_managed_ledger", orphan_managed_ledger().key, []),
    ]
    assert answer["applied"] == dict.fromkeys(
        ("orphan_ledger", "orphan_offload", "abandoned_upload", "orphan_managed_ledger"), 1
    )
    assert answer["bytes"]["orphan_offload"] == 120
    assert "no undo restores them" in " ".join(told.stderr.split())


def test_dry_run_leaves_out_what_no_setting_reaches(
    run: Run, planned_mixture: PlannedCluster, services: FakeCommandServices
) -> None:
    services.environ["SEXTON_PULSAR_OFFLOAD_BUCKET"] = services.environ["SEXTON_PULSAR_ADMIN_URL"] = ""
    options = ("--include-irreversible", "--include-unconfirmed")
    answer = document(run("orphans", "apply", RUN_ID, "--dry-run", "--json", *options))
    assert [row["kind"] for row in answer["paths"]] == ["orphan_ledger"]


def test_offloads_and_ledgers_of_orphan_managed_ledgers_count_for_the_share(
    run: Run, planned_mixture: PlannedCluster
) -> None:
    share = ("--max-orphan-share", "0.02", "--include-irreversible")
    answer = document(run("orphans", "apply", RUN_ID, "--dry-run", "--json", *share), 3)
    assert "4 of 101 ledgers would go: 3 orphan_ledger, 1 orphan_offload" in answer["error"]["message"]


def test_failed_removals_are_named_with_exit_code_5(
    run: Run, planned: PlannedCluster, changing: ChangingClient
) -> None:
    changing.failures = {"3": "AccessDenied: no"}
    answer = document(run("orphans", "apply", RUN_ID, "--include-irreversible", "--json"), 5)
    assert (answer["failed"], answer["failed_count"]) == ([{"id": 3, "error": "AccessDenied: no"}], 1)


def test_irreversible_is_an_option_for_plans_of_a_cluster_only(run: Run, planned: PlannedCluster) -> None:
    planned.catalog.reconciliation.open_run(
        "plan-1", RunKind.PLAN, claim=Claim(workflow_id="tests", run_id="", ttl_s=60), summary={}
    )
    error = document(run("orphans", "apply", "plan-1", "--include-irreversible", "--json"), 2)["error"]
    assert error["message"].startswith("include-irreversible: expected a plan of a Pulsar cluster")


def test_undo_says_that_other_removals_do_not_come_back(
    run: Run, planned: PlannedCluster, changing: ChangingClient
) -> None:
    planned.store_apply([])
    assert document(run("orphans", "undo", RUN_ID, "--json"))["irreversible"] == 0
    removal = JournaledRemoval(number=1, kind="orphan_offload", path="k", bucket="b", parts=[], removed_us=1)
    planned.catalog.cluster_journal.removals = [removal]
    told = run("orphans", "undo", RUN_ID, "--json")
    assert document(told)["irreversible"] == 1
    assert "no undo restores them" in " ".join(told.stderr.split())


def test_dry_run_leaves_out_what_an_earlier_apply_did(run: Run, planned: PlannedCluster) -> None:
    deleted = FateOfFinding(number=1, fate=FindingFate.DELETED, objects=1, size_bytes=300)
    planned.store_apply([deleted])
    answer = document(run("orphans", "apply", RUN_ID, "--dry-run", "--json"))
    assert [row["ledger_id"] for row in answer["paths"]] == [9, 7]


def test_apply_passes_its_options(run: Run, planned: PlannedCluster, changing: ChangingClient) -> None:
    options = (
        "--limit",
        "2",
        "--include-unconfirmed",
        "--include-irreversible",
        "--max-orphan-share",
        "0.5",
        "--rate",
        "50",
        "--reason",
        "clean-up",
    )
    answer = document(run("orphans", "apply", RUN_ID, *options, "--json"))
    (asked,) = changing.asked
    assert {name: asked[name] for name in asked.keys() - {"actor"}} == {
        "limit": 2,
        "include_unconfirmed": True,
        "include_irreversible": True,
        "max_orphan_share": 0.5,
        "rate": 50,
        "reason": "clean-up",
    }
    assert (answer["applied"], answer["stopped"], answer["bytes"]) == ({"orphan_ledger": 2}, None, 600)
    assert answer["certificate"] == _CERTIFICATE


def test_report_names_the_certificate(run: Run, services: FakeCommandServices, planned: PlannedCluster) -> None:
    """Of a plan that was applied. A bucket that does not answer hides no finding."""
    assert "certificate" not in run("orphans", "report", RUN_ID, "--wide").stdout
    planned.store_apply([])
    assert "none: nothing was deleted" in run("orphans", "report", RUN_ID, "--wide").stdout
    services.log.record_objects.put_if_absent(_CERTIFICATE, b"", metadata={})
    shown = run("orphans", "report", RUN_ID, "--wide").stdout
    assert _CERTIFICATE in shown
    assert "with 2 removals" in shown
    services.log.record_objects.plan(Fault(operation=StoreOperation.LIST, kind=FaultKind.BEFORE))
    shown = run("orphans", "report", RUN_ID, "--wide").stdout
    assert "unknown: planned fault: 503" in shown
    assert "/ledgers/00/0000/L0008" in shown


def test_stopped_apply_says_why_and_exits_with_refused(
    run: Run, planned: PlannedCluster, changing: ChangingClient
) -> None:
    changing.stopped = "/ledgers/00/0000/L0008: expected version 0, found version 1"
    assert document(run("orphans", "apply", RUN_ID, "--json"), 3)["stopped"] == changing.stopped


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        (("--max-orphan-share", "0.01"), "orphan share: expected at most 0.01 of all ledgers, found 0.04: 4 of 100"),
        ((), "pulsar_bookkeeper_exclusive: expected true, found false."),
    ],
)
def test_dry_run_says_that_an_apply_would_be_refused(
    options: tuple[str, ...], refusal: str, run: Run, planned: PlannedCluster, services: FakeCommandServices
) -> None:
    services.environ["SEXTON_PULSAR_BOOKKEEPER_EXCLUSIVE"] = "true" if options else "false"
    arguments = ("orphans", "apply", RUN_ID, "--dry-run", *options)
    answer = document(run(*arguments, "--json"), 3)
    assert answer["error"]["message"].startswith(refusal)
    assert len(answer["paths"]) == 3
    assert "it would be refused" in run(*arguments).stderr


def test_dry_run_after_the_end_of_the_apply_lists_nothing(run: Run, planned: PlannedCluster) -> None:
    planned.store_apply([])
    planned.end_apply(stopped="ledger 8: expected no reference, found one")
    told = run("orphans", "apply", RUN_ID, "--dry-run", "--json")
    assert document(told)["paths"] == []
    assert "was stopped: ledger 8: expected no reference" in told.stderr


@pytest.mark.parametrize("option", [(), ("--dry-run",)])
def test_incomplete_plan_is_refused_with_the_reason(
    option: tuple[str, ...], run: Run, planned: PlannedCluster, changing: ChangingClient
) -> None:
    planned.make_incomplete()
    message = document(run("orphans", "apply", RUN_ID, *option, "--json"), 3)["error"]["message"]
    assert message == f"plan {RUN_ID}: expected a complete one, found this problem: {INCOMPLETE_REASON}"
    assert changing.asked == []


def test_plan_of_another_catalog_is_refused(run: Run, planned: PlannedCluster, changing: ChangingClient) -> None:
    planned.store(catalog_id="another")
    message = document(run("orphans", "apply", RUN_ID, "--json"), 3)["error"]["message"]
    assert message == f"plan {RUN_ID}: expected one of catalog {CATALOG_ID}, found one of another"
    assert changing.asked == []


def test_undo_answers_each_ledger_with_its_data(run: Run, planned: PlannedCluster, changing: ChangingClient) -> None:
    planned.store_apply([])
    answer = document(run("orphans", "undo", RUN_ID, "--ledger", "7", "--json"))
    assert changing.asked[0]["ledger_ids"] == [7]
    assert answer["counts"] == {"restored": 1, "stored": 1}
    assert answer["ledgers"] == [{"ledger_id": 7, "path": _RESTORED.path, "znode": "restored", "data": "stored"}]


def test_undo_says_what_a_ledger_without_references_or_data_means(
    run: Run, planned: PlannedCluster, changing: ChangingClient
) -> None:
    planned.store_apply([])
    answer = run("orphans", "undo", RUN_ID)
    assert "Nothing in Pulsar reads it until something refers to it" in " ".join(answer.stderr.split())
    assert "no bookie has entries" not in answer.stderr


def test_undo_that_brings_not_everything_back_says_how_much_and_exits_with_partial(
    run: Run, planned: PlannedCluster, changing: ChangingClient
) -> None:
    planned.store_apply([])
    planned.catalog.cluster_journal.ledgers = [
        _RESTORED,
        replace(_RESTORED, ledger_id=8, stored_data="gone"),
        replace(_RESTORED, ledger_id=9, stored_data="gone"),
        replace(_RESTORED, ledger_id=10, restoration="occupied"),
        replace(_RESTORED, ledger_id=11, stored_data="gone", data=wire.ledger_metadata(state=1)),
        replace(_RESTORED, ledger_id=12, stored_data="unknown"),
    ]
    told = run("orphans", "undo", RUN_ID, "--json")
    failures = document(told, 5)["failed"]
    assert [failure["id"] for failure in failures] == [8, 9, 10, 11]
    assert failures[0]["error"].startswith("no bookie has entries of it: the metadata are back")
    assert failures[2]["error"] == "it was there with another value, and was not changed"
    assert failures[3]["error"].endswith("nobody has closed it: it may have had none")
    notes = " ".join(told.stderr.split())
    assert "not as before: 2 ledgers. Each: no bookie has entries of it:" in notes
    assert "not as before: 1 ledgers. Each: it was there with another value" in notes


def test_undo_whose_data_no_bookie_tells_exits_with_unreachable(
    run: Run, planned: PlannedCluster, changing: ChangingClient
) -> None:
    planned.store_apply([])
    planned.catalog.cluster_journal.ledgers = [replace(_RESTORED, stored_data="unknown"), _RESTORED]
    assert "failed" not in document(run("orphans", "undo", RUN_ID, "--json"), 4)


def test_list_says_what_an_apply_has_left(run: Run, planned: PlannedCluster) -> None:
    """An apply that is at work has no outcome. One that left only unconfirmed orphans is finished."""
    planned.store_apply([])
    assert list_apply(run) == ("unfinished", None)
    counts = ApplyCounts(applied={"orphan_ledger": 1}, skipped={"only a broker could rule a reference out": 3})
    planned.store_outcome(counts, left=3, unconfirmed=3)
    assert list_apply(run) == ("finished", {"removable": 0, "held_back": 3})
    shown = " ".join(run("orphans", "list").stdout.split())
    assert "1 applied, 3 kept; 3 left for an apply with --include-unconfirmed or --include-irreversible" in shown
    planned.store_outcome(counts, left=4, unconfirmed=3)
    assert list_apply(run) == ("unfinished", {"removable": 1, "held_back": 3})
    assert "4 left: apply again" in " ".join(run("orphans", "list").stdout.split())
    planned.store_outcome(counts, left=3, unconfirmed=3, stopped="/schemas/t/ns/a: it cannot be read")
    assert list_apply(run)[0] == "unfinished"
    assert "stopped: /schemas/t/ns/a: it cannot be read" in " ".join(run("orphans", "list").stdout.split())
    planned.end_apply(stopped="ledger 8: expected no reference")
    assert list_apply(run) == ("finished", None)
    assert "stopped: ledger 8: expected no reference" in " ".join(run("orphans", "list").stdout.split())


def list_apply(run: Run) -> tuple[str, dict[str, Any] | None]:
    """Return state and rest of the only apply, as `orphans list` shows them."""
    (row,) = (row for row in document(run("orphans", "list", "--json")) if row["kind"] == "apply")
    return row["state"], row["left"]


@pytest.mark.parametrize("run_id", ["pulsar-none", RUN_ID])
def test_undo_of_an_apply_that_nobody_knows_is_refused_before_a_job_starts(
    run_id: str, run: Run, planned: PlannedCluster, changing: ChangingClient
) -> None:
    error = document(run("orphans", "undo", run_id, "--json"), 2)["error"]
    assert error["message"] == f"run_id: expected a plan whose apply has deleted ledgers, found '{run_id}'"
    assert changing.asked == []


def test_undo_starts_if_only_the_records_bucket_knows_the_apply(
    run: Run, services: FakeCommandServices, planned: PlannedCluster, changing: ChangingClient
) -> None:
    key = f"cluster-journals/apply-{RUN_ID}/1.jsonl"
    services.log.record_objects.put_if_absent(key, b"its content is the job's concern", metadata={})
    document(run("orphans", "undo", RUN_ID, "--json"))
    assert len(changing.asked) == 1


def test_too_many_ledgers_are_refused(run: Run, planned: PlannedCluster, changing: ChangingClient) -> None:
    ids = [word for ledger_id in range(MAX_LEDGER_IDS + 1) for word in ("--ledger", str(ledger_id))]
    error = document(run("orphans", "undo", RUN_ID, *ids, "--json"), 2)["error"]
    assert error["message"] == "ledger: expected at most 10,000 ledgers, found 10001"
