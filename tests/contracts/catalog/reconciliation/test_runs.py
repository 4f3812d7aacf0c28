"""Plans and applies as rows: begun once, finished once, told newest first, forgotten when they are old."""

from collections.abc import Callable

import pytest

from logstore.errors import ClaimHeld, PreconditionFailed, UnknownObject
from logstore.failpoints import arm
from logstore.ports.catalog.reconciliation import ReconciliationRun, RunKind
from tests.contracts.catalog.reconciliation.steps import file
from tests.contracts.catalog.steps import filled, new_topic, newborn, race
from tests.contracts.catalog.worlds import CAUSE, SqlWorld, World, claim

pytestmark = pytest.mark.postgres

_SOON = -60.0  # a minute from now: every run was begun before


def _open(world: World, run_id: str, kind: RunKind = RunKind.PLAN, *, by: str = "w", ttl_s: float = 60) -> object:
    return world.catalog.reconciliation.open_run(
        run_id, kind, claim=claim(by, ttl_s=ttl_s), summary={"older_than_s": 3600.5, "inventories": ["a"]}
    )


def test_standing_tells_the_catalog_as_a_whole(world: World) -> None:
    """The ids that were given out end below the next; the clock is the catalog's own."""
    topic = new_topic(world)
    ids = filled(world, topic.topic_id, 3)
    born = newborn(world, topic.topic_id)
    world.detach(topic.topic_id, ids[:1])
    found = world.catalog.reconciliation.read_catalog_time_and_ids()
    assert (found.epoch, found.next_ledger_id) == (1, born + 1)
    assert abs(found.now_us - world.catalog.offloads.now_us()) < 60_000_000
    counted = [world.catalog.reconciliation.count_ledgers(below=one) for one in (ids[1], ids[2], born, born + 1)]
    assert counted == [0, 1, 2, 3]


def test_run_keeps_what_it_began_with_until_it_is_finished(world: World) -> None:
    """Begun again it is the same run; finished again it stays what it came to first."""
    port = world.catalog.reconciliation
    begun = _open(world, "plan-1")
    assert isinstance(begun, ReconciliationRun)
    assert (begun.run_id, begun.kind, begun.finished_us) == ("plan-1", RunKind.PLAN, None)
    assert begun.summary == {"older_than_s": 3600.5, "inventories": ["a"]}
    assert port.open_run("plan-1", RunKind.PLAN, claim=claim(), summary={"other": 1}) == begun == port.get_run("plan-1")
    port.close_run("plan-1", {"findings": {"orphan_ledger": 3}})
    port.close_run("plan-1", {"findings": {}})
    done = port.get_run("plan-1")
    assert (done.summary, done.created_us) == ({"findings": {"orphan_ledger": 3}}, begun.created_us)
    assert done.finished_us is not None
    assert done.finished_us >= begun.created_us
    assert _open(world, "plan-1", by="another") == done


def test_unfinished_run_gets_another_summary_and_a_finished_one_does_not(world: World) -> None:
    port = world.catalog.reconciliation
    for run_id in ("plan-1", "plan-2"):
        _open(world, run_id)
    port.store_summary("plan-1", {"left": 2})
    assert (port.get_run("plan-1").summary, port.get_run("plan-1").finished_us) == ({"left": 2}, None)
    assert port.get_run("plan-2").summary == {"older_than_s": 3600.5, "inventories": ["a"]}
    port.close_run("plan-1", {"left": 0})
    port.store_summary("plan-1", {"left": 2})
    assert port.get_run("plan-1").summary == {"left": 0}
    with pytest.raises(UnknownObject, match="run id"):
        port.store_summary("nothing", {})


def test_run_is_held_by_one_workflow_at_a_time(world: World) -> None:
    """Its claim is renewed as any batch's; one that has lapsed is taken up."""
    _open(world, "plan-1", by="one")
    with pytest.raises(ClaimHeld, match="found one"):
        _open(world, "plan-1", by="two")
    world.lapse("plan-1")
    _open(world, "plan-1", by="two")
    with pytest.raises(ClaimHeld, match="found two"):
        _open(world, "plan-1", by="one")
    world.lapse("plan-1")
    world.catalog.deletions.renew_batch_claim("plan-1", claim("one"))
    with pytest.raises(ClaimHeld, match="found one"):
        _open(world, "plan-1", by="two")


