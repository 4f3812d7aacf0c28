"""What the catalog holds is in the record log, or said here not to be, with the reason."""

import re
from collections.abc import Iterator, Mapping

import pytest
from sqlalchemy import Table

from logstore.catalog import tables as t
from logstore.catalog.records.recorded_tables import (
    LOADED_TABLES,
    RECORDED_TABLES,
    TOMBSTONE_TRIGGERS,
    Trigger,
    find_columns_of_dependent_rows,
)
from logstore.records.record_kinds import COLUMNS_BY_KIND, TOMBSTONED_KINDS, RecordKind
from tests.contracts.catalog.worlds import SqlWorld

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

_FIELDS_WITHOUT_COLUMN = {
    RecordKind.LIST: {"ledgers"},
    RecordKind.LEDGER: {"topic_id", "topic", "component", "owner"}
    | {f"{copy}_{value}" for copy in ("primary", "tiered") for value in ("state", "context")},
}
"""Fields that are read from rows of other tables, besides the parts that are stored as JSON."""

_KEY_OF_TOMBSTONE = "kind, id, ''"


def test_every_table_is_recorded_or_said_not_to_be() -> None:
    """One that is added and forgotten would be lost with the database."""
    recorded = {table.name for table in LOADED_TABLES}
    assert set(t.metadata.tables) == recorded | set(_NOT_RECORDED)
    assert not recorded & set(_NOT_RECORDED)
    assert list(RECORDED_TABLES) == list(RecordKind)


@pytest.mark.parametrize("kind", list(RecordKind))
def test_every_column_of_a_recorded_table_is_a_field_or_said_to_be_left_out(kind: RecordKind) -> None:
    """A column that is added and forgotten would be lost with the database; a field without a column would be null."""
    recorded = RECORDED_TABLES[kind]
    columns = {column.name for column in recorded.table.c}
    assert {recorded.id, recorded.sub, *recorded.unique, *recorded.renamed, *recorded.unrecorded} - {""} <= columns
    fields = {name for name, _ in COLUMNS_BY_KIND[kind]}
    own_fields = set(recorded.field_by_column.values())
    assert own_fields - fields <= {"id", "sub", "generation"}
    parts = {part.json_field for part in recorded.parts} - {""}
    assert fields - own_fields == parts | _FIELDS_WITHOUT_COLUMN.get(kind, set())
    keys = {recorded.id, recorded.sub} - {""}
    assert {column.name for column in recorded.table.primary_key} == keys


@pytest.mark.parametrize("kind", list(RecordKind))
def test_rows_of_other_tables_have_the_key_of_their_record(kind: RecordKind) -> None:
    recorded = RECORDED_TABLES[kind]
    for part in recorded.parts:
        assert part.keys == (recorded.id, recorded.sub)[: len(part.keys)]
        assert len(part.keys) == 2 if recorded.sub else 1
    if recorded.parent:
        assert list(RecordKind).index(recorded.parent) < list(RecordKind).index(kind)
        assert recorded.parent_column in recorded.field_by_column
    assert bool(list(find_columns_of_dependent_rows(kind))) == (kind in TOMBSTONED_KINDS or bool(recorded.parts))


def _declared_triggers() -> Iterator[tuple[Table, Trigger, str]]:
    """Table, trigger, and the expressions of the outbox row that it inserts."""
    for kind, recorded in RECORDED_TABLES.items():
        sub = recorded.sub or "''"
        expressions = f"'{kind}', {recorded.id}, " + (f"CAST({sub} AS TEXT)" if recorded.has_integer_sub else sub)
        yield from ((recorded.table, trigger, expressions) for trigger in recorded.triggers)
        yield from ((part.table, trigger, expressions) for part in recorded.parts for trigger in part.triggers)
    yield from ((t.tombstone, trigger, _KEY_OF_TOMBSTONE) for trigger in TOMBSTONE_TRIGGERS)


@pytest.mark.postgres
def test_triggers_of_the_migrations_are_those_that_are_declared(sql_world: SqlWorld) -> None:
    """A change that no trigger records would be lost with the database."""
    declared = {}
    for table, trigger, expressions in _declared_triggers():
        columns = f" OF {', '.join(trigger.columns)}" if trigger.columns else ""
        declared[f"record_{table}_{trigger.event.lower()}"] = (f"{trigger.event}{columns}", table.name, expressions)
    assert _installed_triggers(sql_world) == declared


def _installed_triggers(world: SqlWorld) -> Mapping[str, tuple[str, str, str]]:
    if world.database.is_sqlite:
        rows = world.sql("SELECT name, sql AS definition, sql AS body FROM sqlite_master WHERE type = 'trigger'")
    else:
        rows = world.sql(
            "SELECT tgname AS name, pg_get_triggerdef(pg_trigger.oid) AS definition, prosrc AS body"
            " FROM pg_trigger JOIN pg_proc ON tgfoid = pg_proc.oid WHERE NOT tgisinternal"
        )
    triggers = {}
    for row in rows:
        head = re.search(r"AFTER ((?:INSERT|UPDATE|DELETE)[\w, ]*) ON (?:public\.)?\"?(\w+)", row.definition)
        values = re.search(r"\(kind, id, sub, at_us\) (?:VALUES \(|SELECT )(.*)", row.body)
        assert head
        assert values
        expressions = re.sub(r"\b(?:NEW|OLD|changed)\.", "", values[1])
        triggers[row.name] = (head[1], head[2], re.split(r", CAST\((?:round|extract)\(", expressions)[0])
    return triggers
