"""Begin, end and timeout: exactly one decision, and the state of the row says what readers see."""

from contextlib import AbstractContextManager
from dataclasses import replace

import pytest
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, TraceFlags, use_span

from logstore.errors import (
    ClaimHeld,
    TransactionEnded,
    TransactionNotDecided,
    TransactionNotOpen,
    UnknownObject,
)
from logstore.ports.catalog.log import BeginTransactionWrite, EndTransactionResult, EndTransactionWrite
from logstore.ports.catalog.transactions import FinishedTransaction, SettlementReason
from logstore.transactions.transaction_ids_and_states import Participant, TransactionId, TransactionState
from tests.contracts.catalog.steps import at, new_topic, race, roll
from tests.contracts.catalog.transactions.steps import begin, end, one, produce, registration, settle, visible
from tests.contracts.catalog.world import CAUSE, claim
from tests.contracts.catalog.worlds import SqlWorld

pytestmark = pytest.mark.postgres


def test_begin_gives_ids_that_increase_and_are_never_given_again(sql_world: SqlWorld) -> None:
    """Of each coordinator its own, however many begin at once."""
    asked = [BeginTransactionWrite(tc_id=tc, timeout_s=60) for tc in (0, 1, 0)]
    found = [answer.txn for answer in sql_world.catalog.commits.commit_writes(asked)]  # type: ignore[union-attr]
    assert found == [TransactionId(0, 0), TransactionId(1, 0), TransactionId(0, 1)]
    end(sql_world, found[2], commit=False)
    sql_world.catalog.transactions.remove_finished_transactions(older_than_s=-1, limit=10)
    assert begin(sql_world) == TransactionId(0, 2)


def test_messages_of_an_open_transaction_are_hidden_and_what_follows_waits(sql_world: SqlWorld) -> None:
    """Order is kept: an ordinary message behind them is not seen either."""
    topic = new_topic(sql_world)
    produce(sql_world, topic, (None, 2))
    first, second = begin(sql_world), begin(sql_world)
    start = produce(sql_world, topic, (first, 1), (None, 1), (second, 1), (None, 1))
    assert len(visible(sql_world, topic.topic_id)) == 2
    end(sql_world, second, commit=True)
    assert len(visible(sql_world, topic.topic_id)) == 2
    end(sql_world, first, commit=False)
    seen = visible(sql_world, topic.topic_id)
    assert [position.entry_id for position in seen] == [0, 1, 3, 4, 5]
    assert start.entry_id == 2


def test_frontier_before_the_first_entry_of_a_ledger_is_the_end_of_the_one_before(sql_world: SqlWorld) -> None:
    """A position that stands at an entry, in all views."""
    topic = new_topic(sql_world)
    last = produce(sql_world, topic, (None, 3))
    roll(sql_world, topic.topic_id)
    produce(sql_world, topic, (begin(sql_world), 1))
    assert sql_world.catalog.transactions.read_frontier(topic.topic_id).last == at(last.ledger_id, 2)


def test_frontier_of_a_topic_that_begins_with_an_open_transaction_shows_nothing(sql_world: SqlWorld) -> None:
    """Nothing is a position of its own."""
    topic = new_topic(sql_world)
    assert sql_world.catalog.transactions.read_frontier(topic.topic_id).last is None
    produce(sql_world, topic, (begin(sql_world), 1))
    assert sql_world.catalog.transactions.read_frontier(topic.topic_id).last is None


def test_settled_messages_need_the_row_no_more(sql_world: SqlWorld) -> None:
    """A commit's are visible and an abort's are hidden when the transactions are forgotten."""
    topic = new_topic(sql_world)
    kept, gone = begin(sql_world), begin(sql_world)
    produce(sql_world, topic, (kept, 2), (gone, 3), (kept, 1))
    end(sql_world, kept, commit=True)
    end(sql_world, gone, commit=False)
    before = visible(sql_world, topic.topic_id)
    for txn in (gone, kept):
        for _ in range(2):  # an answer may be lost
            assert settle(sql_world, txn, topic) == [txn]
    assert sql_world.catalog.transactions.remove_finished_transactions(older_than_s=-1, limit=10) == 2
    assert visible(sql_world, topic.topic_id) == before
    assert [position.entry_id for position in before] == [0, 1, 5]
    assert not sql_world.sql("SELECT * FROM buffer_range")


