"""Estimates of tombstones hold for real blocks, and Aerospike's are what it says."""

from random import Random

import pytest

from logstore.errors import InvalidInput
from logstore.records.block_files import encode_block
from logstore.records.record_kinds import RecordKind
from logstore.records.tombstone_rules import (
    BYTES_PER_BLOCK,
    BYTES_PER_VERSION,
    TOMBSTONES_PER_BLOCK,
    estimate_tombstone_sizes,
)
from tests.logstore.records.versions import table, version


def test_estimates_stand_beside_aerospikes() -> None:
    """64 bytes and the key in its index, 128 bytes and the key on its disk."""
    found = estimate_tombstone_sizes(1_000_000, key_bytes=20)
    assert (found.aerospike_index_bytes, found.aerospike_disk_bytes) == (84_000_000, 148_000_000)
    assert (found.index_bytes, found.disk_bytes) == (148_000_000, 7_000_000 + 10 * BYTES_PER_BLOCK)
    assert estimate_tombstone_sizes(0).disk_bytes == 0
    assert estimate_tombstone_sizes(1).disk_bytes == BYTES_PER_VERSION + BYTES_PER_BLOCK


def test_a_block_of_tombstones_takes_no_more_than_is_estimated() -> None:
    """Ids and times at random, which is the worst; the estimate is not far above it."""
    chance, count = Random(1), TOMBSTONES_PER_BLOCK // 5
    ids = chance.sample(range(10**8), count)
    day_us = 86_400_000_000
    rows = [version(one, 7, tombstone=True) | {"at_us": 10**15 + chance.randrange(day_us)} for one in ids]
    size = len(encode_block(RecordKind.LEDGER, table(RecordKind.LEDGER, rows)))
    assert 0.8 * BYTES_PER_VERSION * count < size <= BYTES_PER_VERSION * count + BYTES_PER_BLOCK


@pytest.mark.parametrize("wrong", [{"tombstones": -1}, {"key_bytes": -1}, {"database": "mysql"}])
def test_numbers_out_of_bounds_are_refused(wrong: dict[str, int | str]) -> None:
    """By name."""
    with pytest.raises(InvalidInput):
        estimate_tombstone_sizes(**{"tombstones": 1, **wrong})  # type: ignore[arg-type]
