"""Blocks come back as they were written, and a damaged or foreign one is named."""

import io
import json
from dataclasses import replace
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from logstore.errors import CorruptData, InvalidInput, Unsupported
from logstore.log.segment_format import sha256_hex
from logstore.records.block_files import (
    ROWS_PER_GROUP,
    decode_block,
    decode_block_columns,
    describe_block,
    encode_block,
    encode_blocks,
)
from logstore.records.manifest import Block
from logstore.records.record_kinds import RECORD_LOG_FORMAT, RecordKind, block_schema
from tests.logstore.records.versions import table, version

_LEDGER = RecordKind.LEDGER


def _block(kind: RecordKind, versions: pa.Table) -> tuple[Block, bytes]:
    file = encode_block(kind, versions)
    return describe_block("ledger-1", kind, versions, file), file


def _segments(count: int) -> pa.Table:
    ids = pa.array(range(count), pa.int64())
    fixed = {
        "id": ids,
        "sub": pa.array([str(one % 7) for one in range(count)]),
        "epoch": pa.repeat(pa.scalar(1, pa.int64()), count),
        "version": pa.repeat(pa.scalar(9, pa.int64()), count),
        "generation": pa.repeat(pa.scalar(0, pa.int64()), count),
        "at_us": ids,
        "tombstone": pa.repeat(pa.scalar(False), count),
        "first_entry": ids,
        "size_bytes": pa.array([10**12 * (one * one % 11 % 3) for one in range(count)]),
    }
    wanted = block_schema(RecordKind.SEGMENT)
    arrays = [fixed.get(field.name, pa.nulls(count, field.type)) for field in wanted]
    return pa.Table.from_arrays(arrays, schema=wanted)


@pytest.mark.parametrize("kind", list(RecordKind))
def test_versions_of_every_kind_come_back_as_they_were(kind: RecordKind) -> None:
    """Values, nulls and types: text, numbers and bytes."""
    filled: dict[str, Any] = {
        field.name: {"int64": 2**62, "string": "ü", "binary": b"\0\xff"}[str(field.type)]
        for field in block_schema(kind)
        if field.nullable
    }
    wanted = table(kind, [version(1, 5, sub="b", **filled), version(1, 4, sub="a"), version(-3, 6, tombstone=True)])
    block, file = _block(kind, wanted)
    found = decode_block(block, file)
    assert found.equals(wanted)
    assert found.schema.equals(block_schema(kind))
    assert (block.records, block.tombstones, block.first_id, block.last_id) == (3, 1, -3, 1)


def test_columns_and_ranges_of_ids_are_read_alone() -> None:
    """A reader of a few ids gets those versions, in the columns and the order that it asked for."""
    wanted = _segments(3 * ROWS_PER_GROUP + 5)
    block, file = _block(RecordKind.SEGMENT, wanted)
    for first, last in ((0, 0), (ROWS_PER_GROUP - 1, ROWS_PER_GROUP), (3 * ROWS_PER_GROUP, 10**9), (-5, 3), (7, 6)):
        found = decode_block(block, file, columns=["version", "id"], ids=(first, last))
        assert found.column_names == ["version", "id"]
        assert found.column("id").to_pylist() == list(range(max(first, 0), min(last + 1, wanted.num_rows)))


def test_integers_are_stored_in_the_smaller_of_two_ways() -> None:
    """Ascending ids take no bytes to speak of as differences, and few sizes in any order less as a dictionary."""
    file = encode_block(RecordKind.SEGMENT, _segments(20_000))
    facts = pq.read_metadata(pa.BufferReader(file)).row_group(0)
    columns = {facts.column(at).path_in_schema: facts.column(at) for at in range(facts.num_columns)}
    assert "DELTA_BINARY_PACKED" in columns["id"].encodings
    assert "DELTA_BINARY_PACKED" not in columns["size_bytes"].encodings
    assert sum(columns[name].total_compressed_size for name in ("id", "version")) < 2_000


