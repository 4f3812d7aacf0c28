"""What Temporal keeps of our jobs is encrypted where a file of keys is given: inputs, results, errors, summaries.

A payload is encrypted whole, by AES-256-GCM under the file's first key, with a random nonce before it and the key's
name beside it, to which it is bound. What is not encrypted is read as it is, so histories of before stay readable.
What is encrypted and cannot be read is never guessed: the step fails, and Temporal gives it to another worker. A worker
for workflows reads payloads through `DeferringCodec`, because Temporal sends it some that nothing of ours reads.

Source: NIST SP 800-38D; Temporal, "Codec Server" and "Failure Converter".
"""

import os
import re
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import DecodeError, Message
from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.contrib.pydantic import PydanticPayloadConverter
from temporalio.converter import (
    CompositePayloadConverter,
    DataConverter,
    EncodingPayloadConverter,
    PayloadCodec,
)

from logstore.errors import InvalidInput
from workers.client.failure_converter import BoundedFailureConverter, EncodingFailureConverter
from workers.settings.files import read_text

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM


PAYLOAD_KEY_FILE: Final = "payload_key_file"
_BYTES: Final = 32
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_RULE: Final = "lines of a key's name and 32 bytes in base64, each name once"


def read_payload_keys(path: str) -> Mapping[str, bytes]:
    """Keys by name, in the order of the file; none where no file is given.

    A line has the name of a key and 32 bytes in base64; empty lines and those that begin with `#` count for nothing.
    The first key encrypts what is new, all of them decrypt what was written before: so a key is changed without a
    moment at which something cannot be read.

    Raises:
        InvalidInput: The file cannot be read, holds no key, or a line that is none; what stands in it is not shown.
    """
    if not path:
        return {}
    lines = read_text(PAYLOAD_KEY_FILE, path, f"a file of {_RULE}").splitlines()
    keys: dict[str, bytes] = {}
    for number, line in enumerate(lines, start=1):
        name, _, text = line.strip().partition(" ")
        if not name or name.startswith("#"):
            continue
        if name in keys or not _NAME.fullmatch(name):
            raise _refused(path, number)
        keys[name] = _key(path, number, text)
    if not keys:
        raise InvalidInput(PAYLOAD_KEY_FILE, expected=f"a file of {_RULE} (it has none)", found=path)
    return keys


def _key(path: str, number: int, text: str) -> bytes:
    try:
        key = b64decode(text.strip(), validate=True)
    except ValueError:  # no base64, or no ASCII
        raise _refused(path, number) from None
    if len(key) != _BYTES:
        raise _refused(path, number)
    return key


def _refused(path: str, number: int) -> InvalidInput:
    return InvalidInput(PAYLOAD_KEY_FILE, expected=_RULE, found=f"{path}, line {number}")


ENCODING: Final = b"binary/encrypted"
KEY_NAME: Final = "encryption-key-id"
_NONCE_BYTES: Final = 12


class EncryptingCodec(PayloadCodec):
    """Encrypts by the first of its keys, decrypts by any; without a key it only refuses what is encrypted."""

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        """Take keys of 32 bytes by name, the first of them for what is new."""
        self._ciphers = {name: _cipher(key) for name, key in keys.items()}
        self.first = next(iter(keys), "")

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """See `PayloadCodec`."""
        return [self._encrypted(one) for one in payloads] if self.first else list(payloads)

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Decrypt the payloads; see `decrypt`."""
        return self.decrypt(payloads)

    def decrypt(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Decrypt what is encrypted of the payloads, in their order.

        Raises:
            InvalidInput: One was encrypted by a key that is not ours, or is damaged.
        """
        return [self._decrypted(one) if is_encrypted(one) else one for one in payloads]

    def _encrypted(self, payload: Payload) -> Payload:
        nonce, bound = os.urandom(_NONCE_BYTES), self.first.encode()
        data = nonce + self._ciphers[self.first].encrypt(nonce, payload.SerializeToString(), bound)
        return Payload(metadata={"encoding": ENCODING, KEY_NAME: bound}, data=data)

    def _decrypted(self, payload: Payload) -> Payload:
        name = key_of(payload)
        if name not in self._ciphers:
            expected = f"a file with the key {name!r}, by which payloads of this namespace are encrypted"
            raise InvalidInput(PAYLOAD_KEY_FILE, expected=expected, found=", ".join(self._ciphers) or "no file")
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - start-up time

        nonce, data = payload.data[:_NONCE_BYTES], payload.data[_NONCE_BYTES:]
        try:
            return Payload.FromString(self._ciphers[name].decrypt(nonce, data, name.encode()))
        except (InvalidTag, ValueError, DecodeError):
            expected = f"the very key {name!r} by which a payload was encrypted"
            raise InvalidInput(PAYLOAD_KEY_FILE, expected=expected, found="another key, or a damaged payload") from None


