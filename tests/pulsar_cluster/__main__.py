"""`python -m tests.pulsar_cluster up|down`: a real Pulsar cluster on this machine."""

import argparse
import sys
from pathlib import Path
from typing import Final

from logstore.errors import SextonError
from tests.pulsar_cluster.cluster import RealCluster

HOME: Final = Path(".pulsar")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.pulsar_cluster", description=__doc__)
    parser.add_argument("action", choices=["up", "down"])
    parser.add_argument("--home", type=Path, default=HOME, help="folder of the data, logs and ports; default .pulsar")
    arguments = parser.parse_args()
    cluster = RealCluster(arguments.home, _say)
    try:
        match arguments.action:
            case "up":
                cluster.start()
                _print(
                    f"{cluster.format_environment()}\n# These lines are also in {cluster.environment_file}. Then try:"
                )
                _print("sexton pulsar check\n")
            case "down":
                _print(f"stopped {', '.join(cluster.stop()) or 'nothing'}\n")
    except SextonError as error:
        _say(f"error: {error}")
        return 1
    return 0


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)  # noqa: T201


def _print(text: str) -> None:
    print(text)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
