"""`read-references`: all that the catalog names, by ranges of ids: lists, ledgers, tiered copies, and then intents."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from sqlalchemy import Select

from infra.catalog.engine.adbc import arrow_schema, open_arrow_reader
from infra.catalog.engine.dialects import parse_context_or_empty
from infra.catalog.log.components import REFERRING_COLUMN_BY_COMPONENT
from infra.catalog.reconciliation import facts as sql
from logstore.log.ledgers import Component, LedgerOwner
from logstore.offload.tiered import parse_lengths
from logstore.positions import TopicId
from logstore.reconciliation.jobs import BulkSummary, ReadReferences
from spark.reconciliation.facts import COPIES, INTENTS, LEDGERS, GroupFiles, put, read
from spark.runner import JobRun
from spark.sources.objects import NativeAddresses

_ROWS: Final = 500_000  # ids of a task
_MOST_TASKS: Final = 2_000


@dataclass(frozen=True, slots=True)
class _Range:
    """Ids from `first` (inclusive) to `end` (exclusive)."""

    number: int
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class _Reading:
    """Values that the tasks of one job share."""

    url: str
    folder: Path
    groups: int
    application: str

    def into(
        self,
        stem: str,
        schema: pa.Schema,
        part: _Range,
        query: Select[Any],
        facts: Callable[[pa.RecordBatch], pa.Table],
    ) -> int:
        """Read a range into files, batch by batch, and say how many facts."""
        files = GroupFiles(self.folder, stem, part.number, schema, self.groups)
        with open_arrow_reader(self.url) as connection:
            for rows in connection.batches(query):
                for batch in facts(rows).to_batches():
                    files.write(batch)
        return files.close()


def read_references(addresses: NativeAddresses, run: JobRun, job: ReadReferences) -> BulkSummary:  # noqa: ARG001 - of every main
    """The main of the job: ledgers are read after storage was listed, and intents after ledgers.

    Raises:
        StoreUnavailable: The database did not answer.
    """
    here = _Reading(
        addresses.database_url, run.folder, run.inputs("list-storage").counts["groups"], addresses.application
    )
    (before,) = run.spread("look at the catalog and its lists", [here], _begin)
    of_ledgers = _ranges(before["first_ledger"], before["last_ledger"])
    read_ledgers = run.spread("read ledgers and their copies", of_ledgers, partial(_ledgers, here))
    after = bounds(run, here.url)
    intents = run.spread("read intents", _ranges(after["first_row"], after["last_row"]), partial(_intents, here))
    counts = {
        "ledgers": sum(one[0] for one in read_ledgers),
        "copies": sum(one[1] for one in read_ledgers),
        "intents": sum(intents),
    }
    return BulkSummary(counts=counts)


def bounds(run: JobRun, database_url: str) -> dict[str, int]:
    """See `facts.bounds`; in an executor, because the driver may have opened the file by another library."""
    (found,) = run.spread("look at the catalog", [database_url], _bounds)
    return found


def _bounds(database_url: str) -> dict[str, int]:
    with open_arrow_reader(database_url) as connection:
        (row,) = connection.table(sql.bounds()).to_pylist()
    return {name: int(value) for name, value in row.items()}


def _ranges(first: int, last: int) -> list[_Range]:
    """Ids that are mostly gone make longer ranges, not more of them."""
    rows = max(_ROWS, -(-(last + 1 - first) // _MOST_TASKS))
    return [_Range(number, start, start + rows) for number, start in enumerate(range(first, last + 1, rows))]


def _begin(here: _Reading) -> dict[str, int]:
    """The bounds; and into a file the lists, for the digests of ledgers: one a topic and component, not a ledger."""
    with open_arrow_reader(here.url) as connection:
        rows = connection.table(sql.lists())
    put(here.folder, "lists", 0, rows.to_batches(), rows.schema)
    return _bounds(here.url)


@lru_cache(maxsize=2)
def _lists(folder: Path) -> dict[int, dict[str, Any]]:
    """In an executor: lists by id, read once a process and run."""
    table = read(folder, "lists", None, arrow_schema(sql.lists()))
    return {row["list_id"]: row for row in table.to_pylist()}


@lru_cache(maxsize=1_000_000)
def _digest(folder: Path, list_id: int, application: str) -> int:
    """The owner's digest as a number; 0 where list or topic is gone, or was damaged."""
    found = _lists(folder).get(list_id)
    if found is None or not found["topic"]:
        return 0
    try:
        owner = LedgerOwner(
            application=application,
            component=Component(found["component"]),
            topic_id=TopicId(found["topic_id"]),
            topic=found["topic"],
            keys=json.loads(found["owner"]),
        )
        return int(owner.digest, 16)
    except (ValueError, AttributeError, TypeError):
        return 0


