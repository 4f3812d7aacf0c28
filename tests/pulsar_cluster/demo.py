"""Demo: a real cluster is filled and damaged, Sexton plans and applies beside traffic, and the truth is compared."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from logstore.reconciliation.findings import FindingKind
from tests.e2e.shell import Inside, Shell
from tests.pulsar_cluster.apply_demo import apply_and_undo
from tests.pulsar_cluster.damage import UPLOAD_KEY
from tests.pulsar_cluster.demo_report import ClusterDemoReport, DamageExample
from tests.pulsar_cluster.scenario import TRIM_STEP, DamagedCluster, run_damaged_cluster
from tests.pulsar_cluster.traffic import Traffic
from workers.demo.promise_report import PromiseResult

Say = Callable[[str], None]

_OLDER_THAN: Final = "1s"
_BETWEEN: Final = "10s"
_LEDGER_KINDS: Final = (FindingKind.ORPHAN_LEDGER.value, FindingKind.UNATTRIBUTED_LEDGER.value)


def run_demo(home: Path, say: Say) -> ClusterDemoReport:
    """Run the demo in a home. All processes run on at the end."""
    started_s = time.monotonic()
    say("the demo takes about five minutes")
    with run_damaged_cluster(home, say) as damaged:
        sexton = Inside(home, SEXTON_HOME=str(home), **damaged.cluster.settings())
        say("starting Sexton")
        sexton.json("up", "--free-ports")
        before = read_versions(damaged)
        say("planning beside traffic")
        with Traffic(damaged.cluster) as traffic:
            check = sexton.json("pulsar", "check")
            plan = make_plan(sexton)
        after = read_versions(damaged)
        findings = list_findings(sexton, plan["run_id"])
        detail_by_ledger = {each["ledger_id"]: each["detail"] for each in findings if each["kind"] in _LEDGER_KINDS}
        examples = [
            explain_example(sexton, step, min(damaged.list_left_by(step)), detail_by_ledger)
            for step in dict.fromkeys(each.why for each in damaged.truth.values() if not each.referenced)
        ]
        findings_promises = [check_completeness(check, plan), *check_findings(findings, damaged)]
        promises_by_part = {"The plan": [*findings_promises, check_nothing_changed(before, after, traffic)]}
        if all(promise.ok for promise in findings_promises):
            promises_by_part |= apply_and_undo(sexton, damaged, plan["run_id"], lambda: make_plan(sexton), say)
        return ClusterDemoReport(
            promises_by_part=promises_by_part,
            examples=examples,
            seconds=time.monotonic() - started_s,
        )


def make_plan(sexton: Shell) -> Mapping[str, Any]:
    options = ("--older-than", _OLDER_THAN, "--between", _BETWEEN, "--unsafe-age")
    plan: Mapping[str, Any] = sexton.json("pulsar", "plan", *options)
    return plan


def list_findings(sexton: Shell, run_id: str) -> list[Mapping[str, Any]]:
    findings: list[Mapping[str, Any]] = sexton.json("orphans", "report", run_id)
    return findings


def explain_example(sexton: Shell, step: str, ledger_id: int, detail_by_ledger: Mapping[int, str]) -> DamageExample:
    """Return the owner's component by `sexton pulsar explain`, and the reason of the plan."""
    owner = sexton.json("pulsar", "explain", str(ledger_id))["owner"]
    return DamageExample(
        step=step,
        ledger_id=ledger_id,
        component=str(owner["component"]) if owner else "",
        reason=detail_by_ledger.get(ledger_id, "not in the plan"),
    )


def read_versions(damaged: DamagedCluster) -> dict[int, int]:
    """Return the version of the znode of each static ledger in the truth."""
    return damaged.ledgers.read_versions(each.ledger_id for each in damaged.truth.values() if each.is_static)


