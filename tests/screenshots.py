"""Pictures of the Web UI and of our own pages from a real run, for the docs: `python -m tests.screenshots`.

Needs `chromium`. Runs the demo, whose refused ledger leaves a failed `delete-ledger`, and takes a picture of each page:
three of the Web UI, the status page of a worker, and the waterfall of a trim whose worker was killed. The picture
`trace-waterfall` is of the run that the guide tells of, in which the store was killed.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

from workers.demo.temporary_homes import kill_processes_and_remove_home

_IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
BROWSER = ("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run")
QUIET = ("--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars")
_TIME_BUDGET = "--virtual-time-budget=8000"


def main() -> None:
    """Take every picture, and stop what was started."""
    if shutil.which(BROWSER[0]) is None:
        sys.exit(f"{BROWSER[0]} is needed on the PATH")
    demo = _run_sexton("demo", "--keep")
    try:
        workflows = _run_sexton("--home", demo["home"], "workflow", "list")
        for name, kind, status, tab in (
            ("finished-delete-ledgers", "delete-ledgers", "Completed", "timeline"),
            ("failed-delete-ledger", "delete-ledger", "Failed", "user-metadata"),
        ):
            workflow = next(
                candidate for candidate in workflows if (candidate["type"], candidate["status"]) == (kind, status)
            )
            page = f"{quote(workflow['workflow_id'], safe='')}/{workflow['run_id']}/{tab}"
            _take_picture(f"{demo['ui']}/namespaces/default/workflows/{page}", name)
        _take_picture(f"{demo['ui']}/namespaces/default/workflows", "workflows")
        _run_sexton("--home", demo["home"], "txn", "begin")
        _run_sexton("--home", demo["home"], "orphans", "plan")
        _take_picture(f"{_worker_pages_url(demo['home'])}/status", "status-page", height=1950)
        _picture_trace_waterfall(demo["home"], workflows)
    finally:
        kill_processes_and_remove_home(Path(demo["home"]))


def _worker_pages_url(home: str) -> str:
    """Where a worker of the home shows its pages."""
    rows = _run_sexton("--home", home, "status")["services"]
    match = re.search(r"\((http://[0-9.:]+),", " ".join(row["detail"] for row in rows if row["name"] == "worker"))
    if match is None:
        sys.exit(f"no worker of {home} shows pages: {rows}")
    return match[1]


def _picture_trace_waterfall(home: str, workflows: Any) -> None:
    """Of the batch with the most errors: the one in which the demo's first worker died, or one that was refused."""
    batches = [workflow["workflow_id"] for workflow in workflows if workflow["type"] == "delete-ledgers"]
    traces = {batch: _run_sexton("--home", home, "trace", batch) for batch in batches}
    batch = max(traces, key=lambda workflow: (traces[workflow]["errors"], traces[workflow]["spans"]))
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "trace.html"
        _run_sexton("--home", home, "trace", batch, "--html", str(page))
        _take_picture(page.as_uri(), "trace-killed-worker")


def _run_sexton(*words: str) -> Any:
    argv = [sys.executable, "-m", "workers", *words, "--json"]
    return json.loads(subprocess.run(argv, check=True, stdout=subprocess.PIPE, env=dict(os.environ)).stdout)


def _take_picture(url: str, name: str, *, height: int = 1100) -> None:
    target = _IMAGES / f"{name}.png"
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as profile:
        options = (f"--window-size=1500,{height}", _TIME_BUDGET, f"--user-data-dir={profile}", f"--screenshot={target}")
        argv = [*BROWSER, *QUIET, *options, url]
        subprocess.run(argv, check=True, stderr=subprocess.DEVNULL, timeout=120)


if __name__ == "__main__":
    main()
