"""Serialized snapshot of a transaction buffer, and the bulk job that rebuilds many buffers.

A snapshot is one JSON document with packed bitmaps. A snapshot is never split into parts.

Source: Pulsar's TransactionBufferSnapshot. PIP-196 splits snapshots, so a crash can leave a mix of old and new parts.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from logstore.atomic_files import replace_atomically
from logstore.cursors.cursor_state import pack_acknowledged, unpack_acknowledged
from logstore.errors import CorruptData, InvalidInput
from logstore.positions import LedgerId, Position, TopicId
from logstore.transactions.transaction_buffer import Entries, TransactionBuffer
from logstore.transactions.transaction_ids_and_states import TransactionId

_FORMAT_VERSION: Final = 1


def pack_buffer(topic_id: TopicId, buffer: TransactionBuffer) -> bytes:
    document = {
        "version": _FORMAT_VERSION,
        "topic_id": int(topic_id),
        "read_to": _encode_position(buffer.read_to),
        "max_read_position": _encode_position(buffer.max_read_position),
        "hidden": _encode_entries(buffer.hidden),
        "open": {str(txn): _encode_entries(entries) for txn, entries in sorted(buffer.open.items())},
    }
    return json.dumps(document, sort_keys=True).encode()


def unpack_buffer(content: bytes, topic_id: TopicId) -> TransactionBuffer:
    """Return the buffer that `pack_buffer` packed. Raise `CorruptData` if it is damaged or of another topic."""
    try:
        document = json.loads(content)
        version, found_topic_id = document["version"], document["topic_id"]
        if (version, found_topic_id) != (_FORMAT_VERSION, topic_id):
            raise CorruptData(
                f"transaction snapshot: expected version {_FORMAT_VERSION} of topic {topic_id},"
                f" found version {version} of topic {found_topic_id}"
            )
        buffer = TransactionBuffer(
            read_to=_decode_position(document["read_to"]),
            hidden=_decode_entries(document["hidden"]),
            open={TransactionId.parse(txn): _decode_entries(entries) for txn, entries in document["open"].items()},
        )
        if _encode_position(buffer.max_read_position) != document["max_read_position"]:
            raise CorruptData(f"transaction snapshot: expected {document['max_read_position']} to be readable")
    except (ValueError, KeyError, TypeError, AttributeError, InvalidInput) as error:
        raise CorruptData(f"transaction snapshot of topic {topic_id}: cannot be read: {error!r}") from error
    return buffer


def _encode_entries(entries: Entries) -> str:
    return b64encode(pack_acknowledged(entries)).decode()


def _decode_entries(text: str) -> Entries:
    return unpack_acknowledged(b64decode(text, validate=True))


def _encode_position(position: Position) -> list[int]:
    return [int(position.ledger_id), position.entry_id]


def _decode_position(pair: Any) -> Position:  # noqa: ANN401 - of JSON
    ledger_id, entry_id = pair
    return Position(LedgerId(int(ledger_id)), int(entry_id))


MAX_PARTS_PER_JOB: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildTransactionBuffersJob:
    """Job that rebuilds the buffers of topics from their whole logs. `BufferFiles` reads the output.

    The `BulkJobSummary` counts `topics` (of these: `empty`, `gone` and `unreadable`), `buffers` and `parts`.
    """

    run_id: str
    topics: tuple[int, ...] = ()  # topic ids; empty: every topic

    name = "build-transaction-snapshots"


class BufferFiles:
    """Output files of a job, with the buffers of topics. Each task writes one file, which is a part."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write_part(self, part: int, buffers: Iterator[tuple[TopicId, TransactionBuffer]]) -> int:
        import pyarrow as pa  # noqa: PLC0415 - start-up time

        schema = pa.schema([("topic_id", pa.int64()), ("buffer", pa.large_binary())])
        buffer_count = 0
        with replace_atomically(self._part_path(part)) as new, pa.ipc.new_file(str(new), schema) as file:
            for topic_id, buffer in buffers:
                columns = [
                    pa.array([int(topic_id)], pa.int64()),
                    pa.array([pack_buffer(topic_id, buffer)], pa.large_binary()),
                ]
                file.write_batch(pa.record_batch(columns, schema=schema))
                buffer_count += 1
        return buffer_count

    def read_part(self, part: int) -> Iterator[tuple[TopicId, TransactionBuffer]]:
        """Yield the buffers of one part, one at a time. Raise `CorruptData` if the part is missing or damaged."""
        import pyarrow as pa  # noqa: PLC0415 - start-up time

        path = self._part_path(part)
        try:
            with pa.memory_map(str(path)) as source:
                file = pa.ipc.open_file(source)
                for number in range(file.num_record_batches):
                    (row,) = file.get_batch(number).to_pylist()
                    yield TopicId(row["topic_id"]), unpack_buffer(row["buffer"], TopicId(row["topic_id"]))
        except (pa.ArrowException, OSError, ValueError) as error:
            raise CorruptData(f"{path}: expected buffers of topics ({error})") from error

    def _part_path(self, part: int) -> Path:
        return self._folder / f"buffers-{part:05d}.arrow"