def check_completeness(check: Mapping[str, Any], plan: Mapping[str, Any]) -> PromiseResult:
    problems = [f"check: {each['detail']}" for each in check["capabilities"] if not each["ok"]]
    problems += plan["incomplete"]
    scanned = plan["scanned"]
    evidence = f"{scanned['ledgers']} ledgers and {scanned['references']} references, each read twice"
    return PromiseResult.from_problems("everything that may refer to a ledger was read", problems, evidence)


def check_findings(findings: Sequence[Mapping[str, Any]], damaged: DamagedCluster) -> list[PromiseResult]:
    """Compare the findings with the truth, one kind after the other."""
    truth = damaged.truth.values()
    orphans = {each.ledger_id for each in truth if each.is_orphan}
    found = ids_of_kind(findings, FindingKind.ORPHAN_LEDGER)
    false_orphans = [f"ledger {each}: {describe_truth(damaged, each)}" for each in sorted(found - orphans)]
    missed = [f"ledger {each}: {damaged.truth[each].why}" for each in sorted(orphans - found)]
    return [
        PromiseResult.from_problems(
            "no ledger in use is called an orphan", false_orphans, f"{len(found)} orphans found, 0 of them in use"
        ),
        PromiseResult.from_problems(
            "no orphan is missed", missed, f"{len(orphans)} of {len(orphans)} ledgers that the damage left"
        ),
        _compare_ids(
            "a ledger of unknown origin is only reported",
            ids_of_kind(findings, FindingKind.UNATTRIBUTED_LEDGER),
            {each.ledger_id for each in truth if each.is_unattributed},
        ),
        _compare_ids(
            "a reference to a deleted ledger is reported",
            ids_of_kind(findings, FindingKind.DANGLING_REFERENCE),
            damaged.deleted,
        ),
        _compare_ids(
            "objects of a dead offload are found",
            ids_of_kind(findings, FindingKind.ORPHAN_OFFLOAD),
            damaged.list_left_by(TRIM_STEP),
        ),
        _check_keys("an upload that nobody ends is found", findings, FindingKind.ABANDONED_UPLOAD, UPLOAD_KEY),
        _check_keys(
            "the managed ledger of pending acknowledgements without a topic is found",
            findings,
            FindingKind.ORPHAN_MANAGED_LEDGER,
            "__transaction_pending_ack",
        ),
    ]


def check_nothing_changed(before: Mapping[int, int], after: Mapping[int, int], traffic: Traffic) -> PromiseResult:
    problems = [f"ledger {each} was changed" for each in before if before[each] != after.get(each)]
    problems += traffic.find_problems()
    evidence = f"{len(before)} ledgers unchanged; {traffic.format_counts()}"
    return PromiseResult.from_problems("a plan changes nothing", problems, evidence)


def ids_of_kind(findings: Sequence[Mapping[str, Any]], kind: FindingKind) -> set[int]:
    return {int(each["ledger_id"]) for each in findings if each["kind"] == kind.value and each["ledger_id"] is not None}


def describe_truth(damaged: DamagedCluster, ledger_id: int) -> str:
    ledger = damaged.truth.get(ledger_id)
    return ledger.why if ledger else "it was created by the traffic"


def _compare_ids(promise: str, found: set[int], expected: set[int]) -> PromiseResult:
    problems = [f"ledger {each} is not reported" for each in sorted(expected - found)]
    problems += [f"ledger {each} is reported and should not be" for each in sorted(found - expected)]
    return PromiseResult.from_problems(promise, problems, f"{len(expected)} of {len(expected)} reported")


def _check_keys(promise: str, findings: Sequence[Mapping[str, Any]], kind: FindingKind, part: str) -> PromiseResult:
    keys = [str(each["key"]) for each in findings if each["kind"] == kind.value]
    problems = [] if len(keys) == 1 and part in keys[0] else [f"expected one key with {part}, found {keys}"]
    return PromiseResult.from_problems(promise, problems, ", ".join(keys))
