"""Jobs whose payloads are encrypted, on a real server: what it keeps, what a key is needed for, and changed keys."""

import asyncio
import base64
import json
import secrets
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio import activity
from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionExecutionStartWorkflow,
    ScheduleActionStartWorkflow,
    ScheduleIntervalSpec,
    ScheduleSpec,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowHistory,
    WorkflowUpdateFailedError,
)
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from activities.deletion.inputs_and_results import DetachResult, TakeOverStalledInput
from logstore.errors import InvalidInput
from tests.fakes.object_store import StoreOperation
from tests.workflows.workflow_harness import WorkflowHarness, assert_eventually, failure_type_and_message
from workers.client.data_converter import ENCODING, encryption_key_name, make_data_converter
from workers.hosting import workflow_input_checks
from workers.hosting.history_replay import replay_history
from workers.settings import Settings
from workflows.deletion.job_definitions import SweepDeletionsInput

pytestmark = pytest.mark.external_service


class Keys:
    """A file of keys, and clients that have it."""

    def __init__(self, folder: Path, house: WorkflowHarness) -> None:
        self._bare, self._keys = house.client, {name: secrets.token_bytes(32) for name in ("one", "two")}
        self._folder, self._house = folder, house

    def file(self, *names: str) -> str:
        """A file with these keys, in this order."""
        path = self._folder / "-".join(names)
        path.write_text("".join(f"{name} {base64.b64encode(self._keys[name]).decode()}\n" for name in names))
        return str(path)

    def use(self, *names: str) -> Client:
        """Have workers and starts of the house use these keys, none where there are no names; a program's client."""
        worker, program = (self._client(names, defers=defers) for defers in (True, False))
        self._house.client = worker
        return program

    def _client(self, names: tuple[str, ...], *, defers: bool) -> Client:
        config = self._bare.config()
        config["data_converter"] = make_data_converter(
            self.file(*names) if names else "", defers_decryption_errors=defers
        )
        return Client(**config)


@pytest.fixture
def keys(tmp_path: Path, house: WorkflowHarness) -> Keys:
    return Keys(tmp_path, house)


def _told(history: WorkflowHistory) -> str:
    """What a history tells to a reader without a key; search attributes, which stay plain, are left out."""
    found = json.loads(history.to_json())
    for event in found["events"]:
        for attributes in event.values():
            if isinstance(attributes, dict):
                attributes.pop("searchAttributes", None)
    return json.dumps(found) + " ".join(base64.b64decode(one).decode("utf-8", "replace") for one in _data(found))


def _data(value: object) -> list[str]:
    if isinstance(value, dict):
        own = [value["data"]] if isinstance(value.get("data"), str) else []
        return own + [one for inner in value.values() for one in _data(inner)]
    return [one for inner in value for one in _data(inner)] if isinstance(value, list) else []


async def test_history_tells_nothing_without_the_key_and_replays_with_it(house: WorkflowHarness, keys: Keys) -> None:
    """Inputs, results, summaries and details of a trim and of its batch; `replay` needs the key, and says which."""
    house.world.fill(2)
    keys.use("one")
    assert (await house.done(house.trim())).deleted == 2
    history = await house.client.get_workflow_handle(house.trim_workflow_id).fetch_history()
    children = [one.child_workflow_execution_started_event_attributes for one in history.events]
    (batch,) = [one.workflow_execution.workflow_id for one in children if one.workflow_execution.workflow_id]
    told = _told(history) + _told(await house.client.get_workflow_handle(batch).fetch_history())
    assert ENCODING.decode() in told.replace(base64.b64encode(ENCODING).decode(), ENCODING.decode())
    for secret in (house.world.topic.name, "a test", "actor", "json/plain"):
        assert secret not in told, secret
    settings = Settings(home=Path("/nowhere"), payload_key_file=keys.file("one"))
    done = await asyncio.to_thread(replay_history, history, settings=settings)
    assert (done.failure, done.nondeterministic) == (None, False)
    for missing in (None, settings.model_copy(update={"payload_key_file": keys.file("two")})):
        refused = await asyncio.to_thread(replay_history, history, settings=missing)
        assert "payload_key_file: expected a file with the key 'one'" in str(refused.failure)
        assert not refused.nondeterministic


