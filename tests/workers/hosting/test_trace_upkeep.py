"""A worker prunes the span files of its home while it serves."""

import asyncio
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.logstore.eventually import assert_eventually
from workers.hosting.worker_process import prune_span_files_repeatedly, run_in_background
from workers.settings import Settings, load_settings


def _serving(settings: Settings, work: Callable[[], None]) -> None:
    """Do some work beside a worker."""

    async def serve() -> None:
        async with run_in_background(prune_span_files_repeatedly(settings, interval_s=0.01)):
            await asyncio.to_thread(work)

    asyncio.run(serve())


def test_a_worker_prunes_at_once_and_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By the settings of its home; a file that comes later goes as well, and a folder that is in the way is told."""
    settings = load_settings({"home": str(tmp_path), "trace_retention": "1d"}, {}, tmp_path).settings
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait(60)
    traces, at = tmp_path / "traces", time.time() - 2 * 86_400
    old = traces / f"sexton-{process.pid}.jsonl"
    traces.write_text("in the way")

    def work() -> None:
        assert_eventually(lambda: any("not pruned" in record.message for record in caplog.records))
        traces.unlink()
        traces.mkdir()
        for _ in range(2):
            old.write_text("x")
            os.utime(old, (at, at))
            assert_eventually(lambda: not old.exists())

    with caplog.at_level(logging.INFO, logger="workers.hosting.worker_process"):
        _serving(settings, work)
    assert "removed 1 span files, by age or by size" in caplog.text
