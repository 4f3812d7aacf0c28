"""The arithmetic of sizes stands on figures that hold: rows, blocks, manifests, requests and events as they are."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from activities.deletion.inputs_and_results import ChunkInput
from logstore.catalog import Database
from logstore.errors import InvalidInput
from logstore.ports.catalog.deletion import IntentRowRange
from logstore.ports.object_storage import DeleteReport, ObjectInfo
from logstore.records.block_files import encode_block
from logstore.records.manifest import Block, IdCeilings, Manifest
from logstore.records.record_kinds import RecordKind
from tests.activities.activity_world import BATCH_ID, World, open_activity_world, run_owner_routed_activity
from tests.architecture.source import ROOT
from tests.logstore.records.versions import table as versions
from tests.logstore.records.versions import version
from tests.migrated_catalogs import migrate_or_copy_catalog
from tests.workers.operations.filled import bytes_a_row
from workers.operations import sizing

_NEAR = 0.2
_ROWS = 100_000
_HISTORIES = ROOT / "tests" / "replay" / "histories"


@pytest.mark.parametrize(
    "kind", ["sqlite", pytest.param("postgresql", marks=[pytest.mark.external_service, pytest.mark.all_faults])]
)
def test_rows_take_what_the_calculator_says(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Of each large table, indexes included; a new column or index moves the figure."""
    with open_database(kind, tmp_path, request) as database:
        measured = bytes_a_row(database, rows=_ROWS)
    assert measured == {table: pytest.approx(said, rel=_NEAR) for table, said in sizing.ROW_BYTES[kind].items()}


@contextmanager
def open_database(kind: str, folder: Path, request: pytest.FixtureRequest) -> Iterator[Database]:
    if kind == "sqlite":
        database = Database(f"sqlite:///{folder}/catalog.db")
        migrate_or_copy_catalog(database)
        yield database
        database.close()
        return
    server = request.getfixturevalue("postgres")
    with server.database() as name:
        database = Database(server.url(name))
        migrate_or_copy_catalog(database)
        yield database
        database.close()


