"""Rows of the catalog that name ledgers of which storage holds objects, read the same way by a plan and by an apply."""

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Select

from infra.catalog.engine.dialects import context_or_none
from infra.catalog.reconciliation import facts
from logstore.deletion.intents import DeletionState
from logstore.log.ledgers import Component, CopyKind, CopyState, LedgerOwner
from logstore.positions import TopicId
from logstore.reconciliation.known_ledgers import KnownCopy, KnownLedger, KnownOwner

ReadRows = Callable[[Select[Any]], Iterable[Mapping[str, Any]]]
"""Runs one query, and returns its rows by the names of their columns."""


def known_ledgers(read: ReadRows, ledger_ids: Collection[int]) -> dict[int, KnownLedger]:
    """Return what the catalog's rows say of each of the ledgers, of those without any row too.

    Copies are read before deletions: a copy that leaves in between is seen as the one or as the other.
    """
    found: dict[int, KnownLedger] = {}
    asked = sorted(set(ledger_ids))
    for at in range(0, len(asked), facts.MOST_LEDGERS):
        ids = asked[at : at + facts.MOST_LEDGERS]
        owners, copies, tables, deletions = (
            _by_ledger(read(query(ids)))
            for query in (facts.ledger_owners, facts.copy_states, facts.naming_tables, facts.deletions_of)
        )
        for ledger_id in ids:
            rows, deleted = owners[ledger_id], deletions[ledger_id]
            stated = [
                *(_owner(row, "the ledger's row") for row in rows),
                *(_owner(row, f"deletion {row['row_id']}") for row in deleted),
            ]
            found[ledger_id] = KnownLedger(
                has_row=bool(rows),
                copies=[_copy(row) for row in copies[ledger_id]],
                owners=[owner for owner in stated if owner],
                tables=[str(row["named_by"]) for row in tables[ledger_id]],
                is_primary_deleted=any(_is_over(row) for row in deleted),
            )
    return found


def _by_ledger(rows: Iterable[Mapping[str, Any]]) -> Mapping[int, Sequence[Mapping[str, Any]]]:
    found = defaultdict(list)
    for row in rows:
        found[int(row["ledger_id"])].append(row)
    return found


def _owner(row: Mapping[str, Any], name: str) -> KnownOwner | None:
    """None where a row was damaged, or list or topic have lost theirs: it states no owner then."""
    if not row["topic"]:
        return None
    try:
        owner = LedgerOwner(
            application=row["application"],
            component=Component(row["component"]),
            topic_id=TopicId(row["topic_id"]),
            topic=row["topic"],
            keys=json.loads(row["keys"]),
        )
        return KnownOwner(digest=owner.digest, topic=owner.topic, created_us=int(row["created_us"]), row=name)
    except (ValueError, AttributeError, TypeError):
        return None


def _copy(row: Mapping[str, Any]) -> KnownCopy:
    context = context_or_none(row["context"])
    uuid = None if context is None else context.get("uuid", "")
    return KnownCopy(kind=row["kind"], uuid=uuid, is_live=row["state"] == CopyState.LIVE.value)


def _is_over(row: Mapping[str, Any]) -> bool:
    return bool(row["copy"] == CopyKind.LEDGER.value and row["state"] == DeletionState.DELETED.value)
