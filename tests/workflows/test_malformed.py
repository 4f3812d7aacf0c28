"""What no workflow can read, of every type and in every shape: it fails by name, or is ignored, and nothing loops."""

import asyncio
import base64
import json
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from temporalio import activity, workflow
from temporalio.api.common.v1 import Payload
from temporalio.client import WorkflowFailureError, WorkflowHandle, WorkflowHistory, WorkflowUpdateFailedError
from temporalio.common import RawValue
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.exceptions import ApplicationError
from temporalio.worker import Replayer

from activities.deletion.inputs_and_results import RowRangesInput, RowRangesPage
from activities.offload import LedgersToOffload, LedgersToOffloadInput
from tests.workflows.offload.offloading import offload_all
from tests.workflows.workflow_harness import Gate, WorkflowHarness, failure_type_and_message
from workers.hosting.temporal_workers import WORKFLOWS
from workers.hosting.workflow_input_checks import COMMAND_BY_WORKFLOW, InputCheckingRunner
from workflows.offload.job_definitions import OffloadAsk

pytestmark = pytest.mark.external_service

_NAME = "persistent://tenant/namespace/orders"
_WHY = {"actor": "me", "reason": "a test"}
_TOPIC = {"topic_id": 1, "topic": _NAME}
_ASK = OffloadAsk(actor="me", reason="a test")
_KEY = {"ledger_id": 1, "copy": "LEDGER", "generation": 1}
OF_RECORDS = ("flush-records", "sweep-records", "defragment-records", "raid-tombstones", "replicate-records")
GOOD: dict[str, dict[str, Any]] = {
    "trim-topic": _TOPIC | _WHY,
    "trim-topics": _WHY,
    "delete-topic": _TOPIC | _WHY,
    "delete-ledgers": _TOPIC | _WHY | {"batch_id": "b", "catalog_epoch": 1, "detach": {"ledger_ids": [1]}},
    "delete-ledger": {"key": _KEY, "topic": _NAME, "catalog_epoch": 1},
    "sweep-deletions": _WHY,
    "offload-topic": _TOPIC | {"asks": [_WHY]},
    "offload-ledger": {"ledger_id": 1, "topic": _NAME},
    "reconcile-orphans": _WHY | {"run_id": "plan-1"},
    "apply-orphans": _WHY | {"run_id": "plan-1"},
    "scrub-ledgers": _WHY,
    "plan-pulsar": _WHY | {"run_id": "pulsar-1"},
    "apply-pulsar": _WHY | {"run_id": "pulsar-1"},
    "undo-pulsar": _WHY | {"run_id": "pulsar-1"},
    "abort-transactions": _WHY | {"run_id": "abort-1", "transactions": ["0:17"]},
    "transaction-coordinator": {"tc_id": 3},
    "broadcast-transaction": {"txn": "3:17"},
    "sweep-transactions": _WHY,
    "build-transaction-snapshots": _WHY | {"run_id": "snapshots-1"},
    "seal-buckets": _WHY,
    "merge-buckets": _TOPIC | _WHY,
    "build-delayed-index": _WHY | {"run_id": "indexes-1"},
    **dict.fromkeys(OF_RECORDS, _WHY),
    "end-records": _WHY | {"function": "expired", "batch_id": "expired-1"},
    "rebuild-catalog": {"rebuild": "00000000-0000-4000-8000-00000000c0de-7-0123abcd"},
    "follow-records": {"replica": "copy/0123abcd"},
}
_ENDLESS = "x" * 2_100


def _raw(data: bytes, encoding: str | None = "json/plain") -> RawValue:
    return RawValue(Payload(metadata={} if encoding is None else {"encoding": encoding.encode()}, data=data))


