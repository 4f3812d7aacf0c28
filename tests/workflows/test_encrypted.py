"""Jobs whose payloads are encrypted, on a real server: what it keeps, what a key is needed for, and changed keys."""

import asyncio
import base64
import json
import secrets
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowHandle, WorkflowHistory, WorkflowUpdateFailedError

from logstore.errors import InvalidInput
from tests.fakes.objects import Operation
from tests.workflows.house import House, assert_eventually
from workers.client.payload_codec import ENCODING, data_converter, key_of
from workers.hosting.replaying import replay
from workers.settings import Settings

pytestmark = pytest.mark.external_service


class Keys:
    """A file of keys, and clients that have it."""

    def __init__(self, folder: Path, house: House) -> None:
        self._bare, self._keys = house.client, {name: secrets.token_bytes(32) for name in ("one", "two")}
        self._folder, self._house = folder, house

    def file(self, *names: str) -> str:
        """A file with these keys, in this order."""
        path = self._folder / "-".join(names)
        path.write_text("".join(f"{name} {base64.b64encode(self._keys[name]).decode()}\n" for name in names))
        return str(path)

    def use(self, *names: str) -> Client:
        """Have workers and starts of the house use these keys; none where there are no names."""
        converter = data_converter(self.file(*names) if names else "")
        config = self._bare.config()
        config["data_converter"] = converter
        self._house.client = Client(**config)
        return self._house.client


@pytest.fixture
def keys(tmp_path: Path, house: House) -> Keys:
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


async def test_history_tells_nothing_without_the_key_and_replays_with_it(house: House, keys: Keys) -> None:
    """Inputs, results, summaries and details of a trim and of its batch; `replay` needs the key, and says which."""
    house.world.fill(2)
    keys.use("one")
    assert (await house.done(house.trim())).deleted == 2
    history = await house.client.get_workflow_handle(house.trim_id).fetch_history()
    children = [one.child_workflow_execution_started_event_attributes for one in history.events]
    (batch,) = [one.workflow_execution.workflow_id for one in children if one.workflow_execution.workflow_id]
    told = _told(history) + _told(await house.client.get_workflow_handle(batch).fetch_history())
    assert ENCODING.decode() in told.replace(base64.b64encode(ENCODING).decode(), ENCODING.decode())
    for secret in (house.world.topic.name, "a test", "actor", "json/plain"):
        assert secret not in told, secret
    settings = Settings(home=Path("/nowhere"), payload_key_file=keys.file("one"))
    done = await asyncio.to_thread(replay, history, settings=settings)
    assert (done.failure, done.nondeterministic) == (None, False)
    for missing in (None, settings.model_copy(update={"payload_key_file": keys.file("two")})):
        refused = await asyncio.to_thread(replay, history, settings=missing)
        assert "payload_key_file: expected a file with the key 'one'" in str(refused.failure)
        assert not refused.nondeterministic


async def test_failure_keeps_its_type_alone_in_plain(house: House, keys: Keys) -> None:
    """Message, trace and details are encrypted; who has the key is told all of it."""
    keys.use("one")
    house.world.sql("DELETE FROM topic")
    kind, message = await house.failed(house.trim())
    assert kind == "UnknownObject"
    assert message.startswith("topic")
    told = _told(await house.client.get_workflow_handle(house.trim_id).fetch_history())
    assert "UnknownObject" in told
    assert "Encoded failure" in told
    assert message not in told
    assert "Traceback" not in told
    assert "File " not in told


async def test_worker_without_the_key_does_nothing_and_one_with_it_goes_on(house: House, keys: Keys) -> None:
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
        await keys.use().get_workflow_handle(house.trim_id).result()


async def _failed_for(handle: WorkflowHandle[Any, Any], sentence: str) -> bool:
    events = (await handle.fetch_history()).events
    failed = [one.workflow_task_failed_event_attributes.failure for one in events]
    return any(sentence in f"{one.message} {one.cause.message}" for one in failed)


async def test_keys_change_without_a_moment_at_which_something_cannot_be_read(house: House, keys: Keys) -> None:
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
    assert (key_of(began), key_of(ended)) == ("", "two")
    settings = Settings(home=Path("/nowhere"), payload_key_file=keys.file("two", "one"))
    assert (await asyncio.to_thread(replay, history, settings=settings)).failure is None


async def test_update_that_is_refused_says_so_in_cipher(house: House, keys: Keys) -> None:
    """The sentence of a refusal may name what was sent: it travels as other failures do."""
    ledgers = house.world.fill(1)
    keys.use("one")
    gate = house.gate(Operation.DELETE)
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
