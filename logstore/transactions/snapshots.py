"""The snapshot of a buffer as bytes: JSON with packed bitmaps, whole or damaged and never in parts.

Source: Pulsar's TransactionBufferSnapshot; PIP-196, where a set that was cut by a crash mixed old parts and new ones.
"""

import json
from base64 import b64decode, b64encode
from typing import Any, Final

from logstore.cursors.state import pack_acknowledged, unpack_acknowledged
from logstore.errors import CorruptData, InvalidInput
from logstore.positions import LedgerId, Position, TopicId
from logstore.transactions.buffer import Buffer, Entries
from logstore.transactions.transactions import TransactionId

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
