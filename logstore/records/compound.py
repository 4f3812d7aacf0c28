"""Compound operations: several changes of one ledger's record, made together or not at all, which may end it.

A record of a ledger consists of its copies, as a record of Aerospike consists of bins. An operation takes copies away;
once none is left the record ends, under the policy of the whole operation, which is applied once. It may name the
generation that it expects, and subscriptions that need not have acknowledged the ledger.

Source: Aerospike's `operate` (several operations on one record under one lock; a write that removes the last bin ends
the record, and its policy says whether that is durable; the generation is compared first).
"""

from collections.abc import Collection
from dataclasses import dataclass

from logstore.errors import InvalidInput, PreconditionFailed
from logstore.log.ledgers import CopyKind
from logstore.positions import LedgerId
from logstore.records.tombstones import Ending


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
                not asked for: a tiered copy alone, of which nobody has seen that storage holds it.
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