def test_markers_are_hidden_from_the_moment_at_which_they_exist(sql_world: SqlWorld) -> None:
    """No reader meets one."""
    topic = new_topic(sql_world)
    produce(sql_world, topic, (None, 4), markers=[1, 3])
    produce(sql_world, topic, (None, 2), markers=[0])
    assert [position.entry_id for position in visible(sql_world, topic.topic_id)] == [0, 2, 5]


def test_append_outside_open_is_refused_and_disturbs_no_other(sql_world: SqlWorld) -> None:
    """Of a transaction that is decided, that timed out and was aborted, or that never was."""
    topic = new_topic(sql_world)
    txn = begin(sql_world)
    end(sql_world, txn, commit=True)
    for refused in (txn, TransactionId(7, 7)):
        answer = one(sql_world, registration(sql_world, topic, [(refused, 1)]))
        assert isinstance(answer, TransactionNotOpen)
        assert answer.txn == str(refused)
    produce(sql_world, topic, (None, 1))
    assert len(visible(sql_world, topic.topic_id)) == 1


def test_end_same_verb_twice_is_answered_twice_and_the_other_is_told(sql_world: SqlWorld) -> None:
    """Commit never becomes an abort in silence, nor the other way."""
    topic = new_topic(sql_world)
    txn = begin(sql_world)
    produce(sql_world, topic, (txn, 1))
    assert end(sql_world, txn, commit=True) is TransactionState.COMMITTING
    assert end(sql_world, txn, commit=True) is TransactionState.COMMITTING
    with pytest.raises(TransactionEnded, match=r"^txn 0:0: abort: .* found COMMITTING$"):
        end(sql_world, txn, commit=False)
    with pytest.raises(UnknownObject, match=r"^txn: "):
        end(sql_world, TransactionId(0, 9), commit=True)


def test_end_of_a_transaction_without_participants_is_final_at_once(sql_world: SqlWorld) -> None:
    """Nobody is to be told."""
    assert end(sql_world, begin(sql_world), commit=True) is TransactionState.COMMITTED
    assert end(sql_world, begin(sql_world), commit=False) is TransactionState.ABORTED


def test_end_two_verbs_in_one_commit_have_one_winner(sql_world: SqlWorld) -> None:
    """In the order in which they queued."""
    txn = begin(sql_world)
    first, second = sql_world.catalog.commits.commit_writes(
        [EndTransactionWrite(txn=txn, commit=False), EndTransactionWrite(txn=txn, commit=True)]
    )
    assert first == EndTransactionResult(state=TransactionState.ABORTED)
    assert isinstance(second, TransactionEnded)


def test_commit_past_its_deadline_is_refused_although_nothing_aborted_it_yet(sql_world: SqlWorld) -> None:
    """The deadline is compared in the deciding statement, by the database's clock."""
    topic = new_topic(sql_world)
    txn = begin(sql_world, timeout_s=0.001)
    late = begin(sql_world, timeout_s=0.001)
    sql_world.sql('UPDATE "transaction" SET deadline_us = 1')
    with pytest.raises(TransactionEnded, match="found OPEN and past its deadline"):
        end(sql_world, txn, commit=True)
    assert sql_world.catalog.transactions.get_transaction(txn).state is TransactionState.OPEN
    assert end(sql_world, late, commit=False) is TransactionState.ABORTED
    del topic


def test_expire_and_commit_have_exactly_one_winner(sql_world: SqlWorld) -> None:
    """Sixteen callers, half of them the timeout's."""
    topic = new_topic(sql_world)
    txn = begin(sql_world)
    produce(sql_world, topic, (txn, 1))

    def work(number: int) -> str:
        if number % 2:
            sql_world.sql('UPDATE "transaction" SET deadline_us = 1')
            return f"expired {sql_world.catalog.transactions.abort_expired_transactions(0, limit=10)}"
        return end(sql_world, txn, commit=True).value

    answers = race(work, runners=16)
    answers.append(work(1))  # each of the others may have found the row locked by a commit that was then refused
    state = sql_world.catalog.transactions.get_transaction(txn)
    if state.timed_out:
        assert state.state is TransactionState.ABORTING
        assert TransactionState.COMMITTING.value not in answers
        assert answers.count("expired 1") == 1
    else:
        assert state.state is TransactionState.COMMITTING
        assert "expired 1" not in answers


