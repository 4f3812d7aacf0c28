"""How refusals are worded."""

from pathlib import Path

from logstore.errors import InvalidInput


def test_refused_path_is_told_as_it_was_written() -> None:
    """And not as Python would write it in a program."""
    assert (
        str(InvalidInput("file", expected="a file", found=Path("/no/such")))
        == "file: expected a file, found '/no/such'"
    )
