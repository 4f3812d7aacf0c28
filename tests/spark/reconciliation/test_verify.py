"""Candidates asked about once more: what stands is found, and what came to light is said."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from logstore.log.ledger_object_keys import ledger_prefix, meta_key, segment_key
from logstore.log.ledgers import Component, LedgerOwner, LedgerStatement
from logstore.log.segment_format import EXTENT_FIELD, MIN_CONFIRMATION_GAP, RegisteredLedgerExtent
from logstore.offload.tiered_copy import data_key, index_key
from logstore.positions import LedgerId, TopicId
from logstore.reconciliation.findings import Finding, FindingKind
from spark.reconciliation.compare_shard_group import PRIMARY, TIERED
from spark.reconciliation.verify_findings import verify_candidates
from tests.fakes.object_store import FakeObjectStore

_K = FindingKind
_ID = LedgerId(3)
_TOPIC = "persistent://a/b/c"
_OWNER = LedgerOwner(
    application="sexton", component=Component.MANAGED_LEDGER, topic_id=TopicId(1), topic=_TOPIC, keys={}
)
_STATEMENT = LedgerStatement(ledger_id=_ID, owner=_OWNER, created_us=1, epoch=1)
_PREFIX = ledger_prefix(_ID)
_LEDGER = Finding(kind=_K.ORPHAN_LEDGER, ledger_id=_ID, copy=PRIMARY, bucket="p", key=_PREFIX)
_PAIR = Finding(
    kind=_K.ORPHAN_OFFLOAD, ledger_id=_ID, copy=TIERED, bucket="p", key=data_key("u", _ID), uuid="u", objects=2
)
_LOST = Finding(kind=_K.MISSING_DATA, ledger_id=_ID, copy=PRIMARY, bucket="p", key=_PREFIX)


class _Catalog:
    """Answers as a catalog whose rows are these."""

    def __init__(self, **rows: Sequence[dict[str, Any]]) -> None:
        self._rows = rows

    def table(self, query: Any) -> pa.Table:
        """By the columns that the query names."""
        names = list(query.selected_columns.keys())
        rows = self._rows.get("_".join(names), ())
        return pa.table({name: [row[name] for row in rows] for name in names})


@pytest.fixture
def store() -> FakeObjectStore:
    return FakeObjectStore()


def _put(store: FakeObjectStore, *keys: str, statement: LedgerStatement = _STATEMENT) -> None:
    for key in keys:
        store.put_if_absent(key, b"x" * 10, metadata=statement.to_metadata())


def _found(
    store: FakeObjectStore, one: Finding, catalog: _Catalog | None = None, *, before_us: int = 2**60
) -> list[Finding]:
    known: Any = catalog or _Catalog()
    return verify_candidates([one], {"p": store}, known, before_us, "sexton")


def test_orphan_bears_what_storage_says_of_it_now(store: FakeObjectStore) -> None:
    _put(store, meta_key(_ID, _OWNER), segment_key(_ID, 0))
    (found,) = _found(store, _LEDGER)
    assert (found.kind, found.objects, found.size_bytes, found.topic) == (_K.ORPHAN_LEDGER, 2, 20, _TOPIC)
    assert LedgerStatement.from_metadata(found.statement) == _STATEMENT


@pytest.mark.parametrize("one", [_LEDGER, _PAIR, replace(_LEDGER, kind=_K.ORPHAN_SEGMENT, key=segment_key(_ID, 0))])
def test_orphan_that_is_gone_or_was_written_again_is_none(one: Finding, store: FakeObjectStore) -> None:
    assert _found(store, one) == []
    _put(store, meta_key(_ID, _OWNER), segment_key(_ID, 0), data_key("u", _ID), index_key("u", _ID))
    now_us = max(found.modified_us or 0 for found in store.list(""))
    assert _found(store, one, before_us=now_us) == []
    assert [found.kind for found in _found(store, one, before_us=now_us + 1)] == [one.kind]


@pytest.mark.parametrize(
    "key", [f"{_PREFIX}notes.txt", f"{_PREFIX}more/00000001.parquet", f"{_PREFIX}{'f' * 16}.meta.json"]
)
def test_ledger_beside_which_another_wrote_is_a_mismatch(key: str, store: FakeObjectStore) -> None:
    _put(store, meta_key(_ID, _OWNER), segment_key(_ID, 0), key)
    assert [found.kind for found in _found(store, _LEDGER)] == [_K.MISMATCH]


def test_statement_decides_whose_an_orphan_is(store: FakeObjectStore) -> None:
    other = replace(_STATEMENT, ledger_id=LedgerId(4))
    _put(store, f"{_PREFIX}{'f' * 16}.meta.json")
    assert [found.kind for found in _found(store, _LEDGER)] == [_K.MISMATCH]  # its name is of another owner
    store.delete([f"{_PREFIX}{'f' * 16}.meta.json"])
    _put(store, segment_key(_ID, 0), statement=other)
    assert [found.kind for found in _found(store, _LEDGER)] == [_K.MISMATCH]
    assert [one.kind for one in verify_candidates([_LEDGER], {"p": store}, _Catalog(), 2**60, "mine")] == [_K.FOREIGN]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("behind", "kind"),
    [
        (RegisteredLedgerExtent(last_segment=4, entries=9), _K.CONFIRMATION),
        (RegisteredLedgerExtent(last_segment=9, entries=9), _K.ORPHAN_SEGMENT),  # nearer than a confirmation stands
        (None, _K.ORPHAN_SEGMENT),
    ],
)
def test_upload_that_confirms_a_segment_far_below_it_is_no_orphan(
    behind: RegisteredLedgerExtent | None, kind: FindingKind, store: FakeObjectStore
) -> None:
    """Contended topics have hundreds of them; each says where an answered entry stands if the catalog is lost."""
    key = segment_key(_ID, 4 + MIN_CONFIRMATION_GAP)
    _put(store, meta_key(_ID, _OWNER))
    said = {EXTENT_FIELD: str(behind)} if behind else {}
    store.put_if_absent(key, b"x" * 10, metadata=_STATEMENT.to_metadata() | said)
    (found,) = _found(store, replace(_LEDGER, kind=_K.ORPHAN_SEGMENT, key=key))
    assert (found.kind, found.topic, found.kind.is_removable) == (kind, _TOPIC, kind is _K.ORPHAN_SEGMENT)


@pytest.mark.parametrize("stands", [False, True])
def test_abandoned_upload_is_one_while_it_stands(stands: bool, store: FakeObjectStore) -> None:
    upload = replace(_PAIR, objects=0)
    key = data_key("u", _ID)
    if stands:
        store.unfinished.add(key)
        store.begun_us[key] = store.now_us
    assert _found(store, upload) == ([upload] if stands else [])
    assert _found(store, upload, before_us=1) == []


def test_lost_ledger_is_lost_whatever_another_put_under_its_prefix(store: FakeObjectStore) -> None:
    catalog = _Catalog(ledger_id_kind_context=[{"ledger_id": _ID, "kind": PRIMARY, "context": "{}"}])
    _put(store, f"{_PREFIX}notes.txt")
    assert _found(store, _LOST, catalog) == [_LOST]
    assert _found(store, _LOST, _Catalog()) == []
    _put(store, segment_key(_ID, 0))
    assert _found(store, _LOST, catalog) == []


@pytest.mark.parametrize("key", [meta_key(_ID, _OWNER), segment_key(_ID, 4), None])
def test_ledger_that_listings_hide_is_not_lost_if_a_head_finds_any_of_it(
    key: str | None, store: FakeObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Absence is never taken from listings alone: its statement and each registered segment are asked for by name."""
    rows: dict[str, Any] = {
        "ledger_id_kind_context": [{"ledger_id": _ID, "kind": PRIMARY, "context": "{}"}],
        "ledger_id_number_size_bytes": [{"ledger_id": _ID, "number": at, "size_bytes": 10} for at in (0, 4)],
        _OWNED: [_ROW],
    }
    if key:
        _put(store, key)
    monkeypatch.setattr(store, "list", lambda _prefix: iter(()))
    assert _found(store, _LOST, _Catalog(**rows)) == ([] if key else [_LOST])


