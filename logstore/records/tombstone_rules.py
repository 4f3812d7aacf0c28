"""Rules of tombstones: which deletions leave a tombstone, when it may be removed, and how many bytes it needs.

A deletion that is not durable leaves no tombstone. A rebuild may then bring back an older record version.

Source: Aerospike durable deletes (each operation has a policy), tomb raider (eligible age), capacity planning, and
`operate` (several operations on one record under one lock).
"""

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from logstore.errors import InvalidInput, PreconditionFailed, Unsupported
from logstore.log.ledgers import CopyKind
from logstore.positions import LedgerId


class EndingOperation(StrEnum):
    """Operation that can delete a record."""

    DELETE = "delete"  # a command names the ledger or topic, with or without force
    LAST_COPY = "last_copy"  # a command removes the only copy
    COMPOUND = "compound"  # a compound operation removes all copies
    FUNCTION = "function"  # a record function returns `None`
    RETENTION = "retention"  # the topic's limit of time or size
    EXPIRY = "expiry"  # a newborn ledger or an upload was never completed
    UPKEEP = "upkeep"  # a component ledger was replaced, or a reconciliation reported the ledger


DURABLE_BY_DEFAULT: Final = frozenset(
    {EndingOperation.DELETE, EndingOperation.LAST_COPY, EndingOperation.COMPOUND, EndingOperation.FUNCTION}
)
"""Operations that are durable unless the topic or the command says otherwise."""


def is_durable(
    ending: EndingOperation | str, *, topic_setting: bool | None = None, command_setting: bool | None = None
) -> bool:
    """Return whether the operation leaves a tombstone. The command's setting overrides the topic's setting.

    Raise `Unsupported` if this build does not know the operation.
    """
    if ending not in set(EndingOperation):
        names = ", ".join(EndingOperation)
        raise Unsupported(f"durable_delete: expected an operation out of {names}, found {ending!r}: no policy is known")
    if command_setting is not None:
        return command_setting
    return topic_setting if topic_setting is not None else EndingOperation(ending) in DURABLE_BY_DEFAULT


class DeleteDurability(StrEnum):
    """Policy that a command sets for a deletion. Workers receive the policy by name."""

    DURABLE = "durable"
    PLAIN = "plain"

    @classmethod
    def from_flag(cls, is_durable: bool | None) -> "DeleteDurability | None":
        return None if is_durable is None else cls.DURABLE if is_durable else cls.PLAIN


def parse_delete_durability(policy: str | None) -> bool | None:
    """Return whether a request asks for a durable deletion, or `None` if the request has no policy.

    Raise `Unsupported` if this build does not know the policy.
    """
    if policy is None:
        return None
    if policy not in set(DeleteDurability):
        names = ", ".join(DeleteDurability)
        raise Unsupported(f"durable_delete: expected one of {names}, found {policy!r}: this build knows no such policy")
    return DeleteDurability(policy) is DeleteDurability.DURABLE


def eligible_before_us(now_us: int, eligible_age_s: float) -> int:
    if eligible_age_s < 0:
        raise InvalidInput("eligible_age", expected="0 or more seconds", found=eligible_age_s)
    return now_us - round(eligible_age_s * 1_000_000)


class ReplicaState(StrEnum):
    CURRENT = "CURRENT"  # the replica has applied the newest manifest
    BEHIND = "BEHIND"
    STALE = "STALE"  # revoked, or no acknowledgement for longer than the eligible age: the replica must be seeded


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaAcknowledgement:
    """Statement of a replica that it has applied a manifest."""

    replica_id: str
    manifest: int  # the replica has applied this manifest and all earlier ones; 0: none yet
    epoch: int
    at_us: int  # time of the acknowledgement by the store's clock
    # a raid did not wait for the replica; its acknowledgements do not count until the replica is seeded again
    is_revoked: bool = False


def decide_replica_state(
    acknowledgement: ReplicaAcknowledgement, *, newest: int, now_us: int, eligible_age_s: float
) -> ReplicaState:
    """Return whether a replica is current, behind or stale. `now_us` is by the store's clock."""
    if is_stale(acknowledgement, now_us=now_us, eligible_age_s=eligible_age_s):
        return ReplicaState.STALE
    return ReplicaState.CURRENT if acknowledgement.manifest >= newest else ReplicaState.BEHIND


def is_stale(acknowledgement: ReplicaAcknowledgement, *, now_us: int, eligible_age_s: float) -> bool:
    return acknowledgement.is_revoked or acknowledgement.at_us < eligible_before_us(now_us, eligible_age_s)