def test_segments_and_manifests_of_the_record_log_take_what_the_calculator_says() -> None:
    """A block of segments with digests at random, and a manifest of a thousand full blocks."""
    chance, count = Random(1), 20_000
    rows = [
        version(1 + at // 10, 1, sub=str(at % 10))
        | {
            "at_us": 1_763_000_000_000_000 + 37_000 * at + chance.randrange(30_000),
            "first_entry": 5_000 * (at % 10),
            "entries": 5_000,
            "size_bytes": 6_400_000 + chance.randrange(10_000),
            "sha256": chance.randbytes(32).hex(),
            "delayed": 0,
        }
        for at in range(count)
    ]
    size = len(encode_block(RecordKind.SEGMENT, versions(RecordKind.SEGMENT, rows)))
    assert size / count == pytest.approx(sizing.SEGMENT_RECORD_BYTES, rel=_NEAR)
    blocks = tuple(_block(chance, at) for at in range(1_000))
    assert (len(_manifest(blocks).to_json()) - len(_manifest(()).to_json())) / len(blocks) == pytest.approx(
        sizing.MANIFEST_BLOCK_BYTES, rel=_NEAR
    )


def _block(chance: Random, at: int) -> Block:
    return Block(
        block_id=chance.randbytes(16).hex(),
        kind=RecordKind.SEGMENT,
        records=100_000,
        tombstones=0,
        size_bytes=4_000_000 + at,
        sha256=chance.randbytes(32).hex(),
        first_id=10**9 + at,
        last_id=10**9 + at + 9_999,
    )


def _manifest(blocks: tuple[Block, ...]) -> Manifest:
    return Manifest(
        number=1, catalog_id="c", epoch=1, bundles=64, stamp="s", flushed_us=1, ceilings=IdCeilings(), blocks=blocks
    )


@pytest.mark.parametrize(("ledgers", "segments"), [(7, 150), (3, 2), (2, 1), (1, 1_000), (1, 1)])
def test_deletion_makes_as_many_requests_as_the_calculator_says(
    ledgers: int, segments: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One chunk of phase two, on a store in memory whose listings and deletions are counted in pages."""
    world = open_activity_world(tmp_path)
    with world.opened:
        world.fill(ledgers, segments=segments, acknowledged=False)
        world.detach()
        asked = _count_pages(world, monkeypatch)
        chunk = ChunkInput(batch_id=BATCH_ID, chunk=IntentRowRange(first=0, last=10**6, rows=ledgers), catalog_epoch=1)
        assert sum(run_owner_routed_activity(world.deletion.delete_chunk, chunk).outcomes.values()) == ledgers
    assert world.outcomes() == {"DELETED": ledgers}
    said = sizing.estimate_s3_requests_of_deletion(ledgers, segments_per_ledger=segments)
    assert (asked["list"], asked["delete"], asked["get"]) == (said.lists, said.deletes, said.gets)


def _count_pages(world: World, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Requests of the kinds from now on, in pages of a thousand keys."""
    asked = {"list": 0, "delete": 0, "get": 0}
    lists, deletes, gets = world.objects.list, world.objects.delete, world.objects.get_range

    def pages(count: int) -> int:
        return max(1, -(-count // sizing.KEYS_PER_PAGE))

    def listing(prefix: str, *, start_after: str = "", first_page: int = 1_000) -> Iterator[ObjectInfo]:
        found = list(lists(prefix, start_after=start_after, first_page=first_page))
        asked["list"] += pages(len(found))
        return iter(found)

    def delete(keys: Any) -> DeleteReport:
        asked["delete"] += pages(len(keys))
        return deletes(keys)

    def get_range(key: str, start: int, length: int) -> bytes | None:
        asked["get"] += 1
        return gets(key, start, length)

    monkeypatch.setattr(world.objects, "list", listing)
    monkeypatch.setattr(world.objects, "get_range", get_range)
    monkeypatch.setattr(world.objects, "delete", delete)
    return asked


@pytest.mark.parametrize("name", ["delete-ledgers/v1/delete_continued", "trim-topics/v1/trims_continued"])
def test_histories_have_as_many_events_as_the_calculator_says(name: str) -> None:
    """Of the two jobs that do most of the work, at runs of forty activities and more."""
    events = json.loads((_HISTORIES / f"{name}.json").read_text(encoding="utf-8"))["events"]
    activities = sum("activityTaskScheduledEventAttributes" in one for one in events)
    assert len(events) == pytest.approx(sizing.EVENTS_PER_ACTIVITY * activities, rel=_NEAR)


def test_guide_shows_what_the_calculator_says() -> None:
    """Its table is that of the calculator for the same stores."""
    whole = sizing.PlannedStore(topics=10_000_000, ledgers=1_000_000_000)
    sizes = {
        "10,000 topics, 1 million ledgers": sizing.estimate_store_size(
            sizing.PlannedStore(topics=10_000, ledgers=1_000_000)
        ),
        "10 million topics, 1 billion ledgers": sizing.estimate_store_size(whole),
        "one of 16 clusters of these": sizing.estimate_store_size(whole.split_by_clusters(16)),
    }
    assert sizing.format_size_table(sizes) in (ROOT / "docs" / "guides" / "sizing.md").read_text(encoding="utf-8")


def test_clusters_share_a_store_evenly() -> None:
    """Together they hold no less than the whole."""
    whole = sizing.PlannedStore(topics=1_001, ledgers=100_001)
    part = whole.split_by_clusters(4)
    assert (part.topics, part.ledgers) == (251, 25_001)
    assert 4 * sizing.estimate_store_size(part).catalog_bytes >= sizing.estimate_store_size(whole).catalog_bytes


@pytest.mark.parametrize("wrong", [{"topics": 0}, {"segments": -1}, {"life_days": 0.5}, {"database": "mysql"}])
def test_numbers_out_of_bounds_are_refused(wrong: dict[str, Any]) -> None:
    """By name."""
    (name,) = wrong
    with pytest.raises(InvalidInput, match=name):
        sizing.PlannedStore(**{"topics": 1, "ledgers": 1} | wrong)
