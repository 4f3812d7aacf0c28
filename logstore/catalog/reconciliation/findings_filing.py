"""Filing of a page of findings as intents. One transaction checks each finding again under locks.

An orphan is not filed if the catalog now has a row, an unfinished intent or a dead letter of its copy. Lock order: run,
topics, lists, intents.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, select

from logstore.catalog import tables as t
from logstore.catalog.audit_log import AuditedLedgers, insert_audit_row
from logstore.catalog.catalog_row import read_catalog_row
from logstore.catalog.deletion.intent_queries import count_filed_intents, select_fileable_ledgers
from logstore.catalog.deletion.intent_rows import insert_intents, move_intents_to_batch, replace_ledgers_by_intents
from logstore.catalog.deletion.run_rows import (
    DELETION_RUN_KIND,
    EMPTY_SUMMARY,
    SEVERAL_TOPICS,
    find_earlier_summary,
    insert_run_if_absent,
    match_stalled_intents,
    set_run_summary,
)
from logstore.catalog.engine.dialect_sql import cast_to_text, is_one_of, parse_offload_context
from logstore.catalog.log.component_ledgers import REFERRING_COLUMN_BY_COMPONENT
from logstore.catalog.log.ledger_rows import format_canonical_json, lock_ledger_lists, set_generation
from logstore.catalog.log.topics import share_lock_and_filter_active_topics
from logstore.catalog.reconciliation.rows_naming_ledgers import read_rows_naming_ledgers
from logstore.deletion.intents import DeletionState
from logstore.log.ledgers import CopyKind, LedgerState
from logstore.ports.catalog.deletion import DetachedBatch
from logstore.ports.catalog.reconciliation import (
    FindingsFilingRequest,
    FindingsFilingResult,
    FindingsToFile,
    OrphanCopy,
)
from logstore.positions import LedgerId
from logstore.reconciliation.orphan_doubts_from_rows import LedgerRows, doubt_orphan, doubt_removal_of_unreferenced

_P, _L = t.pending_deletion.c, t.ledger.c


def _fingerprint_findings(findings: FindingsToFile) -> str:
    """Return a digest of the findings. If the batch's run has another digest, another request has used the batch id."""
    orphans = sorted(
        (orphan.number, orphan.copy.value, orphan.statement.ledger_id, _upload_uuid(orphan))
        for orphan in findings.orphans
    )
    request_parts = [orphans, sorted(findings.unreferenced.items()), sorted(findings.stalled.items())]
    return hashlib.sha256(f"findings/{json.dumps(request_parts)}".encode()).hexdigest()


def file_findings(connection: Connection, page: FindingsFilingRequest, now_us: int) -> FindingsFilingResult:
    request = _fingerprint_findings(page)
    opened = EMPTY_SUMMARY | {"kept": {}, "request": request}
    summary = find_earlier_summary(connection, page.batch_id, request)
    if summary is None and not insert_run_if_absent(
        connection, page.batch_id, DELETION_RUN_KIND, opened, claim=page.claim, now_us=now_us
    ):
        summary = find_earlier_summary(connection, page.batch_id, request)  # stored by a concurrent call
    if summary is not None:
        reasons = _parse_stored_reasons(summary.pop("kept"))
        return FindingsFilingResult(detached=DetachedBatch(batch_id=page.batch_id, **summary), kept=reasons)
    return _file_under_locks(connection, page, request, now_us)


def preview_filing(connection: Connection, findings: FindingsToFile, now_us: int) -> dict[int, str]:
    summary = find_earlier_summary(connection, findings.batch_id, _fingerprint_findings(findings))
    if summary is not None:
        return _parse_stored_reasons(summary["kept"])
    return dict(_decide_what_to_file(connection, findings, now_us, lock=False).reasons)


def _parse_stored_reasons(reason_by_kept_finding: Mapping[str, str]) -> dict[int, str]:
    return {int(number): reason for number, reason in reason_by_kept_finding.items()}


