"""Look-up of compacted ledgers in the memory of brokers. A broker stores the id of a new one up to a minute later.

Source: Pulsar's `BrokerStats` and `PersistentTopicsBase`. Most requests about a topic load the topic, which writes to
the cluster. The statistics of a broker do not: they cover the topics that are loaded, and are at most a minute old.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from infra.pulsar.broker_admin import (
    AdminRequestFailed,
    BrokerAdmin,
    BrokerAdminAddress,
    format_topic_path,
    require_field,
)
from infra.pulsar.broker_registrations import RegisteredBroker, list_registered_brokers
from infra.pulsar.znode_reads import ZnodeReader
from logstore.pulsar.ledger_metadata import StatedOwner
from logstore.pulsar.ledger_verdicts import BrokerLookup
from logstore.pulsar.unreadable_metadata import UnreadableMetadata
from logstore.pulsar.znode_names import MANAGED_LEDGERS, decode_name

ADMIN_API: Final = "admin API"
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


class CompactionDirectory:
    """Compacted ledgers of topics that brokers have loaded. No topic is loaded, and no admin API means no answers.

    `problems` has a sentence if a broker gave no answer.
    """

    def __init__(self, address: BrokerAdminAddress | None, reader: ZnodeReader) -> None:
        self._address, self._reader = address, reader
        self.problems: dict[str, str] = {}

    def look_up(self, owner_by_ledger_id: Mapping[int, StatedOwner]) -> dict[int, BrokerLookup]:
        """Return what brokers say about compacted ledgers. Each topic is asked for once."""
        compactions: dict[str, TopicCompaction | None] = {}
        for owner in owner_by_ledger_id.values():
            if self._address is not None and owner.path not in compactions:
                compactions[owner.path] = self._find_compaction(owner.path)
        return {
            ledger_id: _judge(ledger_id, compactions.get(owner.path)) for ledger_id, owner in owner_by_ledger_id.items()
        }

    @cached_property
    def _loaded_topics(self) -> LoadedTopics:
        assert self._address is not None, "`look_up` asks only if there is an address"
        brokers = list_registered_brokers(self._reader)
        return LoadedTopics(BrokerAdmin(self._address, brokers), brokers)

    def _find_compaction(self, cursor_path: str) -> TopicCompaction | None:
        try:
            return self._loaded_topics.find_compaction(_find_topic(cursor_path))
        except (AdminRequestFailed, UnreadableMetadata) as error:
            self.problems[ADMIN_API] = str(error)
            return None


def _list_topics(admin: BrokerAdmin, broker: RegisteredBroker) -> Iterator[str]:
    """Yield the names of topics. The statistics nest them by namespace, bundle and domain."""
    statistics: dict[str, Any] = admin.read_json(_STATISTICS, dict, broker=broker)
    for namespace in statistics:
        bundles = require_field(statistics, namespace, dict, _STATISTICS)
        for bundle in bundles:
            domains = require_field(bundles, bundle, dict, _STATISTICS)
            if "persistent" in domains:
                yield from require_field(domains, "persistent", dict, _STATISTICS)


def _judge(ledger_id: int, compaction: TopicCompaction | None) -> BrokerLookup:
    if compaction is None:
        return BrokerLookup.UNKNOWN
    if compaction.compacted_ledger_id == ledger_id:
        return BrokerLookup.LISTING
    return BrokerLookup.UNKNOWN if compaction.is_running else BrokerLookup.NOT_LISTING


def _find_topic(cursor_path: str) -> str:
    """Return the full name of the topic of a cursor."""
    *namespace, domain, name, _ = cursor_path.removeprefix(f"{MANAGED_LEDGERS}/").split("/")
    return f"{domain}://{'/'.join([*namespace, decode_name(name)])}"
