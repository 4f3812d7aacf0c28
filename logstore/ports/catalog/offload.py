"""Values of the catalog: offload."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from logstore.log.ledgers import LedgerStatement


class OffloadStartOutcome(StrEnum):
    BEGUN = "BEGUN"  # this attempt may write the copy
    ALREADY = "ALREADY"  # a tiered copy is LIVE
    GONE = "GONE"  # the ledger is in no list any more


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadStart:
    answer: OffloadStartOutcome
    statement: LedgerStatement | None = None  # None: the ledger is gone
    entries: int = 0
    context: Mapping[str, str] = field(
        default_factory=dict
    )  # offload context of this attempt's copy or of the LIVE copy


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadableCopies:
    primary: bool
    tiered: Mapping[str, str] | None = None  # offload context of the tiered copy, as stored


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedTieredCopy:
    """LIVE tiered copy, with the statement and the number of entries that storage must have."""

    statement: LedgerStatement
    entries: int
    context: Mapping[str, str]
