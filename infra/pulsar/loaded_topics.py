"""State of compacted topics in the memory of brokers.

Source: Pulsar's `BrokerStats` and `PersistentTopicsBase`. Most requests about a topic load it, which writes to the
cluster. The statistics of a broker do not: they cover the topics that are loaded, and are at most a minute old.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final

from infra.pulsar.broker_admin import BrokerAdmin, format_topic_path, require_field
from infra.pulsar.broker_registrations import RegisteredBroker

_STATISTICS: Final = "/admin/v2/broker-stats/topics"
_RUNNING: Final = "RUNNING"


@dataclass(frozen=True, slots=True)
class TopicCompaction:
    """State of a loaded topic. The broker may not have written the id to the cursor yet."""

    compacted_ledger_id: int | None
    is_running: bool  # a running compaction writes to a ledger that nothing refers to


class LoadedTopics:
    """Topics that brokers had loaded when the instance was created, or up to a minute before.

    A topic that was loaded later is missing, but its broker has read the compacted ledger from the cursor: a ledger
    that nothing referred to then is older than anything in the broker's memory.
    """

    def __init__(self, admin: BrokerAdmin, brokers: Collection[RegisteredBroker]) -> None:
        """Ask all brokers. For errors see `BrokerAdmin`."""
        self._admin = admin
        self._topics = {topic for broker in brokers for topic in _list_topics(admin, broker)}

    def __contains__(self, topic: str) -> bool:
        return topic in self._topics

    def find_compaction(self, topic: str) -> TopicCompaction | None:
        """Return the state of `persistent://tenant/namespace/name`, or `None` if no broker has loaded the topic.

        A broker that has unloaded the topic within the last minute loads it again. For errors see `BrokerAdmin`.
        """
        if topic not in self._topics:
            return None
        path = f"/admin/v2/persistent/{format_topic_path(topic)}"
        statistics = self._admin.find_json(f"{path}/internalStats", dict)
        compaction = self._admin.find_json(f"{path}/compaction", dict)
        if statistics is None or compaction is None:  # deleted meanwhile
            return None
        ledger = require_field(statistics, "compactedLedger", dict, f"{path}/internalStats")
        ledger_id = require_field(ledger, "ledgerId", int, f"{path}/internalStats")
        status = require_field(compaction, "status", str, f"{path}/compaction")
        return TopicCompaction(ledger_id if ledger_id >= 0 else None, is_running=status == _RUNNING)


def _list_topics(admin: BrokerAdmin, broker: RegisteredBroker) -> Iterator[str]:
    """Yield the names of topics. The statistics nest them by namespace, bundle and domain."""
    statistics: dict[str, Any] = admin.read_json(_STATISTICS, dict, broker=broker)
    for namespace in statistics:
        bundles = require_field(statistics, namespace, dict, _STATISTICS)
        for bundle in bundles:
            domains = require_field(bundles, bundle, dict, _STATISTICS)
            if "persistent" in domains:
                yield from require_field(domains, "persistent", dict, _STATISTICS)
