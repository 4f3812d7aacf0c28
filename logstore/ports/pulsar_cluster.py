"""Ports of the Pulsar cluster that the settings name: looks at it, and changes of its ledgers and transactions."""

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from logstore.ports.catalog.reconciliation import JournaledLedger
from logstore.pulsar.cluster_check import ClusterCheck
from logstore.pulsar.cluster_findings import RemovalPart
from logstore.pulsar.cluster_transactions import OpenTransaction, TransactionParticipant, TransactionReport
from logstore.reconciliation.findings import Finding, FindingFate, FindingKind
from logstore.transactions.transaction_ids_and_states import TransactionId

MAX_LEDGERS_PER_DELETION: Final = 500
"""Ledgers between two looks for references."""


class Restoration(StrEnum):
    """Result of an undo for one ledger."""

    RESTORED = "restored"
    PRESENT = "present"  # the znode exists, with the same value
    OCCUPIED = "occupied"  # the znode exists, with another value


class StoredData(StrEnum):
    """Whether bookies still have the entries of a restored ledger."""

    STORED = "stored"  # also a closed ledger without entries
    GONE = "gone"  # a garbage collection has removed them
    UNKNOWN = "unknown"  # no bookie answers


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovalLook:
    """Last look at a finding whose removal cannot be undone. Without parts and without a reason, nothing of it is left.

    Each part is as the plan saw it.
    """

    parts: tuple[RemovalPart, ...] = ()
    reason: str = ""  # why it is kept; a clause


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovalResult:
    """Result of a removal that cannot be undone. `FindingFate.DELETED` means that nothing of the finding is left."""

    fate: FindingFate
    reason: str = ""  # why it is kept, or why something of it is left; a clause


class ClusterChanges(Protocol):
    """Changes of one cluster and its offloads, by the holder of its lease. All methods may raise `StoreUnavailable`."""

    identity: str
    """Identity of the cluster, as `ClusterCheck` names it, when the lease was taken."""

    ledgers_root: str
    """Path of the ledgers, without slashes at its ends."""

    def read_planned(self, findings: Sequence[Finding]) -> list[JournaledLedger]:
        """Read ledgers of a plan once more, and return those that exist. `delete` looks for references to them.

        Raises:
            UnexpectedClusterState: A ledger is not as the plan saw it.
        """

    def delete(self, ledgers: Sequence[JournaledLedger]) -> None:
        """Delete at most `MAX_LEDGERS_PER_DELETION` ledgers in the versions that were returned. Idempotent.

        An absent ledger counts as deleted. Right before the deletion and right after it, look at everything that may
        refer to the ledgers. If a reference appears in between, the ledger stays, or is put back.

        Raises:
            UnexpectedClusterState: A ledger has another version, or something refers to it, or something that may refer
                to it cannot be read. Some of the others are deleted.
            PreconditionFailed: The cluster was made anew since the lease was taken.
        """

    def find_existing(self, ledger_ids: Collection[int]) -> frozenset[int]:
        """Return those of the ledgers that exist now."""

    def look(self, kind: FindingKind, findings: Sequence[Finding]) -> list[RemovalLook]:
        """Look once more at findings of one kind whose removal cannot be undone.

        Raises:
            UnexpectedClusterState: Something of a finding is not as the plan saw it, something refers to it, or
                something that may refer to it cannot be read.
            InvalidInput: The settings name no bucket of offloads, or no admin API.
        """

    def remove(self, kind: FindingKind, findings: Sequence[Finding]) -> list[RemovalResult]:
        """Remove findings of one kind for good. A finding of which nothing is left counts as removed. Idempotent.

        Right before, look once more, and check the lease. For errors see `look`: then nothing of a finding to which
        something refers is removed.
        """

    def restore(self, ledgers: Sequence[JournaledLedger]) -> list[tuple[Restoration, StoredData]]:
        """Put ledgers back, and then look whether bookies still have their entries. Idempotent.

        A garbage collection between two ledgers costs data. So all ledgers are put back before a bookie is asked.
        """


class ClusterTransactions(Protocol):
    """Transactions of one cluster. All methods may raise `StoreUnavailable` or `ServiceFailed`.

    No lease is needed: the coordinator of a transaction decides about it once.
    """

    def read_identity(self) -> str:
        """Return the identity of the cluster, as `ClusterCheck` names it."""

    def list_open(self) -> TransactionReport:
        """Return all transactions that have not ended."""

    def find(self, transaction_id: TransactionId) -> OpenTransaction | None:
        """Return a transaction with its participants, or `None` if it has ended.

        Raises:
            UnknownObject: The coordinator has not begun such a transaction, or does not exist.
            PreconditionFailed, UnreadableMetadata: The coordinator gives no answer, and its log is too long or damaged.
        """

    def read_participants_after_end(self, transaction: OpenTransaction) -> tuple[TransactionParticipant, ...]:
        """Return what the participants of an ended transaction owe now. Their positions stay those of `transaction`.

        A participant that cannot be asked has a `problem`.
        """

    def abort(self, transaction_id: TransactionId) -> None:
        """Abort a transaction, and wait until its participants have confirmed.

        Raises:
            ServiceFailed: The abort is not confirmed. It may have happened, or may happen later.
        """


class PulsarClusterAccess(Protocol):
    """Access to one cluster. Each call opens a session of its own.

    `check` and `read_identity` raise `InvalidInput` if the settings name no cluster. They raise `ServiceFailed` or
    `StoreUnavailable` if ZooKeeper cannot be reached.
    """

    def check(self) -> ClusterCheck:
        """Read what a plan needs of the cluster, and its identity."""

    def has_offload_bucket(self) -> bool:
        """Return whether the settings name the bucket of offloads."""

    def is_offload_bucket_exclusive(self) -> bool:
        """Return whether an operator has stated that nobody but this cluster has offloads in that bucket."""

    def has_admin_api(self) -> bool:
        """Return whether the settings name the admin API of a broker."""

    def read_identity(self) -> str:
        """Return the identity that `check` names."""

    def find_existing_ledgers(self, ledger_ids: Collection[int]) -> frozenset[int]:
        """Return those of the ledgers that exist now. No lease is needed. For errors see `read_identity`."""

    def is_bookkeeper_exclusive(self) -> bool:
        """Return whether an operator has stated that nobody but this cluster has ledgers in its BookKeeper."""

    def open_changes(
        self, holder: str, *, shadow_topics: Collection[str] = (), overtakes: str = "", continues: bool = False
    ) -> AbstractContextManager[ClusterChanges]:
        """Take the lease of the cluster for a job. `holder` is the same in all attempts of the job.

        The lease stays taken after the block. `release_lease` frees it. `shadow_topics` are the managed ledgers that
        list ledgers of other topics. From the holder `overtakes` the lease is taken away. `continues` says that the
        holder must have had the lease until now: a job that was overtaken does not go on when the other one has ended.

        Raises:
            PreconditionFailed: Another job has the lease, or has had it meanwhile.
        """

    def release_lease(self, holder: str) -> None:
        """Free the lease, if it is the holder's. Idempotent."""

    def open_transactions(self) -> AbstractContextManager[ClusterTransactions]:
        """Open the transactions of the cluster for a block.

        Raises:
            InvalidInput: The settings name no cluster, or no admin API.
        """
