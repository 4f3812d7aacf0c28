"""The estimates for clusters stand on figures that hold: rows and lines of the journal as they are."""

from pathlib import Path

import pytest

from logstore.catalog import Catalog
from logstore.errors import InvalidInput
from logstore.ports.catalog.deletion import Claim
from logstore.ports.catalog.reconciliation import JournaledLedger, RunKind
from logstore.pulsar.znode_names import format_ledger_path
from tests.logstore.pulsar import wire
from tests.workers.operations.filled import stored_bytes
from tests.workers.operations.test_sizing import open_database
from workers.operations import cluster_sizing

_RUN_ID = "apply-pulsar-8c1d5f0e9a3b"
_LEDGERS = 20_000
_BOOKIES = tuple(f"bookie-{number}.pulsar.example.com:3181" for number in range(3))


def _journaled(ledger_id: int) -> JournaledLedger:
    owner = f"public/payments/persistent/orders-partition-{ledger_id % 100}"
    custom = {"application": "pulsar", "component": "managed-ledger", "pulsar/managed-ledger": owner}
    data = wire.ledger_metadata(custom=custom, bookies=_BOOKIES)
    return JournaledLedger(
        ledger_id=ledger_id, path=format_ledger_path(ledger_id), version=2, czxid=2**40 + ledger_id, data=data
    )


@pytest.mark.parametrize(
    "kind", ["sqlite", pytest.param("postgresql", marks=[pytest.mark.external_service, pytest.mark.all_faults])]
)
def test_row_of_the_journal_takes_what_the_estimate_says(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with open_database(kind, tmp_path, request) as database:
        catalog = Catalog(database)
        catalog.reconciliation.open_run(
            "apply-pulsar-8c1d5f0e9a3b",
            RunKind.APPLY,
            claim=Claim(workflow_id="tests", run_id="", ttl_s=60),
            summary={},
        )
        before = stored_bytes(database, "deleted_znode")
        catalog.cluster_journal.add(_RUN_ID, [_journaled(10**6 + at) for at in range(_LEDGERS)])
        taken = (stored_bytes(database, "deleted_znode") - before) / _LEDGERS
    assert taken == pytest.approx(cluster_sizing.JOURNAL_BYTES_PER_LEDGER[kind], rel=0.2)


def test_table_has_a_column_a_cluster() -> None:
    clusters = [cluster_sizing.PlannedCluster(ledgers=ledgers) for ledgers in (1_000_000, 1_000_000_000)]
    head, _, *rows = cluster_sizing.format_cluster_table(clusters).splitlines()
    assert head == "| | 1,000,000 ledgers | 1,000,000,000 ledgers |"
    assert "| time of a scan at the default rate | 4 min | 3.0 days |" in rows
    assert "| orphans, if one ledger in a hundred is one | 10,000 | 10,000,000 |" in rows


def test_time_of_an_apply_follows_the_stated_rate() -> None:
    cluster = cluster_sizing.PlannedCluster(ledgers=10_000_000, deletions_per_s=500)
    rows = cluster_sizing.format_cluster_table([cluster]).splitlines()
    assert "| time to delete them at 500 a second | 3 min |" in rows


def test_plan_takes_two_scans_and_the_wait_between_them() -> None:
    cluster = cluster_sizing.PlannedCluster(ledgers=1_000_000, reads_per_s=13_000)
    assert cluster.scan_s == 100
    assert cluster.plan_s == pytest.approx(802, abs=3)


def test_cluster_without_ledgers_is_refused() -> None:
    with pytest.raises(InvalidInput, match="ledgers: expected 1 to"):
        cluster_sizing.PlannedCluster(ledgers=0)
    with pytest.raises(InvalidInput, match="deletions-per-s: expected at least 1"):
        cluster_sizing.PlannedCluster(ledgers=1, deletions_per_s=0)