def _shapes(good: dict[str, Any]) -> dict[str, Sequence[RawValue]]:
    """The malformed forms of one good value."""
    text = json.dumps(good).encode()
    return {
        "nothing": [],
        "two values": [_raw(text), _raw(text)],
        "binary/null": [_raw(b"", "binary/null")],
        "binary/plain": [_raw(text, "binary/plain")],
        "json/protobuf": [_raw(text, "json/protobuf")],
        "unknown encoding": [_raw(text, "cbor/x")],
        "no encoding": [_raw(text, None)],
        "null": [_raw(b"null")],
        "list": [_raw(b"[" + text + b"]")],
        "text": [_raw(json.dumps(text.decode()).encode())],
        "cut off": [_raw(text[:-1])],
        "not UTF-8": [_raw(b"\xff\xfe")],
        "unknown field": [_raw(json.dumps(good | {"reasn": "a slip"}).encode())],
    }


def _beyond(**changes: Any) -> RawValue:
    kind = changes.pop("kind")
    return _raw(json.dumps(GOOD[kind] | changes).encode())


BEYOND: dict[str, tuple[str, RawValue]] = {
    "delete-ledgers owner": ("owner", _beyond(kind="delete-ledgers", owner=_ENDLESS)),
    "delete-ledgers owner of the server's": ("owner", _beyond(kind="delete-ledgers", owner="/_sys/x")),
    "delete-ledgers batch": ("batch_id", _beyond(kind="delete-ledgers", batch_id=_ENDLESS)),
    "delete-ledgers ids": ("detach.ledger_ids", _beyond(kind="delete-ledgers", detach={"ledger_ids": [-1]})),
    "offload-topic queue": ("policy.queue", _beyond(kind="offload-topic", policy={"queue": _ENDLESS})),
    "offload-topic queue unserved": ("policy.queue", _beyond(kind="offload-topic", policy={"queue": "nobody"})),
    "offload-topic ask": ("asks.0.ledger_ids", _beyond(kind="offload-topic", asks=[_WHY | {"ledger_ids": []}])),
    "offload-ledger queue": ("policy.queue", _beyond(kind="offload-ledger", policy={"queue": "/_sys/x"})),
    "offload-ledger id": ("ledger_id", _beyond(kind="offload-ledger", ledger_id=2**63)),
    "delete-ledger copy": ("key.copy", _beyond(kind="delete-ledger", key=_KEY | {"copy": "THIRD"})),
    "trim-topic topic": ("topic", _beyond(kind="trim-topic", topic="persistent://a/b/" + _ENDLESS)),
    "trim-topic policy": ("policy.chunks", _beyond(kind="trim-topic", policy={"chunks": 1})),
    "trim-topics page": ("page", _beyond(kind="trim-topics", page=10**30)),
    "delete-topic reason": ("reason", _beyond(kind="delete-topic", reason=_ENDLESS)),
    "delete-topic actor": ("actor", _beyond(kind="delete-topic", actor="a\x00b")),
    "sweep-deletions patience": ("patience_s", _raw(b'{"patience_s": NaN}')),
    "delete-topic without topic": ("topic", _raw(b'{"topic_id": 4}')),
    "trim-topic id": ("topic_id", _beyond(kind="trim-topic", topic_id="6x")),
    "trim-topic id as a text": ("topic_id", _beyond(kind="trim-topic", topic_id="1")),
    "trim-topic id as a truth": ("topic_id", _beyond(kind="trim-topic", topic_id=True)),
    "trim-topic policy as a truth": ("policy.chunk", _beyond(kind="trim-topic", policy={"chunk": True})),
    "trim-topics page as a text": ("page", _beyond(kind="trim-topics", page="5")),
    "delete-ledgers ids as truths": (
        "detach.ledger_ids.0",
        _beyond(kind="delete-ledgers", detach={"ledger_ids": [True]}),
    ),
    "delete-ledger copy as a number": ("key.copy", _beyond(kind="delete-ledger", key=_KEY | {"copy": 1})),
    "sweep-deletions patience as a truth": ("patience_s", _beyond(kind="sweep-deletions", patience_s=True)),
    "defragment-records truth as a text": ("scheduled", _beyond(kind="defragment-records", scheduled="yes")),
    "defragment-records truth as a number": ("scheduled", _beyond(kind="defragment-records", scheduled=1)),
    "sweep-deletions patience in words": ("patience_s", _beyond(kind="sweep-deletions", patience_s="soon")),
    "delete-ledger attempts": ("max_attempts", _beyond(kind="delete-ledger", max_attempts=10**11)),
    "scrub-ledgers rate": ("bytes_per_s", _beyond(kind="scrub-ledgers", bytes_per_s=0)),
    "scrub-ledgers topics": ("topic_ids", _beyond(kind="scrub-ledgers", topic_ids=list(range(1_001)))),
    "scrub-ledgers queue": ("queue", _beyond(kind="scrub-ledgers", queue="nobody")),
    "scrub-ledgers master": ("master", _beyond(kind="scrub-ledgers", master="h:7077")),
    "reconcile-orphans run": ("run_id", _beyond(kind="reconcile-orphans", run_id="../plan")),
    "reconcile-orphans age": ("older_than_s", _beyond(kind="reconcile-orphans", older_than_s=-1)),
    "reconcile-orphans queue": ("queue", _beyond(kind="reconcile-orphans", queue="nobody")),
    "reconcile-orphans inventories": ("inventories", _beyond(kind="reconcile-orphans", inventories=[""])),
    "reconcile-orphans inventory at a URL": (
        "inventories",
        _beyond(kind="reconcile-orphans", inventories=["s3://b/manifest.json"]),
    ),
    "reconcile-orphans master": ("master", _beyond(kind="reconcile-orphans", master=_ENDLESS)),
    "plan-pulsar run": ("run_id", _beyond(kind="plan-pulsar", run_id="../plan")),
    "plan-pulsar age": ("older_than_s", _beyond(kind="plan-pulsar", older_than_s=-1)),
    "plan-pulsar time between": ("between_s", _beyond(kind="plan-pulsar", between_s=86_401)),
    "plan-pulsar queue": ("queue", _beyond(kind="plan-pulsar", queue="nobody")),
    "plan-pulsar master": ("master", _beyond(kind="plan-pulsar", master=_ENDLESS)),
    "apply-pulsar run": ("run_id", _beyond(kind="apply-pulsar", run_id="../plan")),
    "apply-pulsar share": ("max_orphan_share", _beyond(kind="apply-pulsar", max_orphan_share=1.5)),
    "apply-pulsar limit": ("limit", _beyond(kind="apply-pulsar", limit=-1)),
    "undo-pulsar run": ("run_id", _beyond(kind="undo-pulsar", run_id="")),
    "abort-transactions run": ("run_id", _beyond(kind="abort-transactions", run_id="../abort")),
    "abort-transactions none": ("transactions", _beyond(kind="abort-transactions", transactions=[])),
    "abort-transactions form": ("transactions", _beyond(kind="abort-transactions", transactions=["3-17"])),
    "abort-transactions twice": ("transactions", _beyond(kind="abort-transactions", transactions=["3:17", "3:17"])),
    "undo-pulsar ledgers": ("ledger_ids", _beyond(kind="undo-pulsar", ledger_ids=[-1])),
    "apply-orphans run": ("run_id", _beyond(kind="apply-orphans", run_id="")),
    "apply-orphans share": ("max_orphan_share", _beyond(kind="apply-orphans", max_orphan_share=1.5)),
    "transaction-coordinator id": ("tc_id", _beyond(kind="transaction-coordinator", tc_id=4_096)),
    "transaction-coordinator linger": ("linger_s", _beyond(kind="transaction-coordinator", linger_s=10**6)),
    "transaction-coordinator queue": ("queue", _beyond(kind="transaction-coordinator", queue="nobody")),
    "broadcast-transaction txn": ("txn", _beyond(kind="broadcast-transaction", txn="3-17")),
    "broadcast-transaction txn of no coordinator": ("txn", _beyond(kind="broadcast-transaction", txn="4096:1")),
    "broadcast-transaction pause": ("pause_s", _beyond(kind="broadcast-transaction", pause_s=-1)),
    "broadcast-transaction pauses": ("most_pause_s", _beyond(kind="broadcast-transaction", most_pause_s=10**9)),
    "broadcast-transaction queue": ("queue", _beyond(kind="broadcast-transaction", queue=_ENDLESS)),
    "sweep-transactions reason": ("reason", _beyond(kind="sweep-transactions", reason=_ENDLESS)),
    "build-transaction-snapshots run": ("run_id", _beyond(kind="build-transaction-snapshots", run_id="../x")),
    "build-transaction-snapshots topics": ("topic_ids", _beyond(kind="build-transaction-snapshots", topic_ids=[-1])),
    "build-transaction-snapshots queue": ("queue", _beyond(kind="build-transaction-snapshots", queue="nobody")),
    "sweep-transactions queue": ("queue", _beyond(kind="sweep-transactions", queue="nobody")),
    "seal-buckets topic": ("topic", _beyond(kind="seal-buckets", topic="orders")),
    "seal-buckets id": ("topic_id", _beyond(kind="seal-buckets", topic_id=-1)),
    "seal-buckets page": ("page", _beyond(kind="seal-buckets", page=0)),
    "build-delayed-index run": ("run_id", _beyond(kind="build-delayed-index", run_id="../x")),
    "build-delayed-index topics": ("topic_ids", _beyond(kind="build-delayed-index", topic_ids=[-1])),
    "build-delayed-index queue": ("queue", _beyond(kind="build-delayed-index", queue="nobody")),
    **{f"{kind} queue": ("queue", _beyond(kind=kind, queue="nobody")) for kind in OF_RECORDS},
    **{f"{kind} reason": ("reason", _beyond(kind=kind, reason=_ENDLESS)) for kind in OF_RECORDS},
    "flush-records watch": ("watch_s", _beyond(kind="flush-records", watch_s=-1)),
    "sweep-records watch": ("watch_s", _beyond(kind="sweep-records", watch_s=10**9)),
    "raid-tombstones age": ("eligible_age_s", _beyond(kind="raid-tombstones", eligible_age_s=-1)),
    "end-records function": ("function", _beyond(kind="end-records", function="os.system('true')")),
    "end-records batch": ("batch_id", _beyond(kind="end-records", batch_id="")),
    "end-records page": ("page", _beyond(kind="end-records", page=0)),
    "end-records topic": ("topic", _beyond(kind="end-records", topic_id=1, topic="orders")),
    "end-records policy": ("durable_delete", _beyond(kind="end-records", durable_delete="perhaps")),
    "end-records place": ("after.ledger_id", _beyond(kind="end-records", after={"ledger_id": -1})),
    "merge-buckets id": ("topic_id", _beyond(kind="merge-buckets", topic_id=2**63)),
    "merge-buckets without a name": ("topic", _beyond(kind="merge-buckets", topic="")),
    "merge-buckets reason": ("reason", _beyond(kind="merge-buckets", reason=_ENDLESS)),
    **{
        f"{kind} {field} of {value}": (f"policy.{field}", _beyond(kind=kind, policy={field: value}))
        for kind, field, value in (
            ("trim-topic", "retry_interval_s", 10**14),
            ("offload-ledger", "timeout_s", 10**14),
            ("offload-ledger", "attempts", 10**11),
            ("offload-ledger", "timeout_s", 0),
            ("offload-ledger", "timeout_s", 86_401),
            ("delete-ledgers", "parallelism", 0),
            ("delete-ledgers", "parallelism", -1),
            ("delete-ledgers", "chunk", 0),
            ("delete-ledgers", "chunk", 1_001),
            ("delete-ledgers", "max_attempts", 0),
            ("delete-ledgers", "owner_patience_s", 0),
            ("sweep-deletions", "chunk", 0),
            ("trim-topics", "parallelism", 0),
        )
    },
}


