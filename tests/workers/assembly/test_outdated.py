"""A database that is not the catalog any more is not used: its record log knows of more than it does.

It was restored from a backup, or another one was rebuilt from the log while its own processes lived on.
"""

import asyncio
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from infra.stack.embedded_stack import StackAddresses
from logstore.deletion.retention import RetentionPolicy
from logstore.errors import CatalogOutdated
from logstore.failpoints import SimulatedCrash, arm, disarm_all_and_take_hits
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.offload.tiered_copy import CopyLocation
from logstore.ports.catalog.deletion import AuditCause, Claim
from logstore.positions import LedgerId
from logstore.records.services.flusher import Flusher
from logstore.records.services.record_log import RecordLog
from tests.logstore.eventually import assert_eventually
from tests.postgres import PostgresServer, postgres
from tests.servers import create_store_settings
from workers.assembly.log_store import LogStore
from workers.assembly.log_store_from_settings import open_log_store
from workers.catalog_match import mark_or_refuse_primary_and_tiered
from workers.client import workflow_search
from workers.client.temporal_connection import connect_client
from workers.operations.embedded_stack import prepare_catalog_and_namespace
from workers.operations.service_checks import check_flushes_as_row, check_installation, check_services
from workers.settings import Settings

__all__ = ["postgres"]

pytestmark = pytest.mark.external_service

_NAME = "persistent://a/b/restored"
_ENTRY = ProducedEntries(entries=[NewEntry(payload=b"one")])


def _flush(log: LogStore) -> int:
    return Flusher(log.catalog.records, RecordLog(log.record_objects), clock_bound_s=300).flush(cursors=True).manifest


def _copied(settings: Settings, copy: Path) -> Settings:
    """Another database with the same content, as if it had been rebuilt from the log: it flushes on its own."""
    path = settings.database_url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path)) as now, closing(sqlite3.connect(copy)) as kept:
        now.backup(kept)
        kept.execute("UPDATE catalog SET epoch = epoch + 1")
        kept.commit()
    return settings.model_copy(update={"database_url": f"sqlite:///{copy}"})


def _go_on(settings: Settings) -> None:
    """Publish the next manifest of the log, with something that changed."""
    with open_log_store(settings) as log:
        log.catalog.topics.create_topic("persistent://a/b/other", RetentionPolicy())
        assert _flush(log) == 2


def _restore(copy: Path, settings: Settings) -> None:
    path = Path(settings.database_url.removeprefix("sqlite:///"))
    for left in path.parent.glob(f"{path.name}-*"):
        left.unlink()
    shutil.copy(copy, path)


def test_database_that_was_restored_is_refused_before_anything_is_appended(settings: Settings, tmp_path: Path) -> None:
    """It does not know the newest manifest: by any process, at its first use of the primary bucket."""
    path, copy = settings.database_url.removeprefix("sqlite:///"), tmp_path / "backup.db"
    with open_log_store(settings) as log:
        topic = log.catalog.topics.create_topic(_NAME, RetentionPolicy())
        log.topic_logs.append(topic, _ENTRY)
        assert _flush(log) == 1
        with closing(sqlite3.connect(path)) as now, closing(sqlite3.connect(copy)) as kept:
            now.backup(kept)
        log.topic_logs.append(topic, _ENTRY)
        assert _flush(log) == 2
    with open_log_store(settings) as log:
        log.topic_logs.append(topic, _ENTRY)
    _restore(copy, settings)
    with open_log_store(settings) as log:
        for _ in range(2):
            with pytest.raises(CatalogOutdated, match="000000000002"):
                log.topic_logs.append(topic, _ENTRY)
        with pytest.raises(CatalogOutdated, match="000000000002"):
            mark_or_refuse_primary_and_tiered(log.objects, log.buckets, settings)
        assert [one.number for one in log.catalog.ledgers.list_segments(LedgerId(0))] == [0]


