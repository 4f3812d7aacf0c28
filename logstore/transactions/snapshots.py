"""The snapshot of a buffer as bytes: JSON with packed bitmaps, whole or damaged and never in parts.

The bulk job that rebuilds many buffers, as the port `BulkJobs` runs it, publishes files of them.

Source: Pulsar's TransactionBufferSnapshot; PIP-196, where a set that was cut by a crash mixed old parts and new ones.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from logstore.cursors.state import pack_acknowledged, unpack_acknowledged
from logstore.errors import CorruptData, InvalidInput
from logstore.positions import LedgerId, Position, TopicId
from logstore.transactions.buffer import Buffer, Entries
from logstore.transactions.transactions import TransactionId
from logstore.whole_files import replacing

_VERSION: Final = 1


def pack(topic_id: TopicId, buffer: Buffer) -> bytes:
    """The buffer of a topic as bytes."""
    document = {
        "version": _VERSION,
        "topic_id": int(topic_id),
        "read_to": _pair(buffer.read_to),
        "max_read_position": _pair(buffer.max_read_position),
        "hidden": _packed(buffer.hidden),
        "open": {str(txn): _packed(entries) for txn, entries in sorted(buffer.open.items())},
    }
    return json.dumps(document, sort_keys=True).encode()


def unpack(content: bytes, topic_id: TopicId) -> Buffer:
    """Read back `pack`.

    Raises:
        CorruptData: They are none, of another topic, or of a format that this build does not know.
    """
    try:
        found = json.loads(content)
        told = (found["version"], found["topic_id"])
        if told != (_VERSION, topic_id):
            raise CorruptData(
                f"transaction snapshot: expected version {_VERSION} of topic {topic_id},"
                f" found version {told[0]} of topic {told[1]}"
            )
        buffer = Buffer(
            read_to=_position(found["read_to"]),
            hidden=_unpacked(found["hidden"]),
            open={TransactionId.parse(txn): _unpacked(entries) for txn, entries in found["open"].items()},
        )
        if _pair(buffer.max_read_position) != found["max_read_position"]:
            raise CorruptData(f"transaction snapshot: expected {found['max_read_position']} to be readable")
    except (ValueError, KeyError, TypeError, AttributeError, InvalidInput) as error:
        raise CorruptData(f"transaction snapshot of topic {topic_id}: cannot be read: {error!r}") from error
    return buffer


def _packed(entries: Entries) -> str:
    return b64encode(pack_acknowledged(entries)).decode()


def _unpacked(text: str) -> Entries:
    return unpack_acknowledged(b64decode(text, validate=True))


def _pair(position: Position) -> list[int]:
    return [int(position.ledger_id), position.entry_id]


def _position(pair: Any) -> Position:  # noqa: ANN401 - of JSON
    ledger_id, entry_id = pair
    return Position(LedgerId(int(ledger_id)), int(entry_id))


MOST_PARTS: Final = 256
"""Files of one job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildBuffers:
    """Rebuild the buffers of topics from their whole logs.

    Its summary counts `topics`, `buffers`, `empty`, `gone`, `unreadable` and `parts`; its folder holds the buffers.
    """

    run_id: str
    topics: tuple[int, ...] = ()  # their ids; none: every topic

    name = "build-transaction-snapshots"


class BufferFiles:
    """The files of a job: buffers of topics in parts, of which each was written by one task."""

    def __init__(self, folder: Path) -> None:
        """Write into, or read from, this folder."""
        self._folder = folder

    def write(self, part: int, buffers: Iterator[tuple[TopicId, Buffer]]) -> int:
        """Write one part, as a whole, a buffer at a time; how many."""
        import pyarrow as pa  # noqa: PLC0415 - start-up time

        schema, written = pa.schema([("topic_id", pa.int64()), ("buffer", pa.large_binary())]), 0
        with replacing(self._path(part)) as new, pa.ipc.new_file(str(new), schema) as file:
            for topic_id, buffer in buffers:
                columns = [pa.array([int(topic_id)], pa.int64()), pa.array([pack(topic_id, buffer)], pa.large_binary())]
                file.write_batch(pa.record_batch(columns, schema=schema))
                written += 1
        return written

    def read(self, part: int) -> Iterator[tuple[TopicId, Buffer]]:
        """The buffers of one part, one at a time.

        Raises:
            CorruptData: The part is damaged, or there is none.
        """
        import pyarrow as pa  # noqa: PLC0415 - start-up time

        path = self._path(part)
        try:
            with pa.memory_map(str(path)) as source:
                file = pa.ipc.open_file(source)
                for number in range(file.num_record_batches):
                    (row,) = file.get_batch(number).to_pylist()
                    yield TopicId(row["topic_id"]), unpack(row["buffer"], TopicId(row["topic_id"]))
        except (pa.ArrowException, OSError, ValueError) as error:
            raise CorruptData(f"{path}: expected buffers of topics ({error})") from error

    def _path(self, part: int) -> Path:
        return self._folder / f"buffers-{part:05d}.arrow"
