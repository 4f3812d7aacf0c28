"""What Temporal keeps of our jobs is encrypted where a file of keys is given: inputs, results, errors, summaries.

A payload is encrypted whole, by AES-256-GCM under the file's first key, with a random nonce before it and the key's
name beside it, to which it is bound. What is not encrypted is read as it is, so histories of before stay readable.
What is encrypted and cannot be read is never guessed: the step fails, and Temporal gives it to another worker.

Source: NIST SP 800-38D; Temporal, "Codec Server" and "Failure Converter".
"""

import os
import re
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError
from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.contrib.pydantic import PydanticPayloadConverter
from temporalio.converter import (
    CompositePayloadConverter,
    DataConverter,
    DefaultFailureConverterWithEncodedAttributes,
    PayloadCodec,
)

from logstore.errors import InvalidInput
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
        """See `PayloadCodec`.

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
        super().__init__(*_ONCE.converters.values())


VALUES: Final = DataConverter(payload_converter_class=_Shared)
"""How our values travel: as JSON that pydantic reads, the same for whichever command or run they belong to."""


def data_converter(key_file: str) -> DataConverter:
    """How values travel to Temporal and back, of workers, commands, programs and replays alike.

    With keys, messages and stack traces of failures travel encrypted as well.

    Raises:
        InvalidInput: The file of keys cannot be used.
    """
    codec = EncryptingCodec(read_payload_keys(key_file))
    coded = replace(VALUES, payload_codec=codec)
    return (
        replace(coded, failure_converter_class=DefaultFailureConverterWithEncodedAttributes) if codec.first else coded
    )


def codec_of(client: Client) -> EncryptingCodec:
    """The client's codec; one without keys where it was made without any."""
    found = client.data_converter.payload_codec
    return found if isinstance(found, EncryptingCodec) else EncryptingCodec({})