async def _refused(house: WorkflowHarness, case: str, kind: str, given: Sequence[RawValue]) -> tuple[str, str]:
    handle: WorkflowHandle[Any, Any] = await house.client.start_workflow(
        kind, args=given, id=f"{house.queue}/{kind}/{case}", task_queue=house.queue
    )
    with pytest.raises(WorkflowFailureError) as failed:
        await handle.result()
    return failure_type_and_message(failed.value)


async def test_start_that_cannot_be_read_fails_as_invalid_input_whatever_its_type_and_shape(
    house: WorkflowHarness,
) -> None:
    """None of them is tried again for ever, and the id is free again."""
    assert set(GOOD) == {workflow._Definition.must_from_class(one).name for one in WORKFLOWS}
    starts = [(shape, kind, given) for kind, good in GOOD.items() for shape, given in _shapes(good).items()]
    async with house.worker(), asyncio.timeout(60):
        failures = await asyncio.gather(*(_refused(house, *start) for start in starts))
    assert [
        (*start[:2], found) for start, found in zip(starts, failures, strict=True) if found[0] != "InvalidInput"
    ] == []
    assert all(": expected " in message and ", found " in message for _, message in failures)


async def test_start_beyond_its_bounds_fails_as_invalid_input_and_names_the_field(house: WorkflowHarness) -> None:
    """Names that no queue can have, queues that nobody serves, numbers that no catalog holds, texts without end."""
    async with house.worker(), asyncio.timeout(60):
        cases = [(case, case.partition(" ")[0], [given]) for case, (_, given) in BEYOND.items()]
        failures = await asyncio.gather(*(_refused(house, *case) for case in cases))
    found = {
        case: (kind, told.partition(": expected ")[0]) for case, (kind, told) in zip(BEYOND, failures, strict=True)
    }
    assert found == {case: ("InvalidInput", field) for case, (field, _) in BEYOND.items()}


