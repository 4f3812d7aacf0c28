"""`records rebuild` as scripts see it: its document, its exit code, and what it refuses."""

import json
from typing import Any

import pytest

from logstore.records.job_results import RebuildAdoptionResult
from tests.workers.cli.conftest import Run
from tests.workers.cli.fakes import FakeCommandServices
from workers.hosting.rebuild_and_follow import AbandonRebuildResult
from workflows.records.job_definitions import RebuildCatalogResult

_URL = "sqlite:////nowhere/catalog.db"
_DONE = RebuildCatalogResult(
    rebuild="r",
    manifest=8,
    records=5,
    adopted=RebuildAdoptionResult(
        adopted_ledgers=1, adopted_segments=2, revived=3, revived_ledgers=[4], missing_data=0
    ),
    flushed_us=1_750_000_000_000_000,
    begun_us=1_750_000_060_000_000,
)


def test_rebuild_document_has_the_fields_of_the_contract(
    run: Run, services: FakeCommandServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And it is told which database, whether to skip, and which cluster."""
    told: list[Any] = []

    def rebuild(settings: Any, **named: Any) -> RebuildCatalogResult:
        told.append((settings, named))
        return _DONE

    monkeypatch.setattr(services, "rebuild", rebuild)
    done = run("records", "rebuild", "--into", _URL, "--master", "spark://127.0.0.1:7077", "--json")
    assert done.exit_code == 0, done.stderr
    document = json.loads(done.stdout)
    wanted = {"records": 5, "adopted_ledgers": 1, "adopted_segments": 2, "revived": 3, "missing_data": 0, "manifest": 8}
    assert wanted.items() <= document.items()
    assert document["unflushed_window"] == ["2025-06-15T15:06:40Z", "2025-06-15T15:07:40Z"]
    ((settings, named),) = told
    assert settings.database_url == _URL
    assert (named["skip_unreadable"], named["master"]) == (False, "spark://127.0.0.1:7077")


def test_rebuild_takes_a_ceiling_of_absent_ledgers(
    run: Run, services: FakeCommandServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `orphans apply` does: 5 % unless it is told otherwise."""
    told: list[Any] = []

    def rebuild(settings: Any, **named: Any) -> RebuildCatalogResult:
        told.append(named)
        return _DONE

    monkeypatch.setattr(services, "rebuild", rebuild)
    for more in ([], ["--max-absent-share", "0.5"]):
        assert run("records", "rebuild", "--into", _URL, *more, "--json").exit_code == 0
    assert [named["max_absent_share"] for named in told] == [0.05, 0.5]


@pytest.mark.parametrize("share", ["5", "-0.1", "nan", "much"])
def test_share_of_absent_ledgers_that_is_none_is_refused(run: Run, services: FakeCommandServices, share: str) -> None:
    """Before anything begins."""
    done = run("records", "rebuild", "--into", _URL, f"--max-absent-share={share}", "--json")
    assert done.exit_code == 2
    error = json.loads(done.stdout)["error"]
    assert error["message"] == f"max-absent-share: expected a number from 0 to 1, found {share!r}"


def test_rebuild_says_where_ledgers_go_that_nothing_names(
    run: Run, services: FakeCommandServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan reports them; the rebuild has deleted nothing."""
    unnamed = RebuildCatalogResult(rebuild="r", adopted=RebuildAdoptionResult(detached=2, revived=1))
    monkeypatch.setattr(services, "rebuild", lambda settings, **named: unnamed)
    done = run("records", "rebuild", "--into", _URL, "--json")
    assert done.exit_code == 0, done.stderr
    assert "3 ledgers are in no list. What storage holds of them stays: `sexton orphans plan`" in done.stderr


def test_rebuild_names_the_topics_of_schemas_that_were_left_out(
    run: Run, services: FakeCommandServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what to do: the topics serve without them."""
    adopted = RebuildAdoptionResult(schemas_left_out=2, schemas_left_out_of=["persistent://a/b/c"])
    left_out = RebuildCatalogResult(rebuild="r", adopted=adopted)
    monkeypatch.setattr(services, "rebuild", lambda settings, **named: left_out)
    done = run("records", "rebuild", "--into", _URL, "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["schemas_left_out_of"] == ["persistent://a/b/c"]
    assert "2 versions of schemas came back without their ledgers" in done.stderr
    assert "persistent://a/b/c: set them again with `sexton topic schema set`" in done.stderr


def test_rebuild_that_left_blocks_out_ends_in_part_and_names_them(
    run: Run, services: FakeCommandServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_out = RebuildCatalogResult(rebuild="r", skipped=["records/blocks/x.parquet: gone"], skipped_blocks=1)
    monkeypatch.setattr(services, "rebuild", lambda settings, **named: left_out)
    done = run("records", "rebuild", "--into", _URL, "--skip-unreadable", "--json")
    assert done.exit_code == 5, done.stderr
    assert json.loads(done.stdout)["failed"] == [{"id": "records/blocks/x.parquet", "error": "gone"}]


def test_rebuild_names_the_database_for_the_workers_without_its_password(
    run: Run, services: FakeCommandServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "rebuild", lambda settings, **named: _DONE)
    done = run("records", "rebuild", "--into", "postgresql+psycopg://me:secret@db/catalog", "--json")
    assert done.exit_code == 0, done.stderr
    shown = "postgresql+psycopg://me:***@db/catalog"
    assert json.loads(done.stdout)["database_url"] == shown
    assert f"SEXTON_DATABASE_URL={shown}" in done.stderr
    assert "secret" not in done.output


@pytest.mark.parametrize("option", [[], ["--take-over"]])
def test_rebuild_takes_a_living_catalog_over_only_if_it_is_told(
    run: Run, services: FakeCommandServices, monkeypatch: pytest.MonkeyPatch, option: list[str]
) -> None:
    told: list[Any] = []

    def rebuild(settings: Any, **named: Any) -> RebuildCatalogResult:
        told.append(named["take_over"])
        return _DONE

    monkeypatch.setattr(services, "rebuild", rebuild)
    assert run("records", "rebuild", "--into", _URL, *option).exit_code == 0
    assert told == [bool(option)]


def test_rebuild_is_abandoned_by_the_id_that_a_blocked_raid_names(
    run: Run, services: FakeCommandServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a database: whoever abandons it may not know which it was."""
    asked: list[str] = []

    def abandon(settings: Any, rebuild: str) -> AbandonRebuildResult:
        asked.append(rebuild)
        return AbandonRebuildResult(rebuild=rebuild, manifest=5, terminated=True)

    monkeypatch.setattr(services, "abandon_rebuild", abandon)
    done = run("records", "rebuild", "--abandon", "some-rebuild", "--json")
    assert done.exit_code == 0, done.stderr
    expected = {"rebuild": "some-rebuild", "manifest": 5, "terminated": True}
    assert expected.items() <= json.loads(done.stdout).items()
    assert asked == ["some-rebuild"]


@pytest.mark.parametrize("options", [[], ["--abandon", "some-rebuild", "--into", _URL]])
def test_rebuild_needs_either_a_database_or_a_rebuild_to_abandon(run: Run, options: list[str]) -> None:
    done = run("records", "rebuild", *options, "--json")
    assert done.exit_code == 2
    assert json.loads(done.stdout)["error"]["field"] == "into"
