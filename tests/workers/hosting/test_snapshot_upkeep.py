"""A worker writes snapshots that are due, and goes on after a failure."""

import asyncio
import logging

import pytest

from logstore.errors import StoreUnavailable
from workers.hosting.worker_process import write_due_buffer_snapshots_repeatedly


def test_due_snapshots_are_written_until_none_is_and_failures_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """A catalog that is away for three looks is one line; then all goes on."""
    answers: list[int | Exception] = [16, 3, StoreUnavailable("away"), StoreUnavailable("away"), 0, 2]
    asked = 0

    def write_due_snapshots() -> int:
        nonlocal asked
        asked += 1
        if asked > len(answers):
            raise asyncio.CancelledError
        found = answers[asked - 1]
        if isinstance(found, Exception):
            raise found
        return found

    with caplog.at_level(logging.WARNING), pytest.raises(asyncio.CancelledError):
        asyncio.run(write_due_buffer_snapshots_repeatedly(write_due_snapshots, interval_s=0))
    assert asked == len(answers) + 1
    assert [one.getMessage() for one in caplog.records] == [
        "no snapshot of transactions is written, because the catalog does not answer: away"
    ]
