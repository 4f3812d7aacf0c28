"""Recurring jobs on a real Temporal: applied once and again, changed, turned off, paused by hand."""

import asyncio
import base64
import secrets
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio import workflow
from temporalio.client import (
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    ScheduleSpec,
)
from temporalio.service import RPCError
from temporalio.worker import Worker

from logstore.errors import InvalidInput
from tests.workflows.workflow_harness import assert_eventually
from workers.client import Sexton
from workers.client.data_converter import encryption_key_name
from workers.client.schedules import AppliedSchedule, require_readable_schedules
from workers.settings import Settings
from workflows.delayed.job_definitions import SealBucketsInput
from workflows.deletion.job_definitions import SweepDeletionsInput, TrimTopicsInput
from workflows.reconciliation.job_definitions import ReconcileOrphansInput
from workflows.records.job_definitions import DefragmentRecordsInput, RaidTombstonesInput, SweepRecordsInput
from workflows.transactions.job_definitions import SweepTransactionsInput

pytestmark = pytest.mark.external_service

_OF_RECORDS = ("sexton-records", "sexton-defragment", "sexton-raid")  # and one more where there are replicas
OURS = ("sexton-sweep", "sexton-trim", "sexton-plan", "sexton-transactions", "sexton-delayed", *_OF_RECORDS)


def with_temporal(settings: Settings, work: Callable[[Sexton], Awaitable[Any]], **changes: object) -> Any:
    """Do some work with settings that differ so."""

    async def connected() -> Any:
        return await work(await Sexton.connect(settings.model_copy(update=changes)))

    return asyncio.run(connected())


def apply(settings: Settings, **changes: object) -> dict[str, str]:
    """What became of each schedule."""

    async def work(sexton: Sexton) -> list[AppliedSchedule]:
        return await sexton.apply_schedules()

    return {one.schedule_id: one.change for one in with_temporal(settings, work, **changes)}


def listed(settings: Settings) -> dict[str, tuple[str, int, bool, bool]]:
    """Workflow, interval, whether it is paused and whether it has a next run, by schedule."""

    async def work(sexton: Sexton) -> dict[str, tuple[str, int, bool, bool]]:
        rows = await sexton.list_schedules()
        return {one.schedule_id: (one.workflow, one.interval_s, one.paused, one.next_run is not None) for one in rows}

    found: dict[str, tuple[str, int, bool, bool]] = with_temporal(settings, work)
    return found


def handle(settings: Settings, schedule_id: str, act: str, **arguments: object) -> Any:
    """One call on a schedule's handle."""

    async def work(sexton: Sexton) -> Any:
        return await getattr(sexton.client.get_schedule_handle(schedule_id), act)(**arguments)

    return with_temporal(settings, work)


@pytest.fixture
def quiet(settings: Settings) -> Iterator[Settings]:
    """Settings of a namespace without schedules; no run of them comes due while a test runs."""
    days = {"sweep_interval": 1, "trim_interval": 2, "plan_interval": 3, "delayed_interval": 4}
    days |= {"defragment_interval": 5, "raid_interval": 6, "replicate_interval": 7, "pulsar_plan_interval": 8}
    slow = settings.model_copy(update={name: 86_400 * count for name, count in days.items()})
    yield slow

    async def forget(sexton: Sexton) -> None:
        for name in (*OURS, "sexton-replicate", "sexton-pulsar", "foreign"):
            with suppress(RPCError):  # not every test makes all of them
                await sexton.client.get_schedule_handle(name).delete()

    with_temporal(slow, forget)


def test_schedules_applied_twice_are_created_and_then_unchanged(quiet: Settings) -> None:
    """Idempotent; a namespace without any lists none."""
    assert listed(quiet) == {}
    assert apply(quiet) == dict.fromkeys(OURS, "created")
    assert apply(quiet) == dict.fromkeys(OURS, "unchanged")
    assert listed(quiet) == {
        "sexton-sweep": ("sweep-deletions", 86_400, False, True),
        "sexton-trim": ("trim-topics", 172_800, False, True),
        "sexton-plan": ("reconcile-orphans", 259_200, False, True),
        "sexton-transactions": ("sweep-transactions", 86_400, False, True),
        "sexton-delayed": ("seal-buckets", 345_600, False, True),
        "sexton-records": ("sweep-records", 86_400, False, True),
        "sexton-defragment": ("defragment-records", 432_000, False, True),
        "sexton-raid": ("raid-tombstones", 518_400, False, True),
    }