def _file_under_locks(
    connection: Connection, page: FindingsFilingRequest, request: str, now_us: int
) -> FindingsFilingResult:
    _lock_topics_and_lists(
        connection, {orphan.statement.ledger_id for orphan in page.orphans} | set(page.unreferenced.values())
    )
    decision = _decide_what_to_file(connection, page, now_us, lock=True)
    reason_by_kept_finding = dict(decision.reasons)
    orphans = _file_orphans(connection, page, decision, reason_by_kept_finding, now_us)
    ledgers = {ledger_id for number, ledger_id in page.unreferenced.items() if number not in reason_by_kept_finding}
    copies = 0
    if ledgers:
        to_delete = is_one_of(connection, _L.ledger_id, ledgers)
        copies = replace_ledgers_by_intents(
            connection, to_delete, batch_id=page.batch_id, now_us=now_us, cause=page.cause
        )
    stalled_rows = {row_id for number, row_id in page.stalled.items() if number not in reason_by_kept_finding}
    resumed = (
        move_intents_to_batch(connection, is_one_of(connection, _P.row_id, stalled_rows), batch_id=page.batch_id)
        if stalled_rows
        else 0
    )
    detached = DetachedBatch(
        batch_id=page.batch_id,
        ledgers=len(ledgers),
        intents=orphans + copies + resumed,
        filed_counts=count_filed_intents(connection, page.batch_id, now_us),
    )
    filed_summary = EMPTY_SUMMARY | {"ledgers": detached.ledgers, "intents": detached.intents}
    set_run_summary(connection, page.batch_id, filed_summary | {"kept": reason_by_kept_finding, "request": request})
    insert_audit_row(
        connection,
        "file-findings",
        page.cause,
        at_us=now_us,
        topic_id=SEVERAL_TOPICS,
        topic=None,
        run_id=page.batch_id,
        detail={
            "orphans": orphans,
            "unreferenced": len(ledgers),
            "stalled": resumed,
            "kept": len(reason_by_kept_finding),
        },
        span=AuditedLedgers.from_query(connection, _P.ledger_id, _P.batch_id == page.batch_id),
    )
    return FindingsFilingResult(detached=detached, kept=reason_by_kept_finding)


def _lock_topics_and_lists(connection: Connection, ledger_ids: Iterable[int]) -> None:
    of_list = t.ledger.join(t.ledger_list, t.ledger_list.c.list_id == _L.list_id)
    query = select(_L.list_id, t.ledger_list.c.topic_id).select_from(of_list)
    rows = connection.execute(query.where(is_one_of(connection, _L.ledger_id, ledger_ids)).distinct()).all()
    share_lock_and_filter_active_topics(connection, {row.topic_id for row in rows})
    lock_ledger_lists(connection, is_one_of(connection, t.ledger_list.c.list_id, {row.list_id for row in rows}))


@dataclass(frozen=True, slots=True)
class _FilingDecision:
    reasons: Mapping[int, str]  # reasons to keep a finding, by number of the finding
    generations: Mapping[int, int]  # highest generation of each ledger that has a row or an intent
    with_row: frozenset[int]  # ledgers of orphans that have a row


def _decide_what_to_file(
    connection: Connection, findings: FindingsToFile, now_us: int, *, lock: bool
) -> _FilingDecision:
    """Decide which findings to file. With `lock`, also lock the intents. The caller has locked the lists."""
    decision = _decide_orphans_to_file(connection, findings.orphans, lock=lock)
    reasons = {
        **decision.reasons,
        **_find_reasons_to_keep_unreferenced(connection, findings.unreferenced),
        **_find_reasons_to_keep_stalled(connection, findings.stalled, now_us, lock=lock),
    }
    return _FilingDecision(reasons, decision.generations, decision.with_row)


