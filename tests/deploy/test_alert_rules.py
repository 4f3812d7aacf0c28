"""Each alert rule fires when it should, and only then, as Prometheus' own `promtool` evaluates it."""

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

_RULES: Final = Path(__file__).resolve().parents[2] / "deploy" / "monitoring" / "alerts.yaml"
_HOUR: Final = 60  # samples are a minute apart
_DAY: Final = 24 * _HOUR
_LONG_STEP_MIN: Final = 10
"""Minutes between evaluations of a rule whose cases last for days. Each of them reads the samples of days."""
_OLD: Final = {"sexton_worker_start_timestamp_seconds": "-1000000x{n}", "sexton_worker_ready": "1x{n}"}
"""Of a worker that began long ago; `{n}` samples, a minute apart."""


@dataclass(frozen=True)
class Case:
    """Series of one worker, and the alert that they raise, if any."""

    alert: str
    about: str
    series: Mapping[str, str]  # by name and labels; as promtool writes values
    at_min: int
    fires: Sequence[Mapping[str, str]] = field(default=())  # labels of its alerts beside the severity

    def __str__(self) -> str:
        return f"{self.alert}: {self.about}"


def _firing(alert: str, about: str, at_min: int, series: Mapping[str, str], **labels: str) -> Case:
    return Case(alert, about, series, at_min, [labels])


def _silent(alert: str, about: str, at_min: int, series: Mapping[str, str]) -> Case:
    return Case(alert, about, series, at_min)


_WORKER: Final = {"job": "sexton", "instance": "a"}


def _above(alert: str, name: str, bound: int, for_min: int, **labels: str) -> list[Case]:
    """Cases of a rule that compares one value with a bound, and waits."""
    long = for_min + 10
    return [
        _firing(alert, "above its bound for long", long, {name: f"{bound + 1}x{long}"}, **labels),
        _silent(alert, "at its bound", long, {name: f"{bound}x{long}"}),
        _silent(alert, "above its bound, and not for long", max(for_min - 1, 0), {name: f"{bound + 1}x{long}"}),
        _silent(alert, "above it until a while ago", long, {name: f"{bound + 1}x{max(long - 2, 1)} {bound}x5"}),
    ]


def _zero(alert: str, name: str, for_min: int, **labels: str) -> list[Case]:
    """Cases of a rule that waits while a value is 0."""
    long = for_min + 10
    return [
        _firing(alert, "0 for long", long, {name: f"0x{long}"}, **labels),
        _silent(alert, "1", long, {name: f"1x{long}"}),
        _silent(alert, "0, and not for long", for_min - 1, {name: f"0x{long}"}),
    ]


def _old(minutes: int, gap_from: int | None = None, gap_to: int = 0) -> dict[str, str]:
    """A worker that began long ago, with a gap of samples if asked for."""
    if gap_from is None:
        return {name: text.format(n=minutes) for name, text in _OLD.items()}
    found = {}
    for name, text in _OLD.items():
        value = text.partition("x")[0]
        found[name] = f"{value}x{gap_from} _x{gap_to - gap_from} {value}x{minutes - gap_to}"
    return found


def _event(alert: str, counter: str, **labels: str) -> list[Case]:
    """Cases of a rule that waits for one event within 15 minutes, whose counter begins to exist with the first one."""
    young = {"sexton_worker_start_timestamp_seconds": "3000x20", "sexton_worker_ready": "1x20"}
    late = {name: f"_x50 {text}" for name, text in young.items()}  # its first samples are of minute 51
    return [
        _firing(alert, "the first event of an old worker", 41, _old(60) | {counter: "_x40 1x20"}, **labels),
        _firing(alert, "the first event of a new worker", 53, late | {counter: "_x51 1x20"}, **labels),
        _firing(alert, "a later event", 41, _old(60) | {counter: "1x40 2x20"}, **labels),
        _silent(alert, "an event of long ago", 50, _old(60) | {counter: "_x20 1x40"}),
        _silent(alert, "no event", 41, _old(60)),
        _silent(
            alert,
            "an old event behind a gap of samples",
            67,
            _old(90, 20, 65) | {counter: "1x20 _x45 1x25"},
        ),
        _silent(alert, "an old event long behind a gap", 85, _old(90, 20, 65) | {counter: "1x20 _x45 1x25"}),
    ]


