"""Keys as numbers: exactly the canonical ones, whatever else stands beside them."""

import re

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.log.ledger_object_keys import ledger_prefix, segment_key
from logstore.positions import LedgerId
from spark.sources.bucket_listings import META, parse_ledger_keys

_FORM = re.compile(r"ledgers/([0-9a-f]{2})/([0-9a-f]{16})/(?:([0-9]{8})\.parquet|([0-9a-f]{16})\.meta\.json)")
_ids = st.integers(0, 2**63 - 1) | st.integers(0, 600)


def _by_expression(key: str) -> tuple[int, int, int] | None:
    """The same rule, said by a regular expression."""
    found = _FORM.fullmatch(key)
    if not found or int(found[2], 16) >= 2**63 or int(found[2], 16) % 256 != int(found[1], 16):
        return None
    return int(found[2], 16), int(found[3]) if found[3] else META, int(found[4], 16) if found[4] else 0


@st.composite
def _keys(draw: st.DrawFn) -> str:
    ledger_id = LedgerId(draw(_ids))
    segment = segment_key(ledger_id, draw(st.integers(0, 99_999_999)))
    key = draw(
        st.sampled_from([segment, f"{ledger_prefix(ledger_id)}{draw(st.integers(0, 2**64 - 1)):016x}.meta.json"])
    )
    if draw(st.booleans()):
        at = draw(st.integers(0, len(key) - 1))
        key = key[:at] + draw(st.characters(codec="utf-8")) + key[at + draw(st.integers(0, 1)) :]
    return key


@given(st.lists(_keys() | st.text(max_size=60), max_size=20), st.integers(0, 3))
def test_key_is_parsed_as_its_form_says(keys: list[str], skipped: int) -> None:
    parsed = parse_ledger_keys(pa.array(keys, pa.string()).slice(skipped))
    columns = zip(parsed.is_canonical, parsed.ledger_id, parsed.number, parsed.digest, strict=True)
    found = [(int(ledger), int(number), int(digest)) if ours else None for ours, ledger, number, digest in columns]
    assert found == [_by_expression(key) for key in keys[skipped:]]


@pytest.mark.parametrize(
    "key",
    [
        "ledgers/01/0000000000000101/0000000a.parquet",  # no digit
        "ledgers/01/0000000000000101/00000001.PARQUET",
        "ledgers/02/0000000000000101/00000001.parquet",  # another shard
        "ledgers/01/00000000000001o1/00000001.parquet",  # a letter behind f
        "ledgers/01/000000000000010A/00000001.parquet",
        "ledgers/01/0000000000000101-00000001.parquet",
        "xedgers/01/0000000000000101/00000001.parquet",
        "ledgers/00/8000000000000000/00000001.parquet",  # above any id
        "ledgers/01/0000000000000101/0123456789abcdeg.meta.json",
        "ledgers/01/0000000000000101/0123456789abcdef.meta.jsom",
    ],
)
def test_key_that_is_nearly_ours_is_foreign(key: str) -> None:
    assert not parse_ledger_keys(pa.array([key])).is_canonical[0]
