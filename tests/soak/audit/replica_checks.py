"""Promise 5 on replicas: they have the rows of the catalog, and nothing that was durably deleted."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tests.soak.audit.ended_ledger_checks import ledgers_answered_as_ended
from tests.soak.audit.evidence import TABLES, Evidence

_NOT_COPIED: Final = {"catalog", "record_outbox"}
_CLAIM_COLUMNS: Final = {"claim_workflow", "claim_run", "claim_until_us"}
_OWN_COLUMNS: Final = {
    "cursor": {"releases"},  # of the catalog alone: a replica is only read
    "pending_deletion": _CLAIM_COLUMNS | {"keys_left", "keys_left_attempts", "trace_id"},
    "transaction": _CLAIM_COLUMNS | {"trace_id"},
    "delayed_index": _CLAIM_COLUMNS | {"unsealed"},
    "transaction_snapshot": {"changes", "due_us"},
}
"""Columns that the record log does not keep: most say how far a job at work is."""

_OWNER_COLUMNS: Final = ("topic_id", "list_id", "component")
"""Columns of a tombstone that a replica may not know."""

TableRow = Mapping[str, Any]


def check_replica(evidence: Evidence) -> Iterator[str]:
    """Compare the replica's rows with the catalog's, and the records of its bucket with the record log."""
    for table in TABLES:
        if table not in _NOT_COPIED:
            catalog_rows = _rows_by_facts(table, evidence.tables[table])
            replica_rows = _rows_by_facts(table, _replica_rows(evidence, table))
            lacking = [catalog_rows[facts] for facts in catalog_rows if facts not in replica_rows]
            lacking = [row for row in lacking if not _is_unrecorded(table, row)]
            beyond = [replica_rows[facts] for facts in replica_rows if facts not in catalog_rows]
            beyond = [row for row in beyond if not _may_exist_only_in_replica(evidence, table, row)]
            for difference, rows in (("lacks", lacking), ("has, beyond the catalog,", beyond)):
                if rows:
                    yield f"the replica {difference} {len(rows)} rows of {table}, such as {dict(rows[0])}"
    for kind, number in sorted(evidence.recorded.keys() | evidence.shipped.keys()):
        is_alive_in_record_log, is_alive_in_replica_bucket = (
            is_alive_by_record.get((kind, number), False)
            for is_alive_by_record in (evidence.recorded, evidence.shipped)
        )
        if is_alive_in_record_log != is_alive_in_replica_bucket:
            yield f"{kind} {number} lives in one bucket of the record log, and not in the other"


def _is_unrecorded(table: str, row: TableRow) -> bool:
    """Return whether the record log lacks the row: an index that was never sealed is rebuilt from the log."""
    return table == "delayed_index" and row["version"] == 0


def _replica_rows(evidence: Evidence, table: str) -> list[TableRow]:
    """Return the replica's rows. What a seeded replica cannot know of a tombstone is taken from the catalog.

    A tombstone in the record log covers the record that it ended. Once that is off the disk, nothing says whose the
    tombstone was. A replica that is seeded later has null there; a wrong value is a violation all the same.
    """
    rows = list(evidence.replica[table])
    if table != "tombstone":
        return rows
    catalog = {(row["kind"], row["id"]): row for row in evidence.tables[table]}
    return [_with_owner(row, catalog.get((row["kind"], row["id"]), {})) for row in rows]


def _with_owner(row: TableRow, catalog_row: TableRow) -> TableRow:
    return dict(row) | {name: catalog_row.get(name) for name in _OWNER_COLUMNS if name in row and row[name] is None}


def _may_exist_only_in_replica(evidence: Evidence, table: str, row: TableRow) -> bool:
    """Return whether only the replica may have a row: a tombstone removed by a raid, or a plain deletion."""
    if table == "tombstone":
        return True
    if (ledger_id := row.get("ledger_id")) is not None and ledger_id not in evidence.ledgers:
        durable = {row["ledger_id"] for row in evidence.intents if row["durable"] and row["copy"] == "LEDGER"}
        return ledger_id not in durable and not ledgers_answered_as_ended(evidence).get(ledger_id)
    if (topic_id := row.get("topic_id")) is not None and topic_id not in evidence.topics.values():
        ops = [op for op in evidence.operations_of_kind("delete-topic") if op.asked["topic_id"] == topic_id]
        return not any(op.asked["durable"] and op.end == "done" and not op.answer.get("refused") for op in ops)
    return False


def _rows_by_facts(table: str, rows: Any) -> dict[tuple[tuple[str, str], ...], TableRow]:
    """Return rows by the columns that a replica keeps, in comparable form."""
    own = _OWN_COLUMNS.get(table, set())
    return {tuple((name, _comparable(row[name])) for name in sorted(row.keys() - own)): row for row in rows}


def _comparable(value: Any) -> str:
    if isinstance(value, bytes | memoryview):
        return bytes(value).hex()
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, str) and value.startswith("{"):
        value = json.loads(value)
    return json.dumps(value, sort_keys=True, default=str)
