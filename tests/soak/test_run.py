"""A soak whose steps fail tells that as violations, in a report, and keeps what a person needs to look further."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from logstore.errors import CatalogBusy, MissingData
from tests.postgres import PostgresServer, postgres
from tests.soak import soak_run
from tests.soak.audit.evidence import Evidence
from tests.soak.flawless_evidence import make_flawless_evidence
from tests.soak.soak_report import SoakReport
from tests.soak.soak_run import SoakRequest, SoakRun
from tests.soak.soak_setup import LASTING_TOPICS

__all__ = ["postgres"]


class Ground:
    """Servers and processes that do nothing."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.arming = True
        self.direct = SimpleNamespace(model_copy=lambda update: SimpleNamespace(**update))
        self.wire = SimpleNamespace(weather=SimpleNamespace(met={}))
        self.members = {("replica", 0): SimpleNamespace(lives=1, exits=[])}

    def __getattr__(self, name: str) -> Any:
        if name in {"revive", "end_clients", "end_workers", "dump_databases", "down"}:
            return lambda: self.said.append(name)
        raise AttributeError(name)

    def database(self, name: str) -> str:
        """Where nothing is."""
        return name


class Auditor:
    """Finds nothing."""

    lost_segments: list[str] = []  # noqa: RUF012 - never changed
    check_count = 0

    def list_unsettled(self, said: object, *, flushed: bool) -> list[str]:
        """Everything is at rest."""
        return []

    def wait_for_settled_owners(self) -> dict[int, str]:
        """Nobody owns anything."""
        return {}

    def tables(self, url: str = "") -> dict[str, Any]:
        """No rows."""
        return {}

    def collect(self, said: object, *, seen: Any, waits: list[str], **more: Any) -> Evidence:
        """As of a store that kept every promise."""
        found = make_flawless_evidence()
        found.seen, found.waits, found.rebuilt = seen, waits, None
        return found

    def collect_after_loss(self, before: Evidence, url: str, said: object, seen: Any) -> Evidence:
        """As of a store that kept every promise."""
        found = make_flawless_evidence().rebuilt
        assert found
        found.seen = seen
        return found


@pytest.fixture
def ground() -> Ground:
    """Servers that do nothing."""
    return Ground()


@pytest.fixture
def soak(tmp_path: Path, ground: Ground, monkeypatch: pytest.MonkeyPatch) -> SoakRun:
    """A soak of no time, on that ground."""

    async def nothing(*_: object, **__: object) -> list[Any]:
        return []

    for name in (
        "set_up_schedules",
        "redrive_all_dead_letters",
        "resume_batches",
        "run_last_jobs",
        "list_running_jobs",
        "list_failed_workflows",
    ):
        monkeypatch.setattr(soak_run, name, nothing)
    for name in ("flush_and_ship", "append_entries_without_flush", "write_phase"):
        monkeypatch.setattr(soak_run, name, lambda *_: None)
    for name in ("bring_replica_up_to_date", "rebuild_with_kills"):
        monkeypatch.setattr(soak_run, name, lambda *_: [])
    monkeypatch.setattr(soak_run, "read_topics", lambda *_: {})
    monkeypatch.setattr(soak_run, "count_runs_by_type", lambda _: asyncio.sleep(0, {}))
    monkeypatch.setattr("tests.soak.soak_run.Ground.up", lambda *_, **__: ground)
    found = SoakRun(SoakRequest(seed=1, seconds=0.0), tmp_path, lambda _: None)
    found.auditor, found.said = Auditor(), SimpleNamespace(entries=list)  # type: ignore[assignment]  # what is used
    return found


def _run_check(report: SoakReport) -> list[str]:
    return [violation.sentence for violation in report.violations]


def test_soak_in_which_nothing_fails_has_no_violation_and_removes_its_databases(soak: SoakRun, ground: Ground) -> None:
    """So that the tests below fail for their own reason."""
    assert _run_check(soak.run()) == []
    assert ground.said == ["revive", "end_clients", "end_workers", "down"]


