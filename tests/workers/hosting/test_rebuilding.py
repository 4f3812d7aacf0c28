"""The command's job on real servers: a database that is gone comes back, whatever dies on the way."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest
from temporalio import activity
from temporalio.api.taskqueue.v1 import PollerInfo
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError
from temporalio.worker import Worker

from logstore.deletion.retention import RetentionPolicy
from logstore.errors import PreconditionFailed, UnknownObject
from logstore.failpoints import ENVIRONMENT_VARIABLE
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.ports.catalog.log import Topic
from logstore.records.adoption_rule import MAX_ABSENT_SHARE
from logstore.records.manifest import Manifest
from logstore.records.rebuild_job import RebuildId
from logstore.records.services import upload_adoption
from logstore.records.services.record_log import Pin, RecordLog
from tests.postgres import PostgresServer, postgres
from tests.servers import CATALOG_ID
from tests.spark.records.lost import dump
from tests.workers.hosting import few_probes
from tests.workflows.workflow_harness import assert_eventually
from workers.assembly.log_store_from_settings import open_log_store
from workers.client.temporal_connection import connect_client
from workers.hosting.rebuild_and_follow import abandon_rebuild, rebuild_catalog, require_no_workers
from workers.settings import Settings
from workflows.records.job_definitions import REBUILD_CATALOG, RebuildCatalogResult
from workflows.task_queues import records_queue

__all__ = ["postgres"]

pytestmark = [pytest.mark.external_service, pytest.mark.timeout(900)]

NAME: Final = "persistent://a/b/c"
_RUNNING: Final = WorkflowExecutionStatus.RUNNING
_SOME: Final = ("adoption.settle.after",)  # its manifest is published, and must not be again
_ALL: Final = (
    "records.pin.after",
    "records.enter.before",
    "records.enter.after",
    "bulk.publish.before",
    "bulk.publish.after",
    "records.load_rows.before",
    "records.load_rows.after",
    "records.name_database.before",
    "records.name_database.after",
    "adoption.stage.before",  # in the look before the manifest
    "adoption.stage.after",
    "records.put_manifest.before",
    "records.put_manifest.after",
    "records.settle.before",
    "records.settle.after",
    "adoption.stage.before",  # in the look behind it: the workflow is past the first one
    "adoption.stage.after",
    "adoption.settle.before",
    "adoption.settle.after",
    "adoption.conclude.before",
    "adoption.conclude.after",
    "records.put_block.after",
    "records.begin.after",
    "records.put_manifest.before",
    "adoption.finish.before",
    "adoption.finish.after",
    "records.end_entry.before",
    "records.end_entry.after",
    "records.unpin.before",
    "records.unpin.after",
)


@pytest.fixture(autouse=True)
def _probe_few_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let rebuilds in this process ask for as few unused ids as those of `command`."""
    monkeypatch.setattr(upload_adoption, "PROBED_IDS_PER_SHARD", few_probes.PROBED_IDS)


def write(settings: Settings) -> Topic:
    """A topic whose last entries were appended after the last flush."""
    with open_log_store(settings) as log:
        topic = log.catalog.topics.create_topic(NAME, RetentionPolicy())
        log.subscriptions.subscribe(topic.topic_id, "sub", latest=False)
        for part in range(4):
            log.topic_logs.append(
                topic, ProducedEntries(entries=[NewEntry(payload=b"%d" % part), NewEntry(payload=b"x")])
            )
            if part < 2:
                log.topic_logs.roll(topic)
                log.records.flusher.flush(cursors=True)
    return topic


def read(settings: Settings, topic: Topic) -> list[bytes]:
    with open_log_store(settings) as log:
        return [entry.payload or b"" for entry in log.topic_logs.scan(topic)]


def lose(settings: Settings) -> None:
    path = Path(settings.database_url.removeprefix("sqlite:///"))
    for one in path.parent.glob(f"{path.name}*"):
        one.unlink()


def rebuilt(
    settings: Settings, *, take_over: bool = False, max_absent_share: float = MAX_ABSENT_SHARE, **changes: Any
) -> RebuildCatalogResult:
    target = settings.model_copy(update=changes)
    return rebuild_catalog(
        target,
        take_over=take_over,
        max_absent_share=max_absent_share,
        say=lambda _: None,
        on_progress=lambda _: None,
    )


def manifests(settings: Settings) -> list[Manifest]:
    with open_log_store(settings) as log:
        records = RecordLog(log.record_objects)
        return [found for number in records.list_manifest_numbers() if (found := records.read_manifest(number))]


