"""`compare-sides`: each group of shards compared in a task of its own, which meets all of its facts in files."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from infra.catalog.engine.adbc import arrow_schema, open_arrow_reader
from infra.catalog.reconciliation import facts as sql
from logstore.reconciliation.files import PAGE, SCHEMA
from logstore.reconciliation.jobs import LEFT_OUT, ROWS_BEFORE, BulkSummary, CompareSides
from logstore.reconciliation.rules import AGE_FLOOR_S
from logstore.whole_files import replace_atomically
from spark.reconciliation.compare import compare, strange
from spark.reconciliation.facts import COPIES, INTENTS, LEDGERS, OBJECTS, TIERED_OBJECTS, drawn, read
from spark.reconciliation.sides import Group, Ids, Limits
from spark.runner import JobRun
from spark.sources.objects import NativeAddresses

_ELSEWHERE: Final = "elsewhere"
_UNMEASURED: Final = "unmeasured"
_STRANGE: Final = -1  # in the place of a group: objects that are of no ledger


@dataclass(frozen=True, slots=True)
class _Sides:
    """Where the facts are, and the limits that all groups share."""

    listed: Path
    references: Path
    folder: Path
    url: str
    limits: Limits


def compare_sides(addresses: NativeAddresses, run: JobRun, job: CompareSides) -> BulkSummary:
    """The main of the job."""
    listed, references = run.inputs("list-storage"), run.inputs("read-references")
    sides = _Sides(
        listed=Path(listed.folder),
        references=Path(references.folder),
        folder=run.folder,
        url=addresses.database_url,
        limits=Limits(
            before_us=job.before_us,
            rows_before_us=_rows_before(job, listed),
            next_ledger_id=job.next_ledger_id,
            bucket=addresses.primary.bucket,
            listed=frozenset(one.bucket for one in addresses.tiered),
            endpoints=frozenset({"", *(one.endpoint.rstrip("/") for one in addresses.tiered)}),
        ),
    )
    groups = [_STRANGE, *range(listed.counts["groups"])]
    counts = run.spread("compare storage with the catalog", groups, partial(_compare, sides=sides))
    whole = {name: sum(one.get(name, 0) for one in counts) for name in counts[-1]}
    elsewhere, unmeasured = whole.pop(_ELSEWHERE), whole.pop(_UNMEASURED)
    facts = {ROWS_BEFORE: str(sides.limits.rows_before_us)}
    if elsewhere:
        facts[f"{LEFT_OUT}copies"] = f"{elsewhere:,} tiered copies stand where nothing was listed"
    if unmeasured:
        why = f"of {unmeasured:,} tiered copies only the existence was compared, which were published without lengths"
        facts[f"{LEFT_OUT}lengths"] = why
    return BulkSummary(counts=whole, facts=facts)


def _rows_before(job: CompareSides, listed: BulkSummary) -> int:
    """An inventory says nothing of what came after it; by which clock it is told, a floor of an hour makes even."""
    told = listed.facts.get("inventory_us")
    return min(job.rows_before_us, int(told) - AGE_FLOOR_S * 1_000_000) if told else job.rows_before_us


def _compare(group: int, *, sides: _Sides) -> dict[str, int]:
    """In an executor: candidates of the group into one file; what is counted of it, see `Compared`."""
    path = sides.folder / f"candidates-{group + 1:03d}.parquet"
    if group == _STRANGE:
        tables = (strange(pa.Table.from_batches([batch]), sides.limits) for batch in drawn(sides.listed, "strange"))
        return {"candidates": _put(path, tables)}
    ledgers = read(sides.references, "ledgers", group, LEDGERS)
    found = compare(
        Group(
            objects=read(sides.listed, "objects", group, OBJECTS),
            tiered=read(sides.listed, "tiered", group, TIERED_OBJECTS),
            ledgers=ledgers,
            copies=read(sides.references, "copies", group, COPIES),
            intents=read(sides.references, "intents", group, INTENTS),
            segments_of=partial(segments_of, sides.url),
        ),
        sides.limits,
    )
    named = _with_topics(found.candidates, ledgers, sides) if found.candidates.num_rows else found.candidates
    overlaps = asdict(found.primary)
    overlaps |= {f"tiered_{name}": value for name, value in asdict(found.tiered).items()}
    counts = {
        _ELSEWHERE: found.elsewhere,
        _UNMEASURED: found.unmeasured,
        "young": found.young,
        "expected": found.expected,
    }
    return {"candidates": _put(path, [named]), **counts, **overlaps}


def _with_topics(candidates: pa.Table, ledgers: pa.Table, sides: _Sides) -> pa.Table:
    """With the topic of each ledger that has a row; what storage states of others is asked for later."""
    known = ledgers.filter(pc.is_in(ledgers["ledger_id"], pc.unique(candidates["ledger_id"]).drop_null()))
    lists = read(sides.references, "lists", None, arrow_schema(sql.lists()))
    names = dict(zip(lists["list_id"].to_pylist(), lists["topic"].to_pylist(), strict=True))
    pairs = zip(known["ledger_id"].to_pylist(), known["list_id"].to_pylist(), strict=True)
    topics = {ledger_id: names.get(list_id, "") for ledger_id, list_id in pairs}
    found = [
        topic or topics.get(ledger_id, "")
        for ledger_id, topic in zip(candidates["ledger_id"].to_pylist(), candidates["topic"].to_pylist(), strict=True)
    ]
    return candidates.set_column(SCHEMA.get_field_index("topic"), "topic", pa.array(found, pa.string()))


def _put(path: Path, tables: Iterable[pa.Table]) -> int:
    """How many; row groups are pages of the next job. A task may run twice at once."""
    rows = 0
    with replace_atomically(path) as new, pq.ParquetWriter(new, SCHEMA) as writer:
        for table in filter(len, tables):
            writer.write_table(table, row_group_size=PAGE)
            rows += len(table)
    return rows


def segments_of(url: str, ledger_ids: Ids) -> pa.Table:
    """Segments that the catalog registered of these ledgers."""
    with open_arrow_reader(url) as connection:
        pages = range(0, len(ledger_ids), sql.MOST_LEDGERS)
        tables = [connection.table(sql.segments(ledger_ids[at : at + sql.MOST_LEDGERS].tolist())) for at in pages]
    return pa.concat_tables(tables)
