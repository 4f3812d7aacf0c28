"""Result of a check of a cluster."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterCapability:
    """Something that a plan needs of a cluster."""

    name: str
    ok: bool
    detail: str  # a sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterCheck:
    """Result of a check. Two checks with one `identity` saw one cluster, created once."""

    cluster: str  # the name, or "" if the metadata names none or several
    identity: str
    capabilities: tuple[ClusterCapability, ...]

    @property
    def ok(self) -> bool:
        return all(capability.ok for capability in self.capabilities)
