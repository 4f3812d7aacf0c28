"""`python -m tests.soak`: one soak; exit code 1 on a violation."""

import argparse
import random
import sys
from pathlib import Path

from tests.soak.fault_plan import format_faults, plan
from tests.soak.soak_processes import create_soak_home, remove_soak_home
from tests.soak.soak_run import SoakRequest, SoakRun
from tests.soak.soak_setup import write_json


def main() -> int:
    """Parse the command line, run, tell."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="how long faults come")
    parser.add_argument("--seed", type=int, default=None, help="the same seed gives the same plan; any by default")
    parser.add_argument("--database", choices=["sqlite", "postgresql"], default="sqlite")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--clients", type=int, default=2, help="2 or more: each topic is consumed by every other one")
    parser.add_argument("--json", type=Path, help="where the report is written for programs")
    parser.add_argument("--plan", action="store_true", help="only tell the plan of faults")
    parser.add_argument("--keep", action="store_true", help="keep the home, whatever was found")
    asked = parser.parse_args()
    if asked.clients < 2:
        parser.error(f"--clients: expected 2 or more, found {asked.clients}")
    seed = random.randrange(1_000_000) if asked.seed is None else asked.seed
    if asked.plan:
        drawn = plan(seed, seconds=asked.seconds, workers=asked.workers, clients=asked.clients)
        print("\n".join(format_faults(drawn.faults)))  # noqa: T201 - a program for people
        return 0
    wish = SoakRequest(
        seed=seed, seconds=asked.seconds, database=asked.database, workers=asked.workers, clients=asked.clients
    )
    home = create_soak_home()
    _say(f"seed {seed}, home {home}")
    report = SoakRun(wish, home, _say).run()
    if asked.json:
        write_json(asked.json, report.document())
    print(report.text(), end="")  # noqa: T201
    if report.violations or asked.keep:
        _say(f"journals, logs and databases are in {home}")
    else:
        remove_soak_home(home)
    return 1 if report.violations else 0


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