def _decide_orphans_to_file(connection: Connection, orphans: Sequence[OrphanCopy], *, lock: bool) -> _FilingDecision:
    """Read the next ledger id before rows, and copies before intents, so that no concurrent change is overlooked."""
    catalog = read_catalog_row(connection)
    ids = {orphan.statement.ledger_id for orphan in orphans}
    rows_by_ledger = read_rows_naming_ledgers(lambda query: map(dict, connection.execute(query).mappings()), ids)
    columns = (_P.row_id, _P.ledger_id, _P.copy, _P.generation, _P.state, cast_to_text(_P.context))
    query = select(*columns).where(is_one_of(connection, _P.ledger_id, ids)).order_by(_P.row_id)
    intents = _group_by_ledger(connection.execute(query.with_for_update() if lock else query))
    ledgers = select(_L.ledger_id, _L.generation).where(is_one_of(connection, _L.ledger_id, ids))
    generation_by_ledger = {row.ledger_id: row.generation for row in connection.execute(ledgers)}
    reasons, copies = dict[int, str](), set[tuple[int, CopyKind, str]]()
    for orphan in orphans:
        ledger_id = int(orphan.statement.ledger_id)
        copy = (ledger_id, orphan.copy, _upload_uuid(orphan))
        reason = (
            _describe_foreign_id(orphan, catalog)
            or _describe_unfinished_deletion(orphan, intents[ledger_id])
            or _describe_contradicting_rows(orphan, rows_by_ledger[ledger_id])
            or (f"ledger {ledger_id}: the plan names this copy twice" if copy in copies else None)
        )
        if reason:
            reasons[orphan.number] = reason
        else:
            copies.add(copy)
    generations = {
        ledger_id: max([generation_by_ledger.get(ledger_id, 0), *(row.generation for row in intents[ledger_id])])
        for ledger_id in {*generation_by_ledger, *intents}
    }
    return _FilingDecision(reasons, generations, frozenset(generation_by_ledger))


def _file_orphans(
    connection: Connection,
    page: FindingsFilingRequest,
    decision: _FilingDecision,
    reason_by_kept_finding: dict[int, str],
    now_us: int,
) -> int:
    """File each orphan with the next generation of its ledger. Return the number of filed orphans.

    An orphan that another transaction filed meanwhile is added to `reason_by_kept_finding`.
    """
    generations, rows = dict(decision.generations), dict[int, dict[str, Any]]()
    for orphan in page.orphans:
        if orphan.number not in reason_by_kept_finding:
            ledger_id = int(orphan.statement.ledger_id)
            generations[ledger_id] = generations.get(ledger_id, 0) + 1
            rows[orphan.number] = _build_intent_row(orphan, page, generations[ledger_id], now_us)
    filed = insert_intents(connection, list(rows.values()))
    for number, row in rows.items():
        if (row["ledger_id"], row["copy"], row["generation"]) not in filed:
            reason_by_kept_finding[number] = (
                f"ledger {row['ledger_id']}: an intent for it was filed by another at the same time"
            )
    for ledger_id in decision.with_row & {row["ledger_id"] for row in rows.values()}:
        set_generation(connection, LedgerId(ledger_id), generations[ledger_id])
    return len(filed)


def _describe_foreign_id(orphan: OrphanCopy, catalog: Any) -> str | None:  # noqa: ANN401 - a row
    statement = orphan.statement
    if not 0 <= statement.ledger_id < catalog.next_ledger_id:
        return f"ledger {statement.ledger_id}: this catalog never gave out that id"
    if statement.epoch > catalog.epoch:
        return f"ledger {statement.ledger_id}: it is of catalog epoch {statement.epoch}, and this is {catalog.epoch}"
    return None


def _group_by_ledger(rows: Iterable[Any]) -> defaultdict[int, list[Any]]:
    rows_by_ledger = defaultdict(list)
    for row in rows:
        rows_by_ledger[row.ledger_id].append(row)
    return rows_by_ledger


def _describe_contradicting_rows(orphan: OrphanCopy, rows: LedgerRows) -> str | None:
    doubt = doubt_orphan(orphan.statement, orphan.copy, _upload_uuid(orphan), rows)
    return f"ledger {orphan.statement.ledger_id}: {doubt.reason}" if doubt else None


def _describe_unfinished_deletion(orphan: OrphanCopy, intents: Sequence[Any]) -> str | None:
    for row in intents:
        copy = row.copy if row.copy in set(CopyKind) else orphan.copy.value  # a damaged row may be of any copy
        if row.state != DeletionState.DELETED.value and _is_row_of_copy(orphan, copy, row.context):
            ledger_id = orphan.statement.ledger_id
            return f"ledger {ledger_id}: deletion {row.row_id}: the deletion of this copy is {row.state}"
    return None


