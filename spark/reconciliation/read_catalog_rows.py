"""`read-references`: read lists, ledgers, tiered copies, then intents from the catalog, by ranges of ids."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from sqlalchemy import Select

from logstore.catalog.engine.arrow_bulk import build_arrow_schema, open_arrow_reader
from logstore.catalog.engine.dialect_sql import parse_offload_context_or_empty
from logstore.catalog.log.component_ledgers import REFERRING_COLUMN_BY_COMPONENT
from logstore.catalog.reconciliation import bulk_queries
from logstore.log.ledgers import Component, LedgerOwner
from logstore.offload.tiered_copy import parse_lengths
from logstore.positions import TopicId
from logstore.reconciliation.bulk_job_inputs_and_results import BulkJobSummary, ReadLedgersAndIntentsJob
from spark.job_runner import JobContext
from spark.reconciliation.compare_shard_group import find_positions
from spark.reconciliation.fact_files import (
    COPIES,
    INTENTS,
    LEDGERS,
    GroupedFactFiles,
    read_facts,
    write_ungrouped_facts,
)
from spark.sources.store_addresses import CatalogAddresses

_MIN_IDS_PER_TASK: Final = 500_000
_MAX_TASKS: Final = 2_000


@dataclass(frozen=True, slots=True)
class _IdRange:
    """Range of ids from `first` (inclusive) to `end` (exclusive)."""

    number: int
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class _CatalogReader:
    url: str
    folder: Path
    groups: int
    application: str

    def write_facts_of_range(
        self,
        stem: str,
        schema: pa.Schema,
        ids: _IdRange,
        query: Select[Any],
        to_facts: Callable[[pa.RecordBatch], pa.Table],
    ) -> int:
        files = GroupedFactFiles(self.folder, stem, ids.number, schema, self.groups)
        with open_arrow_reader(self.url) as connection:
            for rows in connection.batches(query):
                for batch in to_facts(rows).to_batches():
                    files.write(batch)
        return files.close()


def read_ledgers_and_intents(
    addresses: CatalogAddresses,
    context: JobContext,
    job: ReadLedgersAndIntentsJob,  # noqa: ARG001 - every main function of a job takes its job
) -> BulkJobSummary:
    """Run the job on the driver, after `list-storage`. Ledgers are read before intents."""
    groups = context.get_published_summary("list-storage").counts["groups"]
    reader = _CatalogReader(addresses.database_url, context.folder, groups, addresses.application)
    (before,) = context.run_in_executors("look at the catalog and its lists", [reader], _write_list_facts)
    ledger_ranges = _split_id_range(before["first_ledger"], before["last_ledger"])
    counts = context.run_in_executors(
        "read ledgers and their copies", ledger_ranges, partial(_write_ledger_facts, reader)
    )
    after = read_catalog_bounds(context, reader.url)
    intent_ranges = _split_id_range(after["first_row"], after["last_row"])
    intents = context.run_in_executors("read intents", intent_ranges, partial(_write_intent_facts, reader))
    return BulkJobSummary(
        counts={
            "ledgers": sum(ledgers for ledgers, _ in counts),
            "copies": sum(copies for _, copies in counts),
            "intents": sum(intents),
        }
    )


def read_catalog_bounds(context: JobContext, database_url: str) -> dict[str, int]:
    """Read the bounds of ids in an executor, because the driver may use another SQLite library for the same file."""
    (bounds,) = context.run_in_executors("look at the catalog", [database_url], _query_bounds)
    return bounds


def _query_bounds(database_url: str) -> dict[str, int]:
    with open_arrow_reader(database_url) as connection:
        (row,) = connection.table(bulk_queries.select_ledger_and_intent_bounds()).to_pylist()
    return {name: int(value) for name, value in row.items()}


def _split_id_range(first: int, last: int) -> list[_IdRange]:
    size = max(_MIN_IDS_PER_TASK, math.ceil((last + 1 - first) / _MAX_TASKS))
    return [_IdRange(number, start, start + size) for number, start in enumerate(range(first, last + 1, size))]


def _write_list_facts(reader: _CatalogReader) -> dict[str, int]:
    """Write the lists into a file and return the bounds of ids."""
    with open_arrow_reader(reader.url) as connection:
        rows = connection.table(bulk_queries.select_ledger_lists())
    write_ungrouped_facts(reader.folder, "lists", 0, rows.to_batches(), rows.schema)
    return _query_bounds(reader.url)


@lru_cache(maxsize=2)
def _list_by_id(folder: Path) -> dict[int, dict[str, Any]]:
    table = read_facts(folder, "lists", None, build_arrow_schema(bulk_queries.select_ledger_lists()))
    return {row["list_id"]: row for row in table.to_pylist()}


@lru_cache(maxsize=1_000_000)
def _compute_owner_digest(folder: Path, list_id: int, application: str) -> int:
    """Return the ledger owner's digest as a number. Return 0 if the row of the list or topic is absent or damaged."""
    row = _list_by_id(folder).get(list_id)
    if row is None or not row["topic"]:
        return 0
    try:
        owner = LedgerOwner(
            application=application,
            component=Component(row["component"]),
            topic_id=TopicId(row["topic_id"]),
            topic=row["topic"],
            keys=json.loads(row["owner"]),
        )
        return int(owner.digest, 16)
    except (ValueError, AttributeError, TypeError):
        return 0


