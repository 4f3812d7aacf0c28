"""Look-up of compacted ledgers in the memory of brokers. A broker stores the id of a new one up to a minute later."""

from collections.abc import Mapping
from functools import cached_property
from typing import Final

from infra.pulsar.broker_admin import AdminRequestFailed, BrokerAdmin, BrokerAdminAddress
from infra.pulsar.broker_registrations import list_registered_brokers
from infra.pulsar.loaded_topics import LoadedTopics, TopicCompaction
from infra.pulsar.znode_reads import ZnodeReader
from logstore.pulsar.ledger_metadata import StatedOwner
from logstore.pulsar.ledger_verdicts import BrokerLookup
from logstore.pulsar.unreadable_metadata import UnreadableMetadata
from logstore.pulsar.znode_names import MANAGED_LEDGERS, decode_name

ADMIN_API: Final = "admin API"


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
