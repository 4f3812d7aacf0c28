"""CPU that a command costs, beside `python -c pass` and the bare import of what it is made of; prints JSON.

Run with `python -m tests.benchmarks.start_up`; it takes about a minute. Seconds of CPU, user and system, the least of
five runs: other work on the machine makes a run dearer, never cheaper.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from logstore.catalog import Database, migrate_catalog

_RUNS = 5
_AT_MOST_S = 60.0  # a run that takes longer hangs, and ends the benchmark
_TOPIC = "persistent://public/default/orders"
_BARE = {"pass": "pass", "import sqlalchemy, typer": "import sqlalchemy, typer"}
_COMMANDS = ("--version", "--help", "topic list", "deletion inflight", f"topic trim {_TOPIC}")
"""The last one starts a workflow, and here finds no Temporal: what is measured is all that comes before."""


def main() -> None:
    """Measure, print seconds and ratios."""
    with tempfile.TemporaryDirectory(prefix="sx-") as home:
        environ = _home(Path(home))
        told = {name: _cpu_s([sys.executable, "-c", code], environ) for name, code in _BARE.items()}
        for asked in _COMMANDS:
            told[f"sexton {asked}"] = _cpu_s([sys.executable, "-m", "workers", *asked.split()], environ)
    rows = {
        name: {"cpu_s": round(spent, 3)} | {f"times {base}": round(spent / told[base], 2) for base in _BARE}
        for name, spent in told.items()
    }
    sys.stdout.write(json.dumps({"start_up": rows}, indent=1) + "\n")


def _home(home: Path) -> Mapping[str, str]:
    """A home with an empty catalog and addresses at which nothing listens."""
    (home / "ports.json").write_text(json.dumps({"temporal": 1, "s3": 1, "zookeeper": 1}))
    database = Database(f"sqlite:///{home}/catalog.db")
    migrate_catalog(database)
    database.close()
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SEXTON_")} | {
        "SEXTON_HOME": str(home)
    }
    subprocess.run(
        [sys.executable, "-m", "workers", "topic", "create", _TOPIC], check=True, env=environ, stdout=subprocess.DEVNULL
    )
    return environ


def _cpu_s(argv: Sequence[str], environ: Mapping[str, str]) -> float:
    return min(_once(argv, environ) for _ in range(_RUNS))


def _once(argv: Sequence[str], environ: Mapping[str, str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(argv, check=False, capture_output=True, env=environ, timeout=_AT_MOST_S)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
