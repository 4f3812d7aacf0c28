"""Values of the znodes of managed ledgers, cursors and schemas: frames, messages, and refusal of unknown fields.

Source: Pulsar's `MetaStoreImpl`.
"""

import zlib
from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from logstore.pulsar.protos.managed_ledger_pb2 import CompressionHeader
from logstore.pulsar.unreadable_metadata import UnreadableMetadata

MAX_VALUE_BYTES: Final = 64 << 20
"""Maximum length of an uncompressed value. A znode is at most 10 MiB in a cluster as Pulsar configures it."""

_COMPRESSED: Final = "compressed value"
_FRAME_MAGIC: Final = b"\x47\x78"
_CODEC_BY_TYPE: Final = {
    CompressionHeader.LZ4: "lz4_raw",
    CompressionHeader.ZSTD: "zstd",
    CompressionHeader.SNAPPY: "snappy",
}

M = TypeVar("M", bound=Message)


def parse_message(kind: type[M], data: bytes) -> M:
    """Parse a protobuf message.

    Raises:
        UnreadableMetadata: The message is damaged, incomplete, or has a field that this version does not know. An
            unknown field may refer to a ledger.
    """
    message = kind()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise UnreadableMetadata("value", expected=f"a message {kind.__name__}", found=str(error)) from None
    if not message.IsInitialized():
        raise UnreadableMetadata(f"message {kind.__name__}", expected="all required fields", found="a missing one")
    _refuse_unknown_fields(message)
    return message


def _refuse_unknown_fields(message: Message) -> None:
    unknown = UnknownFieldSet(message)
    if len(unknown):
        numbers = ", ".join(sorted({str(unknown[index].field_number) for index in range(len(unknown))}))
        subject = f"message {type(message).DESCRIPTOR.name}"
        raise UnreadableMetadata(subject, expected="no unknown fields", found=f"the fields {numbers}")
    for descriptor, value in message.ListFields():
        if descriptor.message_type is None or descriptor.message_type.GetOptions().map_entry:
            continue
        for nested in value if descriptor.is_repeated else (value,):
            _refuse_unknown_fields(nested)


def unpack_frame(data: bytes) -> bytes:
    """Return the uncompressed message of a znode. Most znodes have no frame and are returned as they are.

    A frame is the magic number, the length of a `CompressionHeader` in 4 bytes, this header, and the compressed
    message.

    Raises:
        UnreadableMetadata: The frame is damaged, or its type of compression is unknown.
    """
    if not data.startswith(_FRAME_MAGIC):
        return data
    header_end = 6 + int.from_bytes(data[2:6], "big")
    if len(data) < header_end:
        raise UnreadableMetadata(_COMPRESSED, expected=f"a header of {header_end} bytes", found=f"{len(data)} bytes")
    header = parse_message(CompressionHeader, data[6:header_end])
    if not 0 <= header.uncompressed_size <= MAX_VALUE_BYTES:
        limits = f"a length of 0 to {MAX_VALUE_BYTES} bytes"
        raise UnreadableMetadata(_COMPRESSED, expected=limits, found=header.uncompressed_size)
    message = _decompress(header, data[header_end:])
    if len(message) != header.uncompressed_size:
        expected = f"{header.uncompressed_size} bytes after decompression"
        raise UnreadableMetadata(_COMPRESSED, expected=expected, found=len(message))
    return message


def _decompress(header: CompressionHeader, data: bytes) -> bytes:
    import pyarrow as pa  # noqa: PLC0415 - start-up time

    size = header.uncompressed_size
    try:
        match header.compression_type:
            case CompressionHeader.NONE:
                return data
            case CompressionHeader.ZLIB:  # a stream without an end, which `zlib.decompress` would refuse
                return zlib.decompressobj().decompress(data, size + 1)
        return bytes(pa.decompress(data, size, _CODEC_BY_TYPE[header.compression_type], asbytes=True))
    except (zlib.error, OSError, ValueError) as error:
        codec = CompressionHeader.CompressionType.Name(header.compression_type)
        raise UnreadableMetadata(_COMPRESSED, expected=f"a value of codec {codec}", found=str(error)) from None
