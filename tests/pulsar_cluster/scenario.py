"""The whole cluster of the demo and the tests: filled, damaged, and with the truth of each ledger written down."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.pulsar_cluster.cluster import RealCluster
from tests.pulsar_cluster.damage import ClusterDamager
from tests.pulsar_cluster.filling import ClusterFiller
from tests.pulsar_cluster.ledger_list import LedgerList
from tests.pulsar_cluster.truth import DELETED, LedgerTruth, TruthKeeper, read_truth, write_truth
from tests.pulsar_cluster.zookeeper_relay import ZooKeeperRelay

TRIM_STEP: Final = "the broker is killed at a trim"
PENDING_ACK_STEP: Final = "a topic with pending acknowledgements is deleted by force"

_TRUTH_FILE: Final = "truth.jsonl"
_FILL_STEP: Final = "the first topics register their schemas"
_SCHEMA_STEP: Final = "partitions register a schema at the same time"


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedCluster:
    cluster: RealCluster
    ledgers: LedgerList
    truth: Mapping[int, LedgerTruth]

    @property
    def deleted(self) -> set[int]:
        """Ledgers that do not exist, although something refers to them."""
        return {each.ledger_id for each in self.truth.values() if each.state == DELETED}

    def list_left_by(self, step: str) -> set[int]:
        """Return the ledgers that a step left without a reference."""
        return {each.ledger_id for each in self.truth.values() if not each.referenced and each.why == step}


@contextmanager
def run_damaged_cluster(home: Path, say: Callable[[str], None]) -> Iterator[DamagedCluster]:
    """Start a cluster, fill it and damage it. The processes run on after the block."""
    with ExitStack() as stack:
        cluster = RealCluster(home, say)
        relay = ZooKeeperRelay(cluster.ports.zookeeper)
        stack.callback(relay.close)
        cluster.start(broker_zookeeper_port=relay.port)
        ledgers = LedgerList(cluster)
        stack.callback(ledgers.close)
        truth = TruthKeeper(cluster=cluster, ledgers=ledgers)
        truth.keep(ledgers.list_ids(), "table service")  # before there is any topic
        filler = ClusterFiller(cluster, ledgers)
        stack.callback(filler.close)
        damager = ClusterDamager(cluster=cluster, relay=relay, filler=filler, ledgers=ledgers, truth=truth, say=say)
        say("filling the cluster with all that refers to ledgers")
        damager.run_step(_FILL_STEP, lambda: fill_cluster(filler, truth))
        say("damaging it, step by step")
        damage_cluster(damager)
        collected = truth.collect(ledgers.list_with_metadata(), damager.deleted)
        write_truth(home / _TRUTH_FILE, collected)
        yield DamagedCluster(cluster=cluster, ledgers=ledgers, truth=collected)


@contextmanager
def attach_to_damaged_cluster(home: Path) -> Iterator[DamagedCluster]:
    """Use the cluster that an earlier run left in a home. It runs on after the block."""
    cluster = RealCluster.attach(home)
    ledgers = LedgerList(cluster)
    try:
        yield DamagedCluster(cluster=cluster, ledgers=ledgers, truth=read_truth(home / _TRUTH_FILE))
    finally:
        ledgers.close()


def fill_cluster(filler: ClusterFiller, truth: TruthKeeper) -> None:
    """Create everything that refers to ledgers. Only system topics of a fresh cluster leak ledgers, with schemas."""
    filler.subscribe("a-b:c~d", "s 1")
    filler.write("a-b:c~d", 12)
    filler.fill_compacted_topic("orders")
    filler.fill_delayed_topic("delayed", "later")
    filler.fill_deduplicated_topic()
    filler.fill_shadowed_topic()
    filler.fill_offloaded_topic("cold")
    filler.fill_transactions()
    before = filler.ledgers.list_ids()
    filler.upload_package("kept")
    truth.keep(filler.ledgers.list_ids() - before, "package kept")
    before = filler.ledgers.list_ids()
    filler.fill_schema_without_managed_ledger()
    truth.keep(filler.ledgers.list_ids() - before, "schema of a topic without a managed ledger")


def damage_cluster(damager: ClusterDamager) -> None:
    """Leave ledgers without references, in each way in which Pulsar does, and plant some."""
    steps = {
        _SCHEMA_STEP: damager.filler.fill_partitioned_topic,
        "a package is deleted": damager.delete_package,
        TRIM_STEP: damager.kill_broker_at_trim,
        "the broker is killed at an unsubscribe": damager.kill_broker_at_unsubscribe,
        "the broker is killed at a roll-over": damager.kill_broker_at_roll_over,
        "the broker is killed in a compaction": damager.kill_broker_in_compaction,
        "the broker is killed after a compaction": damager.kill_broker_after_compaction,
        "the broker is killed at an index bucket": damager.kill_broker_at_bucket,
        "the broker is killed at an offload": damager.kill_broker_at_offload,
        PENDING_ACK_STEP: damager.delete_topic_with_pending_acknowledgements,
        "ledgers and an upload are planted": damager.plant_ledgers,
        "ledgers in use are deleted by hand": damager.delete_referenced_ledgers,
    }
    for step, act in steps.items():
        damager.run_step(step, act)
