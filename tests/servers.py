"""Real servers for tests: one SeaweedFS a run, one Temporal a process of it, a bucket, a catalog and a queue a test."""

import itertools
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from sqlalchemy import text

from infra.objects.s3_store import create_s3_client
from infra.stack import embedded_stack
from infra.stack.service_port_choice import RequestedPorts
from logstore.catalog import Database
from logstore.offload.tiered_copy import CopyLocation
from tests.migrated_catalogs import migrate_or_copy_catalog
from tests.run_folder import xdist_worker_number
from workers.assembly.log_store_from_settings import open_log_store
from workers.settings import Settings

_SHARED_FOLDER = "stack"
_store_numbers = itertools.count()

CATALOG_ID: Final = "00000000-0000-4000-8000-00000000c0de"
"""Of every catalog that `settings_on` makes: a namespace of Temporal serves one, and here many share one."""


@contextmanager
def running_servers(folder: Path) -> Iterator[embedded_stack.StackAddresses]:
    """Temporal in memory, killed at the end, and SeaweedFS in the run's folder, which may run already."""
    shared = embedded_stack.StackOptions(
        home=folder / _SHARED_FOLDER, ports=RequestedPorts.any_free(), services=("seaweedfs",)
    )
    home = Path(tempfile.mkdtemp(prefix="sx-"))  # short, for sockets
    own = embedded_stack.StackOptions(
        home=home, ports=RequestedPorts.any_free(), temporal_in_memory=True, services=("temporal",)
    )
    try:
        storage, temporal = embedded_stack.start_stack(shared), embedded_stack.start_stack(own)
        yield replace(storage, temporal=temporal.temporal, ui=temporal.ui)
    finally:
        embedded_stack.kill_stack(home)
        shutil.rmtree(home, ignore_errors=True)


def kill_shared_storage(folder: Path) -> None:
    """End what the run's processes shared."""
    if (folder / _SHARED_FOLDER).exists():
        embedded_stack.kill_stack(folder / _SHARED_FOLDER)


def create_store_settings(addresses: embedded_stack.StackAddresses, home: Path, **changes: object) -> Settings:
    """Settings of a log store of its own on shared servers: a fresh bucket, SQLite catalog and task queue."""
    store_number = f"{xdist_worker_number()}-{next(_store_numbers)}"
    settings = Settings.model_validate(
        {
            "home": home,
            "temporal_address": addresses.temporal,
            "ui_address": addresses.ui,
            "s3_endpoint": addresses.s3,
            "s3_region": addresses.region,
            "s3_access_key": addresses.access_key,
            "s3_secret_key": addresses.secret_key,
            "primary_bucket": f"test-{store_number}",
            "tiered_bucket": f"test-{store_number}-tiered",
            "records_bucket": f"test-{store_number}-records",
            "task_queue": f"test-{store_number}",
            "ownership": "single",
            **changes,
        }
    )
    _create_buckets(settings)
    database = Database(settings.database_url)
    migrate_or_copy_catalog(database)
    database.write(
        lambda connection: connection.execute(text("UPDATE catalog SET catalog_id = :id"), {"id": CATALOG_ID})
    )
    database.close()
    write_bucket_markers(settings)
    return settings


def write_bucket_markers(settings: Settings) -> None:
    """Let the buckets be the catalog's, before a test puts something of others there."""
    with open_log_store(settings) as log:
        log.objects.require_ownership_once()
        log.buckets(CopyLocation(settings.tiered_bucket)).require_ownership_once()
        log.record_objects.require_ownership_once()


def _create_buckets(settings: Settings) -> None:
    keys = settings.s3_access_key.get_secret_value(), settings.s3_secret_key.get_secret_value()
    client = create_s3_client(settings.s3_endpoint, settings.s3_region, *keys)
    for bucket in (settings.primary_bucket, settings.tiered_bucket, settings.records_bucket, *settings.replicas):
        with suppress(client.exceptions.BucketAlreadyOwnedByYou, client.exceptions.BucketAlreadyExists):
            client.create_bucket(Bucket=bucket)
    client.close()