def _is_row_of_copy(orphan: OrphanCopy, copy: str, context: str) -> bool:
    """Return whether a row with `copy` and `context` may be about the orphan. An unreadable context matches."""
    if copy != orphan.copy.value:
        return False
    fields = parse_offload_context(context)
    return orphan.copy is CopyKind.LEDGER or fields is None or fields.get("uuid", "") == _upload_uuid(orphan)


def _upload_uuid(orphan: OrphanCopy) -> str:
    return orphan.context.get("uuid", "")


def _build_intent_row(orphan: OrphanCopy, page: FindingsFilingRequest, generation: int, now_us: int) -> dict[str, Any]:
    statement, owner = orphan.statement, orphan.statement.owner
    return {
        "batch_id": page.batch_id,
        "ledger_id": statement.ledger_id,
        "copy": orphan.copy.value,
        "generation": generation,
        "application": owner.application,
        "component": owner.component.value,
        "topic_id": owner.topic_id,
        "topic": owner.topic,
        "keys": format_canonical_json(owner.keys),
        "context": dict(orphan.context),
        "segments": 0,
        "last_segment": -1,
        "ledger_created_us": statement.created_us,
        "size_bytes": orphan.size_bytes,
        "epoch": statement.epoch,
        "created_us": now_us,
        "actor": page.cause.actor,
        "reason": page.cause.reason,
    }


def _find_reasons_to_keep_unreferenced(connection: Connection, unreferenced: Mapping[int, LedgerId]) -> dict[int, str]:
    ids = set(unreferenced.values())
    of_list = t.ledger.outerjoin(t.ledger_list, t.ledger_list.c.list_id == _L.list_id)
    query = select(_L.ledger_id, _L.place, _L.state, t.ledger_list.c.component).select_from(of_list)
    ledgers = {row.ledger_id: row for row in connection.execute(query.where(is_one_of(connection, _L.ledger_id, ids)))}
    referenced_ids_by_component = {
        component: set(connection.execute(select(key).where(is_one_of(connection, key, ids))).scalars())
        for component, key in REFERRING_COLUMN_BY_COMPONENT.items()
    }
    rows = read_rows_naming_ledgers(lambda query: map(dict, connection.execute(query).mappings()), ids)
    fileable = set(connection.execute(select_fileable_ledgers(is_one_of(connection, _L.ledger_id, ids))).scalars())
    reasons = dict[int, str]()
    for number, ledger_id in unreferenced.items():
        reason = _find_reason_to_keep_ledger(ledgers.get(ledger_id), referenced_ids_by_component, rows[ledger_id])
        if reason is None and ledger_id not in fileable:
            reason = "its copies, its list or its topic have no row"
        if reason:
            reasons[number] = f"ledger {ledger_id}: {reason}"
    return reasons


def _find_reason_to_keep_ledger(
    row: Row[Any, Any, Any, Any] | None, referenced_ids_by_component: Mapping[str, set[int]], rows: LedgerRows
) -> str | None:
    if row is None:
        return "it has left the catalog"
    if row.state == LedgerState.CREATING.value:
        return "it is being created"
    is_named = (
        row.ledger_id in referenced_ids_by_component[row.component]
        if row.component in referenced_ids_by_component
        else row.place is not None
    )
    if is_named:
        return "something names it"
    doubt = doubt_removal_of_unreferenced(rows)
    return doubt.reason if doubt else None


def _find_reasons_to_keep_stalled(
    connection: Connection, stalled_rows: Mapping[int, int], now_us: int, *, lock: bool
) -> dict[int, str]:
    """Return, by number of the finding, why an intent is not stalled. With `lock`, first lock the intents."""
    is_asked = is_one_of(connection, _P.row_id, stalled_rows.values())
    if lock:
        connection.execute(select(_P.row_id).where(is_asked).order_by(_P.row_id).with_for_update())
    idle = set(connection.execute(select(_P.row_id).where(is_asked, match_stalled_intents(now_us))).scalars())
    return {
        number: f"deletion {row_id}: a workflow works on it, or it has ended"
        for number, row_id in stalled_rows.items()
        if row_id not in idle
    }