def command(settings: Settings, *, dies_at: str = "") -> "subprocess.CompletedProcess[str]":
    foreign = {name: value for name, value in os.environ.items() if not name.startswith("SEXTON_")}
    armed = {ENVIRONMENT_VARIABLE: f"{dies_at}=kill"} if dies_at else {}
    argv = [sys.executable, "-m", few_probes.__name__, "--json", "records", "rebuild", "--into", settings.database_url]
    return subprocess.run(
        argv, env=foreign | settings.environment() | armed, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.parametrize(
    "deaths", [pytest.param(_SOME, id="some"), pytest.param(_ALL, id="all", marks=pytest.mark.all_faults)]
)
@pytest.mark.sigkill
def test_command_that_is_killed_at_each_effect_goes_on_when_it_is_run_again(
    settings: Settings, deaths: Sequence[str]
) -> None:
    """One rebuild, which dies so often; it loads once, begins one epoch, and flushes what it adopted."""
    topic = write(settings)
    expected, entries, count = dump(settings.database_url), read(settings, topic), len(manifests(settings))
    lose(settings)
    for death in deaths:
        died = command(settings, dies_at=death)
        assert died.returncode == -signal.SIGKILL, (death, died.stdout, died.stderr)
    done = command(settings)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["missing_data"] == 0
    assert dump(settings.database_url) == expected
    assert read(settings, topic) == entries
    assert [one.shows for one in manifests(settings)[count:]][:2] == [count, None]
    assert len(manifests(settings)) == count + 2


@pytest.mark.all_faults
@pytest.mark.sigkill
@pytest.mark.parametrize("death", ["records.pin.after", "bulk.publish.before"])
def test_rebuild_that_a_newer_manifest_has_overtaken_ends(settings: Settings, death: str) -> None:
    """It was killed before its load; the next command begins with the newer one, and lets its hold go.

    It holds its manifest before its workflow is started: so there is none that the next command does not find.
    """
    write(settings)
    newest = manifests(settings)[-1]
    path = Path(settings.database_url.removeprefix("sqlite:///"))
    kept = path.read_bytes()
    lose(settings)
    died = command(settings, dies_at=death)
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert len(asyncio.run(_running(settings))) == (0 if death == "records.pin.after" else 1)
    path.write_bytes(kept)
    with open_log_store(settings) as log:
        log.records.flusher.flush(cursors=True)
        RecordLog(log.record_objects).require_ownership_once()
    assert manifests(settings)[-1].number == newest.number + 1
    lose(settings)
    said: list[str] = []
    target = settings.model_copy(update={"spark_master": "local[2]"})
    done = rebuild_catalog(target, say=said.append, on_progress=lambda _: None)
    assert done.refused is None
    assert done.manifest == newest.number + 2
    assert any("was abandoned, and has ended" in one for one in said)
    with open_log_store(settings) as log:
        assert RecordLog(log.record_objects).list_pins() == []
    assert asyncio.run(_running(settings)) == []


@activity.defn(name="test.idle")
async def _idle() -> None:
    """Never asked for."""


def test_rebuild_is_refused_while_a_worker_of_the_catalog_lives(settings: Settings, tmp_path: Path) -> None:
    """Its database is not lost; nothing is held or loaded. Told to take over, the rebuild goes on."""
    topic = write(settings)
    url = f"sqlite:///{tmp_path / 'other.db'}"
    expected, count = read(settings, topic), len(manifests(settings))
    told: dict[str, Any] = {"spark_master": "local[2]", "database_url": url}

    async def rebuild_beside_a_worker() -> None:
        client = await connect_client(settings, identity="an-old-worker")
        async with Worker(client, task_queue=records_queue(settings.task_queue), activities=[_idle]):
            await assert_eventually(lambda: _refused(client, settings))
            with pytest.raises(PreconditionFailed, match=r"expected none of the catalog .* found an-old-worker"):
                await asyncio.to_thread(rebuilt, settings, **told)
            assert not (tmp_path / "other.db").exists()
            assert await asyncio.to_thread(_held, settings) == []
            assert len(await asyncio.to_thread(manifests, settings)) == count
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(
                    "activities.records.rebuild_catalog.MAX_UNANSWERED_S", -5.0
                )  # nobody appends: it need not wait
                assert (await asyncio.to_thread(rebuilt, settings, take_over=True, **told)).refused is None

    asyncio.run(rebuild_beside_a_worker())
    assert read(settings.model_copy(update=told), topic) == expected


@pytest.mark.sigkill
def test_rebuild_that_was_loaded_is_refused_too_while_a_worker_lives(settings: Settings) -> None:
    """Killed before its manifest, it has ended no epoch: the old catalog may have gone on since."""
    topic = write(settings)
    expected, count = read(settings, topic), len(manifests(settings))
    lose(settings)
    assert command(settings, dies_at="records.put_manifest.before").returncode == -9

    async def rebuild_beside_a_worker() -> None:
        client = await connect_client(settings, identity="an-old-worker")
        async with Worker(client, task_queue=records_queue(settings.task_queue), activities=[_idle]):
            await assert_eventually(lambda: _refused(client, settings))
            with pytest.raises(PreconditionFailed, match=r"expected none of the catalog .* found an-old-worker"):
                await asyncio.to_thread(rebuilt, settings)
            assert len(await asyncio.to_thread(manifests, settings)) == count
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(
                    "activities.records.rebuild_catalog.MAX_UNANSWERED_S", -5.0
                )  # nobody appends: it need not wait
                assert (await asyncio.to_thread(rebuilt, settings, take_over=True)).refused is None

    asyncio.run(rebuild_beside_a_worker())
    assert read(settings, topic) == expected


def _held(settings: Settings) -> list[Pin]:
    with open_log_store(settings) as log:
        return RecordLog(log.record_objects).list_pins()


async def _refused(client: Client, settings: Settings) -> bool:
    try:
        await require_no_workers(client, settings)
    except PreconditionFailed:
        return True
    return False


@pytest.mark.sigkill
def test_rebuild_that_was_abandoned_holds_up_no_raid(settings: Settings) -> None:
    """Its command was killed; a raid is refused, and says how to end the rebuild. A later command begins anew."""
    topic = write(settings)
    entries = read(settings, topic)
    path = Path(settings.database_url.removeprefix("sqlite:///"))
    target = settings.model_copy(update={"database_url": f"sqlite:///{path.with_name('other.db')}"})
    died = command(target, dies_at="bulk.publish.before")
    assert died.returncode == -signal.SIGKILL, died.stderr
    (held,) = asyncio.run(_running(target))
    with open_log_store(settings) as log, pytest.raises(PreconditionFailed, match=f"records rebuild --abandon {held}$"):
        log.records.raider(None).raid_tombstones("raid")
    with pytest.raises(UnknownObject, match=f"as {held}, found"):
        abandon_rebuild(settings, held.replace(held[-8:], "00000000"))
    live = PollerInfo(identity="a-command")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("workers.hosting.rebuild_and_follow.list_live_pollers", _answering([live]))
        with pytest.raises(PreconditionFailed, match="expected no command at work on it, found a-command"):
            abandon_rebuild(settings, held)
        assert asyncio.run(_running(target)) == [held]
        patched.setattr(
            "workers.hosting.rebuild_and_follow.list_live_pollers", _answering([])
        )  # of the one that was killed
        done = abandon_rebuild(settings, held)
    assert (done.rebuild, done.terminated) == (held, True)
    assert asyncio.run(_running(target)) == []
    with open_log_store(settings) as log:
        assert RecordLog(log.record_objects).list_pins() == []
        log.records.raider(None).raid_tombstones("raid")
    with pytest.raises(UnknownObject, match="there is none"):
        abandon_rebuild(settings, held)
    lose(settings)
    assert rebuilt(target, spark_master="local[2]").refused is None
    assert read(target, topic) == entries


def _answering(found: list[PollerInfo]) -> Any:
    async def pollers(*_: object, **__: object) -> list[PollerInfo]:
        return found

    return pollers


async def _running(settings: Settings) -> list[str]:
    """Rebuilds into the database of these settings that have not ended."""
    client = await connect_client(settings)
    rebuilds = [
        RebuildId.for_command(CATALOG_ID, one, database_url=settings.database_url, skip_unreadable=False)
        for one in range(20)
    ]
    found = []
    for one in map(str, rebuilds):
        with suppress(RPCError):  # it was never started
            if (await client.get_workflow_handle(REBUILD_CATALOG.id(one)).describe()).status is _RUNNING:
                found.append(one)
    return found


@pytest.mark.all_faults
def test_of_two_rebuilds_into_two_databases_one_wins(
    settings: Settings, postgres: PostgresServer, tmp_path: Path
) -> None:
    """The other one was as far as its load; it is refused, by name, and never is the catalog."""
    topic = write(settings)
    expected, entries = dump(settings.database_url), read(settings, topic)
    lose(settings)
    died = command(settings, dies_at="records.put_manifest.before")
    assert died.returncode == -signal.SIGKILL, died.stderr
    with postgres.database() as name:
        winner = settings.model_copy(update={"database_url": postgres.url(name)})
        assert rebuilt(winner, spark_master="local[2]").refused is None
        assert dump(winner.database_url) == expected
        assert read(winner, topic) == entries
        lost = command(settings)
        assert lost.returncode == 3, lost.stderr
        assert (
            "expected the manifest of this rebuild, found one of epoch" in json.loads(lost.stdout)["error"]["message"]
        )
