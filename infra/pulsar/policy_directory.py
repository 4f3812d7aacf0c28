"""Policies of tenants and namespaces: what a cluster knows by name."""

from collections.abc import Iterable, Sequence
from typing import Final

from infra.pulsar.znode_reads import ZnodeReader
from logstore.pulsar.orphan_managed_ledgers import (
    ManagedLedgerVerdict,
    find_namespace_with_policies,
    judge_managed_ledger,
    list_possible_topics,
)
from logstore.pulsar.znode_names import MANAGED_LEDGERS

POLICIES: Final = "admin/policies"


class PolicyDirectory:
    """Policies in the configuration store of a cluster, or else in its metadata store, which may be the same one."""

    def __init__(self, reader: ZnodeReader, *, configuration: ZnodeReader) -> None:
        self._reader, self._configuration = reader, configuration

    def has_tenants(self) -> bool:
        """Return whether there are any policies. Their place is not known if there are none."""
        return any(
            names for store in (self._configuration, self._reader) for _, names in store.list_children([POLICIES])
        )

    def find_known(self, names: Iterable[str]) -> set[str]:
        """Return those names that have policies. A name is `tenant` or `tenant/namespace`."""
        missing = sorted(set(names))
        known: set[str] = set()
        for store in (self._configuration, self._reader):
            znodes = store.read([f"{POLICIES}/{name}" for name in missing])
            known |= {name for name, (_, znode) in zip(missing, znodes, strict=True) if znode is not None}
            missing = [name for name in missing if name not in known]
        return known


def look_up_orphan_managed_ledgers(
    reader: ZnodeReader, policies: PolicyDirectory, managed_ledgers: Sequence[str]
) -> list[ManagedLedgerVerdict | None]:
    """Return for each managed ledger why it is an orphan now, or `None`. Each name is read once."""
    topics = sorted({topic for name in managed_ledgers for topic in list_possible_topics(name)})
    znodes = reader.read([f"{MANAGED_LEDGERS}/{topic}" for topic in topics])
    existing_topics = {topic for topic, (_, znode) in zip(topics, znodes, strict=True) if znode is not None}
    namespaces = policies.find_known(filter(None, map(find_namespace_with_policies, managed_ledgers)))
    return [
        judge_managed_ledger(name, existing_topics=existing_topics, namespaces=namespaces) for name in managed_ledgers
    ]