async def test_failure_keeps_its_type_alone_in_plain(house: WorkflowHarness, keys: Keys) -> None:
    """Message, trace and details are encrypted; who has the key is told all of it."""
    keys.use("one")
    house.world.sql("DELETE FROM topic")
    kind, message = await house.failed(house.trim())
    assert kind == "UnknownObject"
    assert message.startswith("topic")
    told = _told(await house.client.get_workflow_handle(house.trim_workflow_id).fetch_history())
    assert "UnknownObject" in told
    assert "Encoded failure" in told
    assert message not in told
    assert "Traceback" not in told
    assert "File " not in told


async def test_worker_without_the_key_does_nothing_and_one_with_it_goes_on(house: WorkflowHarness, keys: Keys) -> None:
    """Steps fail and say what is missing; neither the run nor the ledgers are lost by it."""
    house.world.fill(2)
    with_key = keys.use("one")
    handle = await house.trim()
    keys.use()
    async with house.worker():
        await assert_eventually(lambda: _failed_for(handle, "payload_key_file: expected a file with the key 'one'"))
    assert house.attempts() == []
    house.client = with_key
    assert (await house.done(house.trim())).deleted == 2
    with pytest.raises(InvalidInput, match="'one', by which payloads of this namespace are encrypted, found 'no file'"):
        await keys.use().get_workflow_handle(house.trim_workflow_id).result()


async def _failed_for(handle: WorkflowHandle[Any, Any], sentence: str) -> bool:
    events = (await handle.fetch_history()).events
    failed = [one.workflow_task_failed_event_attributes.failure for one in events]
    return any(sentence in f"{one.message} {one.cause.message}" for one in failed)


async def test_keys_change_without_a_moment_at_which_something_cannot_be_read(
    house: WorkflowHarness, keys: Keys
) -> None:
    """A run began in plain, went on by the first key, and ends by the second, on workers that have both."""
    house.world.fill(1)
    keys.use()
    handle = await house.trim()
    keys.use("one", "two")
    await house.trim()
    keys.use("two", "one")
    assert (await house.done(house.trim())).deleted == 1
    history = await handle.fetch_history()
    began = history.events[0].workflow_execution_started_event_attributes.input.payloads[0]
    ended = history.events[-1].workflow_execution_completed_event_attributes.result.payloads[0]
    assert (encryption_key_name(began), encryption_key_name(ended)) == ("", "two")
    settings = Settings(home=Path("/nowhere"), payload_key_file=keys.file("two", "one"))
    assert (await asyncio.to_thread(replay_history, history, settings=settings)).failure is None


async def test_update_that_is_refused_says_so_in_cipher(house: WorkflowHarness, keys: Keys) -> None:
    """The sentence of a refusal may name what was sent: it travels as other failures do."""
    ledgers = house.world.fill(1)
    keys.use("one")
    gate = house.gate(StoreOperation.DELETE)
    async with house.worker():
        handle = await house.delete(ledgers)
        await asyncio.to_thread(gate.reached.wait)
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await handle.execute_update("set_rate", {"objects_per_s": "many"})
        assert "objects_per_s" in str(refused.value.__cause__)
        stranger = keys.use().get_workflow_handle(handle.id)
        with pytest.raises(InvalidInput, match="expected a file with the key 'one'"):
            await stranger.execute_update("set_rate", {"objects_per_s": "many"})
        gate.open()
        await handle.result()


