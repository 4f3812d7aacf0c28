"""`records follow` as scripts see it: its document, what it is told, and what it refuses."""

import json
from typing import Any

import pytest

from logstore.errors import PreconditionFailed
from logstore.records.job_results import FollowedRecords
from tests.workers.cli.conftest import Run
from tests.workers.cli.fakes import FakeCommandServices

_URL = "sqlite:////nowhere/replica.db"
_DONE = FollowedRecords(replica="copy/0123abcd", manifest=8, steps=1, seeded=1, records=5, tombstones=2, removed=1)


@pytest.fixture
def told(services: FakeCommandServices, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the command's service was told."""
    found: list[Any] = []

    def follow(settings: Any, **named: Any) -> FollowedRecords:
        found.append((settings, named))
        named["on_progress"](_DONE)
        return _DONE

    monkeypatch.setattr(services, "follow", follow)
    return found


def test_follow_document_says_what_was_applied(run: Run, told: list[Any]) -> None:
    """And it is told which database, which bucket, and whether to seed and to go on."""
    done = run("records", "follow", "--from", "copy", "--into", _URL, "--seed", "--watch", "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout) == {
        "replica": "copy/0123abcd",
        "manifest": 8,
        "steps": 1,
        "seeded": 1,
        "records": 5,
        "tombstones": 2,
        "removed": 1,
    }
    ((settings, named),) = told
    assert settings.database_url == _URL
    assert (named["bucket"], named["seed"], named["watch"]) == ("copy", True, True)


def test_follow_without_a_bucket_follows_the_record_log_itself(run: Run, told: list[Any]) -> None:
    """Once, and without a seed that was not asked for."""
    done = run("records", "follow", "--into", _URL, "--json")
    assert done.exit_code == 0, done.stderr
    ((settings, named),) = told
    assert (named["bucket"], named["seed"], named["watch"]) == (settings.records_bucket, False, False)


def test_replica_that_must_be_seeded_is_refused_by_name(
    run: Run, services: FakeCommandServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 3, and the sentence says what to do."""

    def follow(_: Any, **__: Any) -> FollowedRecords:
        raise PreconditionFailed("replica copy/0123abcd: expected …, found one that is STALE; seed it with --seed")

    monkeypatch.setattr(services, "follow", follow)
    done = run("records", "follow", "--into", _URL, "--json")
    assert done.exit_code == 3
    assert "copy/0123abcd" in json.loads(done.stdout)["error"]["message"]


def test_follow_into_what_is_no_database_is_refused(run: Run, told: list[Any]) -> None:
    """Before anything is opened, and without a password in the message."""
    done = run("records", "follow", "--into", "mysql://root:secret@host/x", "--json")
    assert done.exit_code == 2
    assert "secret" not in done.stdout + done.stderr
    assert not told
