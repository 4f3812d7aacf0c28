"""What measurements stand on: a real stack of their own, one real worker, and many ledgers made quickly."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
from botocore.config import Config
from sqlalchemy import Connection, insert

from infra.stack import embedded_stack
from logstore.catalog import Database
from logstore.catalog import tables as t
from logstore.deletion.retention import RetentionPolicy
from logstore.log.ledger_object_keys import meta_key, segment_key
from logstore.log.ledgers import CopyKind, CopyState, LedgerState, LedgerStatement
from logstore.ports.catalog.log import Topic
from logstore.positions import LedgerId
from tests.benchmarks.puts import Put, put_all
from workers.assembly.log_store import LogStore
from workers.assembly.log_store_from_settings import open_log_store
from workers.demo.temporary_homes import kill_processes_and_remove_home
from workers.operations.embedded_stack import (
    add_stack_addresses,
    prepare_catalog_and_namespace,
    stack_options_from_settings,
    start_worker,
)
from workers.settings import Settings

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_BODY = b"x" * 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A running stack, its settings, and the log on it."""

    settings: Settings
    log: LogStore

    def s3(self) -> "S3Client":
        """A bare client with the pool and address style of a careful user."""
        keys = self.settings.s3_access_key.get_secret_value(), self.settings.s3_secret_key.get_secret_value()
        return boto3.client(
            "s3",
            endpoint_url=self.settings.s3_endpoint,
            region_name=self.settings.s3_region,
            aws_access_key_id=keys[0],
            aws_secret_access_key=keys[1],
            config=Config(s3={"addressing_style": "path"}, max_pool_connections=32),
        )


@contextmanager
def stage(settings: Settings, *, workers: int = 1) -> Iterator[Stage]:
    """Start a throw-away stack with `workers` worker processes; killed at the end."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # each run of a workflow would compile its modules anew
    home = Path(tempfile.mkdtemp(prefix="sexton-bench-"))
    own = settings.with_changes(home=home, database_url="", bulk_dir="")
    try:
        where = embedded_stack.start_stack(stack_options_from_settings(own, free_ports=True, in_memory=True))
        own = add_stack_addresses(own, where)
        prepare_catalog_and_namespace(own)
        for number in range(workers):
            start_worker(own, name=f"worker-{number + 1}")
        with open_log_store(own) as log:
            yield Stage(settings=own, log=log)
    finally:
        kill_processes_and_remove_home(home)


def make_ledgers(on: Stage, name: str, *, ledgers: int, segments: int) -> tuple[Topic, list[LedgerId]]:
    """A topic of closed ledgers with that many small objects each, and one open ledger behind them.

    Rows go in by bulk insert and objects by plain puts: what is measured is how they go away.
    """
    topic = on.log.catalog.topics.create_topic(name, RetentionPolicy())
    first = on.log.catalog.ledgers.create_ledger(topic.topic_id, application=on.settings.application)
    ids = _rows(on, topic, first, ledgers, segments)
    put_all(on.settings, _objects(ids, first, segments))
    return topic, ids


def _rows(on: Stage, topic: Topic, first: LedgerStatement, ledgers: int, segments: int) -> list[LedgerId]:
    """Takes ids from the catalog's counter, as creating each ledger would."""
    start = int(first.ledger_id) + 1
    ids = [LedgerId(start + number) for number in range(ledgers)]

    def work(connection: Connection) -> None:
        list_id = connection.execute(
            t.ledger.select().with_only_columns(t.ledger.c.list_id).where(t.ledger.c.ledger_id == first.ledger_id)
        ).scalar_one()
        connection.execute(t.catalog.update().values(next_ledger_id=start + ledgers + 1))
        base = {"list_id": list_id, "application": on.settings.application, "generation": 0, "epoch": first.epoch}
        every = [*ids, LedgerId(start + ledgers)]
        rows = [_ledger(base, row, row != every[-1], segments, first.created_us) for row in every]
        connection.execute(insert(t.ledger), rows)
        connection.execute(insert(t.ledger_copy), [_copy(row) for row in every])
        connection.execute(t.ledger_copy.delete().where(t.ledger_copy.c.ledger_id == first.ledger_id))
        connection.execute(t.ledger.delete().where(t.ledger.c.ledger_id == first.ledger_id))

    write_rows(on, work)
    return ids


def write_rows(on: Stage, work: Callable[[Connection], object]) -> None:
    """Change the catalog past Sexton's own code."""
    with closing(Database(on.settings.database_url)) as database:
        database.write(work)


def _ledger(base: dict[str, object], row: LedgerId, closed: bool, segments: int, now: int) -> dict[str, object]:
    return base | {
        "ledger_id": row,
        "place": row,
        "state": (LedgerState.CLOSED if closed else LedgerState.OPEN).value,
        "entries": segments if closed else 0,
        "size_bytes": segments * len(_BODY),
        "segments": segments if closed else 0,
        "last_segment": segments - 1,
        "created_us": now,
        "closed_us": now if closed else None,
    }


def _copy(row: LedgerId) -> dict[str, object]:
    return {"ledger_id": row, "kind": CopyKind.LEDGER.value, "state": CopyState.LIVE.value, "context": {}}


def _objects(ids: list[LedgerId], first: LedgerStatement, segments: int) -> Iterator[Put]:
    for ledger_id in ids:
        one = LedgerStatement(owner=first.owner, ledger_id=ledger_id, created_us=first.created_us, epoch=first.epoch)
        metadata = one.to_metadata()
        yield meta_key(one.ledger_id, one.owner), one.to_json(), metadata
        for number in range(segments):
            yield segment_key(one.ledger_id, number), _BODY, metadata
