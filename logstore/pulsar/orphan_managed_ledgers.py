"""Managed ledgers that outlived their topic or their namespace. Their own ledgers are referenced, and look alive.

Source: Pulsar's `MLPendingAckStore` for the names of pending acknowledgements, and `NamespaceService` for namespaces
that brokers use without policies.
"""

from collections.abc import Container
from enum import StrEnum
from typing import Final

from logstore.pulsar.znode_names import encode_name

PENDING_ACK_SUFFIX: Final = "__transaction_pending_ack"
"""End of the name of a managed ledger with pending acknowledgements: `{topic}-{subscription}__transaction_pending_ack`.

Topic and subscription may contain hyphens, so that the name of the topic is not certain.
"""

_BROKER_TENANTS: Final = frozenset({"pulsar", "sla-monitor"})
"""Tenants with namespaces that have no policies: brokers check their own health in them."""


class ManagedLedgerVerdict(StrEnum):
    """Why a managed ledger is an orphan."""

    TOPIC_ABSENT = "topic_absent"
    NAMESPACE_ABSENT = "namespace_absent"

    @property
    def reason(self) -> str:
        return _REASONS[self]


_REASONS: Final = {
    ManagedLedgerVerdict.TOPIC_ABSENT: "it has pending acknowledgements of a topic that does not exist",
    ManagedLedgerVerdict.NAMESPACE_ABSENT: "its namespace has no policies, and no broker uses it",
}


def list_possible_topics(managed_ledger: str) -> list[str]:
    """Return the managed ledgers of all topics to which pending acknowledgements may belong.

    The list is empty for a managed ledger of another kind.
    """
    parent, _, name = managed_ledger.rpartition("/")
    stem = name.removesuffix(PENDING_ACK_SUFFIX)
    if stem == name:
        return []
    return [f"{parent}/{topic}" for topic in _list_topic_names(stem)] + list_topics_of_slashed_subscription(
        managed_ledger
    )


def list_topics_of_slashed_subscription(managed_ledger: str) -> list[str]:
    """Return those possible topics that have another parent than the managed ledger.

    Pulsar takes pending acknowledgements of `tenant/namespace/topic` and a subscription `a/b` for a topic of Pulsar 1.
    Their managed ledger is `tenant/namespace/topic-a/persistent/b__transaction_pending_ack`.
    """
    parts = managed_ledger.split("/")
    if len(parts) != 5 or not managed_ledger.endswith(PENDING_ACK_SUFFIX):
        return []
    tenant, namespace, stem, domain, _ = parts
    return [f"{tenant}/{namespace}/{domain}/{encode_name(topic)}" for topic in _list_topic_names(stem)]


def _list_topic_names(stem: str) -> list[str]:
    """Return what may be the topic in `{topic}-{subscription}`."""
    return [stem[:end] for end, character in enumerate(stem) if character == "-" and end > 0]


def list_possible_namespaces(managed_ledger: str) -> list[str]:
    """Return the namespaces of which one must exist, such as `tenant/namespace`: none for one of a broker."""
    namespace = managed_ledger.rsplit("/", 2)[0]
    if namespace.split("/", 1)[0] in _BROKER_TENANTS:
        return []
    has_slash = bool(list_topics_of_slashed_subscription(managed_ledger))
    return [namespace, *([namespace.rpartition("/")[0]] if has_slash else [])]


def judge_managed_ledger(
    managed_ledger: str, *, existing_topics: Container[str], namespaces: Container[str]
) -> ManagedLedgerVerdict | None:
    """Return why a managed ledger is an orphan, or `None`.

    `existing_topics` has those of its possible topics that exist, and `namespaces` those of its possible namespaces.
    """
    possible_namespaces = list_possible_namespaces(managed_ledger)
    if possible_namespaces and not any(namespace in namespaces for namespace in possible_namespaces):
        return ManagedLedgerVerdict.NAMESPACE_ABSENT
    possible_topics = list_possible_topics(managed_ledger)
    if possible_topics and not any(topic in existing_topics for topic in possible_topics):
        return ManagedLedgerVerdict.TOPIC_ABSENT
    return None


class NamePrefixes:
    """Names of an ascending sequence that are prefixes of the newest one. Memory holds only these."""

    def __init__(self) -> None:
        self._prefixes: list[str] = []

    def __contains__(self, name: object) -> bool:
        return name in self._prefixes

    def add(self, name: str) -> None:
        while self._prefixes and not name.startswith(self._prefixes[-1]):
            self._prefixes.pop()
        self._prefixes.append(name)
