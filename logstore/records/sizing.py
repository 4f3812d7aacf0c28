"""What tombstones cost before a raid takes them: in the catalog, which is our index, and on disk in blocks.

Ours are measured (`tests/benchmarks/records_speed.py`), for rows with a topic, a list and a component. Aerospike keeps
64 bytes and the key of each in the primary index, and 128 bytes and the key on disk.

Source: Aerospike, "Durable deletes", capacity planning.
"""

from dataclasses import dataclass
from typing import Final

from logstore.errors import InvalidInput

ROW_BYTES: Final = {"sqlite": 83, "postgresql": 148}
"""Of a tombstone in the catalog, indexes included, by database."""

VERSION_BYTES: Final = 7
"""Of a tombstone in a defragmented block, ids and times at random; those of one batch take less than 1."""

BLOCK_BYTES: Final = 3_400
"""What a block takes however little it holds: a flush writes one of each kind that it has."""

FULL_BLOCK: Final = 100_000
"""Tombstones of a block that a defragmentation writes."""

_AEROSPIKE_INDEX: Final = 64
_AEROSPIKE_DISK: Final = 128
_LONGEST_KEY: Final = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """Bytes of a number of tombstones, beside those of Aerospike."""

    tombstones: int
    key_bytes: int
    index_bytes: int  # in the catalog
    disk_bytes: int  # in defragmented blocks
    aerospike_index_bytes: int
    aerospike_disk_bytes: int


def sizing(tombstones: int, *, key_bytes: int = 8, database: str = "postgresql") -> Sizing:
    """Estimate what tombstones take.

    Args:
        tombstones: How many, 0 or more.
        key_bytes: Of Aerospike's key; ours is the id, which the figures contain.
        database: `sqlite` or `postgresql`.

    Raises:
        InvalidInput: A number out of its bounds, or another database.
    """
    if not 0 <= tombstones < 2**53:
        raise InvalidInput("records", expected="0 to 2**53 - 1", found=tombstones)
    if not 0 <= key_bytes < _LONGEST_KEY:
        raise InvalidInput("key_bytes", expected=f"0 to {_LONGEST_KEY - 1}", found=key_bytes)
    if database not in ROW_BYTES:
        raise InvalidInput("database", expected=" or ".join(ROW_BYTES), found=database)
    return Sizing(
        tombstones=tombstones,
        key_bytes=key_bytes,
        index_bytes=tombstones * ROW_BYTES[database],
        disk_bytes=tombstones * VERSION_BYTES + -(-tombstones // FULL_BLOCK) * BLOCK_BYTES,
        aerospike_index_bytes=tombstones * (_AEROSPIKE_INDEX + key_bytes),
        aerospike_disk_bytes=tombstones * (_AEROSPIKE_DISK + key_bytes),
    )