def _write_ledger_facts(reader: _CatalogReader, ids: _IdRange) -> tuple[int, int]:
    """Write facts about ledgers and their primary copies, and facts about tiered copies. Return the two counts."""
    first, end = ids.first, ids.end
    with open_arrow_reader(reader.url) as connection:
        copies = connection.table(bulk_queries.select_copies(first, end))
        named = connection.table(bulk_queries.select_referenced_component_ledgers(first, end)).to_pylist()
        (max_segments,) = connection.table(bulk_queries.select_max_segments(first, end))["segments"].to_pylist()
        # A ledger with one segment needs no weighted sum, because the sums in the ledger's row describe the segment.
        moments_end = end if max_segments > 1 else first
        moments = connection.table(bulk_queries.select_weighted_segment_sums(first, moments_end))
        wrong_sums = connection.table(bulk_queries.select_ledgers_with_wrong_sums(first, end))
    flags, copy_ids = copies["flags"].to_numpy(), copies["ledger_id"].to_numpy()
    is_primary = flags & bulk_queries.TIERED == 0
    joined = _FactsByLedger(
        primary_ids=copy_ids[is_primary],
        is_live=flags[is_primary] & bulk_queries.LIVE,
        named={(row["ledger_id"], row["component"]) for row in named},
        moment_ids=moments["ledger_id"].to_numpy(),
        moments=moments["moment"].to_numpy(),
        differs_from_segments=wrong_sums["ledger_id"].to_numpy(),
    )
    query = bulk_queries.select_ledgers_with_flags(first, end, reader.application)
    ledgers = reader.write_facts_of_range(
        "ledgers", LEDGERS, ids, query, partial(_to_ledger_facts, reader, joined, ids)
    )
    if is_primary.all():
        return ledgers, 0
    query = bulk_queries.select_tiered_copies(first, end)
    return ledgers, reader.write_facts_of_range("copies", COPIES, ids, query, partial(_add_copy_locations, COPIES))


@dataclass(frozen=True, slots=True)
class _FactsByLedger:
    primary_ids: npt.NDArray[np.int64]  # ledgers with a primary copy, ascending
    is_live: npt.NDArray[np.int64]  # 1 or 0, for each of `primary_ids`
    named: set[tuple[int, str]]  # ledger id and component of ledgers that a row of this component names
    moment_ids: npt.NDArray[np.int64]  # ledgers with two or more segments, ascending
    moments: npt.NDArray[np.int64]  # for each of `moment_ids`
    differs_from_segments: npt.NDArray[np.int64]  # ledgers whose sums differ from the sums over the rows of segments


def _to_ledger_facts(reader: _CatalogReader, joined: _FactsByLedger, ids: _IdRange, rows: pa.RecordBatch) -> pa.Table:
    ledgers, lists, flags = (rows.column(name).to_numpy() for name in ("ledger_id", "list_id", "flags"))
    list_ids, list_index = np.unique(lists, return_inverse=True)
    digests = [_compute_owner_digest(reader.folder, int(list_id), reader.application) for list_id in list_ids]
    digest = np.array(digests, np.uint64)[list_index]
    for row in np.flatnonzero(flags & bulk_queries.OTHER_APPLICATION):
        application = _read_other_applications(reader, ids)[int(ledgers[row])]
        digest[row] = _compute_owner_digest(reader.folder, int(lists[row]), application)
    components = [_list_by_id(reader.folder).get(int(list_id), {}).get("component", "") for list_id in list_ids]
    referenced = flags & bulk_queries.LISTED != 0
    is_named_by_row = np.array([component in REFERRING_COLUMN_BY_COMPONENT for component in components], np.bool_)[
        list_index
    ]
    for row in np.flatnonzero(is_named_by_row):
        referenced[row] = (int(ledgers[row]), components[list_index[row]]) in joined.named
    primary = np.zeros(len(ledgers), np.int8)
    if len(joined.primary_ids):
        position, has_primary = find_positions(joined.primary_ids, ledgers)
        primary = np.where(has_primary, 1 + joined.is_live[position], 0).astype(np.int8)
    moment = np.full(len(ledgers), -1, np.int64)
    if len(joined.moment_ids):
        position, has_moment = find_positions(joined.moment_ids, ledgers)
        moment = np.where(has_moment, joined.moments[position], -1)
    columns = {
        "moment": moment,
        "digest": digest,
        "creating": flags & bulk_queries.CREATING != 0,
        "differs_from_segments": np.isin(ledgers, joined.differs_from_segments),
        "primary": primary,
        "referenced": referenced,
    }
    arrays = [pa.array(columns[name]) if name in columns else rows.column(name) for name in LEDGERS.names]
    return pa.table(arrays, schema=LEDGERS)


@lru_cache(maxsize=2)
def _read_other_applications(reader: _CatalogReader, ids: _IdRange) -> dict[int, str]:
    with open_arrow_reader(reader.url) as connection:
        rows = connection.table(
            bulk_queries.select_ledgers_of_other_applications(ids.first, ids.end, reader.application)
        ).to_pylist()
    return {row["ledger_id"]: row["application"] for row in rows}


def _write_intent_facts(reader: _CatalogReader, ids: _IdRange) -> int:
    query = bulk_queries.select_undeleted_intents(ids.first, ids.end)
    return reader.write_facts_of_range("intents", INTENTS, ids, query, partial(_add_copy_locations, INTENTS))


def _add_copy_locations(schema: pa.Schema, rows: pa.RecordBatch) -> pa.Table:
    """Add the columns that the offload context states. The uuid of an unreadable context is empty."""
    return pa.Table.from_pylist([_add_copy_location(row) for row in rows.to_pylist()], schema=schema)


def _add_copy_location(row: dict[str, Any]) -> dict[str, Any]:
    context = parse_offload_context_or_empty(row["context"])
    location = {name: context.get(name, "") for name in ("uuid", "bucket", "endpoint")}
    lengths = parse_lengths(context)
    sizes = {"data_bytes": lengths and lengths.data_bytes, "index_bytes": lengths and lengths.index_bytes}
    return {**row, **location, **sizes, "stalled": bool(row.get("stalled"))}