def _waits(counts: Mapping[str, int]) -> dict[str, str]:
    """Waits of activities: each minute so many up to each bound, in milliseconds."""
    name = "temporal_activity_schedule_to_start_latency_bucket"
    return {f'{name}{{task_queue="sexton",le="{bound}"}}': f"0+{count}x30" for bound, count in counts.items()}


_QUEUE: Final = {"task_queue": "sexton"}
_MILLION: Final = 1_000_000
_CASES: Final = [
    *_above("SextonDeadLetters", "sexton_deletion_dead_lettered", 0, 1),
    *_above("SextonDeletionOverdue", "sexton_deletion_oldest_pending_seconds", 86_400, 5),
    *_above("SextonDeletionBacklog", "sexton_deletion_estimated_inflight", _MILLION, 180),
    _silent(
        "SextonDeletionBacklog",
        "large since a few minutes, behind a gap",
        240,
        {"sexton_deletion_estimated_inflight": f"5x20 _x210 {_MILLION + 1}x30"},
    ),
    _firing("SextonDeletionFailures", "2 a second", 40, {"sexton_deletion_ledger_delete_failures_total": "0+120x60"}),
    _silent(
        "SextonDeletionFailures", "1 in two seconds", 40, {"sexton_deletion_ledger_delete_failures_total": "0+30x60"}
    ),
    _firing("SextonCatalogAway", "no answer for 5 minutes", 10, {"sexton_deletion_read_timestamp_seconds": "300x10"}),
    _silent("SextonCatalogAway", "an answer each minute", 10, {"sexton_deletion_read_timestamp_seconds": "0+60x10"}),
    *_above("SextonMissingData", "sexton_reconciliation_missing_data", 0, 1),
    _firing(
        "SextonPlanOverdue",
        "a plan of three days ago",
        3 * _DAY,
        {"sexton_reconciliation_plan_timestamp_seconds": f"0x{3 * _DAY}"},
    ),
    _silent(
        "SextonPlanOverdue",
        "a plan of a day ago",
        _DAY,
        {"sexton_reconciliation_plan_timestamp_seconds": f"0x{_DAY}"},
    ),
    *_zero("SextonPulsarPlanIncomplete", "sexton_pulsar_plan_complete", 5),
    _silent("SextonPulsarPlanIncomplete", "no plan has finished", 20, {}),
    _firing(
        "SextonPulsarPlanOverdue",
        "a plan of three days ago",
        3 * _DAY,
        {"sexton_pulsar_plan_timestamp_seconds": f"0x{3 * _DAY}"},
    ),
    _silent(
        "SextonPulsarPlanOverdue",
        "a plan of a day ago",
        _DAY,
        {"sexton_pulsar_plan_timestamp_seconds": f"0x{_DAY}"},
    ),
    _silent("SextonPulsarPlanOverdue", "no plan has finished", 3 * _DAY, {}),
    *_above("SextonPulsarApplyStopped", "sexton_pulsar_apply_stopped", 0, 1),
    *_above("SextonPulsarDanglingReferences", 'sexton_pulsar_findings{kind="dangling_reference"}', 0, 5),
    _silent(
        "SextonPulsarDanglingReferences",
        "findings of other kinds",
        20,
        {'sexton_pulsar_findings{kind="hazard"}': "1x20"},
    ),
    *_above("SextonPulsarOrphans", 'sexton_pulsar_findings{kind="orphan_ledger"}', 0, 7 * _DAY),
    _firing(
        "SextonCertificateExpires",
        "it ends in six days",
        20,
        {'sexton_certificate_expiry_timestamp_seconds{setting="s"}': f"{6 * 86_400}x20"},
        setting="s",
    ),
    _silent(
        "SextonCertificateExpires",
        "it ends in eight days",
        20,
        {'sexton_certificate_expiry_timestamp_seconds{setting="s"}': f"{8 * 86_400}x20"},
    ),
    *_above("SextonTransactionsStuck", "sexton_transactions_oldest_decided_seconds", 60, 2),
    *_above("SextonTransactionsOpenLong", "sexton_transactions_oldest_open_seconds", 3_600, 5),
    *_event("SextonDelayedIndexDegraded", "sexton_delayed_alarms_total"),
    _firing("SextonDelayedIndexStuck", "more and more", 120, {"sexton_delayed_unsealed_messages": "100000+100x120"}),
    _silent("SextonDelayedIndexStuck", "as many as before", 120, {"sexton_delayed_unsealed_messages": "200000x120"}),
    _silent("SextonDelayedIndexStuck", "fewer and fewer", 120, {"sexton_delayed_unsealed_messages": "300000-9x120"}),
    *_above("SextonFlushLag", "sexton_records_outbox_oldest_seconds", 300, 2),
    *_event("SextonRecordRefused", "sexton_records_refused_total"),
    _firing(
        "SextonDeletionsWaitForFlush",
        "both for long",
        20,
        {"sexton_records_deletions_waiting": "1x20", "sexton_records_outbox_oldest_seconds": "301x20"},
    ),
    _silent(
        "SextonDeletionsWaitForFlush",
        "the flush is not late",
        20,
        {"sexton_records_deletions_waiting": "1x20", "sexton_records_outbox_oldest_seconds": "299x20"},
    ),
    _silent(
        "SextonDeletionsWaitForFlush",
        "no deletion waits",
        20,
        {"sexton_records_deletions_waiting": "0x20", "sexton_records_outbox_oldest_seconds": "301x20"},
    ),
    *_above("SextonCatalogAdopting", "sexton_records_adopting", 0, 60),
    _firing(
        "SextonTombstonesNotRaided",
        "tombstones for five days, and no raid",
        5 * _DAY,
        _old(5 * _DAY) | {"sexton_tombstones": f"1x{5 * _DAY}"},
    ),
    _firing(
        "SextonTombstonesNotRaided",
        "the last raid was four days ago",
        5 * _DAY,
        _old(5 * _DAY) | {"sexton_tombstones": f"1x{5 * _DAY}", "sexton_tombstones_raids_total": f"3x{5 * _DAY}"},
    ),
    _silent(
        "SextonTombstonesNotRaided",
        "the first raid was yesterday",
        5 * _DAY,
        _old(5 * _DAY)
        | {"sexton_tombstones": f"1x{5 * _DAY}", "sexton_tombstones_raids_total": f"_x{4 * _DAY} 1x{_DAY}"},
    ),
    _silent(
        "SextonTombstonesNotRaided",
        "one of many raids was yesterday",
        5 * _DAY,
        _old(5 * _DAY)
        | {"sexton_tombstones": f"1x{5 * _DAY}", "sexton_tombstones_raids_total": f"3x{4 * _DAY} 4x{_DAY}"},
    ),
    _silent(
        "SextonTombstonesNotRaided",
        "no tombstones",
        5 * _DAY,
        _old(5 * _DAY) | {"sexton_tombstones": f"0x{5 * _DAY}"},
    ),
    *_above("SextonReplicaStale", 'sexton_records_replicas{state="STALE"}', 0, 5),
    _silent(
        "SextonReplicaStale", "replicas that are not stale", 20, {'sexton_records_replicas{state="ACTIVE"}': "2x20"}
    ),
    *_above("SextonReplicaBehind", 'sexton_records_replica_lag_seconds{replica="r"}', 3_600, 10, replica="r"),
    *_zero("SextonWorkerNotReady", "sexton_worker_ready", 5, **_WORKER),
    *_zero("SextonNoWorkerReady", "sexton_worker_ready", 2),
    _firing("SextonNoWorkerReady", "no worker at all", 10, {}),
    *_zero("SextonStorageAway", 'sexton_worker_check_ok{check="primary bucket"}', 2),
    *_zero("SextonDatabaseAway", 'sexton_worker_check_ok{check="database"}', 2),
    *_zero("SextonTemporalAway", 'sexton_worker_check_ok{check="temporal"}', 2),
    *_zero("SextonScheduleStuck", 'sexton_worker_check_ok{check="schedules"}', 5),
    *_zero("SextonOwnersLost", 'sexton_ownership_session{state="CONNECTED"}', 2, **_WORKER, state="CONNECTED"),
    _firing("SextonBundlesWithoutOwner", "63 of 64", 20, {"sexton_ownership_bundles": "63x20"}),
    _silent("SextonBundlesWithoutOwner", "64 of 64", 20, {"sexton_ownership_bundles": "64x20"}),
    *_above("SextonBundlesUnsettled", "sexton_ownership_unsettled", 0, 5),
    *_event("SextonUnknownFaults", 'sexton_unknown_faults_total{activity="x"}', activity="x"),
    _firing(
        "SextonWorkWaits",
        "all wait two minutes",
        30,
        _waits({"30000": 0, "60000": 0, "300000": 10, "+Inf": 10}),
        **_QUEUE,
    ),
    _silent("SextonWorkWaits", "all wait 11 seconds", 30, _waits({"10000": 0, "30000": 10, "60000": 10, "+Inf": 10})),
    _silent("SextonWorkWaits", "one in fifty waits", 30, _waits({"30000": 49, "60000": 49, "300000": 50, "+Inf": 50})),
]


