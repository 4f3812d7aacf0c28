"""Policies of tenants and namespaces: what a cluster knows by name."""

from collections.abc import Iterable
from typing import Final

from infra.pulsar.znode_reads import ZnodeReader

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
