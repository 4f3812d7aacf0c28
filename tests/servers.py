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

from infra.catalog import Database
from infra.objects import create_s3_client
from infra.stack import embedded_stack
from infra.stack.service_port_choice import RequestedPorts
from logstore.offload.tiered_copy import CopyLocation
from tests.migrated import migrate
from tests.shared import worker_number
from workers.assembly.log_store_from_settings import open_log_store
from workers.settings import Settings

_SHARED = "stack"
_numbers = itertools.count()

CATALOG_ID: Final = "00000000-0000-4000-8000-00000000c0de"
"""Of every catalog that `settings_on` makes: a namespace of Temporal serves one, and here many share one."""


@contextmanager
def running_servers(folder: Path) -> Iterator[embedded_stack.StackAddresses]:
    """Temporal in memory, killed at the end, and SeaweedFS in the run's folder, which may run already."""
    shared = embedded_stack.StackOptions(
        home=folder / _SHARED, ports=RequestedPorts.any_free(), services=("seaweedfs",)
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


def kill_shared(folder: Path) -> None:
    """End what the run's processes shared."""
    if (folder / _SHARED).exists():
        embedded_stack.kill_stack(folder / _SHARED)


def settings_on(where: embedded_stack.StackAddresses, home: Path, **changes: object) -> Settings:
    """Settings of a log store of its own on shared servers: a fresh bucket, SQLite catalog and task queue."""
    number = f"{worker_number()}-{next(_numbers)}"
    settings = Settings.model_validate(
        {
            "home": home,
            "temporal_address": where.temporal,
            "ui_address": where.ui,
            "s3_endpoint": where.s3,
            "s3_region": where.region,
            "s3_access_key": where.access_key,
            "s3_secret_key": where.secret_key,
            "primary_bucket": f"test-{number}",
            "tiered_bucket": f"test-{number}-tiered",
            "records_bucket": f"test-{number}-records",
            "task_queue": f"test-{number}",
            "ownership": "single",
            **changes,
        }
    )
    _create_buckets(settings)
    database = Database(settings.database_url)
    migrate(database)
    database.write(lambda found: found.execute(text("UPDATE catalog SET catalog_id = :id"), {"id": CATALOG_ID}))
    database.close()
    mark_buckets(settings)
    return settings


def mark_buckets(settings: Settings) -> None:
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
