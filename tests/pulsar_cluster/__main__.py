"""`python -m tests.pulsar_cluster`: a real Pulsar cluster on this machine, and the demo of plans and applies on one."""

import argparse
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Final

from logstore.errors import SextonError
from tests.pulsar_cluster.cluster import RealCluster
from workers.demo.temporary_homes import kill_processes_and_remove_home

HOME: Final = Path(".pulsar")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.pulsar_cluster", description=__doc__)
    parser.add_argument("action", choices=["up", "down", "demo"])
    parser.add_argument("--home", type=Path, default=HOME, help="folder of the data, logs and ports of up and down")
    parser.add_argument("--keep", action="store_true", help="leave the cluster of the demo running")
    arguments = parser.parse_args()
    try:
        match arguments.action:
            case "up":
                _start(RealCluster(arguments.home, _say))
            case "down":
                _print(f"stopped {', '.join(RealCluster(arguments.home).stop()) or 'nothing'}")
            case "demo":
                return _run_demo(keep=arguments.keep)
    except SextonError as error:
        _say(f"error: {error}")
        return 1
    return 0


def _start(cluster: RealCluster) -> None:
    cluster.start()
    _print(cluster.format_environment())
    _print(f"# These lines are also in {cluster.environment_file}. Then try: sexton pulsar check")


def _run_demo(*, keep: bool) -> int:
    from tests.pulsar_cluster.demo import run_demo  # noqa: PLC0415 - needs Pulsar's client

    home = Path(tempfile.mkdtemp(prefix="sexton-pulsar-"))
    try:
        report = run_demo(home, _say)
        _print(report.format_text())
    finally:
        cluster = RealCluster(home)
        if keep:
            _say(f"the settings of the cluster are in {cluster.environment_file}")
            _say(f"end it: {sys.executable} -m tests.pulsar_cluster down --home {home} && rm -r {home}")
        else:
            _say("stopping what was started")
            cluster.kill()
            kill_processes_and_remove_home(home)
    return 0 if report.ok else 1


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)  # noqa: T201


def _print(text: str) -> None:
    print(text)  # noqa: T201


if __name__ == "__main__":
    code = 1
    try:
        code = main()
    except Exception:  # noqa: BLE001 - Python itself would print it at the exit that is skipped here
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)  # threads of Pulsar's client abort the process at an ordinary exit, if their broker was killed
