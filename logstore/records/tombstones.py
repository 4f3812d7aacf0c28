"""When a record's end is durable, what it leaves, and when that may be removed.

Every operation that can end a record asks `end_record`, whichever operation it is: a delete, the removal of the last
copy, a compound operation, or a function of the user's. A durable end leaves a tombstone, a version of the record
without content; a plain one leaves nothing, and an older version may return on a cold start.

Source: Aerospike durable deletes (a write that removes the last bin ends a record as well; the policy is one of each
operation), tomb raider (eligible age). Aerospike's clients end plainly by default for the sake of old servers.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from logstore.errors import InvalidInput, Unsupported


class Ending(StrEnum):
    """The operations that can end a record."""

    DELETE = "delete"  # a ledger or a topic that a command names, forced or not
    LAST_COPY = "last_copy"  # a command removes the copy beside which there was no other
    COMPOUND = "compound"  # one request that changes a record and ends it
    FUNCTION = "function"  # a function over a selection answers None
    RETENTION = "retention"  # limits of time and size of the topic
    EXPIRY = "expiry"  # a newborn ledger, or an upload, that was never completed
    EVICTION = "eviction"  # room is made
    UPKEEP = "upkeep"  # a component's ledger that another one replaced; what a reconciliation found


DURABLE: Final = frozenset({Ending.DELETE, Ending.LAST_COPY, Ending.COMPOUND, Ending.FUNCTION})
"""Those that are durable unless the topic or the command says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What becomes of a record that ends."""

    generation: int  # the record's own and one, whether or not a tombstone says it
    tombstone: bool  # it leaves one; otherwise its row is deleted, and older versions may return


def end_record(ending: Ending | str, *, generation: int, topic: bool | None = None, asked: bool | None = None) -> Ended:
    """Decide how a record ends.

    Args:
        ending: The operation.
        generation: Of the record.
        topic: What the topic's own setting says; None: nothing.
        asked: What the command says; None: nothing. It wins over the topic's setting, and that over the default.

    Raises:
        Unsupported: This build knows no such operation: it does not guess whether that is durable.
    """
    return Ended(generation=generation + 1, tombstone=is_durable(ending, topic=topic, asked=asked))


def is_durable(ending: Ending | str, *, topic: bool | None = None, asked: bool | None = None) -> bool:
    """The policy of `end_record` alone, for statements that end many records of one topic at once; raises as that."""
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
