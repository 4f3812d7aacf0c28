"""Data converter of clients and workers: encryption of workflow payloads, and a limit on the size of failures.

AES-256-GCM encrypts a whole workflow payload under the first key of the file. A random nonce precedes the ciphertext.
The key's name is in the metadata, and the encryption authenticates the name. Plain workflow payloads can be read, too.

The Temporal server replaces failures above 4 KiB, so they are cut before.

Source: NIST SP 800-38D; Temporal, "Codec Server" and "Failure Converter";
`limit.mutableStateActivityFailureSize.error` in Temporal's dynamic configuration.
"""

import os
import re
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import DecodeError, Message
from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.client import Client
from temporalio.contrib.pydantic import PydanticPayloadConverter
from temporalio.converter import (
    CompositePayloadConverter,
    DataConverter,
    DefaultFailureConverter,
    EncodingPayloadConverter,
    PayloadCodec,
    PayloadConverter,
)

from logstore.errors import InvalidInput
from logstore.setting_files import read_setting_text_file

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM


PAYLOAD_KEY_FILE: Final = "payload_key_file"
_KEY_BYTES: Final = 32
_KEY_NAME_PATTERN: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_FILE_FORMAT: Final = "lines of a key's name and 32 bytes in base64, each name once"


def read_payload_keys(path: str) -> Mapping[str, bytes]:
    """Return the keys by name, in the order of the file. The result is empty if `path` is empty.

    A line of the file has a key's name and 32 bytes in base64. The first key encrypts, and every key decrypts.

    Raises:
        InvalidInput: The file cannot be read, has no key, or has an invalid line. The error does not show the line.
    """
    if not path:
        return {}
    lines = read_setting_text_file(PAYLOAD_KEY_FILE, path, f"a file of {_FILE_FORMAT}").splitlines()
    keys: dict[str, bytes] = {}
    for number, line in enumerate(lines, start=1):
        name, _, text = line.strip().partition(" ")
        if not name or name.startswith("#"):
            continue
        if name in keys or not _KEY_NAME_PATTERN.fullmatch(name):
            raise _bad_line(path, number)
        keys[name] = _parse_key(path, number, text)
    if not keys:
        raise InvalidInput(PAYLOAD_KEY_FILE, expected=f"a file of {_FILE_FORMAT} (it has none)", found=path)
    return keys


def _parse_key(path: str, number: int, text: str) -> bytes:
    try:
        key = b64decode(text.strip(), validate=True)
    except ValueError:  # the text is not base64, or not ASCII
        raise _bad_line(path, number) from None
    if len(key) != _KEY_BYTES:
        raise _bad_line(path, number)
    return key


def _bad_line(path: str, number: int) -> InvalidInput:
    return InvalidInput(PAYLOAD_KEY_FILE, expected=_FILE_FORMAT, found=f"{path}, line {number}")


ENCODING: Final = b"binary/encrypted"
KEY_NAME: Final = "encryption-key-id"
_NONCE_BYTES: Final = 12


