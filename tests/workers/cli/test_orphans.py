"""`orphans plan`, `report` and `apply`: what they ask for, what they answer, and their exit codes."""

import re
from dataclasses import asdict, replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import create_autospec

import pyarrow.parquet as pq
import pytest

from activities.reconciliation.apply_orphans import ApplyPreview, ApplyPreviewResult
from logstore.errors import PreconditionFailed
from logstore.ports.catalog.deletion import Claim
from logstore.ports.catalog.reconciliation import RunKind
from logstore.positions import LedgerId
from logstore.reconciliation.finding_files import FateFiles, FindingFiles, findings_to_table
from logstore.reconciliation.findings import (
    STORE_KINDS,
    ApplyCounts,
    FateOfFinding,
    Finding,
    FindingFate,
    FindingKind,
    PlanOrScrubResult,
)
from tests.fakes.reconciliation_runs import FakeReconciliationRuns
from tests.workers.cli.conftest import Run, document
from tests.workers.cli.fakes import FakeCommandServices, FakeJobHandle
from workers.cli import orphans_report as pages
from workflows.reconciliation.job_definitions import ApplyOrphansProgress, ApplyOrphansResult, ReconcileOrphansResult

RUN = "plan-8c1d5f0e9a3b"
CLAIM = Claim(workflow_id="tests", run_id="", ttl_s=60)
BEGUN = {"actor": "ann", "reason": "a test"}
CUT_OFF_US = 1_763_800_000_000_000
ZEROS = dict.fromkeys((kind.value for kind in STORE_KINDS), 0)
FINDINGS = [
    Finding(
        kind=FindingKind.ORPHAN_LEDGER,
        ledger_id=LedgerId(7),
        copy="LEDGER",
        bucket="warm",
        key="ledgers/07/0000000000000007/",
        topic="persistent://shop/main/a%20b",
        objects=3,
        size_bytes=300,
        newest_us=CUT_OFF_US - 40 * 86_400_000_000,
        detail="no row names it",
    ),
    Finding(kind=FindingKind.FOREIGN, bucket="warm", key="<script>alert(1)</script>.txt", objects=1, size_bytes=5),
    Finding(kind=FindingKind.STALLED_DELETION, ledger_id=LedgerId(8), row_id=12, topic="persistent://shop/main/b"),
]


class Asked:
    """What the commands asked of the client, and a finished plan in the catalog."""

    def __init__(self, folder: Path) -> None:
        self.started: list[dict[str, object]] = []
        self.runs, self.folder = FakeReconciliationRuns(), folder
        self.output = folder / RUN / "output"
        self.output.mkdir(parents=True)
        self.found(FINDINGS)
        self.preview = ApplyPreviewResult(
            counts=ApplyCounts(applied={"orphan_ledger": 1}), size_bytes={"orphan_ledger": 300}
        )
        self.done = ApplyCounts(applied={"orphan_ledger": 1}, skipped={"it is young": 2}, objects=3, size_bytes=300)

    def found(self, findings: list[Finding]) -> None:
        """Let the plan have found these, and nothing else."""
        pq.write_table(findings_to_table(findings), self.output / "part-0.parquet", row_group_size=2)
        totals = FindingFiles(self.output).count_findings_and_bytes_by_kind()
        self.plan = PlanOrScrubResult(
            findings={kind.value: rows for kind, (rows, _) in totals.items()},
            size_bytes={kind.value: size for kind, (_, size) in totals.items()},
            ledgers=40,
            before_us=CUT_OFF_US,
            report=str(self.output),
            left_out=["bucket colder: no answer"],
            rows_before_us=CUT_OFF_US - 3_600_000_000,
            young=7,
        )
        self.runs = FakeReconciliationRuns()
        self.runs.open_run(RUN, RunKind.PLAN, claim=CLAIM, summary=BEGUN)
        self.runs.close_run(RUN, {**BEGUN, "result": asdict(self.plan)})

    def applied(self, *, is_of_earlier_build: bool = False) -> None:
        """Let the plan be applied. An earlier build stored fates in files."""
        run_id = f"apply-{RUN}"
        deleted = FateOfFinding(number=0, fate=FindingFate.DELETED, objects=3, size_bytes=300)
        kept = FateOfFinding(number=2, fate=FindingFate.KEPT, reason="a workflow works on it")
        summary: dict[str, object] = {**BEGUN}
        if is_of_earlier_build:
            summary["folder"] = str(self.folder / RUN)
            for page, fate in enumerate((deleted, kept)):
                FateFiles(self.folder / RUN / "fates").write_page(page, [fate])
        else:
            self.runs.fates = {(run_id, 0): {0: deleted}, (run_id, 1): {2: kept}}
        self.runs.open_run(run_id, RunKind.APPLY, claim=CLAIM, summary=summary)

    async def plan_orphans(self, **asked: Any) -> Any:
        """Remember the call."""
        self.started.append(asked)
        return FakeJobHandle(
            ReconcileOrphansResult(run_id=RUN, found=self.plan),  # type: ignore[arg-type]
            id=f"reconcile-orphans/{RUN}",
        )

    async def apply_orphans(self, run_id: str, **asked: Any) -> Any:
        """Remember the call."""
        self.started.append({"run_id": run_id, **asked})
        result = ApplyOrphansResult(run_id=run_id, done=self.done)
        return FakeJobHandle(result, id=f"apply-orphans/{run_id}")  # type: ignore[arg-type]