def test_run_of_another_kind_or_unknown_is_refused_by_name(world: World) -> None:
    """A plan is no apply, and a batch of phase two is neither."""
    port = world.catalog.reconciliation
    _open(world, "plan-1")
    file(world, "batch-1")
    with pytest.raises(PreconditionFailed, match="run plan-1: expected one of apply-orphans, found one of reconcile"):
        _open(world, "plan-1", RunKind.APPLY)
    with pytest.raises(PreconditionFailed, match="run batch-1: expected one of reconcile-orphans, found one of delete"):
        _open(world, "batch-1")
    with pytest.raises(PreconditionFailed, match="batch plan-1: expected a name never used"):
        file(world, "plan-1")
    for unknown in ("batch-1", "nothing"):
        told = f"run id: expected that of a plan or an apply, as `orphans list` shows it, found '{unknown}'"
        with pytest.raises(UnknownObject, match=told):
            port.get_run(unknown)
        with pytest.raises(UnknownObject, match="run id"):
            port.close_run(unknown, {})


def test_runs_are_told_by_kind_newest_first(world: World) -> None:
    """Finished or not, as many as are asked for."""
    for run_id in ("b", "a", "c"):
        _open(world, run_id)
    _open(world, "apply", RunKind.APPLY)
    world.catalog.reconciliation.close_run("a", {})
    found = [one.run_id for one in world.catalog.reconciliation.list_runs(RunKind.PLAN, limit=9)]
    assert sorted(found) == ["a", "b", "c"]
    stamps = [one.created_us for one in world.catalog.reconciliation.list_runs(RunKind.PLAN, limit=9)]
    assert stamps == sorted(stamps, reverse=True)
    assert [one.run_id for one in world.catalog.reconciliation.list_runs(RunKind.PLAN, limit=2)] == found[:2]
    assert [one.run_id for one in world.catalog.reconciliation.list_runs(RunKind.APPLY, limit=9)] == ["apply"]


def test_forget_removes_old_runs_but_those_at_work_and_the_newest_finished_plan(world: World) -> None:
    """One whose workflow vanished goes too; batches of phase two are for the sweep to forget."""
    port = world.catalog.reconciliation
    for run_id in ("a-old", "b-newest"):
        _open(world, run_id)
        port.close_run(run_id, {})
    _open(world, "c-vanished", ttl_s=-1)
    _open(world, "d-at-work")
    _open(world, "e-apply", RunKind.APPLY)
    port.close_run("e-apply", {})
    file(world, "batch-1")
    world.lapse("batch-1")
    assert port.remove_old_runs(older_than_s=3_600, limit=9) == []
    newest = port.list_runs(RunKind.PLAN, limit=9)
    kept = next(one.run_id for one in newest if one.finished_us is not None)
    gone = {"a-old", "b-newest", "c-vanished", "e-apply"} - {kept}
    first = port.remove_old_runs(older_than_s=_SOON, limit=2)
    assert len(first) == 2
    assert {*first, *port.remove_old_runs(older_than_s=_SOON, limit=9)} == gone
    assert port.remove_old_runs(older_than_s=_SOON, limit=9) == []
    assert world.rows().runs == sorted({"apply-plan-1-batch-1", "batch-1", "d-at-work", kept})


def test_age_of_a_run_counts_from_its_last_work(sql_world: SqlWorld) -> None:
    """Its undo needs the journal of an apply that began long ago and has just ended, or lost its claim."""
    port = sql_world.catalog.reconciliation
    for run_id, ttl_s in (("ended", 60.0), ("lapsed", -1.0)):
        _open(sql_world, run_id, RunKind.APPLY, ttl_s=ttl_s)
    port.close_run("ended", {})
    sql_world.sql("UPDATE run SET created_us = 1")
    assert port.remove_old_runs(older_than_s=3_600, limit=9) == []
    sql_world.sql("UPDATE run SET finished_us = 1 WHERE finished_us IS NOT NULL")
    assert port.remove_old_runs(older_than_s=3_600, limit=9) == ["ended"]
    sql_world.lapse("lapsed")
    assert port.remove_old_runs(older_than_s=3_600, limit=9) == ["lapsed"]


