"""What the catalog holds is in the record log, or said here not to be, with the reason."""

import pytest

from logstore.catalog import tables as t
from logstore.catalog.records.outbox_rows import SOURCES
from logstore.records.record_kinds import COLUMNS_BY_KIND, RecordKind

_NOT_RECORDED = {
    "adoption": "what a rebuilt catalog has found so far in storage; another rebuild looks anew",
    "audit": "it tells of what was done, and nothing is decided by it",
    "bucket_marker": "a rebuilt catalog finds the markers in its buckets",
    "bundle_fence": "a rebuilt catalog has no owners; they acquire bundles anew",
    "catalog": "manifests say its id, its epoch, its bundles and its ceilings",
    "cluster_removal": "nothing brings back what an apply removed; the records bucket has copies and certificates",
    "deleted_znode": "the records bucket has a copy of each page of this journal, and an undo reads the copies",
    "finding_fate": "a rebuilt catalog refuses applies of earlier plans, and a new plan finds what is left",
    "record_log": "it says how the catalog stands to the record log",
    "record_outbox": "it is what is not in the record log yet",
    "record_staged": "it is what no manifest names yet",
    "run": "work in hand: rows without it are stalled, and are taken up",
    "transaction_coordinator": "manifests say the ceiling of its sequences",
}
"""Tables of which no record is made."""

_PARTS = {
    RecordKind.LEDGER: ("ledger_copy",),
    RecordKind.TRANSACTION: ("transaction_participant", "buffer_range"),
    RecordKind.INDEX: ("delayed_bucket",),
}
"""Tables whose rows are told with the record of another one's."""

_CLAIM = {"claim_workflow", "claim_run", "claim_until_us"}  # of work in hand, which a rebuilt catalog has not
_LEFT_OUT: dict[str, set[str]] = {
    "ledger": {"entries", "size_bytes", "segments"},  # sums over its segments
    "cursor": {"releases"},  # begins anew above all that were given out under an earlier epoch
    "pending_deletion": _CLAIM | {"keys_left", "keys_left_attempts", "trace_id"},  # of attempts, which begin anew
    "transaction": _CLAIM | {"trace_id"},
    "delayed_index": _CLAIM | {"unsealed"},  # counted from segments
    "transaction_snapshot": {"changes", "due_us"},  # when the next one is due: at once
}
"""Columns that no record has."""

_RECORD_OF = {"id", "sub", "generation", "tombstone"}
_OTHERWISE = {
    "ledger_list": {"version": "list_version"},
    "delayed_index": {"version": "list_version"},
    "ledger": {"epoch": "ledger_epoch"},
    "pending_deletion": {"epoch": "ledger_epoch"},
}
"""Columns that a kind has under another name."""


def test_every_table_is_recorded_or_said_not_to_be() -> None:
    """One that is added and forgotten would be lost with the database."""
    recorded = {source.table for source in SOURCES.values()} | {one for parts in _PARTS.values() for one in parts}
    assert set(t.metadata.tables) == recorded | set(_NOT_RECORDED) | {"tombstone"}
    assert not recorded & set(_NOT_RECORDED)
    assert set(SOURCES) == set(RecordKind)


@pytest.mark.parametrize("kind", list(RecordKind))
def test_every_column_of_a_recorded_table_is_a_field_or_said_to_be_left_out(kind: RecordKind) -> None:
    """A column that is added and forgotten would be lost with the database; a field without a column would be null."""
    source = SOURCES[kind]
    names = _OTHERWISE.get(source.table, {})
    columns = {names.get(one.name, one.name) for one in t.metadata.tables[source.table].c}
    fields = {name for name, _ in COLUMNS_BY_KIND[kind]} | {source.id, source.sub} - {""}
    assert _LEFT_OUT.get(source.table, set()) <= columns, "left out, and not there any more"
    assert columns - fields - _LEFT_OUT.get(source.table, set()) - _RECORD_OF == set()
    made = {"list": {"ledgers"}, "transaction": {"participants", "ranges"}, "index": {"buckets"}}
    made["ledger"] = {"topic_id", "topic", "component", "owner"}
    made["ledger"] |= {f"{copy}_{what}" for copy in ("primary", "tiered") for what in ("state", "context")}
    assert fields - columns == made.get(kind.value, set())