def test_database_that_knows_the_newest_manifest_as_begun_is_used(settings: Settings) -> None:
    """The process that put it died before it could say so."""
    with open_log_store(settings) as log:
        topic = log.catalog.topics.create_topic(_NAME, RetentionPolicy())
        arm("records.settle.before", "crash")
        with pytest.raises(SimulatedCrash):
            _flush(log)
        disarm_all_and_take_hits()
    with open_log_store(settings) as log:
        assert log.topic_logs.append(topic, _ENTRY).count == 1


def test_process_that_lives_on_with_the_old_database_destroys_nothing(settings: Settings, tmp_path: Path) -> None:
    """It has used its buckets already, and has intents of its own: refused at the flush and at each removal."""
    with open_log_store(settings) as log:
        topic = log.catalog.topics.create_topic(_NAME, RetentionPolicy())
        log.topic_logs.append(topic, _ENTRY)
        log.topic_logs.roll(topic)
        _flush(log)
        other = _copied(settings, tmp_path / "rebuilt.db")
        claim, cause = Claim(workflow_id="w", run_id="r", ttl_s=60), AuditCause(actor="a", reason="r", workflow_id="w")
        log.catalog.phase_one.detach_ledgers(topic.topic_id, None, force=False, batch_id="b", claim=claim, cause=cause)
        (intent,) = log.catalog.deletions.list_intents(None, limit=10)
        storage = log.storages[intent.copy.value]
        stored = storage.inspect_copy(intent)
        _go_on(other)
        for _ in range(2):
            with pytest.raises(CatalogOutdated, match="000000000002"):
                storage.remove_copies({intent.row_id: stored}, on_progress=lambda _: None)
        refused: dict[str, Callable[[], object]] = {
            "flush": lambda: _flush(log),
            "raid": lambda: log.records.raider(0).raid_tombstones("r"),
            "defragmentation": log.records.defragmenter.defragment,
            "upload": lambda: log.buckets(CopyLocation(settings.tiered_bucket)).abort_uploads("x"),
        }
        for name, call in refused.items():
            with pytest.raises(CatalogOutdated, match="000000000002"):
                call()
            assert name
    with open_log_store(other) as rebuilt:
        assert [one.payload for one in rebuilt.topic_logs.scan(topic)] == [b"one"]