@cache
def _rules() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(_RULES.read_text(encoding="utf-8"))
    return found


def _severity(alert: str) -> str:
    rules = [rule for group in _rules()["groups"] for rule in group["rules"]]
    return str(next(rule["labels"]["severity"] for rule in rules if rule["alert"] == alert))


def _of_worker(selector: str) -> str:
    """The series of worker `a`: its name, and its labels."""
    name, _, labels = selector.partition("{")
    given = labels.removesuffix("}")
    more = ",".join(f'{label}="{value}"' for label, value in _WORKER.items())
    return f"{name}{{{more}{',' if given else ''}{given}}}"


def _tested(case: Case) -> dict[str, Any]:
    """The case as promtool reads it."""
    severity = _severity(case.alert)
    expected = [{"exp_labels": {**labels, "severity": severity}} for labels in case.fires]
    asked = {"eval_time": f"{case.at_min}m", "alertname": case.alert, "exp_alerts": expected}
    return {
        "name": str(case),
        "interval": "1m",
        "input_series": [{"series": _of_worker(name), "values": text} for name, text in case.series.items()],
        "alert_rule_test": [asked],
    }


def _evaluation_step_min(cases: Sequence[Case]) -> int:
    return _LONG_STEP_MIN if all(case.at_min >= _DAY for case in cases) else 1


