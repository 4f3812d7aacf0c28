"""Contents of the cluster: one kind of reference to a ledger after the other, made by Pulsar's own clients."""

import datetime as dt
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pulsar
from pulsar.schema import AvroSchema, Integer, Record, String

from infra.stack.java_search import find_java
from tests.pulsar_cluster.cluster import RealCluster
from tests.pulsar_cluster.ledger_list import LedgerList
from tests.pulsar_cluster.waits import wait_until

NAMESPACE: Final = "public/default"
PENDING_TOPIC, PENDING_SUBSCRIPTION = "payments", "bank"

_TIMEOUT_S: Final = 120.0
_TRANSACTIONS: Final = Path(__file__).with_name("Transactions.java")


class _Order(Record):  # type: ignore[misc]
    customer = String()
    amount = Integer()


class _OrderWithNote(Record):  # type: ignore[misc]
    customer = String()
    amount = Integer()
    note = String(default="")


class ClusterFiller:
    """Clients of a cluster that create what has ledgers. Topics are in one namespace."""

    def __init__(self, cluster: RealCluster, ledgers: LedgerList) -> None:
        self.cluster, self.ledgers = cluster, ledgers
        self._client = open_client(cluster)
        self._is_shut_down = False

    def close(self) -> None:
        self._client.close()

    def shut_down(self) -> None:
        """Give up all that is under way."""
        self._is_shut_down = True
        self._client.shutdown()

    def write(self, topic: str, messages: int, *, key_count: int = 5, delay_s: float = 0) -> None:
        """Write messages one after the other, so that ledgers roll over in between."""
        producer = self._client.create_producer(topic_url(topic), batching_enabled=False, send_timeout_millis=60_000)
        for number in range(messages):
            options = {"deliver_after": dt.timedelta(seconds=delay_s + number)} if delay_s else {}
            producer.send(b"message %d" % number, partition_key=f"key-{number % key_count}", **options)
        producer.close()

    def write_typed(self, topic: str, messages: int, schema: type[Record] = _Order) -> None:
        producer = self._client.create_producer(topic_url(topic), schema=AvroSchema(schema), batching_enabled=False)
        for number in range(messages):
            producer.send(schema(customer="x", amount=number), partition_key=f"key-{number % 5}")
        producer.close()

    def subscribe(self, topic: str, subscription: str) -> None:
        """Create a subscription at the beginning of a topic. It keeps the messages until they are acknowledged."""
        self._consumer(topic, subscription).close()

    def acknowledge(self, topic: str, subscription: str, messages: int) -> None:
        """Acknowledge each message of its own, which gives the cursor a ledger."""
        consumer = self._consumer(topic, subscription)
        for _ in range(messages):
            consumer.acknowledge(consumer.receive(60_000))
        time.sleep(0.2)  # acknowledgements are sent in groups, 0.1 s apart
        consumer.close()

    def fill_partitioned_topic(self) -> None:
        self.admin("PUT", "parts/partitions", 3)
        self.subscribe("parts", "billing")
        self.write_typed("parts", 36)
        self.write_typed("parts", 6, _OrderWithNote)
        self.acknowledge("parts", "billing", 20)

    def fill_compacted_topic(self, topic: str) -> None:
        self.subscribe(topic, "audit")
        for _ in range(2):  # the second compaction replaces the ledger of the first
            self.write(topic, 25)
            self.compact(topic)

    def fill_delayed_topic(self, topic: str, subscription: str) -> None:
        """Write messages that are due in an hour, until several index buckets of the subscription are sealed."""
        consumer = self._consumer(topic, subscription)  # the dispatcher with the buckets exists while it is connected
        self.write(topic, 45, delay_s=3_600)
        wait_until(
            lambda: self._is_shut_down or len(self.ledgers.list_buckets(topic, subscription)) >= 2, "two index buckets"
        )
        consumer.close()

    def fill_deduplicated_topic(self) -> None:
        self.admin("PUT", "unique")
        self.admin("POST", "unique/deduplicationEnabled", True)
        wait_until(lambda: self.admin("GET", "unique/deduplicationEnabled"), "the policy of a topic")
        self.write("unique", 25)

    def fill_shadowed_topic(self) -> None:
        self.subscribe("source", "owner")
        self.write("source", 25)
        self.admin("PUT", "shadow", {"PULSAR.SHADOW_SOURCE": topic_url("source")})
        self.admin("PUT", "source/shadowTopics", [topic_url("shadow")])
        self.subscribe("shadow", "watcher")

    def fill_schema_without_managed_ledger(self) -> None:
        url = f"non-persistent://{NAMESPACE}/volatile"
        self._client.create_producer(url, schema=AvroSchema(_Order)).close()

    def fill_offloaded_topic(self, topic: str) -> None:
        self.subscribe(topic, "archive")
        self.write(topic, 35)
        self.offload(topic)
        wait_until(lambda: self.offload_status(topic) == "SUCCESS", f"the offload of {topic}")

    def fill_transactions(self) -> None:
        """Commit a transaction, abort another, and leave a third one open, with a pending acknowledgement each."""
        self.subscribe(PENDING_TOPIC, PENDING_SUBSCRIPTION)
        self.write(PENDING_TOPIC, 30)
        run_transactions(self.cluster, PENDING_TOPIC, PENDING_SUBSCRIPTION, "receipts")

    def upload_package(self, name: str) -> None:
        """Store a package of a function, which has two DistributedLog logs."""
        boundary = uuid4().hex
        body = _format_part(boundary, "file", "application/octet-stream", b"x" * 2_000)
        body += _format_part(boundary, "metadata", "application/json", b'{"description": "of the demo"}')
        request = urllib.request.Request(  # noqa: S310
            f"{self.cluster.admin_url}{_package_path(name)}",
            data=body + f"--{boundary}--\r\n".encode(),
            method="POST",
            headers={"Content-Type": f"multipart/form-data; boundary={boundary}"},
        )
        urllib.request.urlopen(request, timeout=_TIMEOUT_S).close()  # noqa: S310

    def delete_package(self, name: str) -> None:
        self.cluster.request_admin("DELETE", _package_path(name))

    def compact(self, topic: str) -> None:
        """Compact a topic, and wait for the end."""
        self.admin("PUT", f"{topic}/compaction")
        wait_until(lambda: self.compaction_status(topic) == "SUCCESS", f"compaction of {topic}")

    def compaction_status(self, topic: str) -> str:
        return str(self.admin("GET", f"{topic}/compaction")["status"])

    def offload(self, topic: str) -> None:
        """Begin to offload all ledgers but the last."""
        last = self.admin("GET", f"{topic}/internalStats")["ledgers"][-1]["ledgerId"]
        self.admin("PUT", f"{topic}/offload", {"ledgerId": last, "entryId": 0, "partitionIndex": -1})

    def offload_status(self, topic: str) -> str:
        return str(self.admin("GET", f"{topic}/offload")["status"])

    def admin(self, method: str, path: str, body: object = None, **options: Any) -> Any:
        """Send a request about a topic to the admin API."""
        return self.cluster.request_admin(method, f"persistent/{NAMESPACE}/{path}", body, **options)

    def _consumer(self, topic: str, subscription: str) -> Any:
        return self._client.subscribe(
            topic_url(topic),
            subscription,
            consumer_type=pulsar.ConsumerType.Shared,
            initial_position=pulsar.InitialPosition.Earliest,
        )


