"""Whose a ledger is and where its objects stand."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.errors import CorruptData
from logstore.log.ledger_object_keys import (
    ledger_prefix,
    meta_key,
    owner_digest_from_key,
    segment_key,
    segment_number_from_key,
    shard_prefix,
)
from logstore.log.ledgers import Component, LedgerOwner, LedgerStatement
from logstore.positions import LedgerId, TopicId
from tests.logstore.builders import OWNER, statement

_IDS = st.integers(0, 2**63 - 1).map(LedgerId)
_WORDS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=9)
_OWNERS = st.builds(
    LedgerOwner,
    application=_WORDS,
    component=st.sampled_from(Component),
    topic_id=st.integers(0, 2**63 - 1).map(TopicId),
    topic=_WORDS,
    keys=st.dictionaries(_WORDS, _WORDS, max_size=2),
)


@given(_IDS, _IDS)
def test_ledger_prefix_of_one_ledger_holds_no_other(one: LedgerId, other: LedgerId) -> None:
    """A LIST of one ledger never shows a neighbour's object, id 0 and the largest included."""
    key = segment_key(other, 0)
    assert key.startswith(ledger_prefix(one)) == (one == other)
    assert ledger_prefix(one).startswith(shard_prefix(one % 256))


@given(_IDS, st.integers(0, 99_999_999), _OWNERS)
def test_ledger_keys_are_told_apart_and_read_back(ledger_id: LedgerId, number: int, owner: LedgerOwner) -> None:
    """A key is a segment, a statement, or foreign; never two of them."""
    segment, meta = segment_key(ledger_id, number), meta_key(ledger_id, owner)
    assert (segment_number_from_key(segment), owner_digest_from_key(segment)) == (number, None)
    assert (segment_number_from_key(meta), owner_digest_from_key(meta)) == (None, owner.digest)


@pytest.mark.parametrize(
    "name", ["1.parquet", "000000001.parquet", "00000001.parquet.tmp", "A" * 16 + ".meta.json", "meta.json", ""]
)
def test_ledger_key_of_another_form_is_neither(name: str) -> None:
    """Unknown kinds of object are kept by default (apache/amoro#1959)."""
    key = ledger_prefix(LedgerId(0)) + name
    assert segment_number_from_key(key) is None
    assert owner_digest_from_key(key) is None


@given(_OWNERS, _IDS, st.integers(0, 2**60), st.integers(0, 9))
def test_ledger_statement_round_trips_through_metadata_and_json(
    owner: LedgerOwner, ledger_id: LedgerId, created_us: int, epoch: int
) -> None:
    """The content of `meta.json` and the metadata of every object say the same."""
    stated = LedgerStatement(owner=owner, ledger_id=ledger_id, created_us=created_us, epoch=epoch)
    assert LedgerStatement.from_metadata(stated.to_metadata()) == stated
    assert LedgerStatement.from_metadata(json.loads(stated.to_json())) == stated
    assert all(f"{name}{value}".isascii() for name, value in stated.to_metadata().items())


@pytest.mark.parametrize("name", list(statement(1).to_metadata()))
def test_ledger_statement_lacking_any_field_is_corrupt(name: str) -> None:
    """No field has a default: a statement is whole or it is none."""
    fields = statement(1).to_metadata()
    del fields[name]
    with pytest.raises(CorruptData, match="ledger statement"):
        LedgerStatement.from_metadata(fields)


@pytest.mark.parametrize(("name", "value"), [("component", "X"), ("ledger-id", "x"), ("created-us", "")])
def test_ledger_statement_with_a_field_of_another_kind_is_corrupt(name: str, value: str) -> None:
    """A value that cannot be read is no statement."""
    with pytest.raises(CorruptData):
        LedgerStatement.from_metadata(statement(1).to_metadata() | {name: value})


@pytest.mark.parametrize(
    "other",
    [
        replace(OWNER, application="other"),
        replace(OWNER, component=Component.DELAYED_INDEX),
        replace(OWNER, topic_id=TopicId(2)),
        replace(OWNER, topic=OWNER.topic + "x"),
        replace(OWNER, keys={"cursor": "a"}),
        replace(OWNER, keys={"cursor": "b"}),
    ],
)
def test_ledger_owner_differing_in_anything_has_another_digest(other: LedgerOwner) -> None:
    """A name created again, or a neighbour's ledger, is never taken for ours."""
    assert other.digest != OWNER.digest
    assert len(other.digest) == 16


def test_ledger_owner_digest_does_not_depend_on_the_order_of_keys() -> None:
    """The digest is canonical, so two processes name the same object."""
    assert replace(OWNER, keys={"a": "1", "b": "2"}).digest == replace(OWNER, keys={"b": "2", "a": "1"}).digest


def test_ledger_owner_digest_is_the_one_stored_objects_carry() -> None:
    """Changing the digest would turn every stored ledger into somebody else's."""
    assert OWNER.digest == "3cac61040279d3d9"