def test_each_rule_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    """A rule without cases is not proven."""
    alerts = {rule["alert"] for group in _rules()["groups"] for rule in group["rules"]}
    assert {case.alert for case in _CASES if case.fires} == alerts
    assert {case.alert for case in _CASES if not case.fires} == alerts


@pytest.mark.where_allowed  # promtool is no package of Python: a machine has it or not
@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool on the PATH: Debian has it in `prometheus`")
@pytest.mark.parametrize("alert", sorted({case.alert for case in _CASES}))
def test_rule_fires_in_these_cases_alone(alert: str, tmp_path: Path) -> None:
    """Texts of alerts are left out: they are templates, and say what the value was."""
    kept = {"alert", "expr", "for", "labels"}
    rules = [rule for group in _rules()["groups"] for rule in group["rules"] if rule["alert"] == alert]
    rules = [{name: value for name, value in rule.items() if name in kept} for rule in rules]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "tested", "rules": rules}]}))
    cases = [case for case in _CASES if case.alert == alert]
    tests, step_min = [_tested(case) for case in cases], _evaluation_step_min(cases)
    document = {"rule_files": ["rules.yaml"], "evaluation_interval": f"{step_min}m", "tests": tests}
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump(document))
    argv = ["promtool", "test", "rules", str(tmp_path / "tests.yaml")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
