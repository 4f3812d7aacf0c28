"""Damage to the cluster: the broker is killed at exact writes, and things are deleted and planted as people do it."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

import pulsar

from tests.pulsar_cluster.cluster import OFFLOAD_BUCKET, RealCluster
from tests.pulsar_cluster.filling import NAMESPACE, PENDING_SUBSCRIPTION, PENDING_TOPIC, ClusterFiller
from tests.pulsar_cluster.ledger_list import LedgerList, ledger_path
from tests.pulsar_cluster.truth import TruthKeeper
from tests.pulsar_cluster.waits import wait_until
from tests.pulsar_cluster.zookeeper_relay import DELETE, SET, ZnodeWrite, ZooKeeperRelay

UPLOAD_KEY: Final = f"{UUID(int=1)}-ledger-1"
"""Key of the upload that is begun and never completed."""

_TRAP_TIMEOUT_S: Final = 120.0
_MANAGED_LEDGERS: Final = f"/managed-ledgers/{NAMESPACE}/persistent"
FIRST_PLANTED_ID: Final = 1_000_000


@dataclass(kw_only=True)
class ClusterDamager:
    """Damage of one cluster whose broker reaches ZooKeeper through `relay`.

    `deleted` has the ledgers that do not exist although something refers to them.
    """

    cluster: RealCluster
    relay: ZooKeeperRelay
    filler: ClusterFiller
    ledgers: LedgerList
    truth: TruthKeeper
    say: Callable[[str], None]
    deleted: set[int] = field(default_factory=set)

    def run_step(self, step: str, act: Callable[[], object]) -> None:
        self.say(step)
        act()
        self.truth.attribute(step)

    def kill_broker_at_trim(self) -> None:
        """Kill the broker after the shorter list is stored, before any ledger or object in S3 is deleted."""
        self.filler.fill_offloaded_topic("trimmed")
        messages = [each["ledgerId"] for each in self._ask("trimmed")["ledgers"]]
        self._kill_broker(_deletes_one_of(messages), lambda client: client.acknowledge("trimmed", "archive", 35))

    def kill_broker_at_unsubscribe(self) -> None:
        """Kill the broker after the cursor's znode is deleted, before its ledger is."""
        self.filler.subscribe("left", "gone")
        self.filler.write("left", 12)
        self.filler.acknowledge("left", "gone", 7)
        wait_until(lambda: self._ask("left")["cursors"]["gone"]["cursorLedger"] >= 0, "a cursor with a ledger")
        cursor_ledger = self._ask("left")["cursors"]["gone"]["cursorLedger"]
        self._kill_broker(
            _deletes_one_of([cursor_ledger]), lambda client: client.admin("DELETE", "left/subscription/gone")
        )

    def kill_broker_at_roll_over(self) -> None:
        """Kill the broker after the topic's next ledger is created, before the topic's list has it."""
        self.filler.subscribe("rolled", "reader")
        self.filler.write("rolled", 5)
        path = f"{_MANAGED_LEDGERS}/rolled"
        self._kill_broker(
            lambda write: (write.kind, write.path) == (SET, path), lambda client: client.write("rolled", 10)
        )

    def kill_broker_in_compaction(self) -> None:
        """Kill the broker while it writes the compacted ledger."""
        self.filler.subscribe("squeezed", "reader")
        self.filler.write("squeezed", 25)
        self._kill_broker(
            lambda write: write.kind == SET and b"compacted-ledger" in write.data,
            lambda client: client.admin("PUT", "squeezed/compaction"),
        )

    def kill_broker_after_compaction(self) -> None:
        """Kill the broker after the new compacted ledger counts, before the former one is deleted."""
        self.filler.compact("squeezed")
        former = self._ask("squeezed")["compactedLedger"]["ledgerId"]
        self.filler.write("squeezed", 15)
        self._kill_broker(_deletes_one_of([former]), lambda client: client.admin("PUT", "squeezed/compaction"))

    def kill_broker_at_bucket(self) -> None:
        """Kill the broker after the ledger of an index bucket is complete, before the cursor names it."""
        path = f"{_MANAGED_LEDGERS}/postponed/later"
        self._kill_broker(
            lambda write: write.path == path and b"delayed.bucket_" in write.data,
            lambda client: client.fill_delayed_topic("postponed", "later"),
        )

    def kill_broker_at_offload(self) -> None:
        """Kill the broker after a ledger's objects are in S3, before the topic says that they are complete."""
        self.filler.subscribe("frozen", "archive")
        self.filler.write("frozen", 25)
        changes = 0

        def completes_offload(write: ZnodeWrite) -> bool:
            nonlocal changes
            changes += (write.kind, write.path) == (SET, f"{_MANAGED_LEDGERS}/frozen")
            return changes == 2

        self._kill_broker(completes_offload, lambda client: client.offload("frozen"), is_last=True)

    def delete_topic_with_pending_acknowledgements(self) -> None:
        """Delete a topic while no broker has loaded its pending acknowledgements. Their managed ledger stays."""
        path = f"/admin/v3/transactions/pendingAckInternalStats/{NAMESPACE}/{PENDING_TOPIC}/{PENDING_SUBSCRIPTION}"
        self._ask(PENDING_TOPIC)  # loads the topic
        log = self.cluster.request_admin("GET", path)["pendingAckLogStats"]
        messages = {each["ledgerId"] for each in log["managedLedgerInternalStats"]["ledgers"]}
        self.truth.keep(messages, f"managed ledger {log['managedLedgerName']} without a topic")
        self.filler.admin("PUT", f"{PENDING_TOPIC}/unload")
        self.filler.admin("DELETE", f"{PENDING_TOPIC}?force=true")

    def delete_package(self) -> None:
        """Delete a package. Pulsar leaves both of its ledgers, which have no metadata."""
        before = self.ledgers.list_ids()
        self.filler.upload_package("dropped")
        self.truth.keep(self.ledgers.list_ids() - before, "package dropped")
        self.filler.delete_package("dropped")
        self.truth.kept = {each: holder for each, holder in self.truth.kept.items() if holder != "package dropped"}

    def plant_ledgers(self) -> None:
        """Plant ledgers that look like Pulsar's, one of another application, and an upload that nobody ends."""
        first = self._ask("orders")["ledgers"][0]["ledgerId"]
        for offset in range(3):
            self.ledgers.plant_copy(first, FIRST_PLANTED_ID + offset)
        self.ledgers.plant_copy(first, FIRST_PLANTED_ID + 3, application="others")
        self.cluster.open_s3().create_multipart_upload(Bucket=OFFLOAD_BUCKET, Key=UPLOAD_KEY)

    def delete_referenced_ledgers(self) -> None:
        """Delete two ledgers by hand: one with messages, and one with an index bucket."""
        self.filler.subscribe("holed", "reader")
        self.filler.write("holed", 25)
        messages = self._ask("holed")["ledgers"][1]["ledgerId"]
        self.deleted = {messages, min(self.ledgers.list_buckets("delayed", "later"))}
        for ledger_id in self.deleted:
            self.ledgers.delete(ledger_id)

    def _ask(self, topic: str) -> Any:
        return self.filler.admin("GET", f"{topic}/internalStats")

    def _kill_broker(
        self, is_fatal: Callable[[ZnodeWrite], bool], act: Callable[[ClusterFiller], object], *, is_last: bool = False
    ) -> None:
        """Do what leads to a write, kill the broker before ZooKeeper gets this write, and start the broker again.

        The clients of `act` end with the broker. They would otherwise go on later, when other steps run.
        After the last time, the broker needs no relay, which ends with this process.
        """
        client = ClusterFiller(self.cluster, self.ledgers)
        self.relay.set_trap(is_fatal, self.cluster.kill_broker)
        threading.Thread(target=_act_until_broker_is_gone, args=(act, client), daemon=True).start()
        self.relay.wait_for_trap(_TRAP_TIMEOUT_S)
        client.shut_down()  # a message that waits for its receipt may now wait for ever, in its thread
        self.cluster.start_broker(zookeeper_port=0 if is_last else self.relay.port)


def _act_until_broker_is_gone(act: Callable[[ClusterFiller], object], client: ClusterFiller) -> None:
    try:
        act(client)
    except (OSError, RuntimeError, TimeoutError, pulsar.PulsarException):
        return  # of the killed broker


def _deletes_one_of(ledger_ids: Sequence[int]) -> Callable[[ZnodeWrite], bool]:
    """Return the test whether a write deletes one of some ledgers. Other ledgers come and go at any time."""
    paths = {ledger_path(each) for each in ledger_ids}
    return lambda write: write.kind == DELETE and write.path in paths
