"""Workers that the embedded stack starts."""

from pathlib import Path

import pytest

from logstore.ownership import checked_worker_id
from workers.operations.stack import _identity


@pytest.mark.parametrize("name", ["ho me", "ü", "it's", 'a"b', "x" * 250, ".sexton", "…", "a/.."])
def test_worker_of_a_home_has_an_id_that_can_name_a_queue(tmp_path: Path, name: str) -> None:
    """Whatever the home is called: a blank, an umlaut, a quote, 250 characters."""
    given = _identity("worker", tmp_path / name)
    assert checked_worker_id(given) == given
    assert _identity("worker", tmp_path / name) != given, "each start has its own"