_UNREADABLE: Final = b"binary/unreadable-" + os.urandom(16).hex().encode()
"""Encoding of this process's marks; random, so that no payload from outside can be taken for one."""

_EXPECTED: Final = "expected"
_FOUND: Final = "found"


class DeferringCodec(PayloadCodec):
    """A codec whose `decode` puts a mark in place of a payload that it cannot read, for `require_read` to refuse.

    Temporal sends a scheduled run the result and the failure of the run before it, and the SDK decodes both before any
    code can drop them. A codec that raises there fails every task of the run.
    """

    def __init__(self, strict: EncryptingCodec) -> None:
        self.strict = strict

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Encrypt the payloads as `EncryptingCodec` does."""
        return await self.strict.encode(payloads)

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Decrypt the payloads, and return a mark for each that cannot be read."""
        return [self._read_or_mark(payload) for payload in payloads]

    def _read_or_mark(self, payload: Payload) -> Payload:
        try:
            return self.strict.decrypt([payload])[0]
        except InvalidInput as error:
            texts = {_EXPECTED: error.expected, _FOUND: str(error.found)}
            return Payload(metadata={"encoding": _UNREADABLE, **{name: text.encode() for name, text in texts.items()}})


def require_read(message: Message) -> None:
    """Refuse a message that holds a mark of `DeferringCodec`, at any depth.

    Raises:
        InvalidInput: A payload in it could not be read; it names the key that is missing.
    """
    if _UNREADABLE in message.SerializeToString():  # most messages hold none, and a walk over fields is slow
        _refuse_marks(message)


def _refuse_marks(message: Message) -> None:
    if isinstance(message, Payload):
        if message.metadata.get("encoding") == _UNREADABLE:
            raise unreadable(message)
        return
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if isinstance(value, Message):
            _refuse_marks(value)
            continue
        for item in value.values() if isinstance(value, Mapping) else value:
            if isinstance(item, Message):
                _refuse_marks(item)


def unreadable(mark: Payload) -> InvalidInput:
    """Return the error that a mark of `DeferringCodec` stands for."""
    expected, found = (mark.metadata[name].decode() for name in (_EXPECTED, _FOUND))
    return InvalidInput(PAYLOAD_KEY_FILE, expected=expected, found=found)


class _UnreadableConverter(EncodingPayloadConverter):
    """Converter of marks, for activities: reading a mark raises the error that it stands for."""

    @property
    def encoding(self) -> str:
        return _UNREADABLE.decode()

    def to_payload(self, value: Any) -> Payload | None:  # noqa: ANN401 - the SDK's signature
        del value
        return None  # nothing is written as a mark

    def from_payload(self, payload: Payload, type_hint: type | None = None) -> Any:  # noqa: ANN401 - the SDK's signature
        del type_hint
        raise unreadable(payload)


def _cipher(key: bytes) -> "AESGCM":
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - start-up time

    return AESGCM(key)


def is_encrypted(payload: Payload) -> bool:
    """Whether it can be read with a key alone."""
    return payload.metadata.get("encoding") == ENCODING


def key_of(payload: Payload) -> str:
    """The name of the key by which it is encrypted; empty where it is not."""
    return payload.metadata.get(KEY_NAME, b"").decode("ascii", "replace") if is_encrypted(payload) else ""


_ONCE: Final = PydanticPayloadConverter()


class _Shared(CompositePayloadConverter):
    """The converters of all runs of workflows: shared, because they remember how each type that they met is read."""

    def __init__(self) -> None:
        super().__init__(*_ONCE.converters.values(), _UnreadableConverter())


VALUES: Final = DataConverter(payload_converter_class=_Shared, failure_converter_class=BoundedFailureConverter)
"""How our values travel: as JSON that pydantic reads, the same for whichever command or run they belong to."""


def data_converter(key_file: str, *, defers: bool = False) -> DataConverter:
    """How values travel to Temporal and back, of workers, commands, programs and replays alike.

    With keys, messages and stack traces of failures travel encrypted as well.

    Args:
        key_file: The file of keys; empty: none.
        defers: Whether payloads that cannot be read are left to `CheckedRunner`, as workers for workflows need.

    Raises:
        InvalidInput: The file of keys cannot be used.
    """
    codec = EncryptingCodec(read_payload_keys(key_file))
    coded = replace(VALUES, payload_codec=DeferringCodec(codec) if defers else codec)
    return replace(coded, failure_converter_class=EncodingFailureConverter) if codec.first else coded


def codec_of(client: Client) -> EncryptingCodec:
    """The client's codec, which refuses what it cannot read; one without keys where it was made without any."""
    found = client.data_converter.payload_codec
    if isinstance(found, DeferringCodec):
        return found.strict
    return found if isinstance(found, EncryptingCodec) else EncryptingCodec({})