@pytest.mark.parametrize("kind", ["trim-topic", "delete-topic", "delete-ledgers", "offload-topic"])
async def test_start_that_names_another_topic_than_its_id_is_refused_and_changes_nothing(
    house: WorkflowHarness, kind: str
) -> None:
    """Who errs in one of the two means another topic."""
    ledgers = house.world.fill(2)
    given = GOOD[kind] | {"topic": "persistent://tenant/namespace/another"}
    given |= {"detach": {"ledger_ids": [int(ledgers[0])]}} if kind == "delete-ledgers" else {}
    house.roller.action = lambda: pytest.fail("it was rolled")
    async with house.worker(), asyncio.timeout(60):
        if kind == "offload-topic":
            handle = await house.client.start_workflow(kind, given, id=house.queue, task_queue=house.queue)
            (told,) = (await handle.result())["refusals"]
        else:
            _, told = await _refused(house, "misnamed", kind, [_raw(json.dumps(given).encode())])
    assert "expected the name" in told
    assert ", found " in told
    assert {_NAME, "persistent://tenant/namespace/another"} <= {word.strip(",'") for word in told.split()}
    assert len(house.world.catalog.ledgers.list_ledgers(house.world.topic.topic_id)) == 3


async def test_signal_that_cannot_be_read_is_ignored_and_the_offload_goes_on(
    house: WorkflowHarness, caplog: pytest.LogCaptureFixture
) -> None:
    """Without input, with two, with a slip in a field: the asks around it are served, and a line is logged."""
    gate = Gate()
    asked: list[int] = []
    real = house.world.offload.list_ledgers_to_offload

    @activity.defn(name="offload.candidates")
    def candidates(request: LedgersToOffloadInput) -> LedgersToOffload:
        asked.append(request.topic_id)
        gate.wait()
        return real(request)

    shapes = _shapes(_WHY) | {"no ids": [_raw(json.dumps(_WHY | {"ledger_ids": []}).encode())]}
    with caplog.at_level(logging.WARNING, "workers.hosting.workflow_input_checks"):
        async with house.worker(replacements=[candidates]), asyncio.timeout(60):
            handle = await offload_all(house, _ASK)
            for given in shapes.values():
                await handle.signal("ask", args=given)
            await handle.signal("ask", _ASK)
            gate.open()
            result = await handle.result()
    assert result.refused == 0
    assert len(asked) == 2
    assert sum("ignored: " in record.message for record in caplog.records) == len(shapes)
    await _replayed(await handle.fetch_history())


