"""Record values of znodes and an entry of a real cluster into `recorded/`, with what Pulsar itself says of them.

Run it from the root of a clone, on the cluster that `python -m tests.pulsar_cluster demo --keep` leaves:
`PYTHONPATH=.pulsar-client .venv/bin/python -m tests.logstore.pulsar.record_bytes HOME`.
"""

import json
import sys
from pathlib import Path
from typing import Any, Final

from kazoo.client import KazooClient

from infra.pulsar.bookie_reads import BookieAddress, BookieConnections
from infra.pulsar.newest_entries import read_newest_entries
from infra.stack.service_port_choice import LOOPBACK
from logstore.pulsar.ledger_metadata import parse_ledger_metadata
from tests.infra.pulsar.fake_bookie import KnownBookies
from tests.pulsar_cluster.cluster import RealCluster
from tests.pulsar_cluster.ledger_list import LedgerList, ListedLedger, ledger_path

RECORDED: Final = Path(__file__).with_name("recorded")
EXPECTED: Final = RECORDED / "expected.json"

_TOPICS: Final = "/managed-ledgers/public/default/persistent"
_LOGS: Final = "/pulsar/packages/function/public/default/kept/v1/<default>"
_TABLES: Final = f"/stream/storage/streams_{0:018}_{0:018}_{0:018}/<default>"


class _Recorder:
    def __init__(self, cluster: RealCluster) -> None:
        self._cluster = cluster
        self._zookeeper = KazooClient(hosts=cluster.zookeeper, timeout=30.0)
        self._zookeeper.start(timeout=60)
        self.expected: dict[str, Any] = {}

    def read(self, path: str) -> bytes:
        data: bytes = self._zookeeper.get(path)[0]
        return data

    def save(self, name: str, data: bytes, **expected: object) -> None:
        (RECORDED / f"{name}.bin").write_bytes(data)
        self.expected[name] = expected

    def ask(self, topic: str) -> Any:
        """Return what the broker says of a topic."""
        path = f"persistent/public/default/{topic}/internalStats?metadata=true"
        return self._cluster.request_admin("GET", path)

    def save_managed_ledger(self, name: str, topic: str, **expected: object) -> None:
        ids = [each["ledgerId"] for each in self.ask(topic)["ledgers"]]
        self.save(name, self.read(f"{_TOPICS}/{topic}"), ledger_ids=ids, **expected)

    def save_compaction(self) -> int:
        """Save a compaction cursor with a ledger, the ledger's last entry, and one without a ledger."""
        stats = self.ask("orders")
        cursor_ledger, compacted = (
            stats["cursors"]["__compaction"]["cursorLedger"],
            stats["compactedLedger"]["ledgerId"],
        )
        self.save("cursor_compaction", self.read(f"{_TOPICS}/orders/__compaction"), cursor_ledger_id=cursor_ledger)
        metadata = parse_ledger_metadata(self.read(ledger_path(cursor_ledger)))
        bookie = BookieAddress(LOOPBACK, self._cluster.ports.bookie)
        with BookieConnections(KnownBookies(dict.fromkeys(metadata.bookie_ids, bookie))) as connections:
            entries = read_newest_entries(connections, {cursor_ledger: metadata})[cursor_ledger]
        if isinstance(entries, Exception):
            raise entries
        self.save("cursor_ledger_entry", entries[-1].payload, compacted_ledger_id=compacted)
        closed = self.ask("squeezed")["compactedLedger"]["ledgerId"]
        self._cluster.request_admin("PUT", "persistent/public/default/squeezed/unload")
        self.save("cursor_compaction_closed", self.read(f"{_TOPICS}/squeezed/__compaction"), compacted_ledger_id=closed)
        return int(cursor_ledger)

    def save_log(self, name: str, log: str) -> None:
        (segment,) = self._zookeeper.get_children(f"{log}/ledgers")
        data = self.read(f"{log}/ledgers/{segment}")
        self.save(name, data, ledger_id=int(data.split(b";")[1]))

    def save_ledger(self, name: str, ledger: ListedLedger) -> None:
        names = {key: value.decode() for key, value in ledger.custom.items() if key != "pulsar/compactedTo"}
        self.save(name, self.read(ledger_path(ledger.ledger_id)), state=ledger.state, custom=names)


def record_bytes(cluster: RealCluster) -> None:
    RECORDED.mkdir(exist_ok=True)
    ledgers = LedgerList(cluster)
    recorder = _Recorder(cluster)
    recorder.save_managed_ledger("managed_ledger", "orders")
    recorder.save_managed_ledger("managed_ledger_shadow", "shadow", shadow_source="persistent://public/default/source")
    for name, topic in (("managed_ledger_offloaded", "cold"), ("managed_ledger_offloading", "frozen")):
        states = [each["offloaded"] for each in recorder.ask(topic)["ledgers"]]
        recorder.save_managed_ledger(name, topic, offloaded=states)
    buckets = sorted(ledgers.list_buckets("delayed", "later"))
    recorder.save("cursor_buckets", recorder.read(f"{_TOPICS}/delayed/later"), bucket_ledger_ids=buckets)
    cursor_ledger = recorder.save_compaction()
    versions = sorted(each["ledgerId"] for each in recorder.ask("parts-partition-0")["schemaLedgers"])
    recorder.save("schema_locator", recorder.read("/schemas/public/default/parts"), ledger_ids=versions)
    recorder.save_log("log_segment_completed", _LOGS)
    recorder.save_log("log_segment_in_progress", _TABLES)
    recorder.save("log_allocation", recorder.read(f"{_LOGS}/allocation"), ledger_id=None)
    listed = ledgers.list_with_metadata()
    topic_ledgers = [each["ledgerId"] for each in recorder.ask("orders")["ledgers"]]
    recorder.save_ledger("ledger_messages_closed", listed[topic_ledgers[0]])
    recorder.save_ledger("ledger_messages_open", listed[topic_ledgers[-1]])
    recorder.save_ledger("ledger_cursor", listed[cursor_ledger])
    recorder.save_ledger("ledger_compacted", listed[recorder.ask("orders")["compactedLedger"]["ledgerId"]])
    recorder.save_ledger("ledger_schema", listed[versions[-1]])
    recorder.save_ledger("ledger_bucket", listed[buckets[-1]])  # the demo deletes the first
    recorder.save_ledger("ledger_package", listed[recorder.expected["log_segment_completed"]["ledger_id"]])
    recorder.save_ledger("ledger_table_service", listed[recorder.expected["log_segment_in_progress"]["ledger_id"]])
    EXPECTED.write_text(json.dumps(recorder.expected, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    record_bytes(RealCluster.attach(Path(sys.argv[1])))