def test_lost_segment_is_lost_while_a_row_names_it_and_the_object_is_short(store: FakeObjectStore) -> None:
    copies = [{"ledger_id": _ID, "kind": PRIMARY, "context": "{}"}]
    named = [{"ledger_id": _ID, "number": 0, "size_bytes": 10}]
    catalog = _Catalog(ledger_id_kind_context=copies, ledger_id_number_size_bytes=named)
    lost = replace(_LOST, key=segment_key(_ID, 0), size_bytes=10)
    short = replace(lost, objects=1)
    assert _found(store, lost, catalog) == [lost]
    assert _found(store, lost, _Catalog(ledger_id_kind_context=copies)) == []
    _put(store, segment_key(_ID, 0))
    assert _found(store, lost, catalog) == []
    assert _found(store, short, catalog) == [short]
    assert _found(store, replace(short, size_bytes=9), catalog) == []  # it was written whole meanwhile


_SUMS = ("segments", "entries", "size_bytes")
_OWNED = "_".join(
    ("ledger_id_application_component_topic_id_topic_keys_created_us", *_SUMS, *(f"summed_{name}" for name in _SUMS))
)
_NEWEST = "topic_id_cursor_newest_since_us"
_DELETED = "row_id_ledger_id_copy_state_application_component_topic_id_topic_keys_created_us"
_COPIED = "ledger_id_kind_state_context"
_ROW = {
    "ledger_id": _ID, "application": "sexton", "component": "MANAGED_LEDGER", "topic_id": 1, "topic": _TOPIC,
    "keys": "{}", "created_us": 1, "segments": 2, "entries": 3, "size_bytes": 20,
    "summed_segments": 2, "summed_entries": 3, "summed_size_bytes": 20,
}  # fmt: skip
_LOST_SEGMENT = _ROW | {"summed_segments": 1, "summed_entries": 1, "summed_size_bytes": 9}
_CURSOR = _ROW | {"component": "MANAGED_CURSOR", "keys": '{"cursor": "billing"}'}
_EMPTY = _ROW | dict.fromkeys((*_SUMS, *(f"summed_{name}" for name in _SUMS)), 0)
_BARE = Finding(kind=_K.MISSING_DATA, ledger_id=_ID, topic=_TOPIC)
_UNREFERENCED = Finding(kind=_K.UNREFERENCED_LEDGER, ledger_id=_ID)
_UNNAMED = [{"ledger_id": _ID}]
_DELETION = {**_ROW, "row_id": 7, "copy": PRIMARY, "state": "DELETED"}
_LIVE = {"ledger_id": _ID, "kind": PRIMARY, "state": "LIVE", "context": "{}"}
_COLD = {**_LIVE, "kind": TIERED, "context": '{"uuid": "v"}'}