def _refusal(settings: Settings, *words: str) -> tuple[int, dict[str, str]]:
    """The exit code of a command, and the error that it prints."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SEXTON_")}
    argv = [sys.executable, "-m", "workers", "--json", *words]
    done = subprocess.run(
        argv, env=inherited | settings.environment(), text=True, capture_output=True, timeout=120, check=False
    )
    error: dict[str, str] = json.loads(done.stdout)["error"]
    return done.returncode, error


def test_command_on_a_catalog_that_is_being_adopted_exits_3_and_says_what_to_do(settings: Settings) -> None:
    """Nothing is written to it; it is complete once the rebuild has ended."""
    path = settings.database_url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE record_log SET state = 'ADOPTING'")
    code, error = _refusal(settings, "topic", "create", _NAME)
    assert (code, error["type"]) == (3, "CatalogAdopting")
    assert "wait until `sexton records rebuild` has ended, or run it again" in error["message"]


def test_restored_database_on_postgresql_is_refused_too(
    servers: StackAddresses, postgres: PostgresServer, tmp_path: Path
) -> None:
    """A backup that was taken before the newest manifest: by a command, exit 3, and by any process."""
    with postgres.database() as name:
        settings = create_store_settings(servers, tmp_path, database_url=postgres.url(name))
        with open_log_store(settings) as log:
            topic = log.catalog.topics.create_topic(_NAME, RetentionPolicy())
            log.topic_logs.append(topic, _ENTRY)
            assert _flush(log) == 1
        with postgres.database(template=name) as backup:
            with open_log_store(settings) as log:
                log.topic_logs.append(topic, _ENTRY)
                assert _flush(log) == 2
            restored = settings.model_copy(update={"database_url": postgres.url(backup)})
            with open_log_store(restored) as log, pytest.raises(CatalogOutdated, match="000000000002"):
                log.topic_logs.append(topic, _ENTRY)
            asyncio.run(_register(restored))
            code, error = _refusal(restored, "worker", "run")
            assert (code, error["type"]) == (3, "CatalogOutdated")


@contextmanager
def _worker(settings: Settings) -> "Iterator[subprocess.Popen[str]]":
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SEXTON_")}
    argv = [sys.executable, "-m", "workers", "worker", "run", "--json"]
    log = settings.home / "worker.log"
    with log.open("w") as errors:
        worker = subprocess.Popen(
            argv, env=inherited | settings.environment(), text=True, stdout=subprocess.PIPE, stderr=errors
        )
        try:
            yield worker
        finally:
            worker.kill()
            worker.communicate()


async def _register(settings: Settings) -> None:
    await workflow_search.register_search_attributes(await connect_client(settings))


def test_worker_of_the_old_database_ends_by_itself_and_says_why(settings: Settings, tmp_path: Path) -> None:
    """It would take work of the new catalog's jobs."""
    asyncio.run(_register(settings))
    told = settings.model_copy(update={"metrics_address": "off", "records_interval": 1})
    with open_log_store(settings) as log:
        log.catalog.topics.create_topic(_NAME, RetentionPolicy())
        _flush(log)
    with _worker(told) as worker:
        log_file = settings.home / "worker.log"
        assert_eventually(lambda: "serving " in log_file.read_text(), within_s=120)
        _go_on(_copied(settings, tmp_path / "rebuilt.db"))
        said, _ = worker.communicate(timeout=120)
    assert worker.returncode == 3, said
    assert json.loads(said)["error"]["type"] == "CatalogOutdated"
    assert "of epoch 2: the database is older than its record log" in json.loads(said)["error"]["message"]


@pytest.mark.parametrize("how", ["restored", "rebuilt"])
def test_status_and_up_refuse_a_database_that_is_older_than_its_record_log(
    settings: Settings, tmp_path: Path, how: str
) -> None:
    """Every append is refused, so no row of it is green; and what helps depends on who wrote the newest manifest."""
    path, copy = settings.database_url.removeprefix("sqlite:///"), tmp_path / "backup.db"
    with open_log_store(settings) as log:
        log.catalog.topics.create_topic(_NAME, RetentionPolicy())
        _flush(log)
    asyncio.run(_register(settings))
    assert check_flushes_as_row(settings) == {"name": "record log", "ok": True, "detail": "manifest 1 has all changes"}
    prepare_catalog_and_namespace(settings)
    if how == "restored":
        shutil.copy(path, copy)
        _go_on(settings)
        _restore(copy, settings)
        advice = "It was restored from a backup, or a copy of it is in use: stop the workers and run"
    else:
        _go_on(_copied(settings, copy))
        advice = "Another database was rebuilt from the log: set SEXTON_DATABASE_URL to that one"
    row = check_flushes_as_row(settings)
    assert row["ok"] is False
    assert advice in str(row["detail"])
    assert "sexton records rebuild --into" in str(row["detail"])
    for rows in (check_services, check_installation):
        assert row in rows(settings)
    with pytest.raises(CatalogOutdated, match=advice):
        prepare_catalog_and_namespace(settings)


def test_status_tells_that_it_could_not_compare_while_the_store_is_away(settings: Settings) -> None:
    """The row of the store says why."""
    with open_log_store(settings) as log:
        log.catalog.topics.create_topic(_NAME, RetentionPolicy())
        _flush(log)
    away = settings.model_copy(update={"s3_endpoint": "http://127.0.0.1:9"})
    told = "manifest 1 has all changes; not compared with the newest manifest"
    assert check_flushes_as_row(away) == {"name": "record log", "ok": True, "detail": told}