@pytest.fixture
def asked(services: FakeCommandServices, tmp_path: Path) -> Asked:
    """Stands behind catalog and client."""
    made = Asked(tmp_path / "bulk")
    services.log.catalog.reconciliation = made.runs
    preview = create_autospec(ApplyPreview, instance=True)
    preview.preview_apply.side_effect = lambda _run_id, _on_progress: made.preview
    services.apply_preview = lambda _log: preview  # type: ignore[method-assign]
    services.client.plan_orphans = made.plan_orphans  # type: ignore[method-assign]
    services.client.apply_orphans = made.apply_orphans  # type: ignore[method-assign]
    return made


# -- plan


def test_plan_answers_findings_and_bytes_of_every_kind(run: Run, asked: Asked) -> None:
    """Zeros too; the report is where the rows are."""
    told = run("orphans", "plan", "--json")
    found = document(told)
    assert found["run_id"] == RUN
    assert found["findings"] == ZEROS | {"orphan_ledger": 1, "foreign": 1, "stalled_deletion": 1}
    assert found["bytes"] == ZEROS | {"orphan_ledger": 300, "foreign": 5}
    assert found["report"] == str(asked.output)
    assert "not compared: bucket colder: no answer" in told.stderr
    (started,) = asked.started
    assert (started["older_than_s"], started["unsafe_age"], started["inventories"]) == (86_400, False, [])