@pytest.mark.parametrize(
    ("one", "rows", "kind"),
    [
        (_LEDGER, {}, _K.ORPHAN_LEDGER),
        (_LEDGER, {_OWNED: [_ROW], _COPIED: [_LIVE]}, None),
        (_LEDGER, {_OWNED: [_ROW]}, _K.MISSING_DATA),
        (_LEDGER, {_COPIED: [_COLD]}, _K.MISSING_DATA),
        (_LEDGER, {"ledger_id_named_by": [{"ledger_id": _ID, "named_by": "segment"}]}, _K.MISSING_DATA),
        (_LEDGER, {_OWNED: [_ROW], _COPIED: [_COLD]}, _K.MISMATCH),
        (_LEDGER, {_OWNED: [_ROW], _COPIED: [_COLD], _DELETED: [_DELETION]}, _K.ORPHAN_LEDGER),
        (_LEDGER, {_DELETED: [_DELETION]}, _K.ORPHAN_LEDGER),
        (_LEDGER, {_DELETED: [_DELETION | {"topic": "persistent://a/b/d"}]}, _K.MISMATCH),
        (_LEDGER, {_DELETED: [_DELETION | {"created_us": 2}]}, _K.MISMATCH),
        (_LEDGER, {_DELETED: [_DELETION | {"created_us": 0, "component": "UNKNOWN"}]}, _K.ORPHAN_LEDGER),
        (_PAIR, {_OWNED: [_ROW], _COPIED: [_LIVE]}, _K.ORPHAN_OFFLOAD),
        (_PAIR, {_OWNED: [_ROW], _COPIED: [_COLD]}, _K.ORPHAN_OFFLOAD),
        (_PAIR, {_OWNED: [_ROW], _COPIED: [_COLD | {"context": '{"uuid": "u"}'}]}, None),
        (_PAIR, {_OWNED: [_ROW]}, _K.MISSING_DATA),
        (_PAIR, {_OWNED: [_ROW | {"topic_id": 2}], _COPIED: [_LIVE]}, _K.MISMATCH),
        (replace(_LEDGER, kind=_K.ORPHAN_SEGMENT, key=segment_key(_ID, 0)), {_OWNED: [_ROW]}, _K.ORPHAN_SEGMENT),
        (
            replace(_LEDGER, kind=_K.ORPHAN_SEGMENT, key=segment_key(_ID, 0)),
            {_OWNED: [_LOST_SEGMENT]},
            _K.MISSING_DATA,
        ),
        (
            replace(_LEDGER, kind=_K.ORPHAN_SEGMENT, key=segment_key(_ID, 0)),
            {_OWNED: [_ROW | {"topic_id": 2}]},
            _K.MISMATCH,
        ),
    ],
)
def test_rows_that_name_the_ledger_decide_what_an_orphan_is(
    one: Finding, rows: Any, kind: FindingKind | None, store: FakeObjectStore
) -> None:
    """Of whatever table: a ledger that lost the row of a copy is damaged, and another store's objects are theirs."""
    _put(store, meta_key(_ID, _OWNER), segment_key(_ID, 0), data_key("u", _ID), index_key("u", _ID))
    assert [found.kind for found in _found(store, one, _Catalog(**rows))] == ([kind] if kind else [])


