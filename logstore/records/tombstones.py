"""When a record's end is durable, what it leaves, when that may be removed, and what it costs until then.

Every operation that can end a record asks `is_durable`, whichever operation it is: a delete, the removal of the last
copy, a compound operation, or a function of the user's. A durable end leaves a tombstone, a version of the record
without content; a plain one leaves nothing, and an older version may return on a cold start.

A compound operation is several changes of one ledger's record, made together or not at all. The record consists of its
copies, as a record of Aerospike consists of bins; once none is left the record ends, under the policy of the whole
operation, which is applied once.

Source: Aerospike durable deletes (a write that removes the last bin ends a record as well; the policy is one of each
operation), tomb raider (eligible age), capacity planning, `operate` (several operations on one record under one lock;
the generation is compared first). Aerospike's clients end plainly by default for the sake of old servers.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from logstore.errors import InvalidInput, PreconditionFailed, Unsupported
from logstore.log.ledgers import CopyKind
from logstore.positions import LedgerId


class Ending(StrEnum):
    """The operations that can end a record."""

    DELETE = "delete"  # a ledger or a topic that a command names, forced or not
    LAST_COPY = "last_copy"  # a command removes the copy beside which there was no other
    COMPOUND = "compound"  # one request that changes a record and ends it
    FUNCTION = "function"  # a function over a selection answers None
    RETENTION = "retention"  # limits of time and size of the topic
    EXPIRY = "expiry"  # a newborn ledger, or an upload, that was never completed
    UPKEEP = "upkeep"  # a component's ledger that another one replaced; what a reconciliation found


DURABLE: Final = frozenset({Ending.DELETE, Ending.LAST_COPY, Ending.COMPOUND, Ending.FUNCTION})
"""Those that are durable unless the topic or the command says otherwise."""


def is_durable(ending: Ending | str, *, topic: bool | None = None, asked: bool | None = None) -> bool:
    """Whether a record that ends so leaves a tombstone; otherwise its row is deleted, and older versions may return.

    Args:
        ending: The operation.
        topic: What the topic's own setting says; None: nothing.
        asked: What the command says; None: nothing. It wins over the topic's setting, and that over the default.

    Raises:
        Unsupported: This build knows no such operation: it does not guess whether that is durable.
    """
    if ending not in set(Ending):
        known = ", ".join(Ending)
        raise Unsupported(f"durable_delete: expected an operation out of {known}, found {ending!r}: no policy is known")
    for said in (asked, topic):
        if said is not None:
            return said
    return Ending(ending) in DURABLE


class DeletePolicy(StrEnum):
    """What a command says of a delete; it travels to the workers by name."""

    DURABLE = "durable"
    PLAIN = "plain"

    @classmethod
    def of(cls, asked: bool | None) -> "DeletePolicy | None":
        """The policy of a flag; None where the command said nothing."""
        return None if asked is None else cls.DURABLE if asked else cls.PLAIN


def asked_for(policy: str | None) -> bool | None:
    """What a request says of its policy: whether durable, or None.

    Raises:
        Unsupported: This build knows no such policy: to delete plainly instead would lose what was asked for.
    """
    if policy is None:
        return None
    if policy not in set(DeletePolicy):
        known = ", ".join(DeletePolicy)
        raise Unsupported(f"durable_delete: expected one of {known}, found {policy!r}: this build knows no such policy")
    return DeletePolicy(policy) is DeletePolicy.DURABLE


def eligible_before(now_us: int, eligible_age_s: float) -> int:
    """Tombstones last updated before this time, in microseconds since 1970 by the catalog's clock, are old enough.

    Raises:
        InvalidInput: The age is below 0.
    """
    if eligible_age_s < 0:
        raise InvalidInput("eligible_age", expected="0 or more seconds", found=eligible_age_s)
    return now_us - round(eligible_age_s * 1_000_000)


class ReplicaState(StrEnum):
    """How a replica stands to the record log."""

    CURRENT = "CURRENT"  # it has applied the newest manifest
    BEHIND = "BEHIND"
    STALE = "STALE"  # silent for longer than the eligible age, or revoked: no tombstone waits for it; it must be seeded


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledgement:
    """What a replica says that it has applied."""

    replica_id: str
    manifest: int  # it has applied this one and all before; 0: none yet
    epoch: int
    at_us: int  # when it said so, by the clock of the store that holds this
    revoked: bool = False  # a raid did not wait for it: what it says counts no more until it is seeded again


def replica_state(found: Acknowledgement, *, newest: int, now_us: int, eligible_age_s: float) -> ReplicaState:
    """How a replica stands to a record log whose newest manifest has that number, at a time by the store's clock."""
    if found.revoked or found.at_us < eligible_before(now_us, eligible_age_s):
        return ReplicaState.STALE
    return ReplicaState.CURRENT if found.manifest >= newest else ReplicaState.BEHIND


