"""What a worker serves on the queue of its own, as an owner."""

from pathlib import Path
from typing import Any, get_type_hints

import pytest

from activities.owner_routing import OwnerRoutedInput
from logstore.catalog import Database
from tests.fakes.owners import UnownedTopics
from tests.migrated_catalogs import migrate_or_copy_catalog
from workers.assembly.activities import WorkerActivities
from workers.assembly.log_store_from_settings import open_log_store
from workers.settings import Settings


def _names(activities: Any) -> set[str]:
    return {one.__name__ for one in activities}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A catalog and no store, which nothing here asks."""
    made = Settings.model_validate({"home": tmp_path, "s3_endpoint": "http://127.0.0.1:9", "s3_region": "us-east-1"})
    database = Database(made.database_url)
    migrate_or_copy_catalog(database)
    database.close()
    return made


def test_owner_serves_whatever_may_be_sent_to_an_owner(settings: Settings) -> None:
    """An activity that a workflow routes and an owner does not know is work that nobody there ever does."""
    with open_log_store(settings) as log:
        activities = WorkerActivities(log, UnownedTopics())
        everything, owners = activities.all(), _names(activities.list_owner_activities())
    routed = [one for one in everything if issubclass(get_type_hints(one)["request"], OwnerRoutedInput)]
    assert owners == _names(routed)
