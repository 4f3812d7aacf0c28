"""A history is replayed against the workflows of today, and a debugger stops in them."""

import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from temporalio import workflow
from temporalio.client import WorkflowHistory

from logstore.errors import InvalidInput
from tests.replay.record import HISTORIES, workflow_id_of
from tests.replay.test_replay import TrimThatDetachesFirst
from workers.hosting import history_replay
from workers.hosting.history_replay import replay_history
from workers.hosting.workflow_input_checks import InputCheckingDebugRunner

_ROOT = Path(__file__).resolve().parents[3]
_TRIM = HISTORIES / "trim-topic" / "v1" / "trim_complete.json"


def _history(path: Path = _TRIM) -> WorkflowHistory:
    return WorkflowHistory.from_json("trim-topic/1", path.read_text())


def test_replay_of_a_recorded_run_says_what_it_was() -> None:
    """Its type, its run, and how many events it has."""
    history = _history()
    done = asdict(replay_history(history))
    assert done == {
        "type": "trim-topic",
        "run_id": history.run_id,
        "events": len(history.events),
        "failure": None,
        "nondeterministic": False,
    }


def test_replay_that_goes_another_way_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    """At which event of the history."""
    monkeypatch.setattr(
        history_replay, "InputCheckingRunner", lambda **_: InputCheckingDebugRunner()
    )  # this module is none for the sandbox
    monkeypatch.setattr(history_replay, "WORKFLOWS", [TrimThatDetachesFirst])
    done = replay_history(_history(), debug=False)
    assert done.nondeterministic
    assert str(done.failure).startswith("[TMPRL1100] Nondeterminism error: ")
    assert "HistoryEvent(id: 6, UpsertWorkflowSearchAttributes)" in str(done.failure)


@workflow.defn(name="trim-topic")
class TrimThatBreaks:
    """`trim-topic` with a bug."""

    @workflow.run
    async def run(self, request: Any) -> None:
        """Not what was recorded."""
        raise KeyError("a bug")

    @workflow.signal
    def again(self) -> None:
        """As before."""


def test_replay_of_code_that_breaks_says_that_it_broke(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no other way, it is none."""
    monkeypatch.setattr(
        history_replay, "InputCheckingRunner", lambda **_: InputCheckingDebugRunner()
    )  # this module is none for the sandbox
    monkeypatch.setattr(history_replay, "WORKFLOWS", [TrimThatBreaks])
    done = replay_history(_history())
    assert not done.nondeterministic
    assert "a bug" in str(done.failure)


def test_history_that_is_none_of_ours_is_refused() -> None:
    """Another application's workflow, the end of a history, and no event at all."""
    history = _history()
    history.events[0].workflow_execution_started_event_attributes.workflow_type.name = "pay-invoice"
    with pytest.raises(InvalidInput, match="workflow of this build, found 'pay-invoice'"):
        replay_history(history)
    for events, found in ((history.events[1:], "EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED"), ((), "no event")):
        with pytest.raises(InvalidInput, match=found):
            replay_history(WorkflowHistory("trim-topic/1", events))


def test_debugger_stops_in_the_workflow_and_at_breakpoints_and_the_replay_ends_all_the_same(tmp_path: Path) -> None:
    """In a real process, with commands on stdin: at the first line of `run`, at one that was asked for, and on."""
    lines = (_ROOT / "workflows" / "deletion" / "trim_topic.py").read_text(encoding="utf-8").splitlines()
    asked = next(at for at, line in enumerate(lines, 1) if "if detached.intents" in line)
    typed = f"p request.topic\nb workflows/deletion/trim_topic.py:{asked}\nc\np detached.ledgers\nq\n"
    argv = [
        sys.executable,
        "-m",
        "workers",
        "replay",
        workflow_id_of(_TRIM),
        "--history",
        str(_TRIM),
        "--debug",
        "--json",
    ]
    home = tmp_path / "home"
    ended = subprocess.run(
        [*argv, "--home", str(home)], input=typed, capture_output=True, text=True, timeout=100, cwd=_ROOT, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert '"replayed": true' in ended.stdout
    assert re.findall(r"> \S+/trim_topic\.py\((\d+)\)run\(\)", ended.stderr) == [str(_first_line(lines)), str(asked)]
    assert "(Pdb) 'persistent://" in ended.stderr
    assert re.search(r"\(Pdb\) [1-9]\n", ended.stderr), "how many ledgers were detached, as the history has it"
    assert "goes on to its end" in ended.stderr


def _first_line(lines: list[str]) -> int:
    """Of the body of `run`, from 1."""
    start = next(at for at, line in enumerate(lines) if "async def run(" in line)
    body = next(at for at in range(start + 1, len(lines)) if lines[at].strip() and '"""' not in lines[at])
    return body + 1
