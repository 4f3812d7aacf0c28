"""Whether a database is the catalog still, of which no listing alone is believed."""

from dataclasses import replace

import pytest

from logstore.errors import CatalogOutdated, StoreUnavailable
from logstore.records.manifest import PREFIX, manifest_key
from logstore.records.services.publishing import require_current
from logstore.records.services.record_log import RecordLog
from tests.fakes.objects import Operation
from tests.logstore.records.world import RecordsWorld


def _publish_as_another(world: RecordsWorld, number: int) -> None:
    """Put the manifest of a database that goes on where this one, restored from a backup, ends."""
    before = RecordLog(world.objects).newest()
    assert before
    world.log.put_manifest(replace(before, number=number, stamp="of another database"))


def test_newest_manifest_is_known_by_one_listing_and_one_request_for_the_next(world: RecordsWorld) -> None:
    """Every removal asks."""
    world.create()
    world.flush()
    asked = len(world.objects.calls)
    require_current(world.catalog.records, world.objects)
    assert world.objects.calls[asked:] == [(Operation.GET, manifest_key(2)), (Operation.LIST, PREFIX)]


@pytest.mark.parametrize("listings", [1, 1_000])
@pytest.mark.parametrize("hidden", [manifest_key(2), manifest_key(3), PREFIX])
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
        require_current(world.catalog.records, world.objects)


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
    world.objects.unlisted = {PREFIX: listings}
    with pytest.raises(StoreUnavailable, match=r"0101\.json: HEAD finds it, LIST does not"):
        require_current(world.catalog.records, world.objects)


def test_record_log_that_is_lost_refuses_no_append(world: RecordsWorld) -> None:
    """A flush refuses it, and says what to do."""
    world.create()
    world.flush()
    world.objects.delete([manifest_key(1)])
    require_current(world.catalog.records, world.objects)