def run_transactions(cluster: RealCluster, input_topic: str, subscription: str, output_topic: str) -> None:
    """Copy a message each in three transactions: one is committed, one is aborted, and one stays open."""
    jars = cluster.distribution / "lib" / "*"
    arguments = [cluster.service_url, topic_url(input_topic), subscription, topic_url(output_topic)]
    argv = [str(find_java().path), "-XX:TieredStopAtLevel=1", "-cp", str(jars), str(_TRANSACTIONS), *arguments]
    completed = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=_TIMEOUT_S)
    assert completed.returncode == 0, completed.stderr  # such as a Java without a compiler


def open_client(cluster: RealCluster) -> Any:
    log_file = cluster.home.logs / "pulsar-client.log"  # errors of a killed broker are no news
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(log_file))
    return pulsar.Client(cluster.service_url, logger=logger, operation_timeout_seconds=60)


def topic_url(topic: str) -> str:
    return f"persistent://{NAMESPACE}/{topic}"


def _format_part(boundary: str, name: str, kind: str, content: bytes) -> bytes:
    """Return a part of a form."""
    header = f'Content-Disposition: form-data; name="{name}"; filename="{name}"\r\nContent-Type: {kind}'
    return b"--%b\r\n%b\r\n\r\n%b\r\n" % (boundary.encode(), header.encode(), content)


def _package_path(name: str) -> str:
    return f"/admin/v3/packages/function/{NAMESPACE}/{urllib.parse.quote(name)}/v1"
