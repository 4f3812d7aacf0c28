"""Workers that the embedded stack starts."""

from pathlib import Path

import pytest

from infra.stack.embedded_stack import StackAddresses
from logstore.ownership import check_worker_id
from workers.operations.embedded_stack import _make_worker_id, add_stack_addresses
from workers.settings import Settings


@pytest.mark.parametrize("name", ["ho me", "ü", "it's", 'a"b', "x" * 250, ".sexton", "…", "a/.."])
def test_worker_of_a_home_has_an_id_that_can_name_a_queue(tmp_path: Path, name: str) -> None:
    """Whatever the home is called: a blank, an umlaut, a quote, 250 characters."""
    given = _make_worker_id("worker", tmp_path / name)
    assert check_worker_id(given) == given
    assert _make_worker_id("worker", tmp_path / name) != given, "each start has its own"


def test_settings_are_those_of_the_stack_that_was_started(tmp_path: Path) -> None:
    """What was not told stays so: not every default may be told."""
    where = StackAddresses(
        temporal="t:1", ui="http://u:2", s3="http://s:3", zookeeper="z:4", access_key="k", secret_key="s", region="r"
    )
    given = Settings(home=tmp_path, deletion_chunk=7)
    found = add_stack_addresses(given, where)
    assert (found.temporal_address, found.s3_endpoint, found.zookeeper) == ("t:1", "http://s:3", "z:4")
    assert (found.deletion_chunk, found.database_url) == (7, given.database_url)
    other = found.without_services().with_changes(home=tmp_path / "other", database_url="", bulk_dir="")
    assert (other.temporal_address, other.deletion_chunk) == ("", 7)
    assert str(tmp_path / "other") in other.database_url