def test_forget_keeps_the_newest_finished_plan_of_each_kind(world: World) -> None:
    """A plan of a cluster takes no place of one of the own store, nor the other way round."""
    port = world.catalog.reconciliation
    for run_id, kind in (
        ("plan-1", RunKind.PLAN),
        ("pulsar-1", RunKind.CLUSTER_PLAN),
        ("pulsar-2", RunKind.CLUSTER_PLAN),
    ):
        _open(world, run_id, kind)
        port.close_run(run_id, {})
    (kept,) = port.list_runs(RunKind.CLUSTER_PLAN, limit=1)
    assert {*port.remove_old_runs(older_than_s=_SOON, limit=9)} == {"pulsar-1", "pulsar-2"} - {kept.run_id}
    assert [run.run_id for run in port.list_runs(RunKind.PLAN, limit=9)] == ["plan-1"]


def test_forget_leaves_a_plan_while_its_apply_is_at_work(world: World) -> None:
    """A slow apply outlives the retention of its plan; without the plan and its findings it could not go on."""
    port = world.catalog.reconciliation
    for run_id in ("a-applied", "b-newest"):
        _open(world, run_id)
        port.close_run(run_id, {})
    _open(world, "apply-a-applied", RunKind.APPLY)
    newest = port.list_runs(RunKind.PLAN, limit=1)[0].run_id
    assert port.remove_old_runs(older_than_s=_SOON, limit=9) == []
    port.close_run("apply-a-applied", {})
    assert {*port.remove_old_runs(older_than_s=_SOON, limit=9)} == {"a-applied", "b-newest", "apply-a-applied"} - {
        newest
    }


def test_sweep_forgets_no_plan_and_no_apply(world: World) -> None:
    """They have no rows of their own, as batches that are over have none."""
    _open(world, "plan-1")
    world.catalog.reconciliation.close_run("plan-1", {})
    _open(world, "apply-1", RunKind.APPLY, ttl_s=-1)
    world.end_earlier(days=400)
    assert world.catalog.upkeep.count_sweep_backlog(older_than_s=0).runs == 0
    assert world.catalog.upkeep.remove_finished_rows(older_than_s=0, limit=9, cause=CAUSE).runs == 0
    assert world.rows().runs == ["apply-1", "plan-1"]


def test_run_opened_by_many_at_once_is_one(world: World) -> None:
    """One workflow gets it; the others are told whose it is."""
    done = race(lambda number: _open(world, "plan-1", by=f"w-{number}"), 6)
    assert sum(isinstance(one, ReconciliationRun) for one in done) == 1
    assert sum(isinstance(one, ClaimHeld) for one in done) == 5


@pytest.mark.parametrize("point", ["before=crash", "after=crash", "reported_failed=fail"])
@pytest.mark.parametrize("effect", ["open_run", "close_run", "forget_runs"])
def test_step_of_a_run_interrupted_and_repeated_is_done_once(world: World, effect: str, point: str) -> None:
    """Killed before, killed after, or done and reported as failed."""
    port = world.catalog.reconciliation
    steps: dict[str, Callable[[], object]] = {
        "open_run": lambda: _open(world, "plan-1", RunKind.APPLY, ttl_s=-1),
        "close_run": lambda: port.close_run("plan-1", {"done": 1}),
        "forget_runs": lambda: port.remove_old_runs(older_than_s=_SOON, limit=9),
    }
    for name, step in steps.items():
        if name == effect:
            moment, action = point.split("=")
            arm(f"catalog.{effect}.{moment}", action)
            with pytest.raises(BaseException):  # noqa: B017, PT011 - a crash, or a planned fault
                step()
        step()
    assert world.rows().runs == []
