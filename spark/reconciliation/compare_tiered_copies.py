"""Comparison of the tiered copies of one group of shards, by pure functions of Arrow tables."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from logstore.reconciliation.findings import FindingKind
from logstore.reconciliation.plausibility_guards import CopyOverlap
from spark.reconciliation.fact_files import YOUNG
from spark.reconciliation.shard_group import TIERED, ComparisonLimits, IntentIds, ShardGroup, make_finding_rows

_PARTS: Final = ("data", "index")
_UNREADABLE: Final = "an offload context of its ledger cannot be read, and may name it"
_REFUSED: Final = "its deletion is a dead letter, or this catalog never gave out its id"
_LOST_LEDGER: Final = "the ledger's row is lost; repair the catalog by hand"

Row = Mapping[str, Any]


def compare_tiered_copies(group: ShardGroup, intents: IntentIds, limits: ComparisonLimits) -> list[pa.Table]:
    """Find tiered objects without an offload context, and contexts whose objects are absent or have another length.

    An unreadable context of a ledger may name any tiered object of the ledger. None of them is then an orphan.
    """
    copies = group.copies
    unreadable = intents.unreadable | set(copies.filter(pc.equal(copies["uuid"], ""))["ledger_id"].to_pylist())
    named_copies = set(zip(copies["ledger_id"].to_pylist(), copies["uuid"].to_pylist(), strict=True))
    aggregates = [
        ("size_bytes", "sum"),
        ("modified_us", "max"),
        ("part", "list"),
        ("size_bytes", "list"),
        ("modified_us", "list"),
    ]
    pairs = group.tiered.group_by(["ledger_id", "bucket", "uuid"]).aggregate(aggregates).to_pylist()
    unnamed = [
        pair
        for pair in pairs
        if (pair["ledger_id"], pair["uuid"]) not in named_copies
        and pair["modified_us_max"] < limits.before_us
        and pair["uuid"] not in intents.tiered_pending
    ]
    doubtful = [pair for pair in unnamed if pair["ledger_id"] in unreadable]
    readable = [pair for pair in unnamed if pair["ledger_id"] not in unreadable]
    is_refused = [
        pair["uuid"] in intents.tiered_dead or pair["ledger_id"] >= limits.next_ledger_id for pair in readable
    ]
    orphans = [pair for pair, refused in zip(readable, is_refused, strict=True) if not refused]
    refused_pairs = [pair for pair, refused in zip(readable, is_refused, strict=True) if refused]
    parts_by_copy = {(pair["ledger_id"], pair["uuid"]): set(pair["part_list"]) for pair in pairs}
    lost_ledgers = pc.unique(copies.filter(pc.is_null(copies["created_us"]))["ledger_id"])
    return [
        _make_copy_findings(orphans, FindingKind.ORPHAN_OFFLOAD, "no context names it"),
        _make_copy_findings(refused_pairs, FindingKind.MISMATCH, _REFUSED),
        _make_copy_findings(doubtful, FindingKind.MISMATCH, _UNREADABLE),
        make_finding_rows(FindingKind.MISSING_DATA, len(lost_ledgers), ledger_id=lost_ledgers, detail=_LOST_LEDGER),
        _find_absent_objects(copies, parts_by_copy, limits),
        *_find_changed_lengths(copies, pairs, limits),
    ]


def _make_copy_findings(pairs: Sequence[Row], kind: FindingKind, detail: str) -> pa.Table:
    """Return one finding for each attempt to offload. Its column `objects` does not count unfinished uploads."""
    return make_finding_rows(
        kind,
        len(pairs),
        ledger_id=[pair["ledger_id"] for pair in pairs],
        copy=TIERED,
        bucket=[pair["bucket"] for pair in pairs],
        key=[f"{pair['uuid']}-ledger-{pair['ledger_id']}" for pair in pairs],
        uuid=[pair["uuid"] for pair in pairs],
        objects=[sum(part != "upload" for part in pair["part_list"]) for pair in pairs],
        size_bytes=[pair["size_bytes_sum"] for pair in pairs],
        newest_us=[pair["modified_us_max"] for pair in pairs],
        detail=[
            f"an unfinished upload: {detail}" if set(pair["part_list"]) == {"upload"} else detail for pair in pairs
        ],
    )


def _find_absent_objects(
    copies: pa.Table, parts_by_copy: Mapping[tuple[int, str], set[str]], limits: ComparisonLimits
) -> pa.Table:
    lost = [
        (copy, part)
        for copy in _select_comparable_copies(copies, limits)
        for part in _PARTS
        if part not in parts_by_copy.get((copy["ledger_id"], copy["uuid"]), ())
    ]
    return make_finding_rows(
        FindingKind.MISSING_DATA,
        len(lost),
        ledger_id=[copy["ledger_id"] for copy, _ in lost],
        copy=TIERED,
        bucket=[copy["bucket"] for copy, _ in lost],
        key=[_object_key(copy, part) for copy, part in lost],
        uuid=[copy["uuid"] for copy, _ in lost],
        size_bytes=[copy["size_bytes"] or 0 for copy, _ in lost],
        detail="the offload context names an object that is absent",
    )


def _find_changed_lengths(copies: pa.Table, pairs: Sequence[Row], limits: ComparisonLimits) -> Iterator[pa.Table]:
    """Find objects of LIVE copies with another length than the offload context states. Skip contexts without lengths.

    A longer object is reported only if it is old.
    """
    stored = {
        (pair["ledger_id"], pair["bucket"], pair["uuid"], part): (size, modified_us)
        for pair in pairs
        for part, size, modified_us in zip(
            pair["part_list"], pair["size_bytes_list"], pair["modified_us_list"], strict=True
        )
    }
    shorter: list[tuple[Row, str, int, int]] = []
    longer: list[tuple[Row, str, int, int]] = []
    for copy in _select_comparable_copies(copies, limits):
        for part in _PARTS:
            stated_length = copy[f"{part}_bytes"]
            stored_object = stored.get((copy["ledger_id"], copy["bucket"], copy["uuid"], part))
            if stated_length is None or stored_object is None:
                continue
            size, modified_us = stored_object
            if size < stated_length:
                shorter.append((copy, part, size, stated_length))
            elif size > stated_length and modified_us < limits.before_us:
                longer.append((copy, part, size, stated_length))
    for kind, word, changed in (
        (FindingKind.MISSING_DATA, "shorter", shorter),
        (FindingKind.MISMATCH, "longer", longer),
    ):
        yield make_finding_rows(
            kind,
            len(changed),
            ledger_id=[copy["ledger_id"] for copy, *_ in changed],
            copy=TIERED,
            bucket=[copy["bucket"] for copy, *_ in changed],
            key=[_object_key(copy, part) for copy, part, *_ in changed],
            uuid=[copy["uuid"] for copy, *_ in changed],
            objects=1,
            size_bytes=[size for _, _, size, _ in changed],
            detail=[
                f"the object is {word} than its offload context says: expected {stated_length:,} bytes, found {size:,}"
                for _, _, size, stated_length in changed
            ],
        )


def _select_comparable_copies(copies: pa.Table, limits: ComparisonLimits) -> list[dict[str, Any]]:
    return [
        copy
        for copy in copies.filter(pc.equal(copies["state"], "LIVE")).to_pylist()
        if _is_listed(copy, limits) and copy["uuid"] and (copy["created_us"] or YOUNG) < limits.rows_before_us
    ]


def _object_key(copy: Row, part: str) -> str:
    return f"{copy['uuid']}-ledger-{copy['ledger_id']}{'-index' if part == 'index' else ''}"


def count_copies_without_lengths(copies: pa.Table, limits: ComparisonLimits) -> int:
    """Count listed copies whose contexts state no lengths. Only the existence of such a copy is compared."""
    return sum(copy["data_bytes"] is None for copy in _select_comparable_copies(copies, limits))


def count_tiered_overlap(group: ShardGroup, limits: ComparisonLimits) -> CopyOverlap:
    """Count tiered copies in storage, in the catalog, and in both. Unfinished uploads do not count as copies."""
    objects = group.tiered.filter(pc.not_equal(group.tiered["part"], "upload"))
    stored = set(zip(objects["ledger_id"].to_pylist(), objects["uuid"].to_pylist(), strict=True))
    copies = [copy for copy in group.copies.to_pylist() if copy["uuid"]]
    named_count = sum(copy["state"] == "LIVE" and _is_listed(copy, limits) for copy in copies)
    matched = stored & {(copy["ledger_id"], copy["uuid"]) for copy in copies}
    return CopyOverlap(stored=len(stored), named=named_count, matched=len(matched))


def count_copies_in_unlisted_buckets(copies: pa.Table, limits: ComparisonLimits) -> int:
    return sum(not _is_listed(copy, limits) for copy in copies.select(["bucket", "endpoint"]).to_pylist())


def _is_listed(copy: Row, limits: ComparisonLimits) -> bool:
    return copy["bucket"] in limits.tiered_buckets and copy["endpoint"].rstrip("/") in limits.endpoints
