"""Whether a database is the catalog still, of which no listing alone is believed."""

from dataclasses import replace

import pytest

from logstore.errors import CatalogOutdated, StoreUnavailable
from logstore.records.manifest import MANIFEST_PREFIX, manifest_key
from logstore.records.services.manifest_publication import require_current_catalog
from logstore.records.services.record_log import RecordLog
from tests.fakes.object_store import StoreOperation
from tests.logstore.records.world import RecordsWorld


def _publish_as_another(world: RecordsWorld, number: int) -> None:
    """Put the manifest of a database that goes on where this one, restored from a backup, ends."""
    before = RecordLog(world.objects).read_newest_manifest()
    assert before
    world.log.put_manifest(replace(before, number=number, stamp="of another database"))


def test_newest_manifest_is_known_by_one_listing_and_one_request_for_the_next(world: RecordsWorld) -> None:
    """Every removal asks."""
    world.create()
    world.flush()
    asked = len(world.objects.calls)
    require_current_catalog(world.catalog.records, world.objects)
    assert world.objects.calls[asked:] == [
        (StoreOperation.GET, manifest_key(2)),
        (StoreOperation.LIST, MANIFEST_PREFIX),
    ]


@pytest.mark.parametrize("listings", [1, 1_000])
@pytest.mark.parametrize("hidden", [manifest_key(2), manifest_key(3), MANIFEST_PREFIX])
@pytest.mark.parametrize("flushed", [True, False])
def test_newer_manifest_that_a_listing_hides_refuses_the_database(
    world: RecordsWorld, listings: int, hidden: str, flushed: bool
) -> None:
    """The next number is asked for by name, whether or not the database knows a manifest."""
    world.create()
    world.flush()
    for number in (2, 3):
        _publish_as_another(world, number)
    if not flushed:
        world.sql("UPDATE record_log SET manifest = 0, stamp = '', pending = '{}'")
    world.objects.unlisted = {hidden: listings}
    with pytest.raises(CatalogOutdated):
        require_current_catalog(world.catalog.records, world.objects)


@pytest.mark.parametrize("listings", [1, 1_000])
def test_newer_manifests_of_which_sweeps_removed_the_first_refuse_the_database(
    world: RecordsWorld, listings: int
) -> None:
    """A backup is older than a hundred manifests, so neither the known one nor the next stands."""
    world.create()
    world.flush()
    for number in range(60, 160):
        _publish_as_another(world, number)
    world.objects.delete([manifest_key(1)])
    world.objects.unlisted = {MANIFEST_PREFIX: listings}
    with pytest.raises(StoreUnavailable, match=r"0101\.json: HEAD finds it, LIST does not"):
        require_current_catalog(world.catalog.records, world.objects)


@pytest.mark.parametrize("ahead", [5_000, 17_280])  # seven hours and a day of flushes every 5 s
def test_backup_that_is_far_behind_its_record_log_is_refused_behind_an_empty_listing(
    world: RecordsWorld, ahead: int
) -> None:
    """No number bounds how far: a listing without any manifest proves nothing."""
    world.create()
    world.flush()
    _publish_as_another(world, ahead)
    world.objects.delete([manifest_key(1)])
    world.objects.unlisted = {MANIFEST_PREFIX: 1_000}
    with pytest.raises(StoreUnavailable, match="expected manifest 1 or a newer one, found none"):
        require_current_catalog(world.catalog.records, world.objects)


@pytest.mark.parametrize("first_is_swept", [True, False])
def test_backup_from_before_the_first_flush_is_refused_behind_an_empty_listing(
    world: RecordsWorld, first_is_swept: bool
) -> None:
    """Sweeps remove the first manifest, and leave the mark of a log that has begun."""
    world.create()
    world.flush()
    _publish_as_another(world, 2)
    if first_is_swept:
        world.objects.delete([manifest_key(1)])
    world.sql("UPDATE record_log SET manifest = 0, stamp = '', pending = '{}'")
    world.objects.unlisted = {MANIFEST_PREFIX: 1_000}
    with pytest.raises((CatalogOutdated, StoreUnavailable)):
        require_current_catalog(world.catalog.records, world.objects)
    with pytest.raises(StoreUnavailable, match="records/registers/begun"):
        world.flush()
    assert not world.objects.head(manifest_key(3))


def test_record_log_that_has_not_begun_refuses_nothing(world: RecordsWorld) -> None:
    """No manifest is known, listed or marked."""
    world.create()
    require_current_catalog(world.catalog.records, world.objects)
    assert world.flush().manifest == 1


def test_record_log_that_is_lost_is_written_anew(world: RecordsWorld) -> None:
    """It looks as if a listing hid it. So appends are refused, until the log is mended as the refusal says."""
    world.create()
    world.flush()
    world.objects.delete([manifest_key(1)])
    with pytest.raises(StoreUnavailable, match="sexton records rewrite"):
        require_current_catalog(world.catalog.records, world.objects)
    world.flusher.rewrite_all_records()
    require_current_catalog(world.catalog.records, world.objects)
