"""Which ledgers may be deleted: the whole rule of phase one, as pure functions of one locked view.

The set that retention detaches is always a prefix of the list (apache/pulsar#20898): the walk stops at the
first ledger that must stay.

Source: Pulsar's retention policy (a limit of time, a limit of size, either of them reached lets go).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from logstore.errors import InvalidInput, LedgerStillNeeded
from logstore.log.ledgers import LedgerState
from logstore.positions import LedgerId, Position

MAX_RETENTION_S = 100 * 366 * 86_400
"""The longest retention: what is not asked to go stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    """How long consumed ledgers stay, and how many bytes of them: past either limit one may go.

    No time (0) and no bytes (none): it may go at once. No bytes at all (0) lets it go too, whatever the time says.
    """

    retention_s: int = 0  # seconds since the ledger was closed; 0: no limit of time
    retention_bytes: int | None = None  # newest bytes to keep; None: no limit of size

    def __post_init__(self) -> None:
        if not 0 <= self.retention_s <= MAX_RETENTION_S:
            raise InvalidInput("retention", expected="a duration of 0s to 100 years", found=self.retention_s)
        if self.retention_bytes is not None and not 0 <= self.retention_bytes < 2**63:
            raise InvalidInput("retention_bytes", expected="0 to 2**63 - 1", found=self.retention_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerFacts:
    """What the rule looks at, of one listed ledger."""

    ledger_id: LedgerId
    state: LedgerState
    entries: int
    size_bytes: int
    closed_us: int | None
    is_offloading: bool = False  # a copy of it is being written
    has_open_transaction: bool = False  # it has messages of a transaction whose end is not in the log yet


def detachable_prefix(
    ledgers: Iterable[LedgerFacts],
    *,
    marks: Mapping[str, Position],
    policy: RetentionPolicy,
    total_bytes: int,
    last: LedgerId,
    now_us: int,
) -> Iterator[LedgerFacts]:
    """Walk the list from its head and yield ledgers while they may be deleted.

    Args:
        ledgers: The listed ledgers, ascending by ledger id; drawn no further than needed.
        marks: Mark-delete position of every subscription.
        policy: The topic's limits.
        total_bytes: Size of all listed ledgers.
        last: The list's last ledger, which always stays.
        now_us: The catalog's clock.
    """
    left = total_bytes
    for ledger in ledgers:
        left -= ledger.size_bytes
        if reason_to_keep(ledger, last=last, marks=marks) or not _outlived(ledger, policy, left, now_us):
            return
        yield ledger


def simulate_roll(ledger: LedgerFacts, now_us: int) -> LedgerFacts:
    """Return the facts of an open ledger as they are once a roll has closed it; those of any other are unchanged."""
    if ledger.state is not LedgerState.OPEN:
        return ledger
    return replace(ledger, state=LedgerState.CLOSED, closed_us=now_us)


def reason_to_keep(ledger: LedgerFacts, *, last: LedgerId, marks: Mapping[str, Position]) -> str | None:
    """Why the ledger is needed whatever the limits say, or None."""
    if ledger.state is not LedgerState.CLOSED:
        return f"it is {ledger.state.value}"
    if ledger.ledger_id == last:
        return "it is the last of its list"
    if ledger.is_offloading:
        return "a copy of it is being written"
    if ledger.has_open_transaction:
        return "it has messages of a transaction that is not over"
    end = Position(ledger.ledger_id, ledger.entries - 1)
    behind = sorted(name for name, mark in marks.items() if ledger.entries and mark < end)
    if not behind:
        return None
    more = f" and {len(behind) - 3} more" if len(behind) > 3 else ""
    return f"not all of it is acknowledged by {', '.join(behind[:3])}{more}"


def require_unneeded(
    topic: str, ledgers: Iterable[LedgerFacts], *, last: LedgerId, marks: Mapping[str, Position]
) -> None:
    """Refuse all of the ledgers if one of them is needed; see `reason_to_keep`.

    Raises:
        LedgerStillNeeded: Names the first five, and how many more there are.
    """
    found = [(ledger.ledger_id, reason_to_keep(ledger, last=last, marks=marks)) for ledger in ledgers]
    needed = [f"ledger {ledger_id}: {reason}" for ledger_id, reason in found if reason]
    if needed:
        more = f"; and {len(needed) - 5} more" if len(needed) > 5 else ""
        raise LedgerStillNeeded(f"topic {topic}: {'; '.join(needed[:5])}{more}")


def _outlived(ledger: LedgerFacts, policy: RetentionPolicy, newer_bytes: int, now_us: int) -> bool:
    age_us = now_us - (ledger.closed_us if ledger.closed_us is not None else now_us)
    too_old = policy.retention_s > 0 and age_us >= policy.retention_s * 1_000_000
    too_much = policy.retention_bytes is not None and newer_bytes >= policy.retention_bytes
    nothing_kept = policy.retention_s == 0 and policy.retention_bytes is None
    return nothing_kept or too_old or too_much