def _ledgers(here: _Reading, part: _Range) -> tuple[int, int]:
    """In an executor: rows of `ledger`, joined here by their ids with what names them and with their primary copies.

    Returns:
        How many, and how many tiered copies they have.
    """
    first, end, own = part.first, part.end, here.application
    with open_arrow_reader(here.url) as connection:
        copies = connection.table(sql.copies(first, end))
        named = connection.table(sql.named_ledgers(first, end)).to_pylist()
        (most,) = connection.table(sql.most_segments(first, end))["segments"].to_pylist()
        query = sql.segment_moments(first, end if most > 1 else first)  # of single segments the row's sum tells all
        moments = connection.table(query)
        differs_from_segments = connection.table(sql.ledgers_with_wrong_segment_sums(first, end))[
            "ledger_id"
        ].to_numpy()
    flags, ids = copies["flags"].to_numpy(), copies["ledger_id"].to_numpy()
    primary, named_ids = flags & sql.TIERED == 0, {(row["ledger_id"], row["component"]) for row in named}
    side = _Beside(
        ids=ids[primary],
        live=flags[primary] & sql.LIVE,
        named=named_ids,
        several=moments["ledger_id"].to_numpy(),
        moments=moments["moment"].to_numpy(),
        differs_from_segments=differs_from_segments,
    )
    ledgers = here.into("ledgers", LEDGERS, part, sql.ledgers(first, end, own), partial(_facts, here, side, part))
    if primary.all():
        return ledgers, 0
    tiered = sql.tiered_copies(first, end)
    return ledgers, here.into("copies", COPIES, part, tiered, partial(_with_location, COPIES))


@dataclass(frozen=True, slots=True)
class _Beside:
    """Further facts of the catalog about the ledgers of a range."""

    ids: npt.NDArray[np.int64]  # with a primary copy, ascending
    live: npt.NDArray[np.int64]
    named: set[tuple[int, str]]  # by a row of their component
    several: npt.NDArray[np.int64]  # with two or more segments, ascending
    moments: npt.NDArray[np.int64]  # of those
    differs_from_segments: npt.NDArray[np.int64]  # whose rows of segments are not what their rows count


def _facts(here: _Reading, side: _Beside, part: _Range, rows: pa.RecordBatch) -> pa.Table:
    ledger, lists, flags = (rows.column(name).to_numpy() for name in ("ledger_id", "list_id", "flags"))
    different, which = np.unique(lists, return_inverse=True)
    digest = np.array([_digest(here.folder, int(one), here.application) for one in different], np.uint64)[which]
    for at in np.flatnonzero(flags & sql.OTHER_APPLICATION):
        digest[at] = _digest(here.folder, int(lists[at]), _applications(here, part)[int(ledger[at])])
    components = [_lists(here.folder).get(int(one), {}).get("component", "") for one in different]
    referenced = flags & sql.LISTED != 0
    for at in np.flatnonzero(np.array([one in REFERRING_COLUMN_BY_COMPONENT for one in components], np.bool_)[which]):
        referenced[at] = (int(ledger[at]), components[which[at]]) in side.named
    primary = np.zeros(len(ledger), np.int8)
    if len(side.ids):
        at = np.minimum(np.searchsorted(side.ids, ledger), len(side.ids) - 1)
        primary = np.where(side.ids[at] == ledger, 1 + side.live[at], 0).astype(np.int8)
    moment = np.full(len(ledger), -1, np.int64)
    if len(side.several):
        at = np.minimum(np.searchsorted(side.several, ledger), len(side.several) - 1)
        moment = np.where(side.several[at] == ledger, side.moments[at], -1)
    columns = {
        "moment": moment,
        "digest": digest,
        "creating": flags & sql.CREATING != 0,
        "differs_from_segments": np.isin(ledger, side.differs_from_segments),
        "primary": primary,
        "referenced": referenced,
    }
    arrays = [pa.array(columns[name]) if name in columns else rows.column(name) for name in LEDGERS.names]
    return pa.table(arrays, schema=LEDGERS)


@lru_cache(maxsize=2)
def _applications(here: _Reading, part: _Range) -> dict[int, str]:
    """Of ledgers that were written under another name of the application; there are none as a rule."""
    with open_arrow_reader(here.url) as connection:
        rows = connection.table(sql.applications(part.first, part.end, here.application)).to_pylist()
    return {row["ledger_id"]: row["application"] for row in rows}


def _intents(here: _Reading, part: _Range) -> int:
    """In an executor."""
    return here.into("intents", INTENTS, part, sql.intents(part.first, part.end), partial(_with_location, INTENTS))


def _with_location(schema: pa.Schema, rows: pa.RecordBatch) -> pa.Table:
    """Rows whose offload context is a text of JSON here; one that cannot be read names no uuid."""
    return pa.Table.from_pylist([_located(row) for row in rows.to_pylist()], schema=schema)


def _located(row: dict[str, Any]) -> dict[str, Any]:
    context = parse_context_or_empty(row["context"])
    location = {name: context.get(name, "") for name in ("uuid", "bucket", "endpoint")}
    lengths = parse_lengths(context)
    sizes = {"data_bytes": lengths and lengths.data_bytes, "index_bytes": lengths and lengths.index_bytes}
    return {**row, **location, **sizes, "stalled": bool(row.get("stalled"))}
