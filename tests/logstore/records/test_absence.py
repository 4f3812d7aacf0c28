"""Ledger ids that neither the catalog nor a listing shows are asked for by name, up to a bound."""

import pytest

from logstore.log.ledger_object_keys import SHARDS, segment_key
from logstore.positions import LedgerId
from logstore.records.services.upload_adoption import UnlistedObjectError, require_no_unlisted_newer_ledgers
from tests.fakes.object_store import FakeObjectStore

_SHARD, _FIRST = 7, LedgerId(1_000)
_LOWEST = 1_031  # the first id of the shard from there on


def _store_with(turn: int) -> FakeObjectStore:
    """Return a store with a segment of the ledger that stands so many turns of all shards above the lowest id."""
    objects = FakeObjectStore()
    objects.put_if_absent(segment_key(LedgerId(_LOWEST + turn * SHARDS), 0), b"segment", metadata={})
    return objects


@pytest.mark.parametrize("turn", [0, 3])
def test_probe_finds_an_unlisted_ledger_among_1024_ids(turn: int) -> None:
    with pytest.raises(UnlistedObjectError):
        require_no_unlisted_newer_ledgers(_store_with(turn), _SHARD, _FIRST, ())


def test_probe_ends_behind_1024_ids() -> None:
    require_no_unlisted_newer_ledgers(_store_with(4), _SHARD, _FIRST, ())


def test_probe_counts_anew_behind_a_listed_ledger() -> None:
    with pytest.raises(UnlistedObjectError):
        require_no_unlisted_newer_ledgers(_store_with(5), _SHARD, _FIRST, {LedgerId(_LOWEST + SHARDS)})
