"""Look-up of compacted ledgers in the memory of brokers. A broker stores the id of a new one up to a minute later.

Source: Pulsar's `BrokerStats` and `PersistentTopicsBase`. Most requests about a topic load the topic, which writes to
the cluster. The statistics of a broker do not: they cover the topics that are loaded, and are at most a minute old.
"""

import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
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
from logstore.errors import InvalidInput
from logstore.pulsar.ledger_metadata import StatedOwner
from logstore.pulsar.ledger_verdicts import BrokerLookup
from logstore.pulsar.unreadable_metadata import UnreadableMetadata
from logstore.pulsar.znode_names import MANAGED_LEDGERS, topic_from_managed_ledger

ADMIN_API: Final = "admin API"
_STATISTICS: Final = "/admin/v2/broker-stats/topics"
_RUNNING: Final = "RUNNING"
_LIST_LIFETIME_S: Final = 60.0  # a broker makes its statistics once a minute, so that a list may be twice as old


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

    def find_compaction(self, topic: str) -> TopicCompaction | None:
        """Return the state of `persistent://tenant/namespace/name`, or `None` if no broker has loaded the topic.

        A topic of Pulsar 1 has no state here. A broker that has unloaded the topic since the last minute before the
        instance was created loads it again. For errors see `BrokerAdmin`.
        """
        if topic not in self._topics:
            return None
        try:
            path = f"/admin/v2/persistent/{format_topic_path(topic)}"
        except InvalidInput:
            return None
        # A compaction that ends between the requests has a new ledger, which the statistics may not show yet.
        before = self._admin.find_json(f"{path}/compaction", dict)
        statistics = self._admin.find_json(f"{path}/internalStats", dict)
        after = self._admin.find_json(f"{path}/compaction", dict)
        if before is None or statistics is None or after is None:  # deleted meanwhile
            return None
        ledger = require_field(statistics, "compactedLedger", dict, f"{path}/internalStats")
        ledger_id = require_field(ledger, "ledgerId", int, f"{path}/internalStats")
        statuses = {require_field(compaction, "status", str, f"{path}/compaction") for compaction in (before, after)}
        return TopicCompaction(ledger_id if ledger_id >= 0 else None, is_running=_RUNNING in statuses)


@dataclass(frozen=True, slots=True)
class CompactionLookup:
    """Answers of brokers about compacted ledgers. A ledger about which no broker says anything is missing."""

    answers: Mapping[int, BrokerLookup]
    problem: str = ""  # a sentence if a broker gave no answer: then the others were not asked


def look_up_compacted_ledgers(
    address: BrokerAdminAddress, reader: ZnodeReader, owner_by_ledger_id: Mapping[int, StatedOwner]
) -> CompactionLookup:
    """Ask each broker for its loaded topics, and then for each of these that owns a ledger, once.

    Look the owners up in the metadata afterwards: it has what a broker forgets meanwhile, because
    the broker unloads the topic.
    """
    answers: dict[int, BrokerLookup] = {}
    ledger_ids_by_topic: dict[str, list[int]] = {}
    for ledger_id, owner in owner_by_ledger_id.items():
        ledger_ids_by_topic.setdefault(_find_topic(owner.path), []).append(ledger_id)
    try:
        for topic, compaction in _find_compactions(address, reader, ledger_ids_by_topic):
            for ledger_id in ledger_ids_by_topic[topic]:
                answers[ledger_id] = _judge(ledger_id, compaction)
    except (AdminRequestFailed, InvalidInput, UnreadableMetadata) as error:
        return CompactionLookup(answers, str(error))
    return CompactionLookup(answers)


def _list_topics(admin: BrokerAdmin, broker: RegisteredBroker) -> Iterator[str]:
    """Yield the names of topics. The statistics nest them by namespace, bundle and domain."""
    statistics: dict[str, Any] = admin.read_json(_STATISTICS, dict, broker=broker)
    for namespace in statistics:
        bundles = require_field(statistics, namespace, dict, _STATISTICS)
        for bundle in bundles:
            domains = require_field(bundles, bundle, dict, _STATISTICS)
            if "persistent" in domains:
                yield from require_field(domains, "persistent", dict, _STATISTICS)


def _find_compactions(
    address: BrokerAdminAddress, reader: ZnodeReader, topics: Iterable[str]
) -> Iterator[tuple[str, TopicCompaction]]:
    """Yield topics with their states. The list of loaded topics is read again from time to time.

    A topic that its broker unloads, or that moves to another broker, is loaded by a question that relies on an old
    list.
    """
    loaded, expires_s = None, 0.0
    for topic in topics:
        if loaded is None or time.monotonic() > expires_s:
            brokers = list_registered_brokers(reader)
            loaded = LoadedTopics(BrokerAdmin(address, brokers), brokers)
            expires_s = time.monotonic() + _LIST_LIFETIME_S
        if compaction := loaded.find_compaction(topic):
            yield topic, compaction


def _judge(ledger_id: int, compaction: TopicCompaction) -> BrokerLookup:
    if compaction.compacted_ledger_id == ledger_id:
        return BrokerLookup.LISTING
    return BrokerLookup.UNKNOWN if compaction.is_running else BrokerLookup.NOT_LISTING


def _find_topic(cursor_path: str) -> str:
    managed_ledger, _, _ = cursor_path.removeprefix(f"{MANAGED_LEDGERS}/").rpartition("/")
    return topic_from_managed_ledger(managed_ledger)