@pytest.mark.parametrize(
    ("rows", "stands"), [({_OWNED: [_ROW]}, True), ({_OWNED: [_ROW], _COPIED: [_LIVE]}, False), ({}, False)]
)
def test_ledger_without_copies_is_one_while_its_row_stands_alone(
    rows: Any, stands: bool, store: FakeObjectStore
) -> None:
    """Rows of ledgers and of copies are read one after the other: a ledger may be born or go in between."""
    bare = Finding(kind=_K.MISSING_DATA, ledger_id=_ID, topic=_TOPIC)
    assert _found(store, bare, _Catalog(**rows)) == ([bare] if stands else [])


@pytest.mark.parametrize(
    ("one", "rows"),
    [
        (_UNREFERENCED, {"ledger_id": _UNNAMED, _OWNED: [_EMPTY]}),
        (Finding(kind=_K.STALLED_DELETION, ledger_id=_ID, row_id=7), {"row_id": [{"row_id": 7}]}),
    ],
)
def test_row_is_a_finding_while_the_catalog_says_it_still(one: Finding, rows: Any, store: FakeObjectStore) -> None:
    assert _found(store, one, _Catalog(**rows)) == [one]
    assert _found(store, one) == []


@pytest.mark.parametrize(
    ("row", "named", "table"),
    [
        (_ROW, [], "ledger_list"),
        (_EMPTY | {"segments": 1}, [], "ledger_list"),
        (_EMPTY | {"summed_entries": 1}, [], "ledger_list"),
        (_EMPTY | {"component": ""}, [], "a table"),
        (_EMPTY | {"component": "SCHEMA_STORAGE"}, [], "schema_version"),
        (_EMPTY | {"component": "DELAYED_INDEX"}, [], "delayed_bucket"),
        (_CURSOR, [], "cursor"),
        (_CURSOR, [("billing", 2, 1)], "cursor"),
        (_CURSOR, [("billing", 4, 2)], "cursor"),
        (_CURSOR, [("else", 4, 1)], "cursor"),
        (_CURSOR, [("billing", 4, 1)], None),
        (_ROW | {"component": "TXN_SNAPSHOT"}, [], "transaction_snapshot"),
        (_ROW | {"component": "TXN_SNAPSHOT"}, [("", 4, 0)], None),
    ],
)
def test_unreferenced_ledger_is_a_loss_unless_rows_prove_that_nobody_needs_it(
    row: dict[str, Any], named: list[tuple[str, int, int]], table: str | None, store: FakeObjectStore
) -> None:
    """Published with the row that names it, it lost that one; the name, the id or the age of another proves nothing."""
    newest = [dict(zip(("topic_id", "cursor", "newest", "since_us"), (1, *cursor), strict=True)) for cursor in named]
    catalog = _Catalog(**{"ledger_id": _UNNAMED, _OWNED: [row], _NEWEST: newest})
    detail = f"the row of {table} that named the ledger is lost; repair the catalog by hand"
    lost = replace(_UNREFERENCED, kind=_K.MISSING_DATA, detail=detail)
    assert _found(store, _UNREFERENCED, catalog) == [lost if table else _UNREFERENCED]
    assert _found(store, _UNREFERENCED, _Catalog(ledger_id=_UNNAMED)) == []  # detached between the reads


@pytest.mark.parametrize("name", _SUMS)
def test_ledger_that_lacks_rows_of_segments_is_told_by_what_it_lacks(name: str, store: FakeObjectStore) -> None:
    """Whichever of the three sums differs; a segment may have been registered between two reads of the plan."""
    (found,) = _found(store, _BARE, _Catalog(**{_OWNED: [_ROW | {name: 21}], _COPIED: [_LIVE]}))
    assert replace(found, detail="") == _BARE
    assert found.detail.startswith("rows of segments are lost: expected ")
    assert "found 2 with 3 in 20; repair the catalog by hand" in found.detail
    assert _found(store, _BARE, _Catalog(**{_OWNED: [_ROW], _COPIED: [_LIVE]})) == []
