"""A database that was restored from a backup is not used: its record log knows of more than it does."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from logstore.deletion.retention import RetentionPolicy
from logstore.errors import CatalogOutdated
from logstore.failpoints import SimulatedCrash, arm, disarm
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.positions import LedgerId
from logstore.records.services.flushing import Flusher
from logstore.records.services.record_log import RecordLog
from workers.assembly.adapters import open_log
from workers.assembly.log import LogStore
from workers.identity.stores import compare_buckets
from workers.settings import Settings

pytestmark = pytest.mark.external_service

_NAME = "persistent://a/b/restored"
_ENTRY = ProducedEntries(entries=[NewEntry(payload=b"one")])


def _flush(log: LogStore) -> int:
    return Flusher(log.catalog.records, RecordLog(log.record_objects), clock_bound_s=300).flush(cursors=True).manifest


def _restore(copy: Path, settings: Settings) -> None:
    path = Path(settings.database_url.removeprefix("sqlite:///"))
    for left in path.parent.glob(f"{path.name}-*"):
        left.unlink()
    shutil.copy(copy, path)


def test_database_that_was_restored_is_refused_before_anything_is_appended(settings: Settings, tmp_path: Path) -> None:
    """It does not know the newest manifest: by any process, at its first use of the primary bucket."""
    path, copy = settings.database_url.removeprefix("sqlite:///"), tmp_path / "backup.db"
    with open_log(settings) as log:
        topic = log.catalog.topics.create(_NAME, RetentionPolicy())
        log.managed.append(topic, _ENTRY)
        assert _flush(log) == 1
        with closing(sqlite3.connect(path)) as now, closing(sqlite3.connect(copy)) as kept:
            now.backup(kept)
        log.managed.append(topic, _ENTRY)
        assert _flush(log) == 2
    with open_log(settings) as log:
        log.managed.append(topic, _ENTRY)
    _restore(copy, settings)
    with open_log(settings) as log:
        for _ in range(2):
            with pytest.raises(CatalogOutdated, match="000000000002"):
                log.managed.append(topic, _ENTRY)
        with pytest.raises(CatalogOutdated, match="000000000002"):
            compare_buckets(log.objects, log.buckets, settings)
        assert [one.number for one in log.catalog.ledgers.segments(LedgerId(0))] == [0]


def test_database_that_knows_the_newest_manifest_as_begun_is_used(settings: Settings) -> None:
    """The process that put it died before it could say so."""
    with open_log(settings) as log:
        topic = log.catalog.topics.create(_NAME, RetentionPolicy())
        arm("records.settle.before", "crash")
        with pytest.raises(SimulatedCrash):
            _flush(log)
        disarm()
    with open_log(settings) as log:
        assert log.managed.append(topic, _ENTRY).count == 1