async def test_signal_without_input_that_brings_some_is_ignored(house: WorkflowHarness) -> None:
    """`again` takes nothing."""
    async with house.worker(), asyncio.timeout(60):
        handle = await house.trim()
        await handle.signal("again", "now")
        assert (await handle.result()).passes >= 1


async def test_update_that_cannot_be_read_is_refused_and_the_batch_goes_on(house: WorkflowHarness) -> None:
    """The caller is told by name; nothing of it is in the history."""
    gate = Gate()
    real = house.world.deletion.list_ranges_and_renew_claim

    @activity.defn(name="deletion.next_ranges")
    def list_ranges_and_renew_claim(request: RowRangesInput) -> RowRangesPage:
        gate.wait()
        return real(request)

    (ledger,) = house.world.fill(1)
    async with house.worker(replacements=[list_ranges_and_renew_claim]), asyncio.timeout(60):
        handle = await house.delete([ledger])
        told: list[tuple[str, list[Any]]] = [("pause", ["now"]), ("resume", [None]), ("set_rate", [])]
        wrong = [{"per_s": 1}, {"objects_per_s": "7"}, {"objects_per_s": True}]
        for update, given in [*told, *(("set_rate", [rate]) for rate in wrong)]:
            with pytest.raises(WorkflowUpdateFailedError) as refused:
                await handle.execute_update(update, args=given)
            assert isinstance(refused.value.cause, ApplicationError)
            assert refused.value.cause.type == "InvalidInput"
        gate.open()
        assert (await handle.result()).outcomes == {"DELETED": 1}


