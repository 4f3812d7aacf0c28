"""`scrub`: of every topic or of some, what was found, and its place among plans."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from logstore.ports.catalog.deletion import Claim
from logstore.ports.catalog.log import Topic
from logstore.ports.catalog.reconciliation import RunKind
from logstore.positions import LedgerId
from logstore.reconciliation.bulk_job_inputs_and_results import MIN_SCRUB_RATE, SCRUB_RATE
from logstore.reconciliation.finding_files import findings_to_table
from logstore.reconciliation.findings import STORE_KINDS, Finding, FindingKind, PlanOrScrubResult
from logstore.validated_names import TopicName
from tests.fakes.reconciliation_runs import FakeReconciliationRuns
from tests.workers.cli.conftest import Run, document
from tests.workers.cli.fakes import ORDERS_TOPIC, FakeCommandServices, FakeJobHandle
from workflows.reconciliation.job_definitions import ScrubLedgersProgress, ScrubLedgersResult

_RUN = "scrub-8c1d5f0e9a3b"
_BEGUN = {"actor": "ann", "reason": "a test"}


class _Asked:
    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        finding = Finding(
            kind=FindingKind.CORRUPT_DATA, ledger_id=LedgerId(7), copy="LEDGER", bucket="warm", key="k", size_bytes=9
        )
        pq.write_table(findings_to_table([finding]), folder / "page-0.parquet")
        counts = {kind.value: int(kind is FindingKind.CORRUPT_DATA) for kind in STORE_KINDS}
        sizes = {name: 9 * count for name, count in counts.items()}
        self.found = PlanOrScrubResult(findings=counts, size_bytes=sizes, ledgers=4, before_us=1, report=str(folder))
        self.started: list[tuple[list[str] | None, dict[str, Any]]] = []
        self.runs = FakeReconciliationRuns()
        self.runs.open_run(
            _RUN, RunKind.SCRUB, claim=Claim(workflow_id="tests", run_id="", ttl_s=60), summary=dict(_BEGUN)
        )

    def finish(self) -> None:
        """Let the scrub have ended."""
        self.runs.close_run(_RUN, {**_BEGUN, "result": asdict(self.found)})

    async def scrub(self, topics: Sequence[Topic] | None, **asked: Any) -> Any:
        self.started.append((None if topics is None else [one.name for one in topics], asked))
        progress = ScrubLedgersProgress(run_id=_RUN, pages_done=2, pages=2, objects=20, size_bytes=1_000, findings=1)
        result = ScrubLedgersResult(run_id=_RUN, found=self.found, progress=progress)
        return FakeJobHandle(result, id="scrub-ledgers")  # type: ignore[arg-type]


@pytest.fixture
def asked(services: FakeCommandServices, orders: str, tmp_path: Path) -> _Asked:
    made = _Asked(tmp_path / "findings")
    services.client.scrub_ledgers = made.scrub  # type: ignore[attr-defined]
    services.log.catalog.reconciliation = made.runs
    return made


def test_scrub_of_every_topic_says_what_it_found(run: Run, asked: _Asked) -> None:
    """At the rate of the settings."""
    told = run("scrub", "--json")
    found = document(told)
    assert found["findings"] == {"corrupt_data": 1, "missing_data": 0}
    assert found["bytes"] == {"corrupt_data": 9, "missing_data": 0}
    assert (found["run_id"], found["ledgers"], found["objects"], found["read_bytes"]) == (_RUN, 4, 20, 1_000)
    ((topics, rest),) = asked.started
    assert (topics, rest["bytes_per_s"], rest["master"]) == (None, SCRUB_RATE, "")
    assert f"sexton orphans report {_RUN}" in told.stderr


def test_scrub_of_a_topic_keeps_the_rate_that_was_asked_for(run: Run, asked: _Asked) -> None:
    assert run("scrub", ORDERS_TOPIC, "--rate", "200000", "--master", "local[2]", "--reason", "why").exit_code == 0
    ((topics, rest),) = asked.started
    assert topics == [TopicName.parse_existing(ORDERS_TOPIC).encoded]
    assert (rest["bytes_per_s"], rest["master"], rest["reason"]) == (200_000, "local[2]", "why")


@pytest.mark.parametrize(
    "words",
    [
        ["--rate", "0"],
        ["--rate", str(MIN_SCRUB_RATE - 1)],
        ["--rate", "fast"],
        ["not-a-topic"],
        [ORDERS_TOPIC, ORDERS_TOPIC],
        ["--master", "h:7077"],
    ],
)
def test_bad_input_starts_nothing(run: Run, asked: _Asked, words: list[str]) -> None:
    assert run("scrub", *words).exit_code == 2
    assert asked.started == []


def test_scrubs_are_listed_and_reported_like_plans(run: Run, asked: _Asked) -> None:
    (row,) = document(run("orphans", "list", "--json"))
    assert (row["run_id"], row["kind"], row["state"], row["counts"]) == (_RUN, "scrub", "unfinished", {})
    refused = document(run("orphans", "report", _RUN, "--json"), 3)["error"]
    assert refused["message"].startswith(f"scrub {_RUN}: expected one that finished")
    asked.finish()
    (row,) = document(run("orphans", "list", "--json"))
    assert (row["state"], row["counts"]["corrupt_data"]) == ("finished", 1)
    (finding,) = document(run("orphans", "report", _RUN, "--json"))
    assert (finding["kind"], finding["ledger_id"], finding["key"]) == ("corrupt_data", 7, "k")


def test_scrub_is_never_applied(run: Run, asked: _Asked) -> None:
    asked.finish()
    refused = document(run("orphans", "apply", _RUN, "--dry-run", "--json"), 3)["error"]
    assert refused["message"] == f"run {_RUN}: expected a plan, found a run of scrub-ledgers"
