"""Traffic beside a job: a producer and a consumer on a topic whose ledgers roll over and are trimmed all the time."""

import threading
import time
import uuid
from types import TracebackType
from typing import Any, Final, Self

import pulsar

from tests.pulsar_cluster.cluster import RealCluster
from tests.pulsar_cluster.filling import open_client, topic_url

TOPIC: Final = "traffic"

_PAUSE_S: Final = 0.02
_PATIENCE_MS: Final = 600_000  # a broker that was killed starts again


class Traffic:
    """Producer and consumer that run until the end of the block. All messages differ."""

    def __init__(self, cluster: RealCluster) -> None:
        self._cluster = cluster
        self._ends = threading.Event()
        self._prefix = uuid.uuid4().bytes  # an earlier run may have left messages
        self._last_message = self._prefix + b" end"
        self.sent: list[bytes] = []
        self.received: list[bytes] = []
        self.errors: list[str] = []

    @property
    def lost(self) -> set[bytes]:
        return set(self.sent) - set(self.received)

    def find_problems(self) -> list[str]:
        """Return errors, and whether the consumer got each message of the producer exactly once, in order."""
        found = f"{self.format_counts()}, {len(self.lost)} lost, or some came twice or in another order"
        return self.errors + ([] if self.received == self.sent else [found])

    def format_counts(self) -> str:
        return f"{len(self.sent):,} messages sent, {len(self.received):,} received"

    def __enter__(self) -> Self:
        self._client = open_client(self._cluster)
        consumer = self._client.subscribe(topic_url(TOPIC), "drain", consumer_type=pulsar.ConsumerType.Shared)
        producer = self._client.create_producer(
            topic_url(TOPIC), batching_enabled=False, send_timeout_millis=_PATIENCE_MS
        )
        self._threads = [
            threading.Thread(target=self._run, args=(step, peer), daemon=True)
            for step, peer in ((self._send, producer), (self._receive, consumer))
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join()
        self._client.close()

    def _run(self, step: Any, peer: Any) -> None:
        try:
            while step(peer):
                pass
        except pulsar.PulsarException as error:
            self.errors.append(str(error))

    def _send(self, producer: Any) -> bool:
        message = self._last_message if self._ends.is_set() else self._prefix + b"%d" % len(self.sent)
        producer.send(message)
        self.sent.append(message)
        time.sleep(_PAUSE_S)
        return message != self._last_message

    def _receive(self, consumer: Any) -> bool:
        message = consumer.receive(_PATIENCE_MS)
        consumer.acknowledge(message)
        if message.data().startswith(self._prefix):
            self.received.append(message.data())
        return bool(message.data() != self._last_message)