def test_expire_leaves_what_is_not_due_and_is_bounded(sql_world: SqlWorld) -> None:
    """A page at a time; what is left is found again."""
    due = [begin(sql_world) for _ in range(3)]
    kept = begin(sql_world, timeout_s=3600)
    sql_world.sql('UPDATE "transaction" SET deadline_us = 1 WHERE sequence < 3')
    assert sql_world.catalog.transactions.list_busy_coordinators() == [0]
    assert sql_world.catalog.transactions.abort_expired_transactions(0, limit=2) == 2
    assert sql_world.catalog.transactions.abort_expired_transactions(0, limit=2) == 1
    assert sql_world.catalog.transactions.list_busy_coordinators() == []
    states = sql_world.catalog.transactions.get_transaction_states([*due, kept])
    assert set(states.values()) == {TransactionState.ABORTED, TransactionState.OPEN}
    assert sql_world.catalog.transactions.read_coordinator_work(0).next_deadline_us is not None


def test_claim_takes_each_decided_transaction_once(sql_world: SqlWorld) -> None:
    """Of many workflows one; the same one is given its own again, and what lapsed is free."""
    topic = new_topic(sql_world)
    txns = [begin(sql_world) for _ in range(4)]
    produce(sql_world, topic, *[(txn, 1) for txn in txns])
    for txn in txns[:3]:
        end(sql_world, txn, commit=True)
    took = race(lambda n: sql_world.catalog.transactions.claim_decided_transactions(claim(f"w{n}"), limit=2), runners=4)
    claimed = [found.txn for answer in took if not isinstance(answer, Exception) for found in answer]
    left = sql_world.catalog.transactions.claim_decided_transactions(claim("last"), limit=9)
    assert sorted([*claimed, *(found.txn for found in left)]) == txns[:3]
    sql_world.sql('UPDATE "transaction" SET claim_until_us = 1')
    assert sql_world.catalog.transactions.read_coordinator_work(0).has_unclaimed
    again = sql_world.catalog.transactions.claim_decided_transactions(claim("next"), limit=9)
    assert [found.txn for found in again] == txns[:3]
    assert [str(found.participants[0].participant) for found in again] == [str(topic.topic_id)] * 3


def test_claim_one_is_refused_while_another_works_on_it_or_it_is_open(sql_world: SqlWorld) -> None:
    """A broadcast of one that another is at ends itself."""
    topic = new_topic(sql_world)
    txn = begin(sql_world)
    produce(sql_world, topic, (txn, 1))
    with pytest.raises(TransactionNotDecided):
        sql_world.catalog.transactions.claim_transaction(txn, claim("a"))
    end(sql_world, txn, commit=True)
    sql_world.catalog.transactions.claim_transaction(txn, claim("a"))
    with pytest.raises(ClaimHeld, match=r"found a$"):
        sql_world.catalog.transactions.claim_transaction(txn, claim("b"))
    sql_world.catalog.transactions.hand_over_to_own_workflows(
        {txn: {Participant(topic.topic_id): "no answer"}}, claim_by_transaction={txn: claim("b")}
    )
    found = sql_world.catalog.transactions.claim_transaction(txn, claim("b"))
    assert (found.attempts, found.last_error) == (1, f"{topic.topic_id}: no answer")
    assert found.owed[0].last_error == "no answer"


def test_handed_over_are_those_whose_own_workflow_has_not_begun(sql_world: SqlWorld) -> None:
    """Oldest ids first, so many; a claim names the run that works on it."""
    topic = new_topic(sql_world)
    txns = [begin(sql_world) for _ in range(4)]
    produce(sql_world, topic, *[(txn, 1) for txn in txns])
    for txn in txns:
        end(sql_world, txn, commit=True)
    transactions = sql_world.catalog.transactions
    transactions.claim_decided_transactions(claim("drain"), limit=9)
    given = {txn: replace(claim(f"alone-{txn}"), run_id="") for txn in txns[:3]}
    transactions.hand_over_to_own_workflows(
        {txn: {Participant(topic.topic_id): "away"} for txn in given}, claim_by_transaction=given
    )
    assert transactions.list_handed_over_transactions(limit=2) == txns[:2]
    transactions.claim_transaction(txns[0], claim(f"alone-{txns[0]}"))
    settle(sql_world, txns[1], topic)
    assert transactions.list_handed_over_transactions(limit=9) == [txns[2]]


def test_failures_are_written_to_each_participant_and_owed_is_what_is_left(sql_world: SqlWorld) -> None:
    """An operator sees which topic is owed, and why."""
    first, second = new_topic(sql_world), new_topic(sql_world, "persistent://a/b/other")
    txn = begin(sql_world)
    produce(sql_world, first, (txn, 1))
    produce(sql_world, second, (txn, 1))
    end(sql_world, txn, commit=True)
    sql_world.catalog.transactions.record_participant_errors(txn, {Participant(second.topic_id): "away"})
    assert settle(sql_world, txn, first) == []
    found = sql_world.catalog.transactions.get_transaction(txn)
    assert [(one.topic, one.last_error) for one in found.owed] == [(second.name, "away")]