class EncryptingCodec(PayloadCodec):
    """Codec that encrypts with the first key and decrypts with any key. Without keys, it refuses encrypted content."""

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        self._ciphers = {name: _make_cipher(key) for name, key in keys.items()}
        self.first_key_name = next(iter(keys), "")

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [self._encrypt(payload) for payload in payloads] if self.first_key_name else list(payloads)

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return self.decrypt(payloads)

    def decrypt(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [self._decrypt(payload) if is_encrypted(payload) else payload for payload in payloads]

    def _encrypt(self, payload: Payload) -> Payload:
        nonce, associated_data = os.urandom(_NONCE_BYTES), self.first_key_name.encode()
        data = nonce + self._ciphers[self.first_key_name].encrypt(nonce, payload.SerializeToString(), associated_data)
        return Payload(metadata={"encoding": ENCODING, KEY_NAME: associated_data}, data=data)

    def _decrypt(self, payload: Payload) -> Payload:
        name = encryption_key_name(payload)
        if name not in self._ciphers:
            expected = f"a file with the key {name!r}, by which payloads of this namespace are encrypted"
            raise InvalidInput(PAYLOAD_KEY_FILE, expected=expected, found=", ".join(self._ciphers) or "no file")
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - start-up time

        nonce, data = payload.data[:_NONCE_BYTES], payload.data[_NONCE_BYTES:]
        try:
            return Payload.FromString(self._ciphers[name].decrypt(nonce, data, name.encode()))
        except (InvalidTag, ValueError, DecodeError):
            expected = f"the key {name!r} that encrypted a payload"
            raise InvalidInput(PAYLOAD_KEY_FILE, expected=expected, found="another key, or a damaged payload") from None


_UNREADABLE: Final = b"binary/unreadable-" + os.urandom(16).hex().encode()
"""Encoding of marks of `DeferredErrorCodec`. It is random, so no workflow payload from outside looks like a mark."""

_EXPECTED: Final = "expected"
_FOUND: Final = "found"


class DeferredErrorCodec(PayloadCodec):
    """Codec that decodes unreadable workflow payloads to marks, which `require_decrypted` refuses later.

    A worker needs this codec, because the SDK also decodes workflow payloads that no code reads.
    """

    def __init__(self, strict: EncryptingCodec) -> None:
        self.strict = strict

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return await self.strict.encode(payloads)

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [self._decrypt_or_mark(payload) for payload in payloads]

    def _decrypt_or_mark(self, payload: Payload) -> Payload:
        try:
            return self.strict.decrypt([payload])[0]
        except InvalidInput as error:
            texts = {_EXPECTED: error.expected, _FOUND: str(error.found)}
            return Payload(metadata={"encoding": _UNREADABLE, **{name: text.encode() for name, text in texts.items()}})


def require_decrypted(message: Message) -> None:
    """Raise `InvalidInput` and name the missing key if the message has a mark of `DeferredErrorCodec` at any depth."""
    # This fast test comes first, because few messages have a mark and a search of all fields is slow.
    if _UNREADABLE in message.SerializeToString():
        _refuse_unreadable_payloads(message)


def _refuse_unreadable_payloads(message: Message) -> None:
    if isinstance(message, Payload):
        if message.metadata.get("encoding") == _UNREADABLE:
            raise unreadable_payload_error(message)
        return
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if isinstance(value, Message):
            _refuse_unreadable_payloads(value)
            continue
        for item in value.values() if isinstance(value, Mapping) else value:
            if isinstance(item, Message):
                _refuse_unreadable_payloads(item)


def unreadable_payload_error(mark: Payload) -> InvalidInput:
    expected, found = (mark.metadata[name].decode() for name in (_EXPECTED, _FOUND))
    return InvalidInput(PAYLOAD_KEY_FILE, expected=expected, found=found)


class _UnreadablePayloadConverter(EncodingPayloadConverter):
    @property
    def encoding(self) -> str:
        return _UNREADABLE.decode()

    def to_payload(self, value: Any) -> Payload | None:  # noqa: ANN401 - the SDK's signature
        del value
        return None  # no value is converted into a mark

    def from_payload(self, payload: Payload, type_hint: type | None = None) -> Any:  # noqa: ANN401 - the SDK's signature
        del type_hint
        raise unreadable_payload_error(payload)


def _make_cipher(key: bytes) -> "AESGCM":
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - start-up time

    return AESGCM(key)


def is_encrypted(payload: Payload) -> bool:
    return payload.metadata.get("encoding") == ENCODING


def encryption_key_name(payload: Payload) -> str:
    return payload.metadata.get(KEY_NAME, b"").decode("ascii", "replace") if is_encrypted(payload) else ""


_CONVERTER: Final = PydanticPayloadConverter()


MAX_FAILURE_BYTES: Final = 3_000
"""Three quarters of the server's limit. Encryption and the server's additions need the other quarter."""

_ENCODED_MESSAGE: Final = "Encoded failure"  # the message that the SDK's encoding converter writes
_MAX_MESSAGE_CHARS: Final = 1_000
_MAX_CAUSE_CHARS: Final = 200
_MAX_FRAMES_CHARS: Final = 600
_MAX_CAUSES: Final = 3


class ShorteningFailureConverter(DefaultFailureConverter):
    """SDK converter that cuts long failures. It drops outer stack frames and deep causes."""

    def to_failure(self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure) -> None:
        super().to_failure(exception, payload_converter, failure)
        shorten_failure(failure)


class EncryptableFailureConverter(DefaultFailureConverter):
    """Shortening converter that moves messages and stack traces into workflow payloads, which a codec can encrypt."""

    def __init__(self) -> None:
        super().__init__()
        self._bounded = ShorteningFailureConverter()

    def to_failure(self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure) -> None:
        self._bounded.to_failure(exception, payload_converter, failure)
        for part in _list_causes(failure):
            if part.message == _ENCODED_MESSAGE:  # another process has encoded this cause
                continue
            attributes = {"message": part.message, "stack_trace": part.stack_trace}
            part.encoded_attributes.CopyFrom(payload_converter.to_payloads([attributes])[0])
            part.message, part.stack_trace = _ENCODED_MESSAGE, ""


def shorten_failure(failure: Failure) -> None:
    """Shorten a failure above `MAX_FAILURE_BYTES`. Details are kept, so the result may exceed the limit."""
    if failure.ByteSize() <= MAX_FAILURE_BYTES:
        return
    parts = _list_causes(failure)
    if len(parts) > _MAX_CAUSES + 1:
        parts[_MAX_CAUSES].ClearField("cause")
        parts = parts[: _MAX_CAUSES + 1]
    deepest_index = max((index for index, part in enumerate(parts) if part.stack_trace), default=0)
    for index, part in enumerate(parts):
        part.message = _truncate(part.message, _MAX_CAUSE_CHARS if index else _MAX_MESSAGE_CHARS)
        part.stack_trace = part.stack_trace[-_MAX_FRAMES_CHARS:] if index == deepest_index else ""


def _list_causes(failure: Failure) -> list[Failure]:
    parts = [failure]
    while parts[-1].HasField("cause"):
        parts.append(parts[-1].cause)
    return parts


def _truncate(text: str, chars: int) -> str:
    return text if len(text) <= chars else f"{text[: chars - 1]}…"


class _SharedPayloadConverter(CompositePayloadConverter):
    """Payload converters that all workflow runs share, so that the parser of a type is built only once."""

    def __init__(self) -> None:
        super().__init__(*_CONVERTER.converters.values(), _UnreadablePayloadConverter())


PLAIN_DATA_CONVERTER: Final = DataConverter(
    payload_converter_class=_SharedPayloadConverter, failure_converter_class=ShorteningFailureConverter
)
"""Data converter without encryption. Values are JSON, and pydantic checks their types."""


def make_data_converter(key_file: str, *, defers_decryption_errors: bool = False) -> DataConverter:
    """Return the data converter for workers, commands, programs and replays. With keys, failures are encrypted, too.

    With `defers_decryption_errors`, the workers' `InputCheckingRunner` must refuse unreadable workflow payloads.
    """
    codec = EncryptingCodec(read_payload_keys(key_file))
    converter = replace(
        PLAIN_DATA_CONVERTER, payload_codec=DeferredErrorCodec(codec) if defers_decryption_errors else codec
    )
    return (
        replace(converter, failure_converter_class=EncryptableFailureConverter) if codec.first_key_name else converter
    )


def get_codec(client: Client) -> EncryptingCodec:
    """Return the client's `EncryptingCodec`. If the client has no codec, return a codec without keys."""
    codec = client.data_converter.payload_codec
    if isinstance(codec, DeferredErrorCodec):
        return codec.strict
    return codec if isinstance(codec, EncryptingCodec) else EncryptingCodec({})
