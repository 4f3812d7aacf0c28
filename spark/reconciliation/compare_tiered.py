"""The comparison of tiered copies of one group of shards: pure functions of Arrow tables."""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from logstore.reconciliation.findings import FindingKind
from logstore.reconciliation.rules import Overlap
from spark.reconciliation.facts import YOUNG
from spark.reconciliation.sides import TIERED, Group, Intents, Limits, findings

_UNREADABLE = "an offload context of its ledger cannot be read, and may name it"
_PARTS = ("data", "index")
_REFUSED = "its deletion is a dead letter, or this catalog never gave out its id"


def compare_tiered(group: Group, intents: Intents, limits: Limits) -> list[pa.Table]:
    """Tiered objects that no context names, and contexts whose objects are absent.

    Of a ledger with a context that cannot be read no object is an orphan: the context may name it.
    """
    named = group.copies
    unreadable = intents.unreadable | set(named.filter(pc.equal(named["uuid"], ""))["ledger_id"].to_pylist())
    pairs = group.tiered.group_by(["ledger_id", "bucket", "uuid"]).aggregate(
        [
            ("size_bytes", "sum"),
            ("modified_us", "max"),
            ("part", "list"),
            ("size_bytes", "list"),
            ("modified_us", "list"),
        ]
    )
    ours = set(zip(named["ledger_id"].to_pylist(), named["uuid"].to_pylist(), strict=True))
    rows = [row for row in pairs.to_pylist() if (row["ledger_id"], row["uuid"]) not in ours]
    old = [row for row in rows if row["modified_us_max"] < limits.before_us and row["uuid"] not in intents.tiered_work]
    found = {(row["ledger_id"], row["uuid"]): set(row["part_list"]) for row in pairs.to_pylist()}
    doubtful = [row for row in old if row["ledger_id"] in unreadable]
    told = [row for row in old if row["ledger_id"] not in unreadable]
    return [
        _pairs(
            [row for row in told if _orphan(row, intents, limits)], FindingKind.ORPHAN_OFFLOAD, "no context names it"
        ),
        _pairs([row for row in told if not _orphan(row, intents, limits)], FindingKind.MISMATCH, _REFUSED),
        _pairs(doubtful, FindingKind.MISMATCH, _UNREADABLE),
        _ledgers_lost(named),
        _copies_lost(named, found, limits),
        *_copies_of_another_length(named, pairs.to_pylist(), limits),
    ]


def _orphan(row: dict[str, Any], intents: Intents, limits: Limits) -> bool:
    return row["uuid"] not in intents.tiered_dead and row["ledger_id"] < limits.next_ledger_id


def _pairs(rows: Sequence[dict[str, Any]], kind: FindingKind, detail: str) -> pa.Table:
    """Both objects of an attempt are one finding; `objects` is 0 where only parts of an upload are left."""
    return findings(
        kind,
        len(rows),
        ledger_id=[row["ledger_id"] for row in rows],
        copy=TIERED,
        bucket=[row["bucket"] for row in rows],
        key=[f"{row['uuid']}-ledger-{row['ledger_id']}" for row in rows],
        uuid=[row["uuid"] for row in rows],
        objects=[sum(part != "upload" for part in row["part_list"]) for row in rows],
        size_bytes=[row["size_bytes_sum"] for row in rows],
        newest_us=[row["modified_us_max"] for row in rows],
        detail=[f"an unfinished upload: {detail}" if set(row["part_list"]) == {"upload"} else detail for row in rows],
    )


def _ledgers_lost(named: pa.Table) -> pa.Table:
    """Copies whose ledger has lost its row, of which the time of its creation is null."""
    ledger_ids = pc.unique(named.filter(pc.is_null(named["created_us"]))["ledger_id"])
    detail = "the ledger's row is lost; repair the catalog by hand"
    return findings(FindingKind.MISSING_DATA, len(ledger_ids), ledger_id=ledger_ids, detail=detail)


