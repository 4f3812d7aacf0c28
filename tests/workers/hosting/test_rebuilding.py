"""The command's job on real servers: a database that is gone comes back, whatever dies on the way."""

from pathlib import Path
from typing import Any

import pytest

from logstore.deletion.retention import RetentionPolicy
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.records.services.record_log import RecordLog
from tests.spark.records.lost import dump, flush_all
from workers.assembly.adapters import open_log
from workers.hosting.rebuilding import rebuild_catalog
from workers.settings import Settings
from workflows.records.rebuild_values import RebuildCatalogResult

pytestmark = [pytest.mark.external_service, pytest.mark.timeout(300)]

NAME = "persistent://a/b/c"


def write(settings: Settings) -> list[bytes]:
    """Two topics; the last entries are appended after the last flush."""
    payloads = []
    with open_log(settings) as log:
        for name in (NAME, f"{NAME}2"):
            topic = log.catalog.topics.create(name, RetentionPolicy())
            log.subscriptions.subscribe(topic.topic_id, "sub", latest=False)
            for part in range(3):
                entries = [NewEntry(payload=b"%d" % part), NewEntry(payload=b"x")]
                log.managed.append(topic, ProducedEntries(entries=entries))
                payloads += [one.payload for one in entries]
                log.managed.roll(topic)
        flush_all(log.catalog.records, RecordLog(log.record_objects), ceiling=1_000_000)
    return payloads


def rebuilt(settings: Settings, **changes: Any) -> RebuildCatalogResult:
    target = settings.model_copy(update=changes)
    return rebuild_catalog(target, say=lambda _: None, on_progress=lambda _: None)


def test_lost_database_comes_back(settings: Settings, tmp_path: Path) -> None:
    write(settings)
    expected = dump(settings.database_url)
    Path(settings.database_url.removeprefix("sqlite:///")).unlink()
    result = rebuilt(settings, spark_master="local[2]")
    assert result.refused is None
    assert dump(settings.database_url) == expected
