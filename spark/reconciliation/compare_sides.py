"""`compare-sides`: compare storage with the catalog. One task reads the facts of one group of shards from files."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from logstore.atomic_files import replace_atomically
from logstore.catalog.engine.arrow_bulk import build_arrow_schema, open_arrow_reader
from logstore.catalog.reconciliation import bulk_queries
from logstore.reconciliation.bulk_job_inputs_and_results import (
    LEFT_OUT,
    ROWS_BEFORE,
    BulkJobSummary,
    CompareStorageWithCatalogJob,
)
from logstore.reconciliation.finding_files import FINDING_SCHEMA, FINDINGS_PER_PAGE
from logstore.reconciliation.plausibility_guards import AGE_FLOOR_S
from spark.job_runner import JobContext
from spark.reconciliation.compare_shard_group import (
    ComparisonLimits,
    Ids,
    ShardGroup,
    compare_shard_group,
    find_foreign_objects,
)
from spark.reconciliation.fact_files import (
    COPIES,
    INTENTS,
    LEDGERS,
    OBJECTS,
    TIERED_OBJECTS,
    read_facts,
    read_ungrouped_batches,
)
from spark.sources.store_addresses import CatalogAddresses

_FOREIGN_GROUP: Final = -1  # objects that belong to no ledger
_UNPUBLISHED_COUNTS: Final = ("elsewhere", "unmeasured")


@dataclass(frozen=True, slots=True)
class _ComparisonInputs:
    listed: Path
    references: Path
    folder: Path
    url: str
    limits: ComparisonLimits


def compare_sides(
    addresses: CatalogAddresses, context: JobContext, job: CompareStorageWithCatalogJob
) -> BulkJobSummary:
    listed, references = context.get_published_summary("list-storage"), context.get_published_summary("read-references")
    inputs = _ComparisonInputs(
        listed=Path(listed.folder),
        references=Path(references.folder),
        folder=context.folder,
        url=addresses.database_url,
        limits=ComparisonLimits(
            before_us=job.before_us,
            rows_before_us=_rows_before_us(job, listed),
            next_ledger_id=job.next_ledger_id,
            bucket=addresses.primary.bucket,
            tiered_buckets=frozenset(address.bucket for address in addresses.tiered),
            endpoints=frozenset({"", *(address.endpoint.rstrip("/") for address in addresses.tiered)}),
        ),
    )
    groups = [_FOREIGN_GROUP, *range(listed.counts["groups"])]
    counts_by_group = context.run_in_executors(
        "compare storage with the catalog", groups, partial(_write_candidates_of_group, inputs=inputs)
    )
    totals = {name: sum(counts.get(name, 0) for counts in counts_by_group) for name in counts_by_group[-1]}
    elsewhere, unmeasured = (totals.pop(name) for name in _UNPUBLISHED_COUNTS)
    facts = {ROWS_BEFORE: str(inputs.limits.rows_before_us)}
    if elsewhere:
        facts[f"{LEFT_OUT}copies"] = f"{elsewhere:,} tiered copies stand where nothing was listed"
    if unmeasured:
        reason = (
            f"of {unmeasured:,} tiered copies only the existence was compared, which were published without lengths"
        )
        facts[f"{LEFT_OUT}lengths"] = reason
    return BulkJobSummary(counts=totals, facts=facts)


def _rows_before_us(job: CompareStorageWithCatalogJob, listed: BulkJobSummary) -> int:
    """Return the earlier of `job.rows_before_us` and an hour before the oldest inventory, because clocks may differ."""
    inventory_us = listed.facts.get("inventory_us")
    if not inventory_us:
        return job.rows_before_us
    return min(job.rows_before_us, int(inventory_us) - AGE_FLOOR_S * 1_000_000)


def _write_candidates_of_group(group: int, *, inputs: _ComparisonInputs) -> dict[str, int]:
    """Write the candidates of a group into one file, in an executor. Return counts by name."""
    path = inputs.folder / f"candidates-{group + 1:03d}.parquet"
    if group == _FOREIGN_GROUP:
        batches = read_ungrouped_batches(inputs.listed, "strange")
        tables = (find_foreign_objects(pa.Table.from_batches([batch]), inputs.limits) for batch in batches)
        return {"candidates": _write_candidate_file(path, tables)}
    ledgers = read_facts(inputs.references, "ledgers", group, LEDGERS)
    comparison = compare_shard_group(
        ShardGroup(
            objects=read_facts(inputs.listed, "objects", group, OBJECTS),
            tiered=read_facts(inputs.listed, "tiered", group, TIERED_OBJECTS),
            ledgers=ledgers,
            copies=read_facts(inputs.references, "copies", group, COPIES),
            intents=read_facts(inputs.references, "intents", group, INTENTS),
            read_segments=partial(read_segments, inputs.url),
        ),
        inputs.limits,
    )
    candidates = comparison.candidates
    if candidates.num_rows:
        candidates = _add_topic_names(candidates, ledgers, inputs)
    return {
        "candidates": _write_candidate_file(path, [candidates]),
        "elsewhere": comparison.elsewhere,
        "unmeasured": comparison.unmeasured,
        "young": comparison.young,
        "expected": comparison.expected,
        **asdict(comparison.primary),
        **{f"tiered_{name}": value for name, value in asdict(comparison.tiered).items()},
    }


def _add_topic_names(candidates: pa.Table, ledgers: pa.Table, inputs: _ComparisonInputs) -> pa.Table:
    rows = ledgers.filter(pc.is_in(ledgers["ledger_id"], pc.unique(candidates["ledger_id"]).drop_null()))
    lists = read_facts(inputs.references, "lists", None, build_arrow_schema(bulk_queries.select_ledger_lists()))
    topic_by_list = dict(zip(lists["list_id"].to_pylist(), lists["topic"].to_pylist(), strict=True))
    pairs = zip(rows["ledger_id"].to_pylist(), rows["list_id"].to_pylist(), strict=True)
    topic_by_ledger = {ledger_id: topic_by_list.get(list_id, "") for ledger_id, list_id in pairs}
    topics = [
        topic or topic_by_ledger.get(ledger_id, "")
        for ledger_id, topic in zip(candidates["ledger_id"].to_pylist(), candidates["topic"].to_pylist(), strict=True)
    ]
    return candidates.set_column(FINDING_SCHEMA.get_field_index("topic"), "topic", pa.array(topics, pa.string()))


def _write_candidate_file(path: Path, tables: Iterable[pa.Table]) -> int:
    """Write row groups of `FINDINGS_PER_PAGE` rows. Return the number of rows. Two runs of a task may overlap."""
    rows = 0
    with replace_atomically(path) as new, pq.ParquetWriter(new, FINDING_SCHEMA) as writer:
        for table in filter(len, tables):
            writer.write_table(table, row_group_size=FINDINGS_PER_PAGE)
            rows += len(table)
    return rows


def read_segments(url: str, ledger_ids: Ids) -> pa.Table:
    size = bulk_queries.MAX_LEDGERS_PER_QUERY
    with open_arrow_reader(url) as connection:
        tables = [
            connection.table(bulk_queries.select_segments(ledger_ids[start : start + size].tolist()))
            for start in range(0, len(ledger_ids), size)
        ]
    return pa.concat_tables(tables)
