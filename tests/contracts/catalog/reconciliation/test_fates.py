"""Decisions and fates of an apply: stored with the change that they decide, once for each finding."""

import pytest

from logstore.errors import UnknownObject
from logstore.failpoints import SimulatedCrash, arm
from logstore.ports.catalog.reconciliation import RunKind, SingleObjectAnswers
from logstore.reconciliation.findings import FateOfFinding, FindingFate
from tests.contracts.catalog.reconciliation.steps import APPLY_RUN, file, intents, lost, open_apply, orphan
from tests.contracts.catalog.sql_world import SqlWorld
from tests.contracts.catalog.steps import filled, new_topic, race
from tests.contracts.catalog.world import CAUSE, World, claim

pytestmark = pytest.mark.postgres


def _deleted(number: int, *, objects: int = 0, size_bytes: int = 0) -> FateOfFinding:
    return FateOfFinding(number=number, fate=FindingFate.DELETED, objects=objects, size_bytes=size_bytes)


def _kept(number: int, reason: str) -> FateOfFinding:
    return FateOfFinding(number=number, fate=FindingFate.KEPT, reason=reason)


def _answers(world: World, *, kept: str = "it is young") -> SingleObjectAnswers:
    """A segment to delete, an upload to abort, and an object that storage says to keep."""
    (ledger,) = filled(world, new_topic(world).topic_id, 1)
    return SingleObjectAnswers(segments={3: (ledger, 7)}, uploads=frozenset({1}), kept={2: kept})


def test_filing_stores_a_decision_about_each_finding(world: World) -> None:
    topic, gone = new_topic(world), lost(world)
    (live,) = filled(world, topic.topic_id, 1)
    asked = [orphan(topic, gone, number=1), orphan(topic, live, number=4)]
    filing = file(world, orphans=asked, stalled={3: 10**9}, kept={0: "it is young"})
    fates = world.catalog.reconciliation.read_fates(f"{APPLY_RUN}-apply", 0)
    assert list(fates) == [0, 1, 3, 4]
    assert (fates[0], fates[1]) == (_kept(0, "it is young"), None)
    assert filing.kept == {number: fate.reason for number, fate in fates.items() if fate}
    assert "a workflow works on it" in filing.kept[3]
    assert world.catalog.reconciliation.find_filed_batch("apply") == filing.detached


def test_filing_that_is_repeated_with_other_answers_returns_the_first_result(world: World) -> None:
    """Phase two may have deleted the copy meanwhile, so that storage shows nothing of it any more."""
    topic, gone = new_topic(world), lost(world)
    first = file(world, orphans=[orphan(topic, gone)])
    before = world.everything()
    assert file(world, kept={0: "storage shows none of it"}) == first
    assert world.everything() == before
    assert first.detached.intents == 1


@pytest.mark.parametrize("moment", ["before", "after"])
def test_decisions_and_intents_are_stored_together(world: World, moment: str) -> None:
    topic, gone = new_topic(world), lost(world)
    arm(f"catalog.file_findings.{moment}", "crash")
    with pytest.raises(SimulatedCrash):
        file(world, orphans=[orphan(topic, gone)])
    fates = world.catalog.reconciliation.read_fates(f"{APPLY_RUN}-apply", 0)
    assert (len(fates), len(intents(world, gone))) == ((0, 0) if moment == "before" else (1, 1))


@pytest.mark.parametrize("moment", ["before", "after"])
def test_decisions_and_numbers_that_are_passed_over_are_stored_together(world: World, moment: str) -> None:
    answers = _answers(world)
    open_apply(world)
    arm(f"catalog.decide_objects.{moment}", "crash")
    with pytest.raises(SimulatedCrash):
        world.catalog.reconciliation.decide_single_objects(APPLY_RUN, 5, answers, cause=CAUSE)
    fates = world.catalog.reconciliation.read_fates(APPLY_RUN, 5)
    assert (len(fates), len(world.audited("pass-over-segments"))) == ((0, 0) if moment == "before" else (3, 1))


def test_first_decision_about_single_objects_counts(world: World) -> None:
    """A later attempt may find less in storage: what the first one has left of it."""
    answers = _answers(world)
    open_apply(world)
    decide = world.catalog.reconciliation.decide_single_objects
    first = decide(APPLY_RUN, 5, answers, cause=CAUSE)
    assert first == {1: None, 2: _kept(2, "it is young"), 3: None}
    late = SingleObjectAnswers(segments={}, uploads=frozenset(), kept=dict.fromkeys((1, 2, 3), "gone"))
    assert decide(APPLY_RUN, 5, late, cause=CAUSE) == first
    assert decide(APPLY_RUN, 5, answers, cause=CAUSE) == first
    assert len(world.audited("pass-over-segments")) == 1
    assert world.catalog.reconciliation.read_fates(APPLY_RUN, 6) == {}


def test_attempts_that_decide_at_once_agree(world: World) -> None:
    """All of them delete what one of them has decided to delete."""
    answers = _answers(world)
    open_apply(world)
    late = SingleObjectAnswers(segments={}, uploads=frozenset(), kept=dict.fromkeys((1, 2, 3), "gone"))

    def decide(runner: int) -> object:
        asked = late if runner % 2 else answers
        return dict(world.catalog.reconciliation.decide_single_objects(APPLY_RUN, 5, asked, cause=CAUSE))

    decisions = race(decide, 8)
    assert decisions == [decisions[0]] * 8
    assert len(world.audited("pass-over-segments")) <= 1


def test_fates_of_findings_to_remove_are_replaced_and_reasons_to_keep_stay(world: World) -> None:
    answers = _answers(world)
    open_apply(world)
    runs = world.catalog.reconciliation
    runs.decide_single_objects(APPLY_RUN, 5, answers, cause=CAUSE)
    failed = FateOfFinding(number=3, fate=FindingFate.FAILED, reason="InternalError")
    runs.store_fates(APPLY_RUN, 5, [failed, _deleted(1), _deleted(2), _deleted(9)])
    assert runs.read_fates(APPLY_RUN, 5) == {1: _deleted(1), 2: _kept(2, "it is young"), 3: failed}
    for _ in range(2):
        runs.store_fates(APPLY_RUN, 5, [_deleted(3, objects=1, size_bytes=9)])
    assert runs.read_fates(APPLY_RUN, 5)[3] == _deleted(3, objects=1, size_bytes=9)
    runs.store_fates(APPLY_RUN, 5, [])


def test_decisions_leave_the_catalog_with_the_run_of_the_apply(sql_world: SqlWorld) -> None:
    """No later call stores a decision that nobody would remove."""
    answers = _answers(sql_world)
    open_apply(sql_world)
    runs = sql_world.catalog.reconciliation
    runs.decide_single_objects(APPLY_RUN, 5, answers, cause=CAUSE)
    runs.close_run(APPLY_RUN, {})
    assert runs.remove_old_runs(older_than_s=-60, limit=9) == [APPLY_RUN]
    assert sql_world.sql("SELECT count(*) FROM finding_fate") == [(0,)]
    for run_id in (APPLY_RUN, "plan-1"):
        runs.open_run("plan-1", RunKind.PLAN, claim=claim(), summary={})
        with pytest.raises(UnknownObject, match="the run of an apply"):
            runs.decide_single_objects(run_id, 5, answers, cause=CAUSE)
