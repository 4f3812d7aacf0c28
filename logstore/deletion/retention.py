"""Rule of phase one that selects the ledgers to detach, as pure functions.

Retention always detaches a prefix of the list (apache/pulsar#20898). Source: Pulsar's retention policy.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from logstore.errors import InvalidInput, LedgerStillNeeded
from logstore.log.ledgers import LedgerState
from logstore.positions import LedgerId, Position

MAX_RETENTION_S = 100 * 366 * 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    """Limits for acknowledged ledgers. A ledger past one limit may be deleted. Without limits, all may be deleted."""

    retention_s: int = 0  # since the ledger was closed; 0: no limit of time
    retention_bytes: int | None = None  # newest bytes to keep; None: no limit of size, 0: keep nothing

    def __post_init__(self) -> None:
        if not 0 <= self.retention_s <= MAX_RETENTION_S:
            raise InvalidInput("retention", expected="a duration of 0s to 100 years", found=self.retention_s)
        if self.retention_bytes is not None and not 0 <= self.retention_bytes < 2**63:
            raise InvalidInput("retention_bytes", expected="0 to 2**63 - 1", found=self.retention_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerFacts:
    ledger_id: LedgerId
    state: LedgerState
    entries: int
    size_bytes: int
    closed_us: int | None
    is_offloading: bool = False  # a copy is being written
    has_open_transaction: bool = False  # the end of one of its transactions is not in the log yet


def select_detachable_prefix(
    ledgers: Iterable[LedgerFacts],
    *,
    mark_delete_by_subscription: Mapping[str, Position],
    policy: RetentionPolicy,
    total_bytes: int,
    last: LedgerId,
    now_us: int,
) -> Iterator[LedgerFacts]:
    """Yield the ledgers of the list that come before the first ledger that must stay.

    `ledgers` are the listed ledgers. They must ascend by id. Reading stops at the first ledger that must stay. `last`
    is the last ledger of the list, which always stays. `total_bytes` is the size of all listed ledgers. `now_us` is the
    time of the catalog's clock.
    """
    remaining_bytes = total_bytes
    for ledger in ledgers:
        remaining_bytes -= ledger.size_bytes
        if reason_to_keep(
            ledger, last=last, mark_delete_by_subscription=mark_delete_by_subscription
        ) or not _is_past_retention_limits(ledger, policy, remaining_bytes, now_us):
            return
        yield ledger


def simulate_roll(ledger: LedgerFacts, now_us: int) -> LedgerFacts:
    """Return the facts of an open ledger after a roll now. If the ledger is not open, return its facts unchanged."""
    if ledger.state is not LedgerState.OPEN:
        return ledger
    return replace(ledger, state=LedgerState.CLOSED, closed_us=now_us)


def reason_to_keep(
    ledger: LedgerFacts, *, last: LedgerId, mark_delete_by_subscription: Mapping[str, Position]
) -> str | None:
    """Return why the ledger must stay under any retention policy, or `None` if nothing needs the ledger."""
    if ledger.state is not LedgerState.CLOSED:
        return f"it is {ledger.state.value}"
    if ledger.ledger_id == last:
        return "it is the last of its list"
    if ledger.is_offloading:
        return "a copy of it is being written"
    if ledger.has_open_transaction:
        return "it has messages of a transaction that is not over"
    end = Position(ledger.ledger_id, ledger.entries - 1)
    behind = sorted(name for name, mark in mark_delete_by_subscription.items() if ledger.entries and mark < end)
    if not behind:
        return None
    more = f" and {len(behind) - 3} more" if len(behind) > 3 else ""
    return f"not all of it is acknowledged by {', '.join(behind[:3])}{more}"


def require_unneeded_ledgers(
    topic: str, ledgers: Iterable[LedgerFacts], *, last: LedgerId, mark_delete_by_subscription: Mapping[str, Position]
) -> None:
    """Raise `LedgerStillNeeded` if a ledger is needed. The message names up to five needed ledgers."""
    needed = [
        f"ledger {ledger.ledger_id}: {reason}"
        for ledger in ledgers
        if (reason := reason_to_keep(ledger, last=last, mark_delete_by_subscription=mark_delete_by_subscription))
    ]
    if needed:
        more = f"; and {len(needed) - 5} more" if len(needed) > 5 else ""
        raise LedgerStillNeeded(f"topic {topic}: {'; '.join(needed[:5])}{more}")


def _is_past_retention_limits(ledger: LedgerFacts, policy: RetentionPolicy, newer_bytes: int, now_us: int) -> bool:
    age_us = now_us - (ledger.closed_us if ledger.closed_us is not None else now_us)
    is_too_old = policy.retention_s > 0 and age_us >= policy.retention_s * 1_000_000
    is_too_large = policy.retention_bytes is not None and newer_bytes >= policy.retention_bytes
    has_no_limits = policy.retention_s == 0 and policy.retention_bytes is None
    return has_no_limits or is_too_old or is_too_large
