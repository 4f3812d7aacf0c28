"""`deletion …`: the queue of phase two as an operator sees and moves it."""

import pytest

from tests.workers.cli.conftest import Run, document
from tests.workers.cli.fakes import FakeCommandServices, FakeDeletionResult


def test_deletion_list_that_is_cut_says_so_on_stderr(run: Run, services: FakeCommandServices) -> None:
    """Who counts the rows of a cut list would take a part of the queue for all of it."""
    services.log.deletions = 101
    cut = run("deletion", "list", "--json")
    assert len(document(cut)) == 100
    assert "there are more: shown are the newest 100" in cut.stderr
    whole = run("deletion", "list", "--limit", "101", "--json")
    assert len(document(whole)) == 101
    assert "there are more" not in whole.stderr


def test_deletion_redrive_waits_and_tells_outcomes(run: Run, services: FakeCommandServices) -> None:
    """How many were started, and what became of them."""
    told = document(run("deletion", "redrive", "4", "5", "6", "--reason", "mended", "--json"))
    assert told == {"started": 3, "workflow_id": "delete-ledgers/redrive-1", "outcomes": {"DELETED": 3}}
    assert services.client.asked == [([4, 5, 6], "mended")]


def test_deletion_redrive_without_waiting_answers_at_once(run: Run, services: FakeCommandServices) -> None:
    """The workflow's ids, so that a script finds it."""
    told = document(run("deletion", "redrive", "--all", "--no-wait", "--json"))
    assert told == {"started": 3, "workflow_id": "delete-ledgers/redrive-1", "run_id": "run-1"}
    assert services.client.asked == [(None, "")]


def test_deletion_redrive_all_of_none_is_done(run: Run, services: FakeCommandServices) -> None:
    """No dead letters is no error."""
    services.client.dead = 0
    assert document(run("deletion", "redrive", "--all", "--json")) == {"started": 0, "outcomes": {}}


def test_deletion_redrive_that_failed_again_is_finished_in_part(run: Run, services: FakeCommandServices) -> None:
    """The exit code says that a person must look again."""
    services.client.result = FakeDeletionResult({"DELETED": 1, "METADATA_MISMATCH": 2})
    assert document(run("deletion", "redrive", "--all", "--json"), 5)["started"] == 3


def test_deletion_redrive_dry_run_counts_and_changes_nothing(run: Run, services: FakeCommandServices) -> None:
    """What is refused is refused here too."""
    assert document(run("deletion", "redrive", "4", "5", "--dry-run", "--json")) == {"dry_run": True, "started": 2}
    assert document(run("deletion", "redrive", "99", "--dry-run", "--json"), 3)["error"]["type"] == "PreconditionFailed"
    assert services.client.asked == []


@pytest.mark.parametrize("args", [(), ("4", "--all"), ("4", "five")])
def test_deletion_redrive_of_nothing_or_of_both_is_bad_input(
    run: Run, services: FakeCommandServices, args: tuple[str, ...]
) -> None:
    """Every dead letter is redriven only if it is said so."""
    document(run("deletion", "redrive", *args, "--json"), 2)
    assert services.client.asked == []


def test_deletion_sweep_tells_what_it_found(run: Run, services: FakeCommandServices) -> None:
    """What the schedule does, by hand."""
    told = document(run("deletion", "sweep", "--reason", "now", "--json"))
    assert told == {
        "workflow_id": "sweep-deletions",
        "batches": 1,
        "intents": 3,
        "newborn": 0,
        "uncertified": 0,
        "forgotten": 7,
        "outcomes": {"DELETED": 3},
    }
    assert services.client.asked == [("now",)]
    assert document(run("deletion", "sweep", "--no-wait", "--json"))["workflow_id"] == "sweep-deletions"


def test_deletion_sweep_dry_run_counts_and_starts_nothing(run: Run, services: FakeCommandServices) -> None:
    """It destroys, so it can be asked first."""
    told = document(run("deletion", "sweep", "--dry-run", "--json"))
    assert told == {"dry_run": True, "stalled": 4, "newborn": 1, "uploads": 0, "rows": 7, "runs": 2}
    assert services.client.asked == []


def test_deletion_pause_resume_and_rate_print_the_progress(run: Run, services: FakeCommandServices) -> None:
    """What was ordered, and how far the batch is."""
    known = {"intents": 9, "done": 4, "left": 5, "outcomes": {"DELETED": 4}, "objects": 12, "size_bytes": 0}
    batch = {"workflow_id": "delete-ledgers/b", **known}
    for command, paused, rate in (
        (["pause"], True, 0),
        (["rate", "50"], True, 50),
        (["rate"], True, 50),
        (["resume"], False, 50),
        (["rate", "0"], False, 0),
        (["rate", "1000000"], False, 1_000_000),
    ):
        told = document(run("deletion", command[0], "delete-ledgers/b", *command[1:], "--json"))
        assert told == batch | {"paused": paused, "rate": rate}


@pytest.mark.parametrize("number", ["-1", "1000001", "fast", "1.5"])
def test_deletion_rate_beyond_its_bounds_is_bad_input(run: Run, services: FakeCommandServices, number: str) -> None:
    """The message names what is expected, and nothing is sent."""
    told = document(run("deletion", "rate", "--json", "delete-ledgers/b", "--", number), 2)
    assert "error" in told
    assert services.client.batches.known.rate == 0


@pytest.mark.parametrize("command", ["pause", "resume", "rate"])
def test_deletion_control_of_no_running_batch_is_refused(run: Run, services: FakeCommandServices, command: str) -> None:
    """Unknown is bad input, finished is a precondition that fails."""
    assert document(run("deletion", command, "delete-ledgers/x", "--json"), 2)["error"]["type"] == "UnknownObject"
    services.client.batches.ended = True
    told = document(run("deletion", command, "delete-ledgers/b", "--json"), 3)["error"]
    assert (told["type"], "found COMPLETED" in told["message"]) == ("PreconditionFailed", True)
