"""Facts of one scan of a cluster: schemas of its files, and rows.

Facts about ledgers and references are split by groups of ledger ids, as facts of a reconciliation are, so that one task
compares a group of both scans.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from infra.pulsar.ledger_scan import LedgerZnode
from infra.pulsar.scan_facts import OffloadReference, ScannedReference, ScanProblem
from logstore.errors import PreconditionFailed
from logstore.pulsar.ledger_metadata import find_stated_owner
from spark.reconciliation.fact_files import GroupedFactFiles, UngroupedFactFile

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
        ("given_up", pa.bool_()),  # the owner reads only the objects of the ledger's offload
    ]
)

LOG_SOURCES: Final = ("log_segment", "log_allocation")
"""Values of `source` for references of DistributedLog's logs."""

MANAGED_LEDGER_FILES: Final = "managed_ledgers"
"""Stem of the files with the schema `MANAGED_LEDGERS`."""

MANAGED_LEDGERS: Final = pa.schema(
    [
        ("name", pa.string()),
        ("ledgers", pa.int64()),
        ("version", pa.int32()),
        ("czxid", pa.int64()),
        ("modified_ms", pa.int64()),
        ("shadow_source", pa.string()),
        ("verdict", pa.string()),  # `ManagedLedgerVerdict`; "": the managed ledger is no orphan
    ]
)

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

MAX_LEDGERS_PER_GROUP: Final = 125_000
"""One task holds the ledgers and references of a group from two scans."""

MAX_REASONS: Final = 100
"""Problems in a summary. The files have all of them."""

_ROWS_PER_BATCH: Final = 20_000


class FactRows:
    """Writer of the rows of one task. Memory holds one batch."""

    def __init__(self, file: GroupedFactFiles | UngroupedFactFile, schema: pa.Schema) -> None:
        self._file, self._schema = file, schema
        self._rows: list[Mapping[str, Any]] = []

    def add(self, row: Mapping[str, Any]) -> None:
        self._rows.append(row)
        if len(self._rows) >= _ROWS_PER_BATCH:
            self._write_batch()

    def close(self) -> int:
        """Give the files their final names. Return the number of rows."""
        self._write_batch()
        return self._file.close()

    def _write_batch(self) -> None:
        # `RecordBatch.from_pylist` takes four times as long, which is half of the time of a scan without the reads.
        columns = [pa.array([row.get(column.name) for row in self._rows], column.type) for column in self._schema]
        self._file.write(pa.RecordBatch.from_arrays(columns, schema=self._schema))
        self._rows = []


@dataclass(frozen=True, slots=True)
class FactFolder:
    """Folder of the facts of one scan. `groups` is the number of groups of ledger ids."""

    path: Path
    groups: int

    def open_grouped_rows(self, stem: str, task: int, schema: pa.Schema) -> FactRows:
        return FactRows(GroupedFactFiles(self.path, stem, task, schema, self.groups), schema)

    def open_rows(self, stem: str, task: int, schema: pa.Schema) -> FactRows:
        return FactRows(UngroupedFactFile(self.path, stem, task, schema), schema)


class ProblemRows:
    """Writer of the problems of one task. `first` has some of them, for a summary."""

    def __init__(self, folder: FactFolder, stem: str, task: int) -> None:
        self._rows = folder.open_rows(stem, task, PROBLEMS)
        self.first: list[ScanProblem] = []

    def add(self, problem: ScanProblem) -> None:
        self._rows.add(asdict(problem))
        if len(self.first) < MAX_REASONS:
            self.first.append(problem)

    def close(self) -> int:
        return self._rows.close()


def require_all_rows(job: str, rows: Mapping[str, int], counts: Mapping[str, int]) -> None:
    """Refuse files with other numbers of rows than their job counted. A missing row would make an orphan.

    `rows` are the numbers that were read, and `counts` those of the job, by kind.

    Raises:
        PreconditionFailed: An executor does not see all files, or a late attempt of a task has replaced some.
    """
    for kind, number in rows.items():
        if number != counts[kind]:
            raise PreconditionFailed(
                f"{job}: expected {counts[kind]:,} {kind} in its files, found {number:,}; plan again"
            )


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


def make_reference_row(found: ScannedReference) -> dict[str, Any]:
    return {
        "ledger_id": found.ledger_id,
        "path": found.path,
        "source": found.source,
        "is_owner": found.is_owner,
        "can_be_absent": found.can_be_absent,
        "given_up": found.given_up,
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
