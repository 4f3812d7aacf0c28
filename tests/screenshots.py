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
_BUDGET = "--virtual-time-budget=8000"


def main() -> None:
    """Take every picture, and stop what was started."""
    if shutil.which(BROWSER[0]) is None:
        sys.exit(f"{BROWSER[0]} is needed on the PATH")
    demo = _sexton("demo", "--keep")
    try:
        listed = _sexton("--home", demo["home"], "workflow", "list")
        for name, kind, status, tab in (
            ("finished-delete-ledgers", "delete-ledgers", "Completed", "timeline"),
            ("failed-delete-ledger", "delete-ledger", "Failed", "user-metadata"),
        ):
            found = next(one for one in listed if (one["type"], one["status"]) == (kind, status))
            page = f"{quote(found['workflow_id'], safe='')}/{found['run_id']}/{tab}"
            _picture(f"{demo['ui']}/namespaces/default/workflows/{page}", name)
        _picture(f"{demo['ui']}/namespaces/default/workflows", "workflows")
        _sexton("--home", demo["home"], "txn", "begin")
        _sexton("--home", demo["home"], "orphans", "plan")
        _picture(f"{_pages_of(demo['home'])}/status", "status-page", height=1950)
        _waterfall(demo["home"], listed)
    finally:
        kill_processes_and_remove_home(Path(demo["home"]))


def _pages_of(home: str) -> str:
    """Where a worker of the home shows its pages."""
    rows = _sexton("--home", home, "status")["services"]
    found = re.search(r"\((http://[0-9.:]+),", " ".join(row["detail"] for row in rows if row["name"] == "worker"))
    if found is None:
        sys.exit(f"no worker of {home} shows pages: {rows}")
    return found[1]


def _waterfall(home: str, listed: Any) -> None:
    """Of the batch with the most errors: the one in which the demo's first worker died, or one that was refused."""
    batches = [one["workflow_id"] for one in listed if one["type"] == "delete-ledgers"]
    traces = {batch: _sexton("--home", home, "trace", batch) for batch in batches}
    batch = max(traces, key=lambda one: (traces[one]["errors"], traces[one]["spans"]))
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "trace.html"
        _sexton("--home", home, "trace", batch, "--html", str(page))
        _picture(page.as_uri(), "trace-killed-worker")


def _sexton(*words: str) -> Any:
    argv = [sys.executable, "-m", "workers", *words, "--json"]
    return json.loads(subprocess.run(argv, check=True, stdout=subprocess.PIPE, env=dict(os.environ)).stdout)


def _picture(url: str, name: str, *, height: int = 1100) -> None:
    target = _IMAGES / f"{name}.png"
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as profile:
        looks = (f"--window-size=1500,{height}", _BUDGET, f"--user-data-dir={profile}", f"--screenshot={target}")
        argv = [*BROWSER, *QUIET, *looks, url]
        subprocess.run(argv, check=True, stderr=subprocess.DEVNULL, timeout=120)


if __name__ == "__main__":
    main()
