"""Second look at orphan managed ledgers: at their topics and namespaces, by name."""

from collections.abc import Sequence

from infra.pulsar.policy_directory import PolicyDirectory
from infra.pulsar.znode_reads import ZnodeReader
from logstore.pulsar.orphan_managed_ledgers import (
    ManagedLedgerVerdict,
    find_namespace_with_policies,
    judge_managed_ledger,
    list_possible_topics,
)
from logstore.pulsar.znode_names import MANAGED_LEDGERS


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