def _copies_lost(named: pa.Table, found: dict[tuple[int, str], set[str]], limits: Limits) -> pa.Table:
    """Live copies in buckets that were listed, of which data or index is absent."""
    lost = [
        (row, part)
        for row in _settled(named, limits)
        for part in _PARTS
        if part not in found.get((row["ledger_id"], row["uuid"]), ())
    ]
    return findings(
        FindingKind.MISSING_DATA,
        len(lost),
        ledger_id=[row["ledger_id"] for row, _ in lost],
        copy=TIERED,
        bucket=[row["bucket"] for row, _ in lost],
        key=[_key(row, part) for row, part in lost],
        uuid=[row["uuid"] for row, _ in lost],
        size_bytes=[row["size_bytes"] or 0 for row, _ in lost],
        detail="the offload context names an object that is absent",
    )


def _copies_of_another_length(named: pa.Table, pairs: Sequence[dict[str, Any]], limits: Limits) -> Iterator[pa.Table]:
    """Objects of live copies that are shorter or longer than the offload context states, if it states a length.

    A copy is proved by reading it back before it is published, so a shorter object has lost data since. A longer one
    counts once it is old, as in the primary bucket.
    """
    stored = {
        (row["ledger_id"], row["bucket"], row["uuid"], part): (size, modified_us)
        for row in pairs
        for part, size, modified_us in zip(
            row["part_list"], row["size_bytes_list"], row["modified_us_list"], strict=True
        )
    }
    odd = [
        (row, part, size, stated)
        for row in _settled(named, limits)
        for part in _PARTS
        if (stated := row[f"{part}_bytes"]) is not None
        for size, modified_us in [stored.get((row["ledger_id"], row["bucket"], row["uuid"], part), (stated, 0))]
        if size < stated or (size > stated and modified_us < limits.before_us)
    ]
    for kind, word, rows in (
        (FindingKind.MISSING_DATA, "shorter", [each for each in odd if each[2] < each[3]]),
        (FindingKind.MISMATCH, "longer", [each for each in odd if each[2] > each[3]]),
    ):
        yield findings(
            kind,
            len(rows),
            ledger_id=[row["ledger_id"] for row, *_ in rows],
            copy=TIERED,
            bucket=[row["bucket"] for row, *_ in rows],
            key=[_key(row, part) for row, part, *_ in rows],
            uuid=[row["uuid"] for row, *_ in rows],
            objects=1,
            size_bytes=[size for _, _, size, _ in rows],
            detail=[
                f"the object is {word} than its offload context says: expected {stated:,} bytes, found {size:,}"
                for _, _, size, stated in rows
            ],
        )


def _settled(named: pa.Table, limits: Limits) -> list[dict[str, Any]]:
    """Live copies in buckets that were listed, of ledgers that are old enough."""
    return [
        row
        for row in named.filter(pc.equal(named["state"], "LIVE")).to_pylist()
        if _is_here(row, limits) and row["uuid"] and (row["created_us"] or YOUNG) < limits.rows_before_us
    ]


def _key(row: dict[str, Any], part: str) -> str:
    return f"{row['uuid']}-ledger-{row['ledger_id']}{'-index' if part == 'index' else ''}"


def count_unmeasured(copies: pa.Table, limits: Limits) -> int:
    """Return how many copies that were listed state no lengths: of them only the existence was compared."""
    return sum(row["data_bytes"] is None for row in _settled(copies, limits))


def overlap(group: Group, limits: Limits) -> Overlap:
    """Attempts at tiered copies that both sides name; parts of an upload alone are no copy."""
    objects = group.tiered.filter(pc.not_equal(group.tiered["part"], "upload"))
    stored = set(zip(objects["ledger_id"].to_pylist(), objects["uuid"].to_pylist(), strict=True))
    copies = [row for row in group.copies.to_pylist() if row["uuid"]]
    named = sum(row["state"] == "LIVE" and _is_here(row, limits) for row in copies)
    matched = stored & {(row["ledger_id"], row["uuid"]) for row in copies}
    return Overlap(stored=len(stored), named=named, matched=len(matched))


def count_elsewhere(copies: pa.Table, limits: Limits) -> int:
    """Copies in buckets, or at stores, that were not listed: nothing is said of them."""
    return sum(not _is_here(row, limits) for row in copies.select(["bucket", "endpoint"]).to_pylist())


def _is_here(row: dict[str, Any], limits: Limits) -> bool:
    return row["bucket"] in limits.listed and row["endpoint"].rstrip("/") in limits.endpoints