def applied_everywhere(replicas: Iterable[Acknowledgement], *, newest: int) -> int:
    """Up to which manifest every replica that is not revoked has applied the record log; the newest if there is none.

    A tombstone in a later one stays: a replica that has not seen it would keep what it covers (scylladb#3560). One that
    is silent for the eligible age must be revoked before it is left out: what it says later would otherwise count.
    """
    return min([newest, *(one.manifest for one in replicas if not one.revoked)])


ROW_BYTES: Final = {"sqlite": 83, "postgresql": 148}
"""Of a tombstone in the catalog, indexes included, by database."""

VERSION_BYTES: Final = 7
"""Of a tombstone in a defragmented block, ids and times at random; those of one batch take less than 1."""

BLOCK_BYTES: Final = 3_400
"""What a block takes however little it holds: a flush writes one of each kind that it has."""

FULL_BLOCK: Final = 100_000
"""Tombstones of a block that a defragmentation writes."""

_AEROSPIKE_INDEX: Final = 64
_AEROSPIKE_DISK: Final = 128
_LONGEST_KEY: Final = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """Bytes of a number of tombstones, beside those of Aerospike."""

    tombstones: int
    key_bytes: int
    index_bytes: int  # in the catalog
    disk_bytes: int  # in defragmented blocks
    aerospike_index_bytes: int
    aerospike_disk_bytes: int


def sizing(tombstones: int, *, key_bytes: int = 8, database: str = "postgresql") -> Sizing:
    """Estimate what tombstones take before a raid removes them: in the catalog, which is our index, and on disk.

    Ours are measured (`tests/benchmarks/records_speed.py`), for rows with a topic, a list and a component. Aerospike
    keeps 64 bytes and the key of each in the primary index, and 128 bytes and the key on disk.

    Args:
        tombstones: How many, 0 or more.
        key_bytes: Of Aerospike's key; ours is the id, which the figures contain.
        database: `sqlite` or `postgresql`.

    Raises:
        InvalidInput: A number out of its bounds, or another database.
    """
    if not 0 <= tombstones < 2**53:
        raise InvalidInput("records", expected="0 to 2**53 - 1", found=tombstones)
    if not 0 <= key_bytes < _LONGEST_KEY:
        raise InvalidInput("key_bytes", expected=f"0 to {_LONGEST_KEY - 1}", found=key_bytes)
    if database not in ROW_BYTES:
        raise InvalidInput("database", expected=" or ".join(ROW_BYTES), found=database)
    return Sizing(
        tombstones=tombstones,
        key_bytes=key_bytes,
        index_bytes=tombstones * ROW_BYTES[database],
        disk_bytes=tombstones * VERSION_BYTES + -(-tombstones // FULL_BLOCK) * BLOCK_BYTES,
        aerospike_index_bytes=tombstones * (_AEROSPIKE_INDEX + key_bytes),
        aerospike_disk_bytes=tombstones * (_AEROSPIKE_DISK + key_bytes),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Compound:
    """What is to become of one ledger, in one transaction.

    Raises:
        InvalidInput: It takes no copy away.
    """

    ledger_id: LedgerId
    remove: frozenset[CopyKind]  # copies to take away
    pass_over: frozenset[str] = frozenset()  # subscriptions that need not have acknowledged it, if it ends
    generation: int | None = None  # that it must have; None: any

    def __post_init__(self) -> None:
        if not self.remove:
            raise InvalidInput("remove", expected="one copy or more to take away", found=[])

    def ending(self, copies: Collection[CopyKind], *, generation: int) -> Ending | None:
        """How it ends a ledger that has these copies LIVE; None: the ledger stays.

        Raises:
            PreconditionFailed: The generation is another, the ledger has no such copy, or what would be left of it is
                not asked for: a tiered copy alone, of which it was not seen that storage holds it.
        """
        whose = f"ledger {self.ledger_id}"
        if self.generation not in {None, generation}:
            raise PreconditionFailed(f"{whose}: expected generation {self.generation}, found {generation}")
        if absent := self.remove - set(copies):
            found = ", ".join(sorted(copies)) or "none"
            raise PreconditionFailed(f"{whose}: expected a LIVE copy {min(absent)}, found {found}")
        left = set(copies) - self.remove
        if not left:
            return Ending.COMPOUND if len(self.remove) + len(self.pass_over) > 1 else Ending.LAST_COPY
        if CopyKind.LEDGER not in left:
            raise PreconditionFailed(
                f"{whose}: expected its primary copy or all copies to stay or go, found that the tiered one alone would"
                " stay: `sexton topic offload --delete-primary` looks first whether storage holds it"
            )
        if self.pass_over:
            raise PreconditionFailed(
                f"{whose}: expected an end of the ledger for {', '.join(sorted(self.pass_over))} to be passed over,"
                f" found that {', '.join(sorted(left))} stays"
            )
        return None