async def test_refusal_of_a_start_replays_as_it_was(house: WorkflowHarness) -> None:
    """Also one that an earlier build would have taken, whose refusal is recorded."""
    async with house.worker():
        for case, given in _shapes(GOOD["trim-topic"]).items():
            await _refused(house, f"replayed {case}", "trim-topic", given)
    ids = [f"{house.queue}/trim-topic/replayed {case}" for case in _shapes(GOOD["trim-topic"])]
    await _replayed(*[await house.client.get_workflow_handle(one).fetch_history() for one in ids])


@pytest.mark.parametrize("slip", [{"reasn": "a slip"}, {"topic_id": "1"}, {"topic_id": True}])
async def test_run_that_an_earlier_build_began_with_a_slip_goes_on(
    house: WorkflowHarness, slip: dict[str, Any]
) -> None:
    """Its history has no refusal: it is read as it was read then."""
    async with house.worker():
        handle = await house.trim()
        await handle.result()
    history = json.loads((await handle.fetch_history()).to_json())
    started = history["events"][0]["workflowExecutionStartedEventAttributes"]
    (payload,) = started["input"]["payloads"]
    given = json.dumps(GOOD["trim-topic"] | slip).encode()
    payload["data"] = base64.b64encode(given).decode()
    await _replayed(WorkflowHistory.from_json("earlier", history))


@pytest.mark.parametrize(
    ("kind", "command"),
    [("rebuild-catalog", "sexton records rebuild"), ("follow-records", "sexton records follow")],
)
async def test_start_of_a_job_that_a_command_hosts_ends_on_the_common_queue(
    house: WorkflowHarness, kind: str, command: str
) -> None:
    """No worker of the queue has its activities: it would wait for ever, and hold its id."""
    async with house.worker(), asyncio.timeout(60):
        type_, told = await _refused(house, "misplaced", kind, [_raw(json.dumps(GOOD[kind]).encode())])
    assert type_ == "InvalidInput"
    expected = (
        f"task_queue: expected the queue of `{command}`, whose own worker alone does {kind}, found {house.queue!r}"
    )
    assert told == expected
    await _replayed(await house.client.get_workflow_handle(f"{house.queue}/{kind}/misplaced").fetch_history())


async def _replayed(*histories: WorkflowHistory) -> None:
    runner = InputCheckingRunner(command_by_workflow=COMMAND_BY_WORKFLOW)
    replayer = Replayer(workflows=WORKFLOWS, workflow_runner=runner, data_converter=pydantic_data_converter)
    async with replayer.workflow_replay_iterator(_each(histories)) as results:
        assert [found.replay_failure async for found in results] == [None] * len(histories)


async def _each(histories: Sequence[WorkflowHistory]) -> AsyncIterator[WorkflowHistory]:
    for history in histories:
        yield history
