"""Names and paths of znodes: encodings, layouts, and refusal of what is neither."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.pulsar.unreadable_metadata import UnreadableMetadata
from logstore.pulsar.znode_names import (
    CursorPath,
    decode_name,
    encode_name,
    format_ledger_path,
    is_ledger_folder,
    parse_ledger_path,
    parse_managed_ledger_path,
)


@pytest.mark.parametrize(
    ("name", "encoded"),
    [
        ("orders", "orders"),
        ("a b", "a+b"),
        ("a/b", "a%2Fb"),
        ("~*-_.", "%7E*-_."),
        ("grüße+", "gr%C3%BC%C3%9Fe%2B"),
    ],
)
def test_names_are_encoded_as_java_does(name: str, encoded: str) -> None:
    assert encode_name(name) == encoded
    assert decode_name(encoded) == name


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_an_encoded_name_is_decoded(name: str) -> None:
    assert decode_name(encode_name(name)) == name
    assert "/" not in encode_name(name)


@pytest.mark.parametrize("text", ["a b", "a~b", "%2f", "%ff", "a/b", "%"])
def test_no_other_text_is_decoded(text: str) -> None:
    with pytest.raises(UnreadableMetadata):
        decode_name(text)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("public", None),
        ("public/default", None),
        ("public/default/persistent", None),
        ("public/default/persistent/orders", "public/default/persistent/orders"),
        ("public/default/persistent/orders/billing", CursorPath("public/default/persistent/orders", "billing")),
        ("old/east/ns", None),
        ("old/east/ns/persistent", None),
        ("old/east/ns/persistent/orders", "old/east/ns/persistent/orders"),
        ("old/east/ns/persistent/orders/sub", CursorPath("old/east/ns/persistent/orders", "sub")),
    ],
)
def test_depth_and_domain_tell_parents_managed_ledgers_and_cursors(
    path: str, expected: str | CursorPath | None
) -> None:
    assert parse_managed_ledger_path(path) == expected


@pytest.mark.parametrize(
    "path",
    ["t/ns/segment/a", "t/ns/segment/a/0000-ffff-1", "t/c/n/other", "t/ns/persistent/a/sub/deeper", "t/ns/topic/a/b/c"],
)
def test_unknown_domains_and_depths_are_refused(path: str) -> None:
    with pytest.raises(UnreadableMetadata):
        parse_managed_ledger_path(path)


@pytest.mark.parametrize(
    ("ledger_id", "path"),
    [
        (0, "00/0000/L0000"),
        (1234, "00/0000/L1234"),
        (2_147_483_646, "21/4748/L3646"),
        (2_147_483_647, "000/0000/0021/4748/L3647"),
        ((1 << 63) - 1, "922/3372/0368/5477/L5807"),
    ],
)
def test_paths_of_ledgers_have_10_or_19_digits(ledger_id: int, path: str) -> None:
    assert format_ledger_path(ledger_id) == path
    assert parse_ledger_path(path) == ledger_id
    assert is_ledger_folder(path.split("/", maxsplit=1)[0])


@pytest.mark.parametrize(
    "path",
    [
        "L0000001234",  # flat layout
        "00/0000/1234",
        "00/0000/L123",
        "21/4748/L3647",  # a long id in a short path
        "000/0000/0000/0000/L1234",  # a short id in a long path
        "999/9999/9999/9999/L9999",  # beyond 63 bits
        "\u0660\u0660/0000/L1234",  # digits of another script
    ],
)
def test_no_other_path_is_one_of_a_ledger(path: str) -> None:
    with pytest.raises(UnreadableMetadata):
        parse_ledger_path(path)


@pytest.mark.parametrize("name", ["available", "idgen", "LAYOUT", "INSTANCEID", "underreplication", "0", "0000"])
def test_other_children_are_no_folders_of_ledgers(name: str) -> None:
    assert not is_ledger_folder(name)
