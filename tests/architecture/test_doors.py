"""One door a table: a row of the catalog is inserted, updated and deleted by one module alone.

So versions, generations and spans for the audit log attach to a table in one place.
"""

import ast
import re
from collections.abc import Iterator
from typing import Final

import pytest

from logstore.catalog import tables
from tests.architecture.source import Module, modules

_DOORS: Final = {
    "adoption": "records.topic_adoption",
    "audit": "audit_log",
    "bucket_marker": "identity",
    "bundle_fence": "ownership.fences",
    "catalog": "log.ledger_rows",
    "cluster_removal": "reconciliation.cluster_journal",
    "cursor": "cursors.cursor_rows",
    "delayed_bucket": "delayed.delayed_index",
    "delayed_index": "delayed.delayed_index",
    "deleted_znode": "reconciliation.cluster_journal",
    "finding_fate": "reconciliation.apply_decisions",
    "ledger": "log.ledger_rows",
    "ledger_copy": "log.ledger_rows",
    "ledger_list": "log.ledger_rows",
    "pending_deletion": "deletion.intent_rows",
    "producer_sequence": "log.producer_sequence_rows",
    "record_log": "records.record_log_row",
    "record_outbox": "records.recorded_tables",
    "record_staged": "records.record_log_row",
    "run": "deletion.run_rows",
    "schema_version": "log.component_ledgers",
    "segment": "log.ledger_rows",
    "tombstone": "records.tombstone_rows",
    "topic": "log.topics",
    "buffer_hidden": "transactions.buffer_rows",
    "buffer_range": "transactions.buffer_rows",
    "transaction": "transactions.transaction_rows",
    "transaction_coordinator": "transactions.transaction_rows",
    "transaction_snapshot": "transactions.buffer_snapshots",
    "transaction_participant": "transactions.participant_rows",
}
"""Table → its module of writes in `logstore.catalog`."""

_MAKES_A_CATALOG: Final = {"logstore/catalog/engine/catalog_version.py": {"catalog"}}
_WRITES: Final = {"insert", "update", "delete", "build_dialect_insert", "build_insert_if_absent"}
_OWN: Final = "logstore/catalog/engine/dialect_sql.py"  # where the last two are made, for whatever table
_OF_REPLICAS: Final = (
    "logstore/catalog/records/replica_database.py"  # of every table: their databases refuse all others
)
_TEXT: Final = re.compile(r"\b(?:INSERT\s+INTO|UPDATE|DELETE\s+FROM)\s+(\w+)", re.IGNORECASE)


def _aliases(module: Module) -> dict[str, str]:
    """Names that stand for a table in the module, as `_P = t.pending_deletion`, and what they stand for."""
    known = {f"{name}.{table}": table for name in ("t", "tables") for table in tables.metadata.tables}
    given = [node for node in ast.walk(module.tree) if isinstance(node, ast.Assign)]
    pairs = [(target, node.value) for node in given for target in node.targets]
    pairs += [
        pair
        for target, value in pairs
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
        for pair in zip(target.elts, value.elts, strict=True)
    ]
    return known | {
        ast.unparse(target): known[name] for target, value in pairs if (name := ast.unparse(value)) in known
    }


def _is_sql(module: Module) -> bool:
    return any(name.startswith(("sqlalchemy", "sqlmodel", "logstore.catalog")) for name in module.imported)


def _written(module: Module) -> Iterator[tuple[int, str]]:
    """Line and table of each write; a table that cannot be told is its expression, and is nobody's."""
    aliases = _aliases(module)
    docs = {id(node.value) for node in ast.walk(module.tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _WRITES:
            table = ast.unparse(node.args[-1])
            yield node.lineno, aliases.get(table, table)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _WRITES:
            table = ast.unparse(node.func.value)
            if table in aliases:
                yield node.lineno, aliases[table]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield from ((node.lineno, table) for table in _TEXT.findall(node.value) if table in tables.metadata.tables)


_MODULES = [
    one for one in modules("logstore", "infra", "spark", "workers") if _is_sql(one) and "/migrations/" not in one.where
]


def _door(table: str) -> str:
    return f"logstore/catalog/{_DOORS[table].replace('.', '/')}.py" if table in _DOORS else "nobody's"


@pytest.mark.parametrize(
    "module", [pytest.param(one, id=one.where) for one in _MODULES if one.where not in {_OWN, _OF_REPLICAS}]
)
def test_tables_are_written_by_their_module_of_writes_alone(module: Module) -> None:
    """A write elsewhere would pass by the version, the generation or the audit row that goes with it."""
    made = _MAKES_A_CATALOG.get(module.where, set())
    strays = [(line, table, _door(table)) for line, table in _written(module) if _door(table) != module.where]
    assert not [stray for stray in strays if stray[1] not in made], "line, table, and the module that may write it"


def test_every_table_has_a_module_of_writes_that_writes_it() -> None:
    """A new table gets its door before its first row."""
    assert set(_DOORS) == set(tables.metadata.tables)
    written = {(one.where, table) for one in _MODULES for _, table in _written(one)}
    assert {(_door(table), table) for table in _DOORS} <= written


@pytest.mark.parametrize(
    "source",
    [
        "insert(t.topic)",
        "t.topic.delete()",
        "_T = t.topic\nupdate(_T)",
        "_A, _T = 1, t.topic\n_T.update()",
        "build_insert_if_absent(connection, t.topic)",
        "text('update topic set name = 1')",
    ],
)
def test_write_is_seen_however_it_is_spelt(source: str) -> None:
    """What the walk overlooks it would allow."""
    module = Module(path=_MODULES[0].path, text=source, tree=ast.parse(source))
    assert [table for _, table in _written(module)] == ["topic"]