def newest_manifest_applied_everywhere(acknowledgements: Iterable[ReplicaAcknowledgement], *, newest: int) -> int:
    """Return the newest manifest that all replicas have applied, or `newest` if there are no replicas.

    Revoked replicas are ignored. Tombstones in later manifests must stay. A replica without such a tombstone would keep
    the covered record (scylladb#3560). The caller must revoke a replica before the caller leaves the replica out of
    `acknowledgements`. Otherwise the replica could acknowledge later, although it may lack tombstones.
    """
    return min(
        [newest, *(acknowledgement.manifest for acknowledgement in acknowledgements if not acknowledgement.is_revoked)]
    )


ROW_BYTES_BY_DATABASE: Final = {"sqlite": 83, "postgresql": 148}
"""Bytes of a tombstone in the catalog, including indexes."""

BYTES_PER_VERSION: Final = 7
"""Bytes of a tombstone in a defragmented block if ids and times are random. In one batch, it needs less than 1 byte."""

BYTES_PER_BLOCK: Final = 3_400
"""Bytes of a block besides its record versions."""

TOMBSTONES_PER_BLOCK: Final = 100_000
_AEROSPIKE_INDEX_BYTES: Final = 64
_AEROSPIKE_DISK_BYTES: Final = 128
_MAX_KEY_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class TombstoneSizeComparison:
    tombstones: int
    key_bytes: int
    index_bytes: int  # in the catalog
    disk_bytes: int  # in defragmented blocks
    aerospike_index_bytes: int
    aerospike_disk_bytes: int


def estimate_tombstone_sizes(
    tombstones: int, *, key_bytes: int = 8, database: str = "postgresql"
) -> TombstoneSizeComparison:
    """Estimate the bytes of tombstones that no raid has removed: in the catalog (index), and in blocks (disk).

    The figures of Sexton are measured (`tests/benchmarks/records_speed.py`). The measured tombstones have a topic, a
    list and a component. These figures include the id, so `key_bytes` is used for Aerospike only. Aerospike stores 64
    bytes and the key in its primary index, and 128 bytes and the key on disk.
    """
    if not 0 <= tombstones < 2**53:
        raise InvalidInput("records", expected="0 to 2**53 - 1", found=tombstones)
    if not 0 <= key_bytes < _MAX_KEY_BYTES:
        raise InvalidInput("key_bytes", expected=f"0 to {_MAX_KEY_BYTES - 1}", found=key_bytes)
    if database not in ROW_BYTES_BY_DATABASE:
        raise InvalidInput("database", expected=" or ".join(ROW_BYTES_BY_DATABASE), found=database)
    return TombstoneSizeComparison(
        tombstones=tombstones,
        key_bytes=key_bytes,
        index_bytes=tombstones * ROW_BYTES_BY_DATABASE[database],
        disk_bytes=tombstones * BYTES_PER_VERSION + math.ceil(tombstones / TOMBSTONES_PER_BLOCK) * BYTES_PER_BLOCK,
        aerospike_index_bytes=tombstones * (_AEROSPIKE_INDEX_BYTES + key_bytes),
        aerospike_disk_bytes=tombstones * (_AEROSPIKE_DISK_BYTES + key_bytes),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompoundOperation:
    """Removal of copies of one ledger in one transaction."""

    ledger_id: LedgerId
    remove: frozenset[CopyKind]  # copies to remove
    # subscriptions whose acknowledgements are not required if the ledger is deleted
    pass_over: frozenset[str] = frozenset()
    generation: int | None = None  # expected generation; `None`: any

    def __post_init__(self) -> None:
        if not self.remove:
            raise InvalidInput("remove", expected="one copy or more to take away", found=[])

    def find_ending_operation(self, copies: Collection[CopyKind], *, generation: int) -> EndingOperation | None:
        """Return the operation that deletes the ledger, or `None` if a copy remains. `copies` are the LIVE copies.

        Raises:
            PreconditionFailed: The generation differs, a copy to remove is not LIVE, or only an unverified tiered copy
                would remain.
        """
        ledger = f"ledger {self.ledger_id}"
        if self.generation not in {None, generation}:
            raise PreconditionFailed(f"{ledger}: expected generation {self.generation}, found {generation}")
        if absent := self.remove - set(copies):
            found = ", ".join(sorted(copies)) or "none"
            raise PreconditionFailed(f"{ledger}: expected a LIVE copy {min(absent)}, found {found}")
        remaining = set(copies) - self.remove
        if not remaining:
            return EndingOperation.COMPOUND if len(self.remove) + len(self.pass_over) > 1 else EndingOperation.LAST_COPY
        if CopyKind.LEDGER not in remaining:
            raise PreconditionFailed(
                f"{ledger}: expected its primary copy or all copies to stay or go, found that the tiered one alone"
                " would stay: `sexton topic offload --delete-primary` looks first whether storage holds it"
            )
        if self.pass_over:
            raise PreconditionFailed(
                f"{ledger}: expected an end of the ledger for {', '.join(sorted(self.pass_over))} to be passed over,"
                f" found that {', '.join(sorted(remaining))} stays"
            )
        return None
