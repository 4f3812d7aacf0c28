"""Promise 5 on replicas: they have what the catalog has, and nothing that was durably deleted."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tests.soak.audit.ended import ended
from tests.soak.audit.evidence import TABLES, Evidence

_NOT_COPIED: Final = {"catalog", "record_outbox"}
_CLAIM: Final = {"claim_workflow", "claim_run", "claim_until_us"}
_OWN_COLUMNS: Final = {
    "cursor": {"releases"},  # of the catalog alone: a replica is only read
    "pending_deletion": _CLAIM | {"keys_left", "keys_left_attempts", "trace_id"},
    "transaction": _CLAIM | {"trace_id"},
    "delayed_index": _CLAIM | {"unsealed"},
    "transaction_snapshot": {"changes", "due_us"},
}
"""Columns that the record log does not keep: most say how far a job at work is."""

_OWNER: Final = ("topic_id", "list_id", "component")
"""Columns of a tombstone that a replica may not know."""

Row = Mapping[str, Any]


def wrong_copied(seen: Evidence) -> Iterator[str]:
    """Rows of the replica's database against the catalog's, and what its bucket knows against the record log."""
    for table in TABLES:
        if table not in _NOT_COPIED:
            wanted, found = (_by_facts(table, rows) for rows in (seen.tables[table], _copied(seen, table)))
            lacking = [row for facts, row in wanted.items() if facts not in found and not _is_unrecorded(table, row)]
            beyond = [row for facts, row in found.items() if facts not in wanted and not _may_be_left(seen, table, row)]
            for how, rows in (("lacks", lacking), ("has, beyond the catalog,", beyond)):
                if rows:
                    yield f"the replica {how} {len(rows)} rows of {table}, such as {dict(rows[0])}"
    for kind, number in sorted(seen.recorded.keys() | seen.shipped.keys()):
        here, there = (known.get((kind, number), False) for known in (seen.recorded, seen.shipped))
        if here != there:
            yield f"{kind} {number} lives in one bucket of the record log, and not in the other"


def _is_unrecorded(table: str, row: Row) -> bool:
    """Whether the record log keeps nothing of the row: an index that was never sealed is made anew from the log."""
    return table == "delayed_index" and row["version"] == 0


def _copied(seen: Evidence, table: str) -> list[Row]:
    """Rows of the replica's database; what a seeded replica cannot know of a tombstone is taken from the catalog.

    A tombstone in the record log covers the record that it ended. Once that is off the disk, nothing says whose the
    tombstone was. A replica that is seeded later has null there; a wrong value is a violation all the same.
    """
    rows = list(seen.replica[table])
    if table != "tombstone":
        return rows
    catalog = {(row["kind"], row["id"]): row for row in seen.tables[table]}
    return [_with_owner(row, catalog.get((row["kind"], row["id"]), {})) for row in rows]


def _with_owner(row: Row, known: Row) -> Row:
    return dict(row) | {name: known.get(name) for name in _OWNER if name in row and row[name] is None}


def _may_be_left(seen: Evidence, table: str, row: Row) -> bool:
    """Whether a row may be the replica's alone: a tombstone that a raid took, or what was deleted without one."""
    if table == "tombstone":
        return True
    if (ledger_id := row.get("ledger_id")) is not None and ledger_id not in seen.ledgers:
        durable = {one["ledger_id"] for one in seen.intents if one["durable"] and one["copy"] == "LEDGER"}
        return ledger_id not in durable and not ended(seen).get(ledger_id)
    if (topic_id := row.get("topic_id")) is not None and topic_id not in seen.topics.values():
        ops = [op for op in seen.of_kind("delete-topic") if op.asked["topic_id"] == topic_id]
        return not any(op.asked["durable"] and op.end == "done" and not op.answer.get("refused") for op in ops)
    return False


def _by_facts(table: str, rows: Any) -> dict[tuple[tuple[str, str], ...], Row]:
    """Rows by what a replica keeps of them, in a form that can be compared."""
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
