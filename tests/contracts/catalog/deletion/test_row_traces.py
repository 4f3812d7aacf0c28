"""Rows of deletions and of the audit log name the trace of the act that wrote them."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from logstore.deletion.intents import Outcome
from logstore.ports.catalog.deletion import IntentResult, IntentRowRange
from tests.contracts.catalog.steps import filled, new_topic
from tests.contracts.catalog.worlds import CAUSE, World, claim

_ALL = IntentRowRange(first=0, last=2**62, rows=0)


@contextmanager
def traced(number: int) -> Iterator[str]:
    """Work in a trace of that number; its id as rows have it."""
    context = SpanContext(trace_id=number, span_id=1, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
    with trace.use_span(NonRecordingSpan(context)):
        yield f"{number:032x}"


def _trace_of(world: World, row_id: int) -> str | None:
    return next(one.trace_id for one in world.catalog.deletions.list_intents(None, limit=99) if one.row_id == row_id)


def test_an_intent_names_the_trace_of_its_detach_and_then_of_each_attempt(world: World) -> None:
    """Whoever looks at a row that does not end finds the spans of its last attempt."""
    topic, deletions = new_topic(world), world.catalog.deletions
    filled(world, topic.topic_id, 4)
    with traced(1) as detached:
        world.phase_one(topic.topic_id, batch_id="b")
    first, second, third = deletions.list_intents_in_range("b", _ALL)
    assert {first.trace_id, second.trace_id, third.trace_id} == {detached}
    with traced(2) as batch:
        deletions.move_to_own_workflows(
            {first.row_id: "alone"}, batch_id="b", error_by_row={first.row_id: "503"}, ttl_s=60
        )
        deletions.record_outcomes([IntentResult(row_id=second.row_id, outcome=Outcome.DELETED)], holder="b")
    assert [_trace_of(world, one.row_id) for one in (first, second, third)] == [batch, batch, detached]
    with traced(3) as alone:
        taken = deletions.claim_intent(first.ledger_id, first.copy, first.generation, claim("alone"))
        assert taken.trace_id == alone
        deletions.record_attempt_and_extend_claim(first.row_id, claim("alone"), error="503")
    assert _trace_of(world, first.row_id) == alone
    with traced(4) as given_up:
        deletions.record_outcomes(
            [IntentResult(row_id=first.row_id, outcome=Outcome.DEAD_LETTERED, error="503")], holder="alone"
        )
    assert _trace_of(world, first.row_id) == given_up
    with traced(5) as redriven:
        world.catalog.upkeep.redrive_dead_letters([first.row_id], batch_id="again", claim=claim("again"), cause=CAUSE)
    assert _trace_of(world, first.row_id) == redriven


def test_a_row_of_work_that_is_not_traced_names_no_trace(world: World) -> None:
    """Nor does it keep the name of an earlier trace, in which its last attempt is not to be found."""
    topic, deletions = new_topic(world), world.catalog.deletions
    filled(world, topic.topic_id, 2)
    with traced(1):
        world.phase_one(topic.topic_id, batch_id="b")
    (first,) = deletions.list_intents_in_range("b", _ALL)
    deletions.record_outcomes([IntentResult(row_id=first.row_id, outcome=Outcome.DELETED)], holder="b")
    assert _trace_of(world, first.row_id) is None


@pytest.mark.sql
def test_a_row_of_the_audit_log_names_the_trace_of_its_act(world: World) -> None:
    """The decision's own trace stays findable when later attempts have others."""
    topic = new_topic(world)
    filled(world, topic.topic_id, 2)
    with traced(1) as detached:
        world.phase_one(topic.topic_id, batch_id="b")
    with traced(2) as closed:
        world.catalog.deletions.close_batch("b", CAUSE)
    world.catalog.audit_log.record_act("unload", CAUSE, detail={"bundle": "b"})
    assert [row.detail["trace_id"] for act in ("detach", "delete-ledgers") for row in world.audited(act)] == [
        detached,
        closed,
    ]
    assert [dict(row.detail) for row in world.audited("unload")] == [{"bundle": "b"}]