class Recurrence:
    """A schedule that starts a sweep when a test tells it to."""

    def __init__(self, house: WorkflowHarness, bare: Client) -> None:
        self._bare, self._id = bare, f"sweep-of-{house.queue}"
        self._action = ScheduleActionStartWorkflow(
            "sweep-deletions",
            SweepDeletionsInput(policy=house.policy),
            id=f"sweep-deletions/{house.queue}",
            task_queue=house.queue,
        )

    async def run(self) -> WorkflowHandle[Any, Any]:
        """Start a run of the schedule, and return it."""
        try:
            handle = self._bare.get_schedule_handle(self._id)
            before = len((await handle.describe()).info.recent_actions)
        except RPCError:
            spec = ScheduleSpec(intervals=[ScheduleIntervalSpec(every=timedelta(days=365))])
            handle = await self._bare.create_schedule(self._id, Schedule(action=self._action, spec=spec))
            before = 0
        await handle.trigger()

        async def is_started() -> bool:
            return len((await handle.describe()).info.recent_actions) > before

        await assert_eventually(is_started)
        started = (await handle.describe()).info.recent_actions[-1].action
        assert isinstance(started, ScheduleActionExecutionStartWorkflow)
        return self._bare.get_workflow_handle(started.workflow_id, run_id=started.first_execution_run_id)

    async def end(self) -> None:
        """Remove the schedule."""
        await self._bare.get_schedule_handle(self._id).delete()


@pytest.fixture
def recurrence(house: WorkflowHarness, loop: asyncio.Runner) -> Iterator[Recurrence]:
    made = Recurrence(house, house.client)
    yield made
    loop.run(made.end())


async def _carried(run: WorkflowHandle[Any, Any]) -> tuple[bool, bool]:
    """Whether a run was given a result or a failure of the run before it that only a key can read."""
    first = (await run.fetch_history()).events[0].workflow_execution_started_event_attributes
    results = [encryption_key_name(payload) for payload in first.last_completion_result.payloads]
    return any(results), bool(encryption_key_name(first.continued_failure.encoded_attributes))


async def _failing(client: Client, run: WorkflowHandle[Any, Any]) -> str:
    """Type and message of the failure of a run."""
    with pytest.raises(WorkflowFailureError) as failed:
        await client.get_workflow_handle(run.id, run_id=run.run_id).result()
    return failure_type_and_message(failed.value)[0]


async def test_schedule_goes_on_without_the_worker_that_had_a_key(
    house: WorkflowHarness, keys: Keys, recurrence: Recurrence
) -> None:
    """Temporal gives each run the result of the run before: a worker without the key must not stumble over it."""
    keys.use("one")
    async with house.worker():
        first = await recurrence.run()
        await house.client.get_workflow_handle(first.id, run_id=first.run_id).result()
    keys.use()
    async with house.worker():
        second = await recurrence.run()
        assert await _carried(second) == (False, False)
        assert (await second.result())["batches"] == 0
        third = await recurrence.run()
        await third.result()


async def test_schedule_goes_on_after_a_failure_that_only_a_key_can_read(
    house: WorkflowHarness, keys: Keys, recurrence: Recurrence
) -> None:
    """Temporal gives each run the last failure, too; nobody's code asks for it."""

    @activity.defn(name="deletion.adopt")
    def refuse(given: TakeOverStalledInput) -> DetachResult:
        raise ApplicationError(f"planned for {given.batch_id}", type="InvalidInput", non_retryable=True)

    keys.use("one")
    async with house.worker(replacements=[refuse]):
        first = await recurrence.run()
        assert await _failing(house.client, first) == "InvalidInput"
    keys.use()
    async with house.worker():
        second = await recurrence.run()
        assert await _carried(second) == (False, True)
        await second.result()
    settings = Settings(home=Path("/nowhere"))
    assert (await asyncio.to_thread(replay_history, await second.fetch_history(), settings=settings)).failure is None


async def test_schedule_goes_on_after_an_earlier_build_has_encrypted_its_result(
    house: WorkflowHarness, keys: Keys, recurrence: Recurrence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an earlier build has left is carried by a namespace until a run completes."""
    keys.use("one")
    with monkeypatch.context() as earlier:
        earlier.setattr(workflow_input_checks, "_SCHEDULED_BY", "no attribute of this name")
        async with house.worker():
            first = await recurrence.run()
            await house.client.get_workflow_handle(first.id, run_id=first.run_id).result()
    keys.use()
    async with house.worker():
        second = await recurrence.run()
        assert await _carried(second) == (True, False)
        assert (await second.result())["batches"] == 0
        assert await _carried(await recurrence.run()) == (False, False)
