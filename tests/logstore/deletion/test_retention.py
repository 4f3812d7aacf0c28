"""Which ledgers retention lets go."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.deletion.retention import LedgerFacts, RetentionPolicy, reason_to_keep, select_detachable_prefix
from logstore.errors import InvalidInput
from logstore.log.ledgers import LedgerState
from logstore.positions import LedgerId, Position

_NOW = 1_000_000_000_000


@st.composite
def _lists(draw: st.DrawFn) -> list[LedgerFacts]:
    """A ledger list: all but perhaps the last closed, ids ascending from 0."""
    count = draw(st.integers(1, 6))
    return [
        LedgerFacts(
            ledger_id=LedgerId(at),
            state=draw(st.sampled_from([LedgerState.CLOSED] * 5 + [LedgerState.OPEN])),
            entries=draw(st.integers(0, 3)),
            size_bytes=draw(st.integers(0, 100)),
            closed_us=draw(st.none() | st.integers(_NOW - 10_000_000, _NOW)),
            is_offloading=draw(st.integers(0, 9)) == 0,
        )
        for at in range(count)
    ]


_POLICIES = st.builds(RetentionPolicy, retention_s=st.integers(0, 8), retention_bytes=st.none() | st.integers(0, 300))
_MARKS = st.dictionaries(
    st.sampled_from(["a", "b", "c"]),
    st.builds(Position, st.integers(0, 6).map(LedgerId), st.integers(-1, 3)),
)


def _let_go(
    ledgers: list[LedgerFacts], marks: dict[str, Position], policy: RetentionPolicy, now_us: int = _NOW
) -> list[LedgerFacts]:
    total = sum(ledger.size_bytes for ledger in ledgers)
    last = ledgers[-1].ledger_id
    return list(
        select_detachable_prefix(
            ledgers, mark_delete_by_subscription=marks, policy=policy, total_bytes=total, last=last, now_us=now_us
        )
    )


@given(_lists(), _MARKS, _POLICIES)
def test_retention_set_is_a_prefix_and_holds_nothing_needed(
    ledgers: list[LedgerFacts], marks: dict[str, Position], policy: RetentionPolicy
) -> None:
    """Never a hole, never anything unread, open, offloading, and never the last (apache/pulsar#20898, #13219)."""
    gone = _let_go(ledgers, marks, policy)
    assert gone == ledgers[: len(gone)]
    assert ledgers[-1] not in gone
    for ledger in gone:
        assert ledger.state is LedgerState.CLOSED
        assert not ledger.is_offloading
        assert all(
            mark >= Position(ledger.ledger_id, entry) for mark in marks.values() for entry in range(ledger.entries)
        )


@given(_lists(), _MARKS, _POLICIES)
def test_retention_keeps_the_newest_bytes_and_seconds_it_promises(
    ledgers: list[LedgerFacts], marks: dict[str, Position], policy: RetentionPolicy
) -> None:
    """A ledger goes only when one of the limits is passed, or when there is none."""
    for ledger in _let_go(ledgers, marks, policy):
        newer = sum(other.size_bytes for other in ledgers if other.ledger_id > ledger.ledger_id)
        age_us = _NOW - (ledger.closed_us if ledger.closed_us is not None else _NOW)
        by_time = policy.retention_s > 0 and age_us >= policy.retention_s * 1_000_000
        by_size = policy.retention_bytes is not None and newer >= policy.retention_bytes
        assert by_time or by_size or (policy.retention_s == 0 and policy.retention_bytes is None)


def _closed(ledger_id: int, *, entries: int = 3, size_bytes: int = 10, age_s: int = 5) -> LedgerFacts:
    return LedgerFacts(
        ledger_id=LedgerId(ledger_id),
        state=LedgerState.CLOSED,
        entries=entries,
        size_bytes=size_bytes,
        closed_us=_NOW - age_s * 1_000_000,
    )


def test_retention_consumed_ledgers_of_an_idle_topic_go() -> None:
    """Mark-delete that rests on a ledger's last entry frees it, with no traffic behind it (apache/pulsar#9136)."""
    ledgers = [_closed(0), _closed(1), _closed(2, entries=0)]
    assert _let_go(ledgers, {"s": Position(LedgerId(1), 2)}, RetentionPolicy()) == ledgers[:2]


def test_retention_topic_without_subscriptions_lets_all_but_the_last_go() -> None:
    """Nobody reads, nothing is kept but what the limits ask for."""
    ledgers = [_closed(0), _closed(1)]
    assert _let_go(ledgers, {}, RetentionPolicy()) == ledgers[:1]


def test_retention_empty_ledger_is_not_unread_by_a_cursor_before_it() -> None:
    """A ledger without entries waits for nobody."""
    assert _let_go([_closed(0, entries=0), _closed(1)], {"s": Position(LedgerId(-1), -1)}, RetentionPolicy())


@pytest.mark.parametrize(
    ("policy", "kept"),
    [
        (RetentionPolicy(retention_s=5), 1),
        (RetentionPolicy(retention_s=6), 3),
        (RetentionPolicy(retention_bytes=0), 1),
        (RetentionPolicy(retention_bytes=10), 1),
        (RetentionPolicy(retention_bytes=11), 2),
        (RetentionPolicy(retention_s=6, retention_bytes=10), 1),
    ],
)
def test_retention_limits_are_inclusive_and_either_lets_go(policy: RetentionPolicy, kept: int) -> None:
    """As in Pulsar: whichever limit is passed first lets go."""
    ledgers = [_closed(0), _closed(1), _closed(2)]
    assert len(ledgers) - len(_let_go(ledgers, {}, policy)) == kept


def test_retention_stops_at_the_first_ledger_that_stays() -> None:
    """What lies behind it stays too, however old and acknowledged it is: what goes is a prefix, and nothing else."""
    needed = replace(_closed(1), is_offloading=True)
    gone = select_detachable_prefix(
        [_closed(0), needed, _closed(2), _closed(3)],
        mark_delete_by_subscription={"s": Position(LedgerId(3), 2)},
        policy=RetentionPolicy(),
        total_bytes=40,
        last=LedgerId(3),
        now_us=_NOW,
    )
    assert [ledger.ledger_id for ledger in gone] == [0]


def test_retention_draws_no_more_of_the_list_than_it_lets_go() -> None:
    """The walk stops at the first ledger that stays, so a long list costs its deletable head."""
    drawn = []

    def endless() -> Iterator[LedgerFacts]:
        for number in range(10**9):
            drawn.append(number)
            yield _closed(number)

    gone = select_detachable_prefix(
        endless(),
        mark_delete_by_subscription={"s": Position(LedgerId(1), 2)},
        policy=RetentionPolicy(),
        total_bytes=10**10,
        last=LedgerId(10**9),
        now_us=_NOW,
    )
    assert [ledger.ledger_id for ledger in gone] == [0, 1]
    assert drawn == [0, 1, 2]


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (LedgerFacts(ledger_id=LedgerId(0), state=LedgerState.OPEN, entries=0, size_bytes=0, closed_us=None), "OPEN"),
        (
            LedgerFacts(
                ledger_id=LedgerId(0),
                state=LedgerState.CLOSED,
                entries=0,
                size_bytes=0,
                closed_us=1,
                is_offloading=True,
            ),
            "a copy of it is being written",
        ),
        (_closed(9), "last of its list"),
        (_closed(0), "not all of it is acknowledged by a, b, c and 1 more"),
    ],
)
def test_retention_reason_to_keep_names_what_needs_the_ledger(facts: LedgerFacts, reason: str) -> None:
    """The operator reads why, and who."""
    marks = {name: Position(LedgerId(0), 1) for name in "dcba"}
    assert reason in (reason_to_keep(facts, last=LedgerId(9), mark_delete_by_subscription=marks) or "")


@pytest.mark.parametrize("limits", [{"retention_s": -1}, {"retention_bytes": -1}])
def test_retention_policy_below_zero_is_refused(limits: dict[str, int]) -> None:
    """A negative limit means nothing."""
    with pytest.raises(InvalidInput, match=r"^retention"):
        RetentionPolicy(**limits)