def test_row_keeps_the_trace_of_its_decision(sql_world: SqlWorld) -> None:
    """Participants are told in the trace of a coordinator, which has what it does for all transactions."""
    topic, traces = new_topic(sql_world), list[str | None]()
    with _traced(1):
        txn = begin(sql_world)
        produce(sql_world, topic, (txn, 1))
    traces.append(sql_world.catalog.transactions.get_transaction(txn).trace_id)
    with _traced(2):
        end(sql_world, txn, commit=True)
    traces.append(sql_world.catalog.transactions.get_transaction(txn).trace_id)
    with _traced(3):
        sql_world.catalog.transactions.claim_transaction(txn, claim("w"))
        settle(sql_world, txn, topic)
    found = sql_world.catalog.transactions.get_transaction(txn)
    assert (found.state, [*traces, found.trace_id]) == (
        TransactionState.COMMITTED,
        [f"{1:032x}", f"{2:032x}", f"{2:032x}"],
    )


def _traced(number: int) -> AbstractContextManager[Span]:
    flags = TraceFlags(TraceFlags.SAMPLED)
    return use_span(NonRecordingSpan(SpanContext(trace_id=number, span_id=1, is_remote=False, trace_flags=flags)))


def test_settle_says_how_long_a_transaction_took_and_says_it_once(sql_world: SqlWorld) -> None:
    """From its decision on; a topic that is told alone settles nothing of the other."""
    first, second = new_topic(sql_world), new_topic(sql_world, "persistent://a/b/other")
    txn = begin(sql_world)
    produce(sql_world, first, (txn, 1))
    produce(sql_world, second, (txn, 1))
    end(sql_world, txn, commit=True)
    sql_world.sql('UPDATE "transaction" SET decided_us = decided_us - 90000000')
    told = [(txn, Participant(topic.topic_id), SettlementReason.MARKED) for topic in (first, second)]
    assert sql_world.catalog.transactions.settle_participants(told[:1]) == []
    left = sql_world.sql("SELECT topic_id FROM buffer_range")
    assert [row[0] for row in left] == [second.topic_id]
    (over,) = sql_world.catalog.transactions.settle_participants(told)
    assert over.txn == txn
    assert 90 <= (over.duration_us or 0) // 1_000_000 < 900
    assert sql_world.catalog.transactions.settle_participants(told) == [FinishedTransaction(txn=txn)]


def test_resolve_counts_a_participant_as_done_and_is_audited_once(sql_world: SqlWorld) -> None:
    """The last one lets the transaction end."""
    topic = new_topic(sql_world)
    txn = begin(sql_world)
    produce(sql_world, topic, (txn, 2))
    with pytest.raises(TransactionNotDecided):
        sql_world.catalog.transactions.settle_untold_participant(txn, Participant(topic.topic_id), CAUSE)
    end(sql_world, txn, commit=False)
    with pytest.raises(UnknownObject, match=f"^participant: expected one of {topic.topic_id}, found '99'$"):
        sql_world.catalog.transactions.settle_untold_participant(txn, Participant.parse("99"), CAUSE)
    for _ in range(2):
        found = sql_world.catalog.transactions.settle_untold_participant(txn, Participant(topic.topic_id), CAUSE)
        assert found.state is TransactionState.ABORTED
    assert len(sql_world.audited("resolve-participant")) == 1
    assert visible(sql_world, topic.topic_id) == []


def test_detach_keeps_ledgers_of_transactions_that_are_not_over(sql_world: SqlWorld) -> None:
    """By retention and by force: nothing of an open one goes, and an aborted one pins nothing once it is settled."""
    topic = new_topic(sql_world)
    txn = begin(sql_world)
    first = produce(sql_world, topic, (txn, 1))
    roll(sql_world, topic.topic_id)
    assert sql_world.phase_one(topic.topic_id).ledgers == 0
    with pytest.raises(Exception, match="messages of a transaction that is not over"):
        sql_world.detach(topic.topic_id, [first.ledger_id])
    end(sql_world, txn, commit=False)
    assert sql_world.phase_one(topic.topic_id).ledgers == 0
    settle(sql_world, txn, topic)
    assert sql_world.phase_one(topic.topic_id).ledgers == 1
    assert not sql_world.sql("SELECT * FROM buffer_hidden")