@pytest.mark.parametrize(
    ("step", "doing"),
    [
        ("redrive_all_dead_letters", "redriving dead letters"),
        ("resume_batches", "resuming batches"),
        ("set_up_schedules", "pausing schedules"),
        ("run_last_jobs", "the last jobs"),
        ("list_failed_workflows", "reading failed jobs"),
        ("flush_and_ship", "the last flush"),
        ("bring_replica_up_to_date", "following the record log"),
        ("rebuild_with_kills", "rebuilding the catalog"),
        ("append_entries_without_flush", "appending without a flush"),
        ("count_runs_by_type", "counting workflows"),
    ],
)
def test_step_that_fails_is_a_violation_of_a_report_and_ends_nothing(
    soak: SoakRun, ground: Ground, monkeypatch: pytest.MonkeyPatch, step: str, doing: str
) -> None:
    """And PostgreSQL's databases are kept before the servers end."""

    def fail(*_: object, **more: object) -> object:
        if step == "set_up_schedules" and not more.get("pauses"):
            return asyncio.sleep(0)
        raise CatalogBusy("it is busy")

    monkeypatch.setattr(soak_run, step, fail)
    assert _run_check(soak.run()) == [f"{doing} failed: CatalogBusy: it is busy"]
    assert ground.said[-3:] == ["end_workers", "dump_databases", "down"]


def test_object_that_is_lost_is_a_violation_and_hides_no_other_topic(
    soak: SoakRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The product raises `MissingData` where the auditor looks on."""
    read: list[str] = []

    def read_all(_: object, names: list[str]) -> dict[int, Any]:
        read.extend(names)
        if names == [LASTING_TOPICS[0]]:
            raise MissingData("ledger 7 is listed, and no copy holds it")
        return {}

    monkeypatch.setattr(soak_run, "read_topics", read_all)
    told = f"reading {LASTING_TOPICS[0]} failed: MissingData: ledger 7 is listed, and no copy holds it"
    assert _run_check(soak.run()) == [told, told], "by the catalog, and by the one that was rebuilt"
    assert read == [*LASTING_TOPICS, *LASTING_TOPICS]


def test_evidence_that_cannot_be_collected_leaves_a_report(soak: SoakRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so, and what had not come to rest."""

    def collect(*_: object, **__: object) -> Evidence:
        raise ValueError("not a Parquet file")

    monkeypatch.setattr(soak.auditor, "collect", collect)
    monkeypatch.setattr(soak_run, "bring_replica_up_to_date", lambda _: ["`records follow` ended with 1, 4 times"])
    report = soak.run()
    assert _run_check(report) == [
        "`records follow` ended with 1, 4 times",
        "collecting the evidence failed: ValueError: not a Parquet file",
    ]
    assert "violations: 2" in report.text()


def test_soak_that_breaks_off_keeps_its_databases(
    soak: SoakRun, ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever ended it."""

    def break_off(*_: object) -> list[str]:
        raise KeyboardInterrupt

    monkeypatch.setattr(SoakRun, "_come_to_rest", break_off)
    with pytest.raises(KeyboardInterrupt):
        soak.run()
    assert ground.said == ["dump_databases", "down"]


@pytest.mark.external_service
def test_database_of_a_server_that_goes_is_kept_as_sql(postgres: PostgresServer, tmp_path: Path) -> None:
    """Rows and all, so that another server can read it."""
    with postgres.database() as name:
        postgres.execute("CREATE TABLE kept AS SELECT 'a row of a violation' AS told", name)
        postgres.dump(name, tmp_path / "soak.sql")
    said = (tmp_path / "soak.sql").read_text(encoding="utf-8")
    assert "CREATE TABLE public.kept" in said
    assert "\na row of a violation\n" in said
