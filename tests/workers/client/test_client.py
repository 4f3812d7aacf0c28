"""The client: what it refuses before it asks."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus

from logstore.catalog import Database
from logstore.deletion.retention import RetentionPolicy
from logstore.errors import InvalidInput, ServiceFailed
from logstore.field_bounds import MAX_LEDGER_IDS
from logstore.ports.catalog.log import Topic, TopicState
from logstore.positions import LedgerId, TopicId
from tests.migrated_catalogs import migrate_or_copy_catalog
from workers.client import Sexton
from workers.client.temporal_connection import connect_client
from workers.settings import Settings

_NOBODY: Any = SimpleNamespace(start_workflow=None)
_TOPIC = Topic(
    topic_id=TopicId(1), name="persistent://a/b/c", state=TopicState.ACTIVE, policy=RetentionPolicy(), created_us=0
)


def test_connect_client_where_nobody_listens_names_the_service(tmp_path: Path) -> None:
    """Workers and programs get the same clear sentence as commands do."""
    settings = Settings(home=tmp_path, temporal_address="127.0.0.1:1")
    with pytest.raises(ServiceFailed, match=r"temporal: no Temporal server answers at 127\.0\.0\.1:1"):
        asyncio.run(connect_client(settings))


@pytest.mark.parametrize("ids", [[], range(MAX_LEDGER_IDS + 1)])
def test_delete_ledgers_of_none_or_too_many_is_refused(tmp_path: Path, ids: list[int]) -> None:
    """Bad input is refused before anything is started."""
    sexton = Sexton(_NOBODY, Settings(home=tmp_path))  # nothing is asked of it
    with pytest.raises(InvalidInput, match="ledger"):
        asyncio.run(sexton.delete_ledgers(_TOPIC, [LedgerId(one) for one in ids]))


def test_page_of_a_run_is_the_tab_with_its_current_details(tmp_path: Path) -> None:
    """One step from the command: ids have slashes, which the Web UI expects quoted. Without a Web UI there is none."""
    settings = Settings(home=tmp_path, ui_address="http://127.0.0.1:8233", temporal_namespace="ours")
    page = Sexton(_NOBODY, settings).format_web_ui_url("delete-ledger/0/LEDGER/1", "run-1")
    assert page == "http://127.0.0.1:8233/namespaces/ours/workflows/delete-ledger%2F0%2FLEDGER%2F1/run-1/user-metadata"
    assert Sexton(_NOBODY, Settings(home=tmp_path)).format_web_ui_url("delete-ledger/0/LEDGER/1", "run-1") == ""


def test_close_gives_threads_time_to_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaving the block rests, with the processor free for the SDK's threads, also where the block fails."""
    rests: list[float] = []

    async def rest(seconds: float) -> None:
        rests.append(seconds)

    async def fail() -> None:
        async with Sexton(None, Settings(home=tmp_path)):  # type: ignore[arg-type]  # nothing is asked of it
            raise InvalidInput("ledger", expected="one", found="none")

    monkeypatch.setattr("workers.client.sexton.asyncio.sleep", rest)
    with pytest.raises(InvalidInput):
        asyncio.run(fail())
    assert rests
    assert rests[0] >= 0.1


@pytest.mark.parametrize(
    ("told", "field"),
    [({"reason": "x" * 2_001}, "reason"), ({"reason": "a\x00b"}, "reason"), ({"actor": "y" * 201}, "actor")],
)
@pytest.mark.parametrize(
    "job", ["trim_topic", "trim_topics", "offload_topic", "sweep_deletions", "redrive_dead_letters"]
)
def test_client_refuses_what_the_job_would_refuse(tmp_path: Path, told: dict[str, str], field: str, job: str) -> None:
    """Before anything is sent or changed: there is neither a server nor a catalog."""
    sexton: Any = Sexton(_NOBODY, Settings(home=tmp_path))
    given: Any = {"trim_topic": [_TOPIC], "offload_topic": [_TOPIC], "redrive_dead_letters": [None]}.get(job, [])
    with pytest.raises(InvalidInput, match=f"^{field}: expected"):
        asyncio.run(getattr(sexton, job)(*given, **told))


def test_client_refuses_a_topic_whose_name_or_id_is_none(tmp_path: Path) -> None:
    """As the command line does when it parses them."""
    sexton: Any = Sexton(_NOBODY, Settings(home=tmp_path))
    for topic_id, name, field in ((1, "orders", "topic"), (-1, _TOPIC.name, "topic_id")):
        topic = replace(_TOPIC, topic_id=TopicId(topic_id), name=name)
        with pytest.raises(InvalidInput, match=f"^{field}: expected"):
            asyncio.run(sexton.trim_topic(topic))
    with pytest.raises(InvalidInput, match=r"^ledger_id: expected"):
        asyncio.run(sexton.offload_ledger(_TOPIC, -1))


@pytest.mark.parametrize("endpoint", ["", "http://127.0.0.1:1"])
def test_job_is_started_where_the_object_store_cannot_be_asked(tmp_path: Path, endpoint: str) -> None:
    """A client uses no bucket: what a job needs of it waits for the store, and its workers compare the bucket first."""
    started: list[object] = []

    async def start(*_: object, **told: object) -> object:
        started.append(told["id"])
        return SimpleNamespace(result_run_id="joined")

    async def known(*_: object) -> None:
        """The namespace is ours."""

    settings = Settings(home=tmp_path, s3_endpoint=endpoint)
    database = Database(settings.database_url)
    migrate_or_copy_catalog(database)
    database.close()

    async def describe() -> object:
        return SimpleNamespace(workflow_type="sweep-deletions", status=WorkflowExecutionStatus.RUNNING, run_id="joined")

    found = SimpleNamespace(describe=describe)
    client: Any = SimpleNamespace(start_workflow=start, get_workflow_handle=lambda _: found)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("workers.client.job_client.mark_namespace_as_own", known)
        asyncio.run(Sexton(client, settings).sweep_deletions())
    assert started == ["sweep-deletions"]


@pytest.mark.parametrize("given", [False, True])
def test_client_asks_one_catalog_for_its_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, given: bool) -> None:
    """One that it opens at the first question and closes with itself; or its caller's, which stays open."""
    told: list[str] = []
    asked: Any = SimpleNamespace(ledgers=SimpleNamespace(catalog_epoch=lambda: 7))

    @contextmanager
    def opened(url: str) -> Iterator[Any]:
        told.append("opened")
        yield asked
        told.append("closed")

    async def ask_twice() -> list[int]:
        async with Sexton(_NOBODY, Settings(home=tmp_path), (lambda: asked) if given else None) as sexton:
            assert told == []
            epochs = [sexton._read_catalog_epoch(), sexton._read_catalog_epoch()]
            assert told == ([] if given else ["opened"])
        return epochs

    monkeypatch.setattr("workers.client.job_client.open_catalog", opened)
    assert asyncio.run(ask_twice()) == [7, 7]
    assert told == ([] if given else ["opened", "closed"])
