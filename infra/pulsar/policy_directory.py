"""Policies of tenants and namespaces: what a cluster knows by name."""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final

from infra.pulsar.znode_reads import ZnodeReader
from logstore.pulsar.orphan_managed_ledgers import (
    ManagedLedgerVerdict,
    judge_managed_ledger,
    list_possible_namespaces,
    list_possible_topics,
)
from logstore.pulsar.znode_names import MANAGED_LEDGERS

POLICIES: Final = "admin/policies"

OWNED_NAMESPACES: Final = "namespace"
"""Parent of the namespaces whose topics brokers have loaded. Each has the bundles that a broker owns."""

_LOCAL_POLICIES: Final = "admin/local-policies"  # the bundles of a namespace in this cluster

_Folder = tuple[ZnodeReader, str]


class PolicyDirectory:
    """Policies in the configuration store of a cluster, or else in its metadata store, which may be the same one."""

    def __init__(self, reader: ZnodeReader, *, configuration: ZnodeReader) -> None:
        self._reader, self._configuration = reader, configuration

    def has_tenants(self) -> bool:
        """Return whether there are any policies. Their place is not known if there are none."""
        return any(
            names for store in (self._configuration, self._reader) for _, names in store.list_children([POLICIES])
        )

    def find_tenants(self, names: Iterable[str]) -> set[str]:
        """Return those tenants that have policies."""
        return self._find_names(names, self._policies)

    def find_namespaces(self, names: Iterable[str]) -> set[str]:
        """Return those namespaces that have policies, or that brokers of this cluster use.

        The policies that `_reader` and `_configuration` have may be old copies: a namespace in use may have its own in
        a store that is not known. Therefore a bundle that a broker owns is enough. A deleted namespace counts as used
        until its bundles are unloaded, some minutes later. Until then its brokers may still write its managed ledgers,
        and the next plan finds them.
        """
        distinct = set(names)
        known = self.find_namespaces_with_policies(distinct)
        return known | self._find_owned(distinct - known)

    def _find_owned(self, names: Iterable[str]) -> set[str]:
        """Return those namespaces of which a broker owns a bundle.

        Brokers before Pulsar 2.9 leave the parent of the bundles behind for ever (apache/pulsar#11925).
        """
        parents = sorted(names)
        znodes = self._reader.read([f"{OWNED_NAMESPACES}/{name}" for name in parents])
        return {name for name, (_, znode) in zip(parents, znodes, strict=True) if znode is not None and znode.children}

    def find_namespaces_with_policies(self, names: Iterable[str]) -> set[str]:
        """Return those namespaces that have policies. A request about a topic makes a broker use its namespace."""
        return self._find_names(names, (*self._policies, (self._reader, _LOCAL_POLICIES)))

    @property
    def _policies(self) -> tuple[_Folder, ...]:
        return (self._configuration, POLICIES), (self._reader, POLICIES)

    def _find_names(self, names: Iterable[str], folders: Iterable[_Folder]) -> set[str]:
        """Return those names that one of the folders has."""
        missing = sorted(set(names))
        known: set[str] = set()
        for store, root in folders:
            znodes = store.read([f"{root}/{name}" for name in missing])
            known |= {name for name, (_, znode) in zip(missing, znodes, strict=True) if znode is not None}
            missing = [name for name in missing if name not in known]
        return known


def find_managed_ledgers(reader: ZnodeReader, names: Iterable[str]) -> set[str]:
    """Return those managed ledgers that exist. Each name is read once."""
    distinct = sorted(set(names))
    znodes = reader.read([f"{MANAGED_LEDGERS}/{name}" for name in distinct])
    return {name for name, (_, znode) in zip(distinct, znodes, strict=True) if znode is not None}


def look_up_orphan_managed_ledgers(
    reader: ZnodeReader, policies: PolicyDirectory, managed_ledgers: Sequence[str]
) -> list[ManagedLedgerVerdict | None]:
    """Return for each managed ledger why it is an orphan now, or `None`. Each name is read once."""
    existing_topics = find_managed_ledgers(reader, chain.from_iterable(map(list_possible_topics, managed_ledgers)))
    namespaces = policies.find_namespaces(chain.from_iterable(map(list_possible_namespaces, managed_ledgers)))
    return [
        judge_managed_ledger(name, existing_topics=existing_topics, namespaces=namespaces) for name in managed_ledgers
    ]
