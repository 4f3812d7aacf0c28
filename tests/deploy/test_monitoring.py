"""Dashboard and alert rules ask for metrics and labels that exist, and an alert leads to a runbook that exists."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from workers.hosting.readiness import SCHEDULES, list_required_checks

_ROOT: Final = Path(__file__).resolve().parents[2]
_FOLDER: Final = _ROOT / "deploy" / "monitoring"
_OPERATIONS: Final = (_ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
_METRICS_PAGE: Final = (_ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
_DECLARES: Final = ("activities", "workers/hosting")
_NAME: Final = re.compile(r"sexton_[a-z_]+")
_OF_HISTOGRAMS: Final = ("_bucket", "_count", "_sum")
_OF_TEMPORAL: Final = {
    "temporal_activity_schedule_to_start_latency": {"namespace", "task_queue", "service_name"},
    "temporal_activity_execution_failed": {"namespace", "task_queue", "service_name", "activity_type", "workflow_type"},
    "temporal_worker_task_slots_available": {"namespace", "task_queue", "service_name", "worker_type"},
}
"""As its SDK has them; the session of `tests/e2e` reads them from a worker."""

_FROM_ACTIVITIES: Final = {"namespace", "task_queue", "activity_type"}
_FROM_PROMETHEUS: Final = {"job", "instance", "le", "service_name"}
_WORDS: Final = {
    *(
        "sum",
        "max",
        "min",
        "by",
        "on",
        "without",
        "unless",
        "and",
        "or",
        "ignoring",
        "offset",
        "rate",
        "increase",
        "delta",
        "time",
    ),
    *("absent", "histogram_quantile", "min_over_time", "label_values"),
}


def _declared() -> dict[str, set[str]]:
    """Labels by metric: those that its module gives to any metric, for a module has few."""
    found: dict[str, set[str]] = {}
    for folder in _DECLARES:
        for path in sorted((_ROOT / folder).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            texts = [
                one.value for one in ast.walk(tree) if isinstance(one, ast.Constant) and isinstance(one.value, str)
            ]
            texts += [one.arg for one in ast.walk(tree) if isinstance(one, ast.keyword) and one.arg]
            names = {text for text in texts if _NAME.fullmatch(text)}
            labels = {text for text in texts if re.fullmatch(r"[a-z_]+", text)} if names else set()
            for name in names:
                found[name] = labels | (_FROM_ACTIVITIES if folder == "activities" else set())
    return found


_METRICS: Final = _declared()


def _queries() -> Iterator[tuple[str, str]]:
    """Every query, by where it stands."""
    for one in _rules():
        yield one["alert"], one["expr"]
    dashboard = _dashboard()
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]["query"]


def _rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((_FOLDER / "alerts.yaml").read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def _dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((_FOLDER / "grafana-dashboard.json").read_text(encoding="utf-8"))
    return found


def _labels_of(metric: str) -> set[str] | None:
    """The labels that it may have, or None if there is no such metric."""
    names = [metric, *(metric.removesuffix(end) for end in _OF_HISTOGRAMS if metric.endswith(end))]
    for name in names:
        if name in _METRICS:
            return _METRICS[name] | _FROM_PROMETHEUS
        if name in _OF_TEMPORAL:
            return _OF_TEMPORAL[name] | _FROM_PROMETHEUS
    return None


def _wrong(query: str) -> list[str]:
    """What a query asks for that does not exist."""
    text = re.sub(r'"[^"]*"', '""', query)
    wrong: list[str] = []
    metrics = re.findall(r"\b((?:sexton|temporal)_[a-z_]+)(?:\{([^}]*)\})?", text)
    known: set[str] = set()
    for metric, matchers in metrics:
        labels = _labels_of(metric)
        if labels is None:
            wrong.append(f"no metric {metric}")
            continue
        known |= labels
        wrong += [
            f"{metric} has no label {label}"
            for label in re.findall(r"(\w+)\s*(?:=|!)", matchers)
            if label not in labels
        ]
    if not metrics:
        wrong.append("no metric at all")
    for grouped in re.findall(r"\b(?:by|on|ignoring|without)\s*\(([^)]*)\)", text):
        wrong += [f"no label {label}" for label in re.findall(r"\w+", grouped) if label not in known]
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\((?:[a-z_, ]*)\)(?=\s*\()", "", text)
    wrong += [f"unknown word {word}" for word in re.findall(r"\b[a-z_]{2,}\b", bare) if not _is_word(word, known)]
    return wrong


def _is_word(word: str, labels: set[str]) -> bool:
    return word in _WORDS | labels or word.startswith(("sexton_", "temporal_"))


@pytest.mark.parametrize(("where", "query"), list(_queries()), ids=[where for where, _ in _queries()])
def test_query_asks_for_metrics_and_labels_that_exist(where: str, query: str) -> None:
    """A metric that was renamed would leave a panel empty, and an alert silent."""
    assert _wrong(query) == []
    assert query.count("(") == query.count(")")


@pytest.mark.parametrize(
    ("query", "wrong"),
    [
        ("max(sexton_deletion_dead_letters) > 0", ["no metric sexton_deletion_dead_letters"]),
        ('max(sexton_records_replicas{kind="STALE"}) > 0', []),
        ('max(sexton_records_replicas{stage="STALE"}) > 0', ["sexton_records_replicas has no label stage"]),
        ("sum by (reason) (sexton_worker_ready)", ["no label reason"]),
        ("vector(1)", ["no metric at all", "unknown word vector"]),
    ],
)
def test_a_query_that_asks_for_what_does_not_exist_is_found(query: str, wrong: list[str]) -> None:
    """The check of this module can fail; labels are told apart by module."""
    assert _wrong(query) == wrong


@pytest.mark.parametrize(
    "rule", [one for one in _rules() if "increase(" in one["expr"]], ids=lambda rule: rule["alert"]
)
def test_rule_that_waits_for_one_event_sees_the_first_one(rule: dict[str, Any]) -> None:
    """A counter begins to exist at 1 with its first event, which is no increase of it: a fault, or a raid, were missed.

    Source: Prometheus, "Instrumentation: avoid missing metrics".
    """
    for name, window in re.findall(r"increase\((\w+)\[(\w+)\]\)", rule["expr"]):
        assert f"({name} unless {name} offset {window})" in rule["expr"]


def test_values_of_labels_in_rules_are_those_of_the_code() -> None:
    """A check or a state that was renamed would never fire."""
    rules = " ".join(rule["expr"] for rule in _rules())
    assert _checks() == {"worker", "temporal", "database", "primary bucket", "schedules"}
    assert set(re.findall(r'check="([^"]*)"', rules)) <= _checks()
    assert set(re.findall(r'state="([^"]*)"', rules)) == {"CONNECTED", "STALE"}


def _checks() -> set[str]:
    source = Path(list_required_checks.__code__.co_filename).read_text(encoding="utf-8")
    function = source.partition("def list_required_checks")[2].partition("\ndef ")[0]
    return {*re.findall(r'"([a-z ]+)":', function), SCHEDULES}


@pytest.mark.parametrize("rule", _rules(), ids=lambda rule: rule["alert"])
def test_alert_says_what_it_means_and_leads_to_a_runbook(rule: dict[str, Any]) -> None:
    """With a place that exists, and a line in the table of alerts."""
    runbook = _ROOT / rule["annotations"]["runbook"]
    assert runbook.parent == _ROOT / "docs" / "runbooks"
    assert f"`{rule['alert']}`" in runbook.read_text(encoding="utf-8")
    (row,) = [line for line in _OPERATIONS.splitlines() if line.startswith(f"| `{rule['alert']}` |")]
    assert f"(runbooks/{runbook.name})" in row
    assert f"| {rule['labels']['severity']} |" in row
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    assert re.fullmatch(r"\d+[mhd]", rule["for"])
    assert rule["annotations"]["summary"]
    assert rule["annotations"]["description"].endswith(".")


def test_every_metric_of_the_code_is_on_the_dashboard_or_in_a_rule_or_in_the_manual() -> None:
    """A gauge that nobody can find helps nobody."""
    assert len(_METRICS) > 50
    unknown = [name for name in _METRICS if not re.search(rf"{name}(?![a-z_])", _METRICS_PAGE)]
    assert unknown == []


def test_dashboard_has_one_panel_of_each_id_and_place() -> None:
    """Grafana would show one of two."""
    panels = _dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len(panels)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)