def test_plan_passes_its_options_on(run: Run, asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths of this machine are made whole, for workers have another working directory."""
    monkeypatch.chdir(tmp_path)
    told = run("orphans", "plan", "--older-than", "5m", "--unsafe-age", "--inventory", "a.json")
    assert told.exit_code == 0, told.output
    assert run("orphans", "plan", "--inventory", "/b/m.json", "--master", "spark://h:7077").exit_code == 0
    first, second = asked.started
    assert (first["older_than_s"], first["unsafe_age"]) == (300, True)
    assert (first["inventories"], first["master"]) == ([str(tmp_path / "a.json")], "")
    assert (second["inventories"], second["master"]) == (["/b/m.json"], "spark://h:7077")


@pytest.mark.parametrize("path", ["", "a/", ".."])
def test_plan_with_an_inventory_that_is_no_path_starts_nothing(path: str, run: Run, asked: Asked) -> None:
    """It is refused before anything begins."""
    assert run("orphans", "plan", "--inventory", path).exit_code == 2
    assert asked.started == []


@pytest.mark.parametrize("url", ["s3://b/manifest.json", "file:///b/manifest.json", "https://b/manifest.json"])
def test_inventory_at_a_url_starts_nothing(url: str, run: Run, asked: Asked) -> None:
    """Workers open files: a plan that could not read its inventory would fail only after it had begun."""
    error = document(run("orphans", "plan", "--inventory", url, "--json"), 2)["error"]
    assert error["field"] == "inventory"
    assert "that the workers can read" in error["message"]
    assert asked.started == []


def test_inventory_of_the_examples_is_taken(run: Run, asked: Asked) -> None:
    """Each command line that the help shows can be typed."""
    text = re.sub(r"\\ *\n *", "", run("orphans", "plan", "--help").stdout)
    shown = re.findall(r"^ *sexton (orphans plan.*)$", text, re.MULTILINE)
    assert len(shown) == 3
    for line in shown:
        assert run(*line.split()).exit_code == 0


def test_age_below_the_floor_is_refused_in_the_words_it_was_typed_in(run: Run, asked: Asked) -> None:
    """No number of seconds that nobody typed."""
    error = document(run("orphans", "plan", "--older-than", "59m", "--json"), 3)["error"]
    assert error["message"].startswith("older-than: expected 1h or more, found 59m;")


@pytest.mark.parametrize(("age", "code"), [("30m", 3), ("0s", 3), ("-1s", 2), ("tomorrow", 2)])
def test_plan_with_an_impossible_age_starts_nothing(age: str, code: int, run: Run, asked: Asked) -> None:
    """Below the floor it is refused, and a cut-off in the future is none (iceberg#4195)."""
    error = document(run("orphans", "plan", "--older-than", age, "--json"), code)["error"]
    assert "older-than" in error["message"]
    assert asked.started == []


def test_plan_that_is_not_waited_for_names_itself(run: Run, asked: Asked) -> None:
    """The run id of the plan is what `report` and `apply` take."""
    found = document(run("orphans", "plan", "--no-wait", "--json"))
    assert found == {"workflow_id": f"reconcile-orphans/{RUN}", "run_id": "run-1", "plan": RUN}


@pytest.mark.parametrize("args", [["plan"], ["apply", RUN]])
def test_run_of_temporal_is_told_apart_from_the_plan(args: list[str], run: Run, asked: Asked) -> None:
    """Two things are called run id, and one of them is what every other command takes."""
    told = run("orphans", *args, "--no-wait")
    lines = {tuple(line.split()[:1]): line.split()[-1] for line in told.stdout.splitlines() if line.strip()}
    assert lines["plan",] == RUN
    assert "Temporal's run  run-1" in told.stdout
    assert "run id" not in told.stdout
    assert f"sexton orphans report {RUN}" in told.stderr


def test_plan_says_how_much_it_left_out_for_its_age(run: Run, asked: Asked) -> None:
    """Rows count as objects do: a ledger that is too young is not said to be whole."""
    found = document(run("orphans", "plan", "--json"))
    assert (found["young_ledgers"], found["ledgers"]) == (7, 40)
    assert (found["before"], found["rows_before"]) == ("2025-11-22T08:26:40Z", "2025-11-22T07:26:40Z")
    told = run("orphans", "plan").stdout
    assert "7 of them, created since 2025-11-22T07:26:40Z" in told
    assert "those written before 2025-11-22T08:26:40Z" in told


def test_plan_that_left_nothing_out_says_so(run: Run, asked: Asked) -> None:
    """No time stands there for nothing."""
    asked.plan = replace(asked.plan, young=0)
    assert "none of them" in run("orphans", "plan").stdout


def test_plan_shows_kinds_of_which_something_was_found(run: Run, asked: Asked) -> None:
    """People look for what is there; the document has the zeros."""
    told = run("orphans", "plan").stdout
    assert "orphan_ledger" in told
    assert "missing_data" not in told
    asked.plan.findings.update(ZEROS)
    assert "(nothing found)" in run("orphans", "plan").stdout


def test_plan_that_found_missing_data_says_so(run: Run, asked: Asked) -> None:
    """Data loss is not a row among others."""
    asked.plan.findings["missing_data"] = 2
    told = run("orphans", "plan")
    assert told.exit_code == 0
    assert f"data is missing: sexton orphans report {RUN} --kind missing_data" in told.stderr
    assert "missing_data" in told.stdout


# -- apply


def test_apply_answers_what_was_done_and_kept(run: Run, asked: Asked) -> None:
    """By kind and by reason."""
    found = document(run("orphans", "apply", RUN, "--reason", "clean", "--max-orphan-share", "0.5", "--json"))
    assert (found["applied"], found["skipped"], found["failed"]) == ({"orphan_ledger": 1}, {"it is young": 2}, 0)
    assert (found["objects"], found["bytes"]) == (3, 300)
    (started,) = asked.started
    assert (started["run_id"], started["max_orphan_share"], started["reason"]) == (RUN, 0.5, "clean")
    assert "run id" not in run("orphans", "apply", RUN).stdout


def test_apply_that_failed_in_part_exits_5_and_names_what_failed(run: Run, asked: Asked) -> None:
    """By the ids that the report shows."""
    asked.done = ApplyCounts(applied={"orphan_ledger": 1}, failed=2, failures={"4": "RETRYING: a key is kept"})
    found = document(run("orphans", "apply", RUN, "--json"), 5)
    assert found["failed"] == [{"id": 4, "error": "RETRYING: a key is kept"}]
    assert found["failed_count"] == 2


def test_apply_tried_out_names_what_would_go_and_starts_nothing(run: Run, asked: Asked) -> None:
    """By kind and by reason, exactly; the document has the zeros."""
    asked.preview = ApplyPreviewResult(
        counts=ApplyCounts(applied={"orphan_ledger": 1, "stalled_deletion": 1}, skipped={"something names it": 2}),
        size_bytes={"orphan_ledger": 300},
    )
    told = run("orphans", "apply", RUN, "--dry-run", "--json")
    found = document(told)
    assert found["upper_bound"] is False
    assert found["skipped"] == {"something names it": 2}
    assert found["bytes"]["orphan_ledger"] == 300
    assert "something names it" in run("orphans", "apply", RUN, "--dry-run").stdout
    assert found["applied"]["orphan_ledger"] == 1
    assert found["applied"]["stalled_deletion"] == 1
    assert "foreign" not in found["applied"]
    assert asked.started == []


def test_apply_tried_out_that_would_be_refused_is_counted_all_the_same(run: Run, asked: Asked) -> None:
    """Who decides upon the share must see what would go."""
    tried = ("orphans", "apply", RUN, "--dry-run", "--max-orphan-share", "0")
    found = document(run(*tried, "--json"), 3)
    assert found["error"]["type"] == "PreconditionFailed"
    assert "1 of 41 ledgers would go: 1 orphan_ledger;" in found["error"]["message"]
    assert (found["applied"]["orphan_ledger"], found["bytes"]["orphan_ledger"]) == (1, 300)
    told = run(*tried)
    assert told.exit_code == 3
    assert "orphan_ledger" in told.stdout
    assert "it would be refused: orphan share" in told.stderr


def test_apply_tried_out_of_a_plan_that_was_applied_says_so(run: Run, asked: Asked) -> None:
    """Nothing more would go, so that no guard refuses it."""
    asked.applied()
    asked.runs.close_run(f"apply-{RUN}", {"result": asdict(asked.done)})
    told = run("orphans", "apply", RUN, "--dry-run", "--max-orphan-share", "0", "--json")
    assert set(document(told)["applied"].values()) == {0}
    assert "this plan was applied by 2025-06-15T15:06:40Z" in told.stderr


def test_apply_of_a_plan_that_was_applied_says_that_nothing_is_done_now(run: Run, asked: Asked) -> None:
    """What stands again since is another plan's finding."""
    assert document(run("orphans", "apply", RUN, "--json"))["already_applied"] is False
    asked.applied()
    asked.runs.close_run(f"apply-{RUN}", {"result": asdict(asked.done)})
    told = run("orphans", "apply", RUN, "--json")
    assert document(told)["already_applied"] is True
    assert "this plan was applied by 2025-06-15T15:06:40Z: nothing is done now" in told.stderr


@pytest.mark.parametrize("share", ["20%", "1.1", "-0.1", "nan", "a fifth"])
def test_share_that_is_none_says_the_rule(share: str, run: Run, asked: Asked) -> None:
    """One in percent is the likeliest."""
    error = document(run("orphans", "apply", RUN, f"--max-orphan-share={share}", "--json"), 2)["error"]
    assert error["message"] == f"max-orphan-share: expected a number from 0 to 1, found {share!r}"
    assert asked.started == []


@pytest.mark.parametrize("command", ["apply", "report"])
def test_unknown_run_is_bad_input_and_one_without_a_summary_is_refused(command: str, run: Run, asked: Asked) -> None:
    """By name, and with the command that knows the ids."""
    told = document(run("orphans", command, "plan-0", "--json"), 2)["error"]["message"]
    assert "plan-0" in told
    assert "`orphans list`" in told
    asked.runs.open_run("plan-1", RunKind.PLAN, claim=CLAIM, summary={})
    args = ["--dry-run"] if command == "apply" else []
    assert "no summary" in document(run("orphans", command, "plan-1", *args, "--json"), 3)["error"]["message"]
    assert asked.started == []


def test_apply_that_a_guard_refuses_exits_3(run: Run, asked: Asked, services: FakeCommandServices) -> None:
    """As its workflow says it."""

    async def refuse(*_: object) -> Any:
        raise PreconditionFailed("orphan share: expected at most 0.05")

    services.client.wait_for_result = refuse  # type: ignore[assignment,method-assign]
    assert document(run("orphans", "apply", RUN, "--json"), 3)["error"]["type"] == "PreconditionFailed"


# -- report


def test_report_shows_findings_as_rows(run: Run, asked: Asked) -> None:
    """With where they are; what became of them is not known before the plan is applied."""
    rows = document(run("orphans", "report", RUN, "--json"))
    assert [row["id"] for row in rows] == [0, 1, 2]
    assert rows[0]["topic"] == "persistent://shop/main/a b"
    assert (rows[0]["kind"], rows[0]["ledger_id"], rows[0]["newest"]) == ("orphan_ledger", 7, "2025-10-13T08:26:40Z")
    assert (rows[2]["row_id"], rows[2]["fate"]) == (12, None)


LOST = Finding(
    kind=FindingKind.MISSING_DATA,
    ledger_id=LedgerId(9),
    topic="persistent://shop/main/lost",
    key="ledgers/09/0000000000000009/00000000.parquet",
    size_bytes=77,
)
ODD = Finding(kind=FindingKind.MISMATCH, key="odd\u202egnp.exe\u0007", objects=1, size_bytes=2)


def test_report_begins_with_what_a_person_must_look_at(run: Run, asked: Asked, services: FakeCommandServices) -> None:
    """Numbers stay those of the files, which a failed apply names too."""
    asked.found([*FINDINGS, ODD, LOST])
    services.log.catalog.reconciliation = asked.runs
    rows = document(run("orphans", "report", RUN, "--json"))
    assert [(row["id"], row["kind"]) for row in rows[:3]] == [
        (4, "missing_data"),
        (3, "mismatch"),
        (0, "orphan_ledger"),
    ]
    assert [row["id"] for row in rows[3:]] == [1, 2]


def test_report_for_people_begins_with_a_summary(run: Run, asked: Asked) -> None:
    """What was looked at and when, what was found, and who applied it; `--wide` has it once."""
    for wide in ((), ("--wide",)):
        told = run("orphans", "report", RUN, *wide).stdout
        assert told.count("2025-06-15T15:06:40Z, by ann (a test)") == 1
        assert "40, 7 of them too young to be judged" in told
        assert "written before 2025-11-22T08:26:40Z" in told
        assert "1 orphan_ledger, 1 stalled_deletion, 1 foreign" in told
        assert "not yet" in told
    asked.applied()
    assert "not finished, by ann (a test)" in run("orphans", "report", RUN).stdout


def test_page_shows_characters_that_cannot_be_seen_and_counts_no_lost_bytes(
    run: Run, asked: Asked, services: FakeCommandServices, tmp_path: Path
) -> None:
    """A name may turn the direction of the text around it; what is lost is in storage of no topic."""
    asked.found([ODD, LOST])
    services.log.catalog.reconciliation = asked.runs
    text, seen = page_of(run, tmp_path / "orphans.html")
    assert "odd\\u202egnp.exe\\x07" in seen.text
    assert "\u202e" not in text
    assert "Data is missing: 1 finding." in seen.text
    assert "77 B" not in seen.text
    assert f"What the plan {RUN} found" in seen.text


@pytest.mark.parametrize("is_of_earlier_build", [False, True])
def test_report_of_an_applied_plan_says_what_became_of_each(
    run: Run, asked: Asked, *, is_of_earlier_build: bool
) -> None:
    """Deleted, kept or failed, with the reason."""
    asked.applied(is_of_earlier_build=is_of_earlier_build)
    rows = document(run("orphans", "report", RUN, "--json"))
    assert [(row["fate"], row["reason"]) for row in rows] == [
        ("deleted", ""),
        (None, None),
        ("kept", "a workflow works on it"),
    ]


def test_report_tells_a_fate_apart_from_why_a_thing_was_found(run: Run, asked: Asked) -> None:
    """A ledger was not deleted because no row named it: that is why it was found."""
    assert "fate" not in run("orphans", "report", RUN).stdout
    asked.applied()
    told = [line.strip() for line in run("orphans", "report", RUN).stdout.splitlines()]
    at = next(number for number, line in enumerate(told) if line.startswith("0  orphan_ledger"))
    assert told[at].endswith("deleted")
    assert told[at + 1] == "no row names it"
    assert "kept: a workflow works on it" in told


def test_report_takes_a_kind_and_a_limit(run: Run, asked: Asked) -> None:
    """Said where there are more."""
    assert [row["id"] for row in document(run("orphans", "report", RUN, "--kind", "foreign", "--json"))] == [1]
    told = run("orphans", "report", RUN, "--limit", "2", "--json")
    assert len(document(told)) == 2
    assert "there are more" in told.stderr
    assert run("orphans", "report", RUN, "--kind", "orphans").exit_code == 2


def test_report_without_its_files_says_where_they_would_be(run: Run, asked: Asked) -> None:
    """Bulk output is in a folder that this machine may not see."""
    for path in asked.output.iterdir():
        path.unlink()
    asked.output.rmdir()
    message = document(run("orphans", "report", RUN, "--json"), 3)["error"]["message"]
    assert str(asked.output) in message
    assert "bulk_dir" in message


def test_report_of_the_own_store_names_no_certificate(run: Run, asked: Asked) -> None:
    """Only applies of plans of clusters have one."""
    asked.applied()
    assert "certificate" not in run("orphans", "report", RUN, "--wide").stdout


# -- the list


def test_list_names_plans_and_applies_by_the_id_that_commands_take(run: Run, asked: Asked) -> None:
    """A scheduled plan takes its id by itself: here it is told."""
    asked.applied()
    asked.runs.open_run("plan-2", RunKind.PLAN, claim=CLAIM, summary={"actor": "schedule", "reason": ""})
    asked.runs.age(RUN, seconds=60)
    asked.runs.age(f"apply-{RUN}", seconds=30)
    asked.runs.close_run(f"apply-{RUN}", {**BEGUN, "result": asdict(asked.done)})
    rows = document(run("orphans", "list", "--json"))
    assert [(row["run_id"], row["kind"], row["state"]) for row in rows] == [
        ("plan-2", "plan", "unfinished"),
        (RUN, "apply", "finished"),
        (RUN, "plan", "finished"),
    ]
    assert [row["counts"] for row in rows[:2]] == [{}, {"applied": 1, "kept": 2, "failed": 0}]
    assert (rows[2]["counts"]["orphan_ledger"], rows[2]["counts"]["missing_data"]) == (1, 0)
    assert (rows[2]["begun"], rows[2]["finished"]) == ("2025-06-15T15:05:40Z", "2025-06-15T15:06:40Z")
    told = run("orphans", "list").stdout
    assert "1 orphan_ledger, 1 stalled_deletion, 1 foreign" in told
    assert "at work, refused or failed" in told
    assert len(document(run("orphans", "list", "--limit", "2", "--json"))) == 2


@pytest.mark.parametrize("kind", [RunKind.SNAPSHOTS, RunKind.INDEXES])
@pytest.mark.parametrize("is_finished", [False, True])
def test_list_leaves_out_bulk_jobs_that_are_no_reconciliation(
    kind: RunKind, is_finished: bool, run: Run, asked: Asked
) -> None:
    """Snapshots and delayed indexes are built by runs of their own, which come to something else."""
    asked.runs.open_run("build-1", kind, claim=CLAIM, summary={"topics": 3})
    if is_finished:
        asked.runs.close_run("build-1", {"built": 3})
    assert [row["run_id"] for row in document(run("orphans", "list", "--json"))] == [RUN]
    assert run("orphans", "list").exit_code == 0
    for command in (["report"], ["apply", "--dry-run"]):
        error = document(run("orphans", command[0], "build-1", *command[1:], "--json"), 3)["error"]
        assert f"expected a plan, found a run of {kind.value}" in error["message"]


def test_list_without_runs_says_what_makes_one(run: Run, services: FakeCommandServices) -> None:
    """An empty catalog."""
    services.log.catalog.reconciliation = FakeReconciliationRuns()
    assert "sexton orphans plan" in run("orphans", "list").stdout


# -- the page


class Seen(HTMLParser):
    """What a page refers to, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Remember the tag."""
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in {"href", "src", "action", "xlink:href"}]

    def handle_data(self, data: str) -> None:
        """Remember the text."""
        self.text.append(data)


def page_of(run: Run, path: Path, *args: str) -> tuple[str, Seen]:
    told = run("orphans", "report", RUN, "--html", str(path), *args, "--json")
    assert document(told)["html"] == str(path)
    text, seen = path.read_text(encoding="utf-8"), Seen()
    seen.feed(text)
    return text, seen


def test_page_stands_alone_and_is_escaped(run: Run, asked: Asked, tmp_path: Path) -> None:
    """It loads nothing from anywhere, and names of objects are text."""
    text, seen = page_of(run, tmp_path / "orphans.html")
    assert "script" not in seen.tags
    assert seen.links == []
    assert not re.search(r"https?://|url\(|@import", text)
    assert "<script>alert(1)</script>.txt" in seen.text
    assert seen.tags.count("svg") == 3
    assert seen.tags.count("tr") == 4
    assert "prefers-color-scheme: dark" in text


def test_page_has_charts_of_kinds_topics_and_ages(run: Run, asked: Asked, tmp_path: Path) -> None:
    """With their values in words."""
    asked.applied()
    _, seen = page_of(run, tmp_path / "orphans.html")
    for told in ("orphan_ledger", "persistent://shop/main/a b", "300 B", "1 to 3 months", "of no known topic"):
        assert told in seen.text
    assert "Not compared: bucket colder: no answer" in seen.text
    assert {"deleted", "kept", "a workflow works on it"} <= set(seen.text)


def test_charts_keep_the_size_of_their_text_on_a_screen_of_400_pixels(run: Run, asked: Asked, tmp_path: Path) -> None:
    """Bars are shares of the width there is; a name and its value share a line, and both have room on it."""
    text, _ = page_of(run, tmp_path / "orphans.html")
    assert "viewBox" not in text, "text would shrink with the chart"
    charts = re.findall("<svg .*?</svg>", text, re.DOTALL)
    assert len(charts) == 3
    for chart in charts:
        assert set(re.findall(' x="([^"]*)"', chart)) <= {"0", "100%"}
        widths = re.findall(' width="([^"]*)"', chart)
        assert widths
        assert all(0 <= float(width.removesuffix("%")) <= 100 and width.endswith("%") for width in widths)
        names, values = (re.findall(f'class="{part}"[^>]*>([^<]*)<', chart) for part in ("name", "value"))
        assert all(7 * (len(name) + len(value)) < 330 for name, value in zip(names, values, strict=True))


def test_page_takes_a_kind_and_a_limit(run: Run, asked: Asked, tmp_path: Path) -> None:
    """Charts count all of the kind, the table shows the first."""
    _, seen = page_of(run, tmp_path / "orphans.html", "--limit", "1")
    assert seen.tags.count("tr") == 2
    assert "1 of 3" in seen.text
    _, seen = page_of(run, tmp_path / "orphans.html", "--kind", "foreign")
    assert "orphan_ledger" not in seen.text
    assert "1 of 1" in seen.text


def test_page_in_a_folder_that_does_not_exist_is_bad_input(run: Run, asked: Asked, tmp_path: Path) -> None:
    """Nothing is written, and no half page is left."""
    assert (
        "html"
        in document(run("orphans", "report", RUN, "--html", str(tmp_path / "no" / "x.html"), "--json"), 2)["error"][
            "message"
        ]
    )
    assert document(run("orphans", "report", RUN, "--html", str(tmp_path), "--json"), 2)
    assert not list(tmp_path.glob("*.html*"))


def test_page_goes_where_a_link_leads_and_into_a_device(run: Run, asked: Asked, tmp_path: Path) -> None:
    """Neither is replaced."""
    link, target = tmp_path / "link.html", tmp_path / "page.html"
    link.symlink_to(target)
    page_of(run, link)
    assert (link.is_symlink(), "Findings by kind" in target.read_text(encoding="utf-8")) == (True, True)
    assert run("orphans", "report", RUN, "--html", "/dev/null", "--json").exit_code == 0
    assert Path("/dev/null").is_char_device()


def test_page_counts_so_many_topics_and_keeps_the_large_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is counted does not grow with the number of topics."""
    monkeypatch.setattr(pages, "_MAX_COUNTED_TOPICS", 10)
    sums = pages._ChartTotals()
    for number in range(100):
        sums.count_finding(Finding(kind=FindingKind.FOREIGN, topic=f"t{number % 40}", size_bytes=1), CUT_OFF_US)
        sums.count_finding(Finding(kind=FindingKind.FOREIGN, topic="large", size_bytes=50), CUT_OFF_US)
    assert len(sums.topics) <= 10
    assert sums.topics.most_common(1) == [("large", 5_000)]
    assert any("about" in title for title in sums.make_charts(None))


# -- under an operator's hand


def test_apply_is_paused_resumed_and_slowed_down_like_a_batch(run: Run, services: FakeCommandServices) -> None:
    """The same commands, the same fields."""
    progress = ApplyOrphansProgress(
        pages_done=1, pages=3, intents=9, done=4, left=5, outcomes={"applied": 4}, paused=True
    )

    async def pause(workflow_id: str) -> ApplyOrphansProgress:
        assert workflow_id == f"apply-orphans/{RUN}"
        return progress

    services.client.batches = SimpleNamespace(pause=pause)  # type: ignore[assignment]
    found = document(run("deletion", "pause", f"apply-orphans/{RUN}", "--json"))
    assert (found["paused"], found["intents"], found["done"], found["left"]) == (True, 9, 4, 5)
    assert found["outcomes"] == {"applied": 4}
