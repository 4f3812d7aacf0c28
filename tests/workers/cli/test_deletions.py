"""`deletion …`: the queue of phase two as an operator sees and moves it."""

from tests.workers.cli.conftest import Run, document
from tests.workers.cli.fakes import FakeServices


def test_deletion_list_that_is_cut_says_so_on_stderr(run: Run, services: FakeServices) -> None:
    """Who counts the rows of a cut list would take a part of the queue for all of it."""
    services.log.deletions = 101
    cut = run("deletion", "list", "--json")
    assert len(document(cut)) == 100
    assert "there are more: shown are the newest 100" in cut.stderr
    whole = run("deletion", "list", "--limit", "101", "--json")
    assert len(document(whole)) == 101
    assert "there are more" not in whole.stderr
