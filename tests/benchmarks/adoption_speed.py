"""Adoption of a topic whose ledgers no record knows: `python -m tests.benchmarks.adoption_speed [ledgers] [segments]`.

Storage is in memory and the catalog on SQLite, so that it is adoption's own work that is measured: CPU seconds of the
look at storage and of the settling, and how much the peak of memory grows in each.
"""

import json
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from logstore.deletion.retention import RetentionPolicy
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.log.ledger_object_keys import SHARDS, meta_key, segment_key
from logstore.log.ledgers import Component, LedgerOwner, LedgerStatement
from logstore.log.segment_format import (
    EXTENT_FIELD,
    UPLOAD_ID_FIELD,
    RegisteredLedgerExtent,
    SegmentUploadId,
    encode_segment,
    sha256_hex,
)
from logstore.log.services.segment_reader import build_digest_metadata
from logstore.ports.catalog.log import Topic
from logstore.positions import LedgerId
from tests.faults.simulated_world import World
from tests.logstore.catalog.records.adoption import Losing, LostFile
from tests.migrated_catalogs import create_migrated_sqlite

_FIRST: Final = 10  # ledger that was not flushed
_ENTRIES: Final = 5  # of a segment


def measure(ledgers: int, segments: int) -> dict[str, Any]:
    """Lose a catalog with one topic, and adopt so many ledgers with so many segments each."""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        template, database = Path(folder, "template.db"), Path(folder, "catalog.db")
        create_migrated_sqlite(template)
        losing = Losing(World(database, template), LostFile(database))
        with losing.process() as log:
            topic = log.catalog.topics.create_topic("persistent://a/b/c", RetentionPolicy())
            losing.flush()
        _store(losing, topic, ledgers, segments)
        losing.lose()
        told: dict[str, Any] = {"ledgers": ledgers, "segments": ledgers * segments}
        with losing.adopter() as adopter:
            with _timed(told, "look"):
                for shard in range(SHARDS):
                    adopter.compare_and_stage_shard(shard)
            with _timed(told, "settle"):
                report = losing.make_catalog_ready(adopter)
        if (report.adopted_ledgers, report.adopted_segments) != (ledgers, ledgers * segments):
            raise RuntimeError(f"expected all of them to be adopted, found {report}")
        return told


def _store(losing: Losing, topic: Topic, ledgers: int, segments: int) -> None:
    entries = [NewEntry(payload=b"%d" % one) for one in range(_ENTRIES)]
    content = encode_segment([ProducedEntries(entries=entries)], publish_ms=1)
    vouched = build_digest_metadata(content, sha256_hex(content))
    owner = LedgerOwner(
        application="sexton", component=Component.MANAGED_LEDGER, topic_id=topic.topic_id, topic=topic.name, keys={}
    )
    for ledger_id in map(LedgerId, range(_FIRST, _FIRST + ledgers)):
        statement = LedgerStatement(
            owner=owner, ledger_id=ledger_id, created_us=topic.created_us, epoch=1
        ).to_metadata()
        losing.world.store.put_if_absent(meta_key(ledger_id, owner), b"{}", metadata=statement)
        for number in range(segments):
            said = {
                UPLOAD_ID_FIELD: str(SegmentUploadId(uuid4().hex, 1)),
                EXTENT_FIELD: str(RegisteredLedgerExtent(number - 1, number * _ENTRIES)),
            }
            key = segment_key(ledger_id, number)
            losing.world.store.put_if_absent(key, content, metadata=statement | said | vouched)


@contextmanager
def _timed(told: dict[str, Any], what: str) -> Iterator[None]:
    cpu, wall, peak = time.process_time(), time.perf_counter(), _peak_mb()
    yield
    told |= {
        f"{what}_cpu_s": round(time.process_time() - cpu, 1),
        f"{what}_s": round(time.perf_counter() - wall, 1),
        f"{what}_memory_mb": _peak_mb() - peak,
    }


def _peak_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


if __name__ == "__main__":
    given = [int(one) for one in sys.argv[1:]]
    sys.stdout.write(json.dumps(measure(*given, *(2_000, 5)[len(given) :])) + "\n")
