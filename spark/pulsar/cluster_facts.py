"""Facts of one scan of a cluster: schemas of its files, and rows.

Facts about ledgers and references are split by groups of ledger ids, as facts of a reconciliation are, so that one task
compares a group of both scans.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from infra.pulsar.ledger_scan import LedgerZnode
from infra.pulsar.scan_facts import OffloadReference
from logstore.pulsar.ledger_metadata import find_stated_owner
from spark.reconciliation.fact_files import GroupedFactFiles, choose_group_count

LEDGERS: Final = pa.schema(
    [
        ("ledger_id", pa.int64()),
        ("version", pa.int32()),
        ("czxid", pa.int64()),
        ("created_ms", pa.int64()),
        ("modified_ms", pa.int64()),
        ("state", pa.string()),  # "": the metadata cannot be read
        ("size_bytes", pa.int64()),
        ("application", pa.string()),
        ("component", pa.string()),  # "": the owner is not known
        ("owner", pa.string()),
    ]
)

REFERENCES: Final = pa.schema(
    [
        ("ledger_id", pa.int64()),
        ("path", pa.string()),
        ("source", pa.string()),
        ("is_owner", pa.bool_()),
        ("can_be_absent", pa.bool_()),  # the ledger may be absent, and nothing is lost
    ]
)

LOG_SOURCES: Final = ("log_segment", "log_allocation")
"""Values of `source` for references of DistributedLog's logs."""

MANAGED_LEDGERS: Final = pa.schema([("name", pa.string()), ("ledgers", pa.int64()), ("shadow_source", pa.string())])

OFFLOADS: Final = pa.schema(
    [
        ("ledger_id", pa.int64()),
        ("managed_ledger", pa.string()),
        ("uuid", pa.string()),
        ("complete", pa.bool_()),
        ("bookkeeper_deleted", pa.bool_()),  # the ledger on the bookies was given up
        ("bucket", pa.string()),
        ("is_segment", pa.bool_()),  # of a streaming offload, whose keys name no ledger
    ]
)

LOCKS: Final = pa.schema([("ledger_id", pa.int64())])
"""Schema of a lock of a replication worker."""

PROBLEMS: Final = pa.schema([("path", pa.string()), ("reason", pa.string())])

_ROWS_PER_BATCH: Final = 20_000
_LEDGERS_PER_FOLDER: Final = 10_000  # at most, in a folder of the last level


def choose_group_count_of_cluster(leaf_folders: int) -> int:
    """Return the number of groups of files, by the number of folders with ledgers."""
    return choose_group_count(leaf_folders * _LEDGERS_PER_FOLDER)


class GroupedRows:
    """Writer of the rows of one task, split into groups by ledger id. Memory holds one batch."""

    def __init__(self, folder: Path, stem: str, task: int, schema: pa.Schema, groups: int) -> None:
        self._files, self._schema = GroupedFactFiles(folder, stem, task, schema, groups), schema
        self._rows: list[Mapping[str, Any]] = []

    def add(self, row: Mapping[str, Any]) -> None:
        self._rows.append(row)
        if len(self._rows) >= _ROWS_PER_BATCH:
            self._write_batch()

    def close(self) -> int:
        """Give the files their final names. Return the number of rows."""
        self._write_batch()
        return self._files.close()

    def _write_batch(self) -> None:
        self._files.write(pa.RecordBatch.from_pylist(self._rows, schema=self._schema))
        self._rows = []


def make_ledger_row(found: LedgerZnode) -> dict[str, Any]:
    metadata, znode = found.metadata, found.znode
    owner = find_stated_owner(metadata) if metadata else None
    application = metadata.custom.get("application", b"") if metadata else b""
    return {
        "ledger_id": found.ledger_id,
        "version": znode.version,
        "czxid": znode.czxid,
        "created_ms": znode.created_ms,
        "modified_ms": znode.modified_ms,
        "state": metadata.state.value if metadata else "",
        "size_bytes": metadata.size_bytes if metadata else 0,
        "application": application.decode(errors="replace"),
        "component": owner.component.value if owner else "",
        "owner": owner.path if owner else "",
    }


def make_offload_row(found: OffloadReference) -> dict[str, Any]:
    attempt = found.attempt
    return {
        "ledger_id": attempt.ledger_id,
        "managed_ledger": found.managed_ledger,
        "uuid": str(attempt.uuid),
        "complete": attempt.complete,
        "bookkeeper_deleted": attempt.bookkeeper_deleted,
        "bucket": attempt.bucket,
        "is_segment": attempt.is_segment,
    }
