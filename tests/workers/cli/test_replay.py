"""`sexton replay`: what it reads, what it answers, and what it refuses."""

from pathlib import Path
from typing import Any

import pytest

from logstore.errors import UnknownObject
from tests.replay.record import HISTORIES, workflow_id_of
from tests.workers.cli.conftest import Run, document
from tests.workers.cli.fakes import FakeCommandServices
from workers.hosting.history_replay import HistoryReplayResult

_TRIM = HISTORIES / "trim-topic" / "v1" / "trim_complete.json"
_ID = workflow_id_of(_TRIM)


def test_replay_of_a_file_needs_no_stack(run: Run) -> None:
    """The contract's field, and what was replayed."""
    told = document(run("replay", _ID, "--history", str(_TRIM), "--json"))
    assert (told["replayed"], told["workflow_id"], told["type"]) == (True, _ID, "trim-topic")
    assert told["events"] > 10


@pytest.mark.parametrize(("another_way", "field"), [(True, "nondeterminism"), (False, "failure")])
def test_replay_that_failed_exits_1_and_says_why(
    run: Run, services: FakeCommandServices, another_way: bool, field: str
) -> None:
    """Whether it went another way or broke."""
    done = HistoryReplayResult(
        type="trim-topic", run_id="r", events=3, failure="[TMPRL1100] …", nondeterministic=another_way
    )
    services.replay = lambda history, debug, settings: done  # type: ignore[method-assign]
    told = document(run("replay", _ID, "--history", str(_TRIM), "--json"), 1)
    assert (told["replayed"], told[field]) == (False, "[TMPRL1100] …")
    assert {"nondeterminism", "failure"} & set(told) == {field}


def test_replay_without_a_file_reads_the_run_from_temporal(run: Run, services: FakeCommandServices) -> None:
    """The newest, or the one that is named."""
    asked: list[Any] = []

    async def history_of(workflow_id: str, run_id: str | None) -> str:
        asked.append((workflow_id, run_id))
        if workflow_id == "gone":
            raise UnknownObject("workflow", expected="one that is kept", found=workflow_id)
        return "a history"

    services.client.fetch_history = history_of  # type: ignore[method-assign]
    services.replay = lambda history, debug, settings: HistoryReplayResult(  # type: ignore[method-assign]
        type=history, run_id="r", events=int(debug)
    )
    assert document(run("replay", "trim-topic/7", "--json"))["type"] == "a history"
    assert document(run("replay", "trim-topic/7", "--run-id", "r1", "--debug", "--json"))["events"] == 1
    assert document(run("replay", "gone", "--json"), 2)["error"]["field"] == "workflow"
    assert asked == [("trim-topic/7", None), ("trim-topic/7", "r1"), ("gone", None)]


@pytest.mark.parametrize("content", [None, b"\xff", b"", b"[]", b'{"events": [{"eventId": "x"}]}', b'{"events": []}'])
def test_history_that_cannot_be_read_is_bad_input(run: Run, tmp_path: Path, content: bytes | None) -> None:
    """The option is named, and the file."""
    file = tmp_path / "history.json"
    if content is not None:
        file.write_bytes(content)
    told = document(run("replay", "trim-topic/1", "--history", str(file), "--json"), 2)["error"]
    assert (told["type"], told["field"]) == ("InvalidInput", "history")


def test_history_of_another_workflow_is_refused(run: Run) -> None:
    """The answer would say of one job what another did."""
    told = document(run("replay", "trim-topic/7", "--history", str(_TRIM), "--json"), 2)["error"]
    assert told["field"] == "history"
    assert "expected one of trim-topic/7" in told["message"]
    assert told["message"].endswith(f"of {_ID}'")


def test_a_file_and_a_run_are_one_too_many(run: Run) -> None:
    """A file is of one run."""
    told = document(run("replay", "w", "--history", str(_TRIM), "--run-id", "r", "--json"), 2)["error"]
    assert told["field"] == "run-id"


def test_history_that_is_a_device_is_bad_input(run: Run) -> None:
    """It would never end."""
    told = document(run("replay", "trim-topic/1", "--history", "/dev/zero", "--json"), 2)["error"]
    assert told["field"] == "history"
    assert "not a regular file" in told["message"]
