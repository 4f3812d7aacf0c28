"""The sizing guide says of clusters what the estimates and the benchmarks say."""

import re
from pathlib import Path

from workers.operations.cluster_sizing import MEASURED_DELETIONS_PER_S, PlannedCluster, format_cluster_table

_DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_guide_has_the_table_that_its_command_prints() -> None:
    guide = (_DOCS / "guides" / "sizing.md").read_text(encoding="utf-8")
    (arguments,) = re.findall(r"workers.operations.cluster_sizing ([\d ]+)\n", guide)
    clusters = [PlannedCluster(ledgers=int(ledgers)) for ledgers in arguments.split()]
    assert format_cluster_table(clusters) in guide


def test_rate_of_deletions_is_the_measured_one() -> None:
    benchmarks = (_DOCS / "benchmarks.md").read_text(encoding="utf-8")
    (measured,) = re.findall(r"^\| apply of .* orphans, ten a topic \|.*\(([\d,]+) of", benchmarks, re.MULTILINE)
    assert int(measured.replace(",", "")) == MEASURED_DELETIONS_PER_S
