"""Keys as a file holds them, and what they make of payloads."""

import asyncio
import base64
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from temporalio.api.common.v1 import Payload

from logstore.errors import InvalidInput
from workers.client.data_converter import (
    ENCODING,
    KEY_NAME,
    EncryptingCodec,
    make_data_converter,
    read_payload_keys,
)

_PLAIN = Payload(metadata={"encoding": b"json/plain"}, data=b'"persistent://a/b/c"')
_ONE, _TWO = bytes(32), bytes(range(32))


def _line(name: str, key: bytes) -> str:
    return f"{name} {base64.b64encode(key).decode()}\n"


def _encoded(codec: EncryptingCodec, payload: Payload = _PLAIN) -> Payload:
    return asyncio.run(codec.encode([payload]))[0]


def _decoded(codec: EncryptingCodec, payload: Payload) -> Payload:
    return asyncio.run(codec.decode([payload]))[0]


def test_keys_stand_one_a_line_in_order(tmp_path: Path) -> None:
    """Comments and empty lines count for nothing; without a file there are no keys."""
    path = tmp_path / "keys"
    path.write_text(f"# made by openssl\n\n{_line('2026-11', _TWO)}  {_line('old', _ONE)}")
    assert list(read_payload_keys(str(path)).items()) == [("2026-11", _TWO), ("old", _ONE)]
    assert read_payload_keys("") == {}


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "No such file"),
        ("", "it has none"),
        ("\xe9", "it is no text"),
        ("one AAAA\n", "line 1"),
        ("one not-base64!\n", "line 1"),
        ("one caf\xe9".encode().decode("cp1252"), "line 1"),
        (_line("a", _ONE) + _line("a", _TWO), "line 2"),
        (_line("with/slash", _ONE), "line 1"),
        (_line("a", _ONE).replace(" ", ""), "line 1"),
    ],
)
def test_file_of_keys_that_cannot_be_used_is_refused_and_not_shown(
    tmp_path: Path, content: str | None, told: str
) -> None:
    """The setting, the rule, and the line; never what stands there."""
    path = tmp_path / "keys"
    if content is not None:
        path.write_text(content, encoding="cp1252")
    with pytest.raises(InvalidInput, match=told) as refused:
        make_data_converter(str(path))
    assert refused.value.field == "payload_key_file"
    for word in (content or "").split():
        assert word in {"a", "one"} or word not in str(refused.value)


def test_payload_is_read_back_and_never_encrypted_alike_twice() -> None:
    """Whole, with its metadata; two of the same content show no likeness."""
    codec = EncryptingCodec({"one": _ONE})
    first, second = _encoded(codec), _encoded(codec)
    assert _decoded(codec, first) == _decoded(codec, second) == _PLAIN
    assert first.data != second.data
    assert dict(first.metadata) == {"encoding": ENCODING, KEY_NAME: b"one"}
    assert b"persistent" not in first.SerializeToString()
    assert _decoded(codec, _PLAIN) == _PLAIN


def test_new_payloads_are_encrypted_by_the_first_key_and_old_ones_read_by_theirs() -> None:
    """So a key is changed in two steps: first every process has both, then the order turns."""
    old, both = EncryptingCodec({"one": _ONE}), EncryptingCodec({"two": _TWO, "one": _ONE})
    assert _decoded(both, _encoded(old)) == _PLAIN
    assert _encoded(both).metadata[KEY_NAME] == b"two"
    with pytest.raises(InvalidInput, match=r"expected a file with the key 'two', .* found 'one'"):
        _decoded(old, _encoded(both))


def test_without_a_key_plain_passes_and_what_is_encrypted_is_refused() -> None:
    """It is never taken for something else."""
    none = EncryptingCodec({})
    assert _encoded(none) == _decoded(none, _PLAIN) == _PLAIN
    with pytest.raises(InvalidInput, match=r"expected a file with the key 'one', .* found 'no file'"):
        _decoded(none, _encoded(EncryptingCodec({"one": _ONE})))


@pytest.mark.parametrize("harm", ["data", "name", "key", "short", "empty", "foreign"])
def test_payload_that_was_changed_is_refused(harm: str) -> None:
    """A bit of it, the name of another key, another key of that name, one that was cut off, and another program's."""
    codec = EncryptingCodec({"one": _ONE, "also": _ONE})
    payload = _encoded(codec)
    match harm:
        case "data":
            payload.data = payload.data[:-1] + bytes([payload.data[-1] ^ 1])
        case "name":
            payload.metadata[KEY_NAME] = b"also"
        case "key":
            codec = EncryptingCodec({"one": _TWO})
        case "short":
            payload.data = payload.data[:5]
        case "empty":
            payload.data = b""
        case "foreign":
            payload.data = bytes(12) + AESGCM(_ONE).encrypt(bytes(12), b"no payload", b"one")
    with pytest.raises(InvalidInput, match="expected the key"):
        _decoded(codec, payload)