def test_schedules_of_a_build_with_other_details_are_updated(quiet: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator reads in the Web UI what this build will do."""
    with monkeypatch.context() as earlier:
        for one in (
            SweepDeletionsInput,
            TrimTopicsInput,
            ReconcileOrphansInput,
            SweepTransactionsInput,
            SealBucketsInput,
            SweepRecordsInput,
            DefragmentRecordsInput,
            RaidTombstonesInput,
        ):
            earlier.setattr(one, "details", lambda _: "as it was")
        apply(quiet)
    assert apply(quiet) == dict.fromkeys(OURS, "updated")
    assert apply(quiet) == dict.fromkeys(OURS, "unchanged")


def test_replicas_have_a_schedule_where_the_settings_name_any(quiet: Settings) -> None:
    """It is paused where they name none any more."""
    assert apply(quiet, replica_buckets="far")["sexton-replicate"] == "created"
    assert listed(quiet)["sexton-replicate"] == ("replicate-records", 604_800, False, True)
    assert apply(quiet)["sexton-replicate"] == "updated"
    assert listed(quiet)["sexton-replicate"] == ("replicate-records", 604_800, True, False)


def test_a_cluster_has_a_schedule_where_the_settings_name_one(quiet: Settings) -> None:
    """It is paused where they name none any more."""
    assert apply(quiet, pulsar_zookeeper="zk:2181")["sexton-pulsar"] == "created"
    assert listed(quiet)["sexton-pulsar"] == ("plan-pulsar", 691_200, False, True)
    assert apply(quiet)["sexton-pulsar"] == "updated"
    assert listed(quiet)["sexton-pulsar"] == ("plan-pulsar", 691_200, True, False)


def test_the_sweep_of_records_runs_as_soon_as_its_schedule_is_made(quiet: Settings) -> None:
    """Else nothing would be flushed for an interval; others wait for theirs."""
    apply(quiet)
    begun = {name: handle(quiet, name, "describe").info.num_actions for name in OURS}
    assert begun == {name: int(name == "sexton-records") for name in OURS}


@workflow.defn(name="sweep-records", sandboxed=False)
class _Sweep:
    @workflow.run
    async def run(self, arg: Any) -> None:
        """End at once."""


@workflow.defn(name="starts-a-sweep", sandboxed=False)
class _StartsSweep:
    @workflow.run
    async def run(self, arg: Any) -> None:
        """Run a recurring job as a child, as a scheduled `defragment-records` does."""
        await workflow.execute_child_workflow("sweep-records", arg, id="child-sweep")


def test_completed_runs_of_recurring_jobs_can_be_left_out_of_a_list(quiet: Settings) -> None:
    """Running ones are listed, and completed ones of the same type that a person started."""

    async def work(sexton: Sexton) -> None:
        async def listed(*, finished: bool) -> list[tuple[str, str]]:
            rows = await sexton.list_workflows(type="sweep-records", finished_recurring=finished)
            return sorted((row.workflow_id, row.status) for row in rows if row.workflow_id not in earlier)

        async def is_listed(*wanted: tuple[str, str], finished: bool) -> bool:
            return [(name[:7], status) for name, status in await listed(finished=finished)] == list(wanted)

        earlier: set[str] = set()
        earlier = {name for name, _ in await listed(finished=True)}
        await sexton.apply_schedules()
        await assert_eventually(lambda: is_listed(("sweep-r", "Running"), finished=False))
        async with Worker(sexton.client, task_queue=quiet.task_queue, workflows=[_Sweep, _StartsSweep]):
            await sexton.client.execute_workflow("sweep-records", {}, id="by-hand", task_queue=quiet.task_queue)
            await sexton.client.execute_workflow("starts-a-sweep", {}, id="starter", task_queue=quiet.task_queue)
            runs = (("by-hand", "Completed"), ("child-s", "Completed"), ("sweep-r", "Completed"))
            await assert_eventually(lambda: is_listed(*runs, finished=True))
        assert await is_listed(runs[0], finished=False)

    with_temporal(quiet, work)


def test_schedules_skip_overlaps_and_catch_up_within_a_bound(quiet: Settings) -> None:
    """After an outage at most one missed run is made up for; arguments carry who and how."""
    apply(quiet)
    described = handle(quiet, "sexton-trim", "describe")
    assert described.schedule.policy.overlap is ScheduleOverlapPolicy.SKIP
    assert described.schedule.policy.catchup_window == timedelta(days=2)
    assert described.schedule.action.task_queue == quiet.task_queue
    (payload,) = described.schedule.action.args
    (told,) = asyncio.run(described.data_converter.decode([payload], [TrimTopicsInput]))
    assert (told.actor, told.policy.chunk) == ("sexton-trim", quiet.deletion_chunk)
    assert apply(quiet, sweep_interval=1)["sexton-sweep"] == "updated"
    assert handle(quiet, "sexton-sweep", "describe").schedule.policy.catchup_window == timedelta(seconds=10)
    apply(quiet)


@pytest.mark.parametrize(
    ("changes", "changed"),
    [
        ({"trim_interval": 3 * 86_400}, {"sexton-trim"}),
        ({"deletion_chunk": 7}, {"sexton-sweep", "sexton-trim"}),
        ({"task_queue": "another"}, set(OURS)),
    ],
)
def test_schedules_that_differ_are_updated(quiet: Settings, changes: dict[str, object], changed: set[str]) -> None:
    """Interval, arguments and queue follow the settings; what does not differ is left alone."""
    apply(quiet)
    expected = {name: "updated" if name in changed else "unchanged" for name in OURS}
    assert apply(quiet, **changes) == expected
    assert apply(quiet, **changes) == dict.fromkeys(OURS, "unchanged")


def test_schedule_with_no_interval_is_left_out_or_paused(quiet: Settings) -> None:
    """0s turns it off, an interval turns it on again."""
    others = set(OURS) - {"sexton-trim"}
    assert apply(quiet, trim_interval=0) == dict.fromkeys(others, "created")
    rest = dict.fromkeys(others, "unchanged")
    assert apply(quiet) == {**rest, "sexton-trim": "created"}
    assert apply(quiet, trim_interval=0)["sexton-trim"] == "updated"
    assert apply(quiet, trim_interval=0)["sexton-trim"] == "unchanged"
    assert listed(quiet)["sexton-trim"] == ("trim-topics", 172_800, True, False)
    assert apply(quiet)["sexton-trim"] == "updated"
    assert listed(quiet)["sexton-trim"] == ("trim-topics", 172_800, False, True)


def test_schedule_paused_by_hand_stays_paused(quiet: Settings) -> None:
    """`up` and `apply` do not undo what an operator did, also when something else is updated."""
    apply(quiet)
    handle(quiet, "sexton-trim", "pause", note="an incident")
    assert apply(quiet)["sexton-trim"] == "unchanged"
    assert apply(quiet, trim_interval=3 * 86_400)["sexton-trim"] == "updated"
    assert handle(quiet, "sexton-trim", "describe").schedule.state.note == "an incident"
    assert listed(quiet)["sexton-trim"][2]


def test_schedules_of_others_are_left_alone(quiet: Settings) -> None:
    """Nothing foreign is listed, updated or removed (promise 3)."""

    async def create(sexton: Sexton) -> None:
        action = ScheduleActionStartWorkflow("theirs", id="theirs", task_queue="theirs")
        spec = ScheduleSpec(intervals=[ScheduleIntervalSpec(every=timedelta(days=3))])
        await sexton.client.create_schedule("foreign", Schedule(action=action, spec=spec))

    with_temporal(quiet, create)
    before = handle(quiet, "foreign", "describe").schedule
    apply(quiet)
    apply(quiet, trim_interval=0, sweep_interval=0, plan_interval=0, delayed_interval=0)
    assert set(listed(quiet)) == set(OURS)
    assert handle(quiet, "foreign", "describe").schedule == before


def test_schedules_applied_by_several_at_once_are_there_once(quiet: Settings) -> None:
    """Whoever comes second finds them."""

    async def work(sexton: Sexton) -> list[list[AppliedSchedule]]:
        return list(await asyncio.gather(*(sexton.apply_schedules() for _ in range(8))))

    answers = with_temporal(quiet, work)
    assert all(len(answer) == len(OURS) for answer in answers)
    created = [one.schedule_id for answer in answers for one in answer if one.change == "created"]
    assert sorted(created) == sorted(OURS)
    assert {one.change for answer in answers for one in answer} <= {"created", "unchanged"}


def test_schedule_starts_its_workflow(quiet: Settings) -> None:
    """A run is the job itself, under its id and the time."""
    apply(quiet)
    handle(quiet, "sexton-trim", "trigger")

    async def work(sexton: Sexton) -> str:
        while True:
            async for found in sexton.client.list_workflows("WorkflowType = 'trim-topics'"):
                await sexton.client.get_workflow_handle(found.id).terminate()
                return found.id
            await asyncio.sleep(0.05)

    assert with_temporal(quiet, work).startswith("trim-topics-20")
    assert [one.last_run is not None for one in _rows(quiet) if one.schedule_id == "sexton-trim"] == [True]


def _rows(settings: Settings) -> Any:
    async def work(sexton: Sexton) -> Any:
        return await sexton.list_schedules()

    return with_temporal(settings, work)


def test_schedules_are_encrypted_by_the_first_key_and_tell_who_lacks_it(quiet: Settings, tmp_path: Path) -> None:
    """A key that is set or changed is one reason to update; a process without the key is refused before it serves."""
    keys = {name: f"{name} {base64.b64encode(secrets.token_bytes(32)).decode()}\n" for name in ("one", "two")}
    (tmp_path / "one").write_text(keys["one"])
    (tmp_path / "two-one").write_text(keys["two"] + keys["one"])
    one, two = ({"payload_key_file": str(tmp_path / name)} for name in ("one", "two-one"))
    apply(quiet)
    for changes in (one, two):
        assert apply(quiet, **changes) == dict.fromkeys(OURS, "updated")
        assert apply(quiet, **changes) == dict.fromkeys(OURS, "unchanged")
    described = handle(quiet, "sexton-trim", "describe")
    assert {encryption_key_name(payload) for payload in described.schedule.action.args} == {"two"}

    async def read(sexton: Sexton) -> None:
        await require_readable_schedules(sexton.client)

    with_temporal(quiet, read, **two)
    for lacking in ({"payload_key_file": ""}, one):
        with pytest.raises(InvalidInput, match="payload_key_file: expected a file with the key 'two'"):
            with_temporal(quiet, read, **lacking)
        with pytest.raises(InvalidInput, match="'two'"):
            apply(quiet, **lacking)