def test_blocks_are_cut_by_versions_and_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """None is larger than it may be unless one version is, and together they are the whole."""
    monkeypatch.setattr("logstore.records.block_files.MAX_VERSIONS_PER_BLOCK", 30)
    monkeypatch.setattr("logstore.records.block_files.MAX_BLOCK_BYTES", 9_000)
    chance = Random(1)
    wanted = table(RecordKind.HIDDEN, [version(at, 1, entries=chance.randbytes(400)) for at in range(70)])
    parts = list(encode_blocks(RecordKind.HIDDEN, wanted))
    assert pa.concat_tables([part for part, _ in parts]).equals(wanted)
    assert len(parts) > 3
    assert all(part.num_rows == 1 or len(file) <= 9_000 for part, file in parts)


def test_a_version_larger_than_a_block_is_one_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot be halved."""
    monkeypatch.setattr("logstore.records.block_files.MAX_BLOCK_BYTES", 10)
    parts = [part.num_rows for part, _ in encode_blocks(_LEDGER, table(_LEDGER, [version(1, 1), version(2, 1)]))]
    assert parts == [1, 1]


def test_a_block_that_is_cut_or_damaged_is_named() -> None:
    """Whatever byte differs: the digest of the whole is compared before anything is decoded."""
    block, file = _block(_LEDGER, table(_LEDGER, [version(1, 1), version(2, 2)]))
    for broken in (file[:-1], b"", file[:9] + bytes([file[9] ^ 1]) + file[10:]):
        with pytest.raises(CorruptData, match=r"records/blocks/ledger-1\.parquet"):
            decode_block(block, broken)


def test_a_file_that_is_no_block_is_named_though_its_digest_fits() -> None:
    """What was damaged before it was stored, or was written by something else."""
    wanted = table(_LEDGER, [version(1, 1)])
    foreign = io.BytesIO()
    pq.write_table(wanted, foreign)
    whole = encode_block(_LEDGER, wanted)
    for file in (b"not Parquet at all", whole[: len(whole) // 2], foreign.getvalue()):
        block = replace(describe_block("b", _LEDGER, wanted, file), size_bytes=len(file), sha256=sha256_hex(file))
        with pytest.raises(CorruptData, match=r"records/blocks/b\.parquet"):
            decode_block(block, file)


def test_a_block_of_another_kind_or_count_is_refused() -> None:
    """Its key and its manifest say otherwise."""
    wanted = table(_LEDGER, [version(1, 1)])
    block, file = _block(_LEDGER, wanted)
    with pytest.raises(CorruptData, match="expected 1 versions of topic, found 1 of ledger"):
        decode_block(replace(block, kind=RecordKind.TOPIC), file)
    with pytest.raises(CorruptData, match="expected 2 versions of ledger, found 1 of ledger"):
        decode_block(replace(block, records=2), file)


def test_a_block_of_a_newer_format_is_refused_by_name() -> None:
    """Its columns may mean something else: nothing of it is read."""
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, block_schema(_LEDGER)) as writer:
        writer.write_table(table(_LEDGER, [version(1, 1)]))
        writer.add_key_value_metadata(
            {"sexton.records": json.dumps({"format": RECORD_LOG_FORMAT + 1, "kind": "ledger"})}
        )
    with pytest.raises(
        Unsupported, match=f"a-block: expected format {RECORD_LOG_FORMAT} at most, found {RECORD_LOG_FORMAT + 1}"
    ):
        decode_block_columns(sink.getvalue(), _LEDGER, name="a-block")


def test_versions_of_other_columns_or_out_of_order_are_refused() -> None:
    """Before anything is written."""
    wanted = table(_LEDGER, [version(1, 1), version(2, 2)])
    for wrong in (wanted.slice(0, 0), wanted.take([1, 0]), wanted.drop_columns(["sub"]), table(RecordKind.TOPIC, [])):
        with pytest.raises(InvalidInput, match="versions"):
            encode_block(_LEDGER, wrong)
